"""Reads and writes systems, calibrations and curves of collectives."""
