"""The options of each table: its cuts, its kernels, their limits, and their work."""
