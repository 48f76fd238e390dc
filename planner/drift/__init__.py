"""A plan in use under new data: what they change, when a new plan pays, what moves would gain."""
