"""The space of plans, what is made small over it, and how much work a search may do."""
