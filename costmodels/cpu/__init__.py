"""Cost models of machines whose ranks are CPU cores that communicate over gloo.

All constants of one machine are fitted together by a calibration (:mod:`costmodels.calibration`).
The models cannot be scaled from a data sheet, as those of GPUs can. They are therefore built from a
calibration instead of being found by name.
"""
