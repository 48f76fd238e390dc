"""What each table may do: its cuts, kernels and limits, with the work of each."""
