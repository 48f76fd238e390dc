"""Systems, calibrations and collective curves."""
