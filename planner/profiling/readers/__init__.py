"""Readers of raw indices, one module for each format; they need only numpy (and pyarrow)."""
