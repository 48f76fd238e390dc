"""GPU times of dense parts: errors with the shipped constants, and NVIDIA's steps."""

from __future__ import annotations

import numpy as np

from costmodels.dense._constants import KERNELS
from planner.validation.dense_kernels import DLRM, DOTS, PRODUCTS, points, published_steps


def errors(*, dots: bool) -> list[float]:
    kept = [
        p
        for p in points()
        if (p.family == DOTS) is dots and p.family != PRODUCTS and DLRM not in p.family
    ]
    return [abs(p.predicted_s(KERNELS) / p.measured_s - 1.0) for p in kept]


def test_shipped_constants_predict_steps_and_interactions() -> None:
    steps, dots = errors(dots=False), errors(dots=True)
    assert (len(steps), len(dots)) == (31, 26)
    assert np.mean(steps) < 0.07
    assert np.mean(dots) < 0.10


def test_a_fused_interaction_makes_published_steps_shorter() -> None:
    for step in published_steps():
        assert step.predicted.time_s < 0.75 * step.eager_s
        assert abs(step.predicted.time_s / step.measured_s - 1.0) < 0.18
