"""Bounds from mixed-integer programs that another process solves beside the search.

The sets of sharding types with the least bounds get a program each, again and again. The first
program of a set has whole options. Later ones have ranks of their own for the largest pieces, more
of them each time (:mod:`~planner.search.bounds.rows.special_ranks`). Where ranks are few and alike,
the last one has every rank (:mod:`~planner.search.bounds.rows.every_rank`). Programs raise the
bound alone, so that the speed of the other process cannot change the plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from planner.search.base import Record
from planner.search.bounds.bound import RankFreeBound
from planner.search.bounds.relaxation import Relaxation, TypeSet
from planner.search.common.milp import MilpProgram
from planner.search.common.programs import effort_of, node_s
from planner.search.common.schedule import USUAL, Schedule
from planner.search.common.solver_process import SolverProcess


def left_s(record: Record) -> float:
    """Seconds by the clock that are left to a search; infinite without a time limit."""
    limit_s = record.evaluate.budget.time_limit_s
    return math.inf if limit_s is None else max(limit_s - record.evaluate.seconds, 0.01)


class Prover:
    """Raises the least bound over all sets of sharding types, a few programs at a time.

    Args:
        bounds: makes the programs.
        relaxed: the relaxation of each set of sharding types; its bound is raised in a copy.
        schedule: how much work programs may take.
    """

    def __init__(
        self,
        bounds: RankFreeBound,
        relaxed: Mapping[TypeSet | None, Relaxation],
        schedule: Schedule = USUAL,
    ) -> None:
        """Begin no program yet."""
        self._schedule = schedule
        self._bounds, self._relaxed = bounds, dict(relaxed)
        self._tries: dict[TypeSet | None, int] = {}
        self._process = SolverProcess()
        self._tasks: list[tuple[TypeSet | None, float, MilpProgram]] = []
        self._begun_s, self._left_s = 0.0, math.inf
        size = bounds.ranks_size
        self._before_ranked = next((n for most, n in schedule.ranked_after if size <= most), None)
        self._ranked: set[TypeSet | None] = set()

    @property
    def bound(self) -> float:
        """The least bound over all plans."""
        return min(r.bound for r in self._relaxed.values())

    def advance(self, record: Record) -> bool:
        """Take what programs have proven, and begin the next ones.

        It waits for programs that are not done yet, so that the outcome depends on no clock.

        Returns:
            False if no program can help.
        """
        meter = record.evaluate.meter
        if self._tasks and meter.planned_s < self._schedule.short_search_s:
            return False
        self.collect(record)
        if record.stopped or not math.isfinite(record.value):
            return False
        self._begun_s, self._left_s = meter.spent_s, meter.left_s
        return self.start(record.value, left_s(record))

    def is_due(self, spent_s: float) -> bool:
        """Whether the search has done as much work beside the programs as they may take.

        A search that has something else to do need not wait for them before that.

        Args:
            spent_s: nominal seconds that the search has spent so far.
        """
        most = self._schedule.program_nodes
        most_s = sum((p.max_nodes or most) * node_s(p) for _, _, p in self._tasks)
        return spent_s - self._begun_s >= most_s

    def collect(self, record: Record) -> None:
        """Wait for the programs that were begun, and take what they prove.

        Their work counts as work of the search as far as the search did less meanwhile.
        """
        if self._tasks:
            meter = record.evaluate.meter
            beside_s = meter.spent_s - self._begun_s
            meter.spend(max(self.finish(lambda: record.cut) - beside_s, 0.0))
            record.raise_bound(min(self.bound, record.value), "programs")

    def start(self, incumbent: float, time_limit_s: float) -> bool:
        """Begin the next programs.

        Args:
            incumbent: the objective of the best plan.
            time_limit_s: seconds by the clock for all of them.

        Returns:
            False if no program can help.
        """
        programs: list[MilpProgram] = []
        schedule = self._schedule
        most_s = min(schedule.program_s, schedule.program_share * self._left_s)
        ordered = sorted(self._relaxed, key=lambda t: self._relaxed[t].bound)
        for types in ordered[: schedule.programs_at_once]:
            relaxation, tries = self._relaxed[types], self._tries.get(types, 0)
            if relaxation.bound >= incumbent:
                break
            special = None if tries == self._before_ranked else self._special(relaxation, tries)
            if special is None:
                if not programs:
                    return self._start_ranked(types, incumbent, time_limit_s)
                break
            whole, unit = self._bounds.program(types, special=special)
            program = self._within(whole, most_s)
            programs.append(program)
            self._tasks.append((types, unit, program))
        if programs:
            gap_ratio = schedule.program_gap_ratio
            self._process.start(programs, time_limit_s=time_limit_s, gap_ratio=gap_ratio)
        return bool(programs)

    def _start_ranked(self, types: TypeSet | None, incumbent: float, time_limit_s: float) -> bool:
        """Begin the program with every rank, if it may be built and was not begun before.

        It gets the share of the work left that is for such programs, divided by the number of sets
        that may have better plans.
        """
        bound, schedule = self._relaxed[types].bound, self._schedule
        close = bound >= incumbent * (1 - schedule.ranked_gap_ratio)
        if close or self._before_ranked is None or types in self._ranked:
            return False
        self._ranked.add(types)
        open_sets = sum(r.bound < incumbent for r in self._relaxed.values())
        program, unit = self._bounds.whole_program(types, bound=bound, incumbent=incumbent)
        program = self._within(program, schedule.ranked_share * self._left_s / open_sets)
        self._tasks.append((types, unit, program))
        gap_ratio = schedule.program_gap_ratio
        self._process.start([program], time_limit_s=time_limit_s, gap_ratio=gap_ratio)
        return True

    def finish(self, stopped: Callable[[], bool]) -> float:
        """Wait for the programs that were begun, and take what they prove.

        Args:
            stopped: is asked often; True ends the process.

        Returns:
            The nominal seconds of all of them.
        """
        tasks, self._tasks = self._tasks, []
        solutions = self._process.result(stopped) if tasks else []
        spent_s = 0.0
        for (types, unit, program), solution in zip(tasks, solutions, strict=False):
            known = self._relaxed[types]
            self._relaxed[types] = replace(known, bound=max(known.bound, solution.bound * unit))
            self._tries[types] = self._tries.get(types, 0) + 1
            spent_s += effort_of(program, solution)
        return spent_s

    def close(self) -> None:
        """End the process."""
        self._process.close()

    def _special(self, relaxation: Relaxation, tries: int) -> tuple[int, ...] | None:
        """Tables whose largest piece gets a rank of its own in the next attempt.

        Args:
            relaxation: says which pieces are large.
            tries: number of attempts before.

        Returns:
            None if there would be no more of them than in the attempt before.
        """
        if tries == 0:
            return ()
        variables = self._schedule.special_variables
        most = max(variables // len(self._bounds.space.options), 1)
        counts = [0, *(min(count, most) for count in self._schedule.special_ranks)]
        if tries >= len(counts) or counts[tries] == counts[tries - 1]:
            return None
        if relaxation.phases is None or relaxation.shares is None:
            relaxation = self._bounds.relax(relaxation.types, rounds=2)
        found = self._bounds.tables_with_large_pieces(relaxation, counts[tries])
        return found if len(found) > counts[tries - 1] else None

    def _within(self, program: MilpProgram, seconds: float) -> MilpProgram:
        """The program with as many nodes as it needs for so many nominal seconds."""
        nodes = min(max(seconds / node_s(program), 1.0), self._schedule.program_nodes)
        return replace(program, max_nodes=int(nodes))
