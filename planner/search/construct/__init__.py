"""Plans from nothing: greedy orders, packings, sampled prices."""
