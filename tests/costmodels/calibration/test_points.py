"""Measured points."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from costmodels.calibration.points import LookupPoint, scaled, step_points, zipf_table
from costmodels.measured.cpu_constants import CpuKernel


def test_scaling_changes_all_seconds_and_nothing_else() -> None:
    lookup = LookupPoint(
        kernel=CpuKernel.FUSED,
        table=zipf_table(0, 100, 8, 2.0, 1.0),
        num_bags=16,
        forward_s=1.0,
        backward_s=3.0,
    )
    half = scaled(lookup, 0.5)
    assert (half.forward_s, half.backward_s) == (0.5, 1.5)
    assert scaled(half, 2.0) == lookup
    (drawn,) = step_points(1, 2, np.random.default_rng(0))
    step = replace(drawn, stages_s=((1.0, 2.0), (3.0, 4.0)))
    assert scaled(step, 0.5) == replace(drawn, stages_s=((0.5, 1.0), (1.5, 2.0)))
