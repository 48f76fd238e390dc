"""Rows of the programs of the bound: one file for each thing that they say of every plan."""
