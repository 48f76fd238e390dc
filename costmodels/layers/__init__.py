"""Kinds of layers of the dense part, as workload files name them. One file, one kind."""
