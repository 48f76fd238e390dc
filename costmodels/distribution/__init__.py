"""How the indices of one table fall on its rows. One file, one distribution."""
