"""Machines whose ranks are CPU cores over gloo: models that a calibration fits as a whole.

Unlike the models of GPUs they do not scale from a data sheet: they hold the constants of one
machine, and are therefore built from a calibration instead of being found by name.
"""
