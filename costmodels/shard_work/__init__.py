"""Shards as columns, and the work they add up to."""
