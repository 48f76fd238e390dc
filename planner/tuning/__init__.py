"""Copies of all tables on groups of ranks."""
