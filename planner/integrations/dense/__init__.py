"""Traces the dense part of a PyTorch module as a list of operators."""
