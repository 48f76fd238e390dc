"""TorchRec: its models in, its sharding plans out. The only package that imports torch."""
