"""From shards, as columns of numbers, to the work of ranks."""
