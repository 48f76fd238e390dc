"""Data that move away from a plan: what changed, what it costs, and when a new plan pays."""
