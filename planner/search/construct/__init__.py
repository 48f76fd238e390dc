"""Makes plans from nothing: greedy planners, packings, options at sampled prices, all plans."""
