"""Measures this machine: microbenchmarks, real training runs, and clocks."""
