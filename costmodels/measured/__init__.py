"""What was measured on a system, as numbers alone: the models that read them are in other rooms."""
