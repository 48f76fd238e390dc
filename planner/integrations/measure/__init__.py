"""Microbenchmarks, real runs, and clocks."""
