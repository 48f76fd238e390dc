"""The space of plans, the value that a search minimises, and how much work a search may do."""
