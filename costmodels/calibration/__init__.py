"""Fits the constants of cost models to microbenchmarks that were run on a machine."""
