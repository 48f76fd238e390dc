"""A plan in use: what new data change and cost, when a new plan pays, what moving tables gives."""
