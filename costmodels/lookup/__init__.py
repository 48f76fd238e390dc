"""Embedding lookups, forward and backward with the fused optimizer. One file, one model."""
