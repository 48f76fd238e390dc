"""Converts TorchRec's modules, sharders, constraints and topologies to ours, and back."""
