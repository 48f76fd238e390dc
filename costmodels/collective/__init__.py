"""Collective operations between ranks. One file, one model."""
