"""The dense part: MLPs and feature interaction. One file, one model."""

HELPERS = ("kernels", "rewriting")
"""Files that hold no plug-in and that other folders import."""
