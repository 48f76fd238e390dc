"""The integration with TorchRec, which plans its models; the only package that imports torch."""
