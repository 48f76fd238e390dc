"""Reads and writes workloads and lists of tables."""
