"""The dense part: MLPs and feature interaction. One file, one model."""
