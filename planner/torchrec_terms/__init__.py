"""Plans on TorchRec's own terms: its estimates, its options, its ratings."""
