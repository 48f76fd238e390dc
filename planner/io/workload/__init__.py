"""Workloads, and lists of tables."""
