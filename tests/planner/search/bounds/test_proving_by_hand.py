"""Which programs are solved beside a search, in what order and for how long, told by a script."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from costmodels.sharding import ShardingType
from planner.search.bounds import proving
from planner.search.bounds.proving import Prover
from planner.search.bounds.relaxation import Relaxation, TypeSet
from planner.search.common.milp import MilpProgram, Rows, Solution
from planner.search.common.programs import effort_of, node_s
from planner.search.common.schedule import USUAL
from planner.space.effort import Meter

A, B, C = (
    frozenset({kind})
    for kind in (ShardingType.TABLE_WISE, ShardingType.ROW_WISE, ShardingType.COLUMN_WISE)
)
UNIT = 2.0
"""Seconds that are 1 in every program."""
EVERY = None
"""Stands for every rank among the special ones that were asked for."""


def program() -> MilpProgram:
    rows = Rows.dense(np.ones((40, 1)), np.zeros(40), np.ones(40))
    return MilpProgram(cost=np.ones(1), upper=np.ones(1), rows=rows, integer=np.ones(1, dtype=bool))


@dataclass
class Script:
    """Bounds and a process that answers as it is told; it keeps what is asked.

    Attributes:
        proves: what each program proves, in its own unit.
        options: how many there are.
        ranks_size: variables of every rank.
        large: how many tables have large pieces.
        answered: how many programs of a batch are solved in time.
    """

    proves: float = 0.0
    options: int = 10
    ranks_size: float = math.inf
    large: int = 100
    answered: int = 100
    asked: list[tuple[TypeSet | None, object]] = field(default_factory=list)
    ranges: list[tuple[float, float]] = field(default_factory=list)
    relaxed: list[tuple[TypeSet | None, int]] = field(default_factory=list)
    given: list[MilpProgram] = field(default_factory=list)
    closed: bool = False

    @property
    def space(self) -> object:
        return SimpleNamespace(options=[None] * self.options)

    def program(self, types: TypeSet, *, special: Sequence[int]) -> tuple[MilpProgram, float]:
        self.asked.append((types, len(special)))
        return program(), UNIT

    def whole_program(
        self, types: TypeSet, *, bound: float, incumbent: float
    ) -> tuple[MilpProgram, float]:
        self.asked.append((types, EVERY))
        self.ranges.append((bound, incumbent))
        return program(), UNIT

    def tables_with_large_pieces(self, relaxation: Relaxation, count: int) -> tuple[int, ...]:
        assert relaxation.shares is not None
        return tuple(range(min(count, self.large)))

    def relax(self, types: TypeSet, *, rounds: int) -> Relaxation:
        self.relaxed.append((types, rounds))
        return relaxation(types, 0.0)

    def start(self, programs: list[MilpProgram], *, time_limit_s: float, gap_ratio: float) -> None:
        assert time_limit_s == 5.0
        self.given = programs

    def result(self, stopped: Callable[[], bool]) -> list[Solution]:
        found = Solution(bound=self.proves, x=None, reduced_costs=None, pivots=3, nodes=2)
        return [found] * min(len(self.given), self.answered)

    def close(self) -> None:
        self.closed = True


def relaxation(types: TypeSet, bound: float) -> Relaxation:
    return Relaxation(types=types, bound=bound, shares=np.ones(1), phases=np.ones(1))


@pytest.fixture
def prover_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Prover]:
    def made(script: Script, **bounds: float) -> Prover:
        monkeypatch.setattr(proving, "SolverProcess", lambda: script)
        names = {"a": A, "b": B, "c": C}
        given = {names[n]: relaxation(names[n], bound) for n, bound in bounds.items()}
        return Prover(cast("Any", script), given)

    return made


def attempts(prover: Prover, incumbent: float) -> int:
    count = 0
    while prover.start(incumbent, 5.0):
        assert prover.finish(lambda: False) > 0
        count += 1
        assert count < 30
    return count


def test_the_two_least_bounds_are_raised_at_a_time(prover_of: Callable[..., Prover]) -> None:
    script = Script(proves=0.75)
    prover = prover_of(script, a=1.2, b=1.0, c=1.1)
    assert prover.bound == 1.0
    assert prover.start(3.0, 5.0)
    assert script.asked == [(B, 0), (C, 0)]
    spent_s = prover.finish(lambda: False)
    assert spent_s == pytest.approx(2 * effort_of(program(), _solution()))
    assert prover.bound == 1.2, "0.75 of its unit is 1.5"
    assert prover.start(3.0, 5.0)
    assert script.asked[2:] == [(A, 0), (B, 2)]
    script.proves = 0.1
    prover.finish(lambda: False)
    assert prover.bound == 1.2, "what is known is kept"
    assert prover.finish(lambda: False) == 0.0, "nothing was begun"


def test_sets_that_hold_no_better_plan_are_not_looked_at(prover_of: Callable[..., Prover]) -> None:
    script = Script()
    assert not prover_of(script, a=1.0, b=1.5).start(1.0, 5.0)
    assert script.asked == []
    assert prover_of(script, a=1.0, b=1.5).start(1.5, 5.0)
    assert script.asked == [(A, 0)]


def test_what_is_not_solved_in_time_is_not_counted(prover_of: Callable[..., Prover]) -> None:
    script = Script(proves=0.9, answered=1)
    prover = prover_of(script, a=1.0, b=1.1)
    prover.start(3.0, 5.0)
    prover.finish(lambda: False)
    assert prover.bound == 1.1
    prover.start(3.0, 5.0)
    assert script.asked[2:] == [(B, 0), (A, 2)], "the second one is asked for again"


@pytest.mark.parametrize(
    ("options", "large", "counts"),
    [
        (10, 100, [0, 2, 4, 8]),
        (10, 6, [0, 2, 4, 6]),
        (10, 4, [0, 2, 4]),
        (10, 1, [0, 1]),
        (10, 0, [0]),
        (3_000, 100, [0, 2, 4]),
        (4_000, 100, [0, 2, 3]),
        (6_000, 100, [0, 2]),
        (50_000, 100, [0, 1]),
    ],
)
def test_special_ranks_grow_as_long_as_there_are_more(
    prover_of: Callable[..., Prover], options: int, large: int, counts: list[int]
) -> None:
    """As far as there are large pieces, and as programs stay below 12 000 further variables."""
    script = Script(options=options, large=large)
    prover = prover_of(script, a=1.0)
    assert attempts(prover, 3.0) == len(counts)
    assert script.asked == [(A, count) for count in counts]
    assert script.relaxed == [], "the solution that is known says which pieces are large"
    prover.close()
    assert script.closed


@pytest.mark.parametrize(("most", "before"), USUAL.ranked_after)
def test_every_rank_comes_once_after_some_attempts(
    prover_of: Callable[..., Prover], most: int, before: int
) -> None:
    """With more variables later; not where the bound is all but the plan."""
    script = Script(ranks_size=most)
    attempts(prover_of(script, a=1.0), 3.0)
    assert [special for _, special in script.asked].index(EVERY) == before
    assert [special for _, special in script.asked].count(EVERY) == 1
    assert script.ranges == [(1.0, 3.0)]
    later = Script(ranks_size=most + 1)
    attempts(prover_of(later, a=1.0), 3.0)
    asked = [special for _, special in later.asked]
    assert EVERY not in asked[: before + 1]
    for gap, there in ((2e-3, False), (4e-3, True)):
        close = Script(ranks_size=most)
        attempts(prover_of(close, a=1.0 - gap), 1.0)
        assert (EVERY in [special for _, special in close.asked]) is there


def test_a_set_without_a_solution_is_solved_before_its_pieces_are_looked_at(
    prover_of: Callable[..., Prover],
) -> None:
    script = Script()
    prover = prover_of(script, a=1.0)
    prover._relaxed[A] = Relaxation(types=A, bound=1.0, shares=np.ones(1))
    attempts(prover, 3.0)
    assert script.relaxed
    assert set(script.relaxed) == {(A, 2)}


class Search:
    """A record of a search: its value, and work that is spent."""

    def __init__(self, value: float, most_s: float = math.inf) -> None:
        self.value, self.stopped, self.cut = value, False, False
        self.told: list[float] = []
        budget = SimpleNamespace(time_limit_s=6.0)
        self.evaluate = SimpleNamespace(meter=Meter(most_s), budget=budget, seconds=1.0)

    def raise_bound(self, bound: float, phase: str) -> None:
        self.told.append(bound)


@pytest.mark.parametrize(
    ("ranks_size", "left_s", "share"), [(math.inf, 3.0, 0.5), (math.inf, 9.0, None), (1, 3.0, 0.5)]
)
def test_programs_get_a_part_of_the_work_that_is_left(
    prover_of: Callable[..., Prover], ranks_size: float, left_s: float, share: float | None
) -> None:
    """Half of it and two seconds at most; with every rank nine tenths, shared by the open sets."""
    script = Script(ranks_size=ranks_size)
    prover, record = prover_of(script, a=1.0), Search(3.0, left_s)
    assert prover.advance(cast("Any", record))
    seconds = 2.0 if share is None else share * left_s
    assert [p.max_nodes for p in script.given] == [int(seconds / node_s(program()))]
    if ranks_size == 1:
        prover.collect(cast("Any", record))
        left_s = record.evaluate.meter.left_s
        assert prover.advance(cast("Any", record))
        assert script.asked[-1] == (A, EVERY)
        nodes = min(int(0.9 * left_s / node_s(program())), USUAL.program_nodes)
        assert [p.max_nodes for p in script.given] == [nodes]


@pytest.mark.parametrize(
    ("others", "open_sets"),
    [({}, 1), ({"b": 3.0}, 1), ({"b": 3.5}, 1), ({"b": 2.9}, 2), ({"b": 2.0, "c": 2.5}, 3)],
)
def test_programs_with_every_rank_share_work_among_sets_that_may_have_better_plans(
    prover_of: Callable[..., Prover], others: dict[str, float], open_sets: int
) -> None:
    """The plan takes 3; sets whose bounds are not below it need no program."""
    script, left_s = Script(ranks_size=1, large=0), 1.0
    prover = prover_of(script, a=1.0, **others)
    prover._tries[A] = 1
    assert prover.advance(cast("Any", Search(3.0, left_s)))
    assert script.asked == [(A, EVERY)]
    nodes = int(USUAL.ranked_share * left_s / open_sets / node_s(program()))
    assert [p.max_nodes for p in script.given] == [nodes]


def test_work_beside_the_search_counts_once(prover_of: Callable[..., Prover]) -> None:
    """What takes no longer than what the search did meanwhile costs nothing more."""
    took_s = effort_of(program(), _solution())
    for beside_s in (0.0, 0.4 * took_s, 5.0 * took_s):
        script = Script(proves=0.9)
        prover, record = prover_of(script, a=1.0), Search(1.5)
        meter = record.evaluate.meter
        meter.spend(7.0)
        assert prover.advance(cast("Any", record))
        meter.spend(beside_s)
        prover.collect(cast("Any", record))
        assert meter.spent_s == pytest.approx(7.0 + max(beside_s, took_s))
        assert record.told == [1.5], "never above the plan itself"
        prover.collect(cast("Any", record))
        assert record.told == [1.5], "nothing more was begun"


def test_programs_are_due_when_as_much_was_done_beside_them(
    prover_of: Callable[..., Prover],
) -> None:
    script = Script()
    prover, record = prover_of(script, a=1.0), Search(3.0)
    meter = record.evaluate.meter
    meter.spend(7.0)
    assert prover.is_due(meter.spent_s), "nothing is begun"
    assert prover.advance(cast("Any", record))
    most_s = sum((p.max_nodes or 0) * node_s(program()) for p in script.given)
    assert most_s > 0
    meter.spend(0.9 * most_s)
    assert not prover.is_due(meter.spent_s)
    meter.spend(0.2 * most_s)
    assert prover.is_due(meter.spent_s)


def _solution() -> Solution:
    return Solution(bound=0.0, x=None, reduced_costs=None, pivots=3, nodes=2)


def test_short_and_ended_searches_begin_nothing_more(prover_of: Callable[..., Prover]) -> None:
    script = Script()
    prover, short = prover_of(script, a=1.0), Search(3.0, 0.5)
    assert prover.advance(cast("Any", short))
    assert not prover.advance(cast("Any", short)), "it is waited for at the end"
    assert short.told == []
    longer = Search(3.0, 0.7)
    prover = prover_of(script, a=1.0)
    assert prover.advance(cast("Any", longer))
    assert prover.advance(cast("Any", longer)), "from 0.6 seconds on programs are begun again"
    assert len(longer.told) == 1
    for value, stopped in ((math.inf, False), (3.0, True)):
        record = Search(value)
        record.stopped = stopped
        assert not prover_of(script, a=1.0).advance(cast("Any", record))
    assert proving.left_s(cast("Any", short)) == 5.0
    short.evaluate.seconds = 8.0
    assert 0 < proving.left_s(cast("Any", short)) < 0.1
    short.evaluate.budget.time_limit_s = None
    assert math.isinf(proving.left_s(cast("Any", short)))
