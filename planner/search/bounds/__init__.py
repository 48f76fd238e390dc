"""Computes what no plan of a search space can go below, and proves that nothing fits."""
