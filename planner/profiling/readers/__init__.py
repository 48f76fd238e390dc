"""Formats of raw indices. One file, one format; they need nothing but numpy (and pyarrow)."""
