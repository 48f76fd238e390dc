"""A box around durations that are known in closed form: chords, cuts, errors, and parts of it."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from costmodels.datatypes import FloatArray
from costmodels.floors.floor import Leaf, Path
from planner.objectives import objective_named
from planner.search.bounds.bound_program import RankFreeProgram
from planner.search.bounds.boxes import Box, BoxLaunches
from planner.search.common.linear import LinearModel
from planner.space.objective import Cut
from tests.planner import cases
from tests.planner.search.test_boxes import _branching, _least_s, _small

STEP = 1e-3
"""Seconds that no plan avoids."""


class Chain:
    """One chain of three durations: roots of phases 2 and 0, and a line in phase 2 again."""

    def __init__(self) -> None:
        self.sampled: list[tuple[float, float]] = []
        self.phases = np.array([2, 0, 2])
        self.leaves = (self._leaf(2), self._leaf(0), self._line())

    def _leaf(self, phase: int) -> Leaf:
        def seconds(size: FloatArray) -> FloatArray:
            self.sampled.append((float(size[0]), float(size[-1])))
            return np.asarray(np.sqrt(size))

        return Leaf(phase=phase, is_line=False, duration_s=seconds, constant_s=0.0, slope_ratio=0.0)

    def _line(self) -> Leaf:
        return Leaf(
            phase=2, is_line=True, duration_s=lambda x: 0.5 + 2 * x, constant_s=0.5, slope_ratio=2.0
        )

    def longest_path(self, leaves: FloatArray) -> Path:
        assert leaves.shape == (3,)
        return Path(constant_s=STEP, counts=np.array([1.0, 3.0, 1.0]))

    def seconds(self, leaves: FloatArray) -> FloatArray:
        return np.asarray(STEP + leaves @ np.array([1.0, 3.0, 1.0]))

    def leaf_seconds(self, points: FloatArray) -> FloatArray:
        first, second, third = points.T
        return np.stack([np.sqrt(first), np.sqrt(second), 0.5 + 2 * third], axis=-1)


LOW, HIGH = np.array([1.0, 4.0, 1.0]), np.array([4.0, 9.0, 4.0])
NONE = BoxLaunches(calls=(), seconds=np.zeros(3), num_counted=0)
AT = np.array([6.25, math.nan, 2.25, math.nan])
"""Phases between the limits; two of them are on no side."""
CHORD = 1 + (2.25 - 1) / 3, 2 + (6.25 - 4) / 5
"""Straight lines from (1, 1) to (4, 2) and from (4, 2) to (9, 3)."""


def boxed(chain: Chain) -> Box:
    return Box(cast("Any", chain), 4, LOW, HIGH, NONE)


def exact_s(first: float, second: float) -> float:
    return STEP + first + 3 * second + 0.5 + 2 * 2.25


def test_cuts_are_the_chords_of_the_chain() -> None:
    """But for a sample of each chord, in the unit of the objective."""
    box = boxed(Chain())
    cut = box.cut(AT)
    slopes = np.array([3 / 5, 0.0, 1 / 3 + 2, 0.0])
    assert cut.slopes == pytest.approx(slopes)
    value = cut.base + float(np.nansum(cut.slopes * AT))
    expected = exact_s(*CHORD)
    one_sample = (1 + 3) / 64
    assert expected - one_sample - 1e-9 <= value <= expected
    assert value > expected - 1.1 * one_sample
    sides = AT[box.first][None]
    exact = exact_s(math.sqrt(2.25), math.sqrt(6.25))
    assert box.exact_times(sides) == pytest.approx([exact])
    assert cases.relaxed(box, sides) == pytest.approx([value])


def test_errors_are_what_each_chord_gives_away() -> None:
    box = boxed(Chain())
    found = box.errors(AT)
    in_seconds = Box(cast("Any", Chain()), 4, LOW, HIGH, NONE)
    assert in_seconds.errors(AT) == pytest.approx(found), "unless the objective has another unit"
    one_sample = np.array([1, 3, 0]) / 64
    expected = [math.sqrt(2.25) - CHORD[0], 3 * (math.sqrt(6.25) - CHORD[1]), 0.0]
    assert found == pytest.approx(expected + one_sample, abs=1e-9)
    outside = box.errors(np.array([100.0, 0.0, 100.0]))
    assert outside == pytest.approx(one_sample, abs=1e-9), "phases are taken to the limits"


def test_a_part_keeps_cuts_and_chords_of_sides_that_are_the_same() -> None:
    chain = Chain()
    box = boxed(chain)
    box.cuts.append(Cut(base=1.0, slopes=np.zeros(4)))
    chain.sampled.clear()
    low = np.array([1.0, 6.0, 1.0])
    part = box.part(low, HIGH)
    assert chain.sampled == [(6.0, 9.0)]
    assert len(part.cuts) == 1
    part.cuts.append(Cut(base=2.0, slopes=np.zeros(4)))
    assert len(box.cuts) == 1
    assert part.cut(AT).slopes[0] == pytest.approx(3 * (3 - math.sqrt(6)) / 3)
    assert part.cut(AT).slopes[2] == pytest.approx(box.cut(AT).slopes[2])
    assert cases.relaxed(part, AT[part.first][None]) >= cases.relaxed(box, AT[box.first][None])
    assert part.launches is box.launches


def test_sides_have_a_width() -> None:
    """Limits that are equal are moved apart by next to nothing, upwards."""
    box = Box(cast("Any", Chain()), 4, LOW, LOW, NONE)
    assert (box.high > LOW).all()
    assert box.high - LOW == pytest.approx(np.full(3, 1e-9 * LOW.max()), rel=1e-5)
    assert box.low == pytest.approx(LOW, rel=0)
    nothing = Box(cast("Any", Chain()), 4, np.zeros(3), np.zeros(3), NONE)
    assert (nothing.high > 0).all(), "a chord has a slope also where no phase takes any time"
    assert np.isfinite(nothing.cut(np.zeros(4)).slopes).all()


def test_a_flat_side_counts_as_at_its_low_end_wherever_its_phase_is() -> None:
    """No program tells where the phase is, so that it may also lie above the box."""
    flat = np.array([False, True, False])
    box = boxed(Chain()).part(LOW, HIGH, flat=flat)
    assert box.part(LOW, HIGH).flat.tolist() == flat.tolist()
    one_sample = 1 / 64
    least_s = exact_s(CHORD[0], math.sqrt(4.0)) - one_sample
    cut = box.cut(AT)
    assert cut.slopes[0] == 0.0
    assert cut.base + cut.slopes[2] * 2.25 == pytest.approx(least_s)
    assert cases.relaxed(box, np.array([[2.25, 100.0, 2.25]])) == pytest.approx(least_s)


def test_a_call_is_on_as_many_ranks_as_its_load_needs_and_each_launch_counts() -> None:
    """Of 5 s at most: ``mean load <= 5 share`` of a call, and ``mean + 3 shares - z <= 3 counted``.

    The shares of ranks with each of the calls add up. Two launches are counted already; one more
    takes 3 s.
    """
    space = cases.space(cases.workload((cases.table("a"), cases.table("b"))), cases.topology(1, 2))
    made = RankFreeProgram(LinearModel(space, objective_named("phases", space)))
    model, count, scale, high, launch = made.model, len(space.options), 2.0, 5.0, 3.0
    kinds = [(o.sharding_type, o.kernel) for o in space.options]
    calls = sorted({c for c, o in zip(kinds, space.options, strict=True) if not o.is_uniform})
    own = slice(made._end, made._end + len(calls))
    assert len(calls) > 1
    loaded = [
        all(model.mean[[kind == call for kind in kinds], start].any() for call in calls)
        for start in model.starts
    ]
    last = int(np.flatnonzero(loaded)[-1])
    assert last > 0
    launches = BoxLaunches(calls=tuple(calls), seconds=np.array([launch]), num_counted=2)
    first, most = model.used[last : last + 1], np.array([high])
    box = cast("Any", SimpleNamespace(first=first, high=most, launches=launches))
    size = made._end + len(calls) + 1
    rows = made._launched(box, scale, size)
    matrix = np.zeros((len(rows.upper), size))
    matrix[rows.row, rows.column] = rows.values
    of_tangents, of_calls = matrix[: -len(calls)], matrix[-len(calls) :]
    assert len(of_tangents) == len(made.members(last)) > 0
    for tangent, row in zip(made.members(last), of_tangents, strict=True):
        expected = np.zeros(size)
        expected[made._first_mean + tangent], expected[count + last] = 1.0, -1.0
        expected[own] = launch / scale
        assert row == pytest.approx(expected)
    for i, (call, row) in enumerate(zip(calls, of_calls, strict=True)):
        expected = np.zeros(size)
        for o, kind in enumerate(kinds):
            if kind == call:
                expected[o] = model.mean[o, model.starts[last]] / scale
        expected[made._end + i] = -high / scale
        assert row == pytest.approx(expected, rel=1e-6)
        assert -row[made._end + i] * scale >= high, "rounding makes no rank at the limit too full"
    assert rows.upper == pytest.approx(
        [*[launch * 2 / scale] * len(of_tangents), *[0.0] * len(calls)]
    )


def test_rounding_never_takes_a_plan_at_the_limits_out_of_a_program() -> None:
    """Limits of variables hold every value up to those of the box, and hardly any other one."""
    space = cases.space(cases.workload((cases.table("a"), cases.table("b"))), cases.topology(1, 2))
    made = RankFreeProgram(LinearModel(space, objective_named("phases", space)))
    model, count, used = made.model, len(space.options), len(made.model.used)
    rng = np.random.default_rng(0)
    low = rng.uniform(0.1, 0.3, used) * made.scale
    high = rng.uniform(0.4, 0.9, used) * made.scale
    box = cast("Any", SimpleNamespace(first=model.used, low=low, high=high, launches=NONE, cuts=[]))
    program = made.build(None, [], [], [], box=box)
    assert program.lower is not None
    of_phases = slice(count, count + used)
    least, most = program.lower[of_phases] * made.scale, program.upper[of_phases] * made.scale
    assert (least < low).all()
    assert (most > high).all()
    assert [*least, *most] == pytest.approx([*low, *high], rel=1e-8)
    of_uniform = slice(count + used, count + used + model.num_tangents)
    loads = model.loads(space.pool)
    dearest = np.zeros(model.num_tangents)
    for table in range(space.num_tables):
        each = [
            loads[space.rows[o], : model.num_tangents].reshape(-1, model.num_tangents).min(axis=0)
            for o in np.flatnonzero((space.table_of == table) & space.is_uniform)
        ]
        dearest += np.max(each, axis=0)
    assert (program.upper[of_uniform] * made.scale >= dearest).all()
    assert program.upper[of_uniform] * made.scale == pytest.approx(dearest, rel=1e-8)


@pytest.mark.parametrize("seed", cases.first([9, 3, 2, 6], 2))
def test_a_dozen_splits_close_three_quarters_of_the_gap(seed: int) -> None:
    """Of the gap to the best of all plans, where durations bend most."""
    space, best = _small(seed), _least_s(seed)
    branching = _branching(space, cast("Any", objective_named("iteration", space)), frozenset())
    before = branching.bound(math.inf)
    found = [branching.step(1.05 * best) for _ in range(12)]
    assert all(relaxation is not None for relaxation in found[:3]), "there is nothing to round"
    assert branching.bound(1.05 * best) - before >= 0.75 * (best - before)
