"""Snippets that calibration measures operators by: each traces to what it is called, and runs."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torchrec")

from costmodels.calibration.points import QUICK
from costmodels.cpu import dense as cpu
from planner.integrations.dense.trace import DenseTrace, trace_dense
from planner.integrations.measure.microbench_cpu import (
    SINGLES,
    Snippet,
    chain,
    measure_operators,
    operator_groups,
    timed_passes,
)
from planner.integrations.measure.pace import Pace

pytestmark = pytest.mark.torchrec


def traced(snippet: Snippet) -> DenseTrace:
    return trace_dense(snippet[0], snippet[1], batch_size=1)


@pytest.mark.parametrize("name", sorted(SINGLES))
def test_every_single_operator_is_known_to_the_trace(name: str) -> None:
    rng = np.random.default_rng(sum(map(ord, name)))
    trace = traced(SINGLES[name][1](rng))
    assert trace.remarks == ()
    assert len(trace.all_operators) <= 6


def test_all_classes_with_constants_of_their_own_are_measured() -> None:
    rng = np.random.default_rng(0)
    singles = (make(rng) for _, make in SINGLES.values())
    measured = {cpu.class_of(operator) for s in singles for operator in traced(s).all_operators}
    for _ in range(30):
        if cpu.OWN_CLASSES - {"log"} <= measured:
            break
        measured |= {cpu.class_of(operator) for operator in traced(chain(rng)).all_operators}
    assert cpu.OWN_CLASSES - {"log"} <= measured
    assert {"matmul", "batched_matmul", "attention", "elementwise"} <= measured


def test_points_have_times_and_the_same_sizes_for_the_same_seed() -> None:
    from dataclasses import replace

    effort = replace(QUICK, num_operators=4, num_chains=2)
    first, again = (
        [p for names in operator_groups(effort) for p in measure_operators(names, rng, Pace())]
        for rng in (np.random.default_rng(1), np.random.default_rng(1))
    )
    assert [p.operators for p in first] == [p.operators for p in again]
    assert all(p.forward_s > 0 and p.backward_s > 0 for p in first)
    trained = [any(o.num_parameters for o in p.operators) for p in first]
    assert [p.update_s > 0 for p in first] == trained


def test_more_work_takes_longer() -> None:
    import torch
    from torch import nn

    small, large = (
        timed_passes(nn.Linear(n, n), (torch.randn(n, n, requires_grad=True),)) for n in (16, 512)
    )
    assert all(a < b for a, b in zip(small, large, strict=True))
