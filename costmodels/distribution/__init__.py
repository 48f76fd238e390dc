"""How the indices of one table fall on its rows. One file, one distribution."""

HELPERS = ("laws", "samples")
"""Files that hold no plug-in and that other folders import."""
