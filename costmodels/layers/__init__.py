"""Kinds of layers of the dense part, as workload files name them. One file, one kind."""

HELPERS = ("dense_part", "parts")
"""Files that hold no plug-in and that other folders import."""
