"""Reads files of other tools as workloads and plans."""
