"""Plans judged as TorchRec judges them: by its estimates, over its options, with its ratings."""
