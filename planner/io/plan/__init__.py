"""Reads and writes plans and results."""
