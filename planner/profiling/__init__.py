"""Measures index statistics of tables from raw indices."""
