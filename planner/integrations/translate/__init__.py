"""TorchRec's modules, sharders, constraints and topologies in our nouns, and back."""
