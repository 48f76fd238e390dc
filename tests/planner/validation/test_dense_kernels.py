"""GPU times of dense parts: errors with the shipped constants, and NVIDIA's steps."""

from __future__ import annotations

import numpy as np

from costmodels.dense.kernels import KERNELS
from planner.validation.kernels import (
    DLRM,
    DOTS,
    EAGER,
    GRAPHS,
    PRODUCTS,
    dense_cases,
    published_steps,
)


def errors() -> dict[str, list[float]]:
    """Errors with the shipped constants: of dense steps, DLRMs, interactions and graphs."""
    found: dict[str, list[float]] = {}
    for p in dense_cases():
        name = DLRM if p.groups["family"].startswith(DLRM) else p.groups["family"]
        group = name if name in (DLRM, DOTS, GRAPHS, PRODUCTS) else "dense"
        found.setdefault(group, []).append(abs(p.seconds(KERNELS) / p.measured_s - 1.0))
    return found


def test_shipped_constants_predict_steps_and_interactions() -> None:
    found = errors()
    most = {"dense": (31, 0.07), DLRM: (20, 0.07), DOTS: (26, 0.10), GRAPHS: (3, 0.12)}
    for group, (count, error) in most.items():
        assert len(found[group]) == count
        assert np.mean(found[group]) < error


def test_a_fused_interaction_makes_published_steps_shorter() -> None:
    for step in published_steps():
        assert step.shipped.time_s < 0.75 * step.predicted[EAGER].time_s
        assert abs(step.error_ratio) < 0.10
