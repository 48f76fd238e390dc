"""The true optimum: every plan that TorchRec can run, priced.

It shares nothing with the search or its listing of options. The only plans left out are mirror
images: where exchanging ranks changes no speed, no memory limit, and turns the placements of every
table into one another with the very same work, a plan and its mirror image cost the same, so the
first table is placed in one of the mirrored ways only.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray, IntArray
from costmodels.sharding import Plan
from costmodels.topology import batch_ratios
from tests.differential.case import Case, limited_topology, received_bytes
from tests.differential.drawing.options import placements
from tests.differential.judging.judge import Judge, judge_of
from tests.differential.judging.rules import kept, shard_counts

_CHUNK = 4096
_PLACES = 200_000
"""Combinations that are checked for memory and rules at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimum:
    """The least value over all plans, or infinity, and how many plans there are.

    ``num_allowed`` plans keep the rules and ``num_fitting`` of those fit; both leave out mirror
    images. Where there are too many plans to price, ``is_exact`` is false: the value is that of the
    best plan known, so the optimum is that or less.
    """

    value: float
    plan: Plan | None
    num_allowed: int
    num_fitting: int
    is_exact: bool = True


class Enumerator:
    """Every plan of one case.

    Attributes:
        choices: the placements of each table, in the workload's order; those of one table may be
            thinned out by mirror images.
    """

    def __init__(
        self, case: Case, *, wide: bool = False, mirrors: bool = True, few: int | None = None
    ) -> None:
        """List and price the placements of each table.

        Args:
            case: the question.
            wide: also cuts beyond the documented menu.
            mirrors: leave out mirror images.
            few: at most so many ways to cut and place a table, see
                :func:`tests.differential.drawing.options.placements`.
        """
        self.case = case
        self.judge: Judge = judge_of(case)
        self.choices = [placements(case, t, wide=wide, few=few) for t in case.workload.tables]
        self.works = [self.judge.works(found) for found in self.choices]
        self.counts = [
            shard_counts(case, found) if found else np.zeros((0, case.topology.world_size), int)
            for found in self.choices
        ]
        if mirrors and all(self.choices):
            self._thin_out()

    @property
    def num_plans(self) -> int:
        """Combinations of placements, before rules and memory are looked at."""
        return math.prod(len(found) for found in self.choices)

    def optimum(self) -> Optimum:
        """Price every plan that fits."""
        best, plan, allowed, fitting = math.inf, None, 0, 0
        for index, num_kept in self.fitting():
            allowed += num_kept
            for start in range(0, len(index[0]), _CHUNK):
                part = [i[start : start + _CHUNK] for i in index]
                values = self._values(part)
                fitting += len(values)
                at = int(np.argmin(values))
                if not np.isfinite(values).all():
                    msg = f"{self.case.name}: the judge gives a price that is not finite"
                    raise ArithmeticError(msg)
                if values[at] < best:
                    best, plan = float(values[at]), self.plan([int(i[at]) for i in part])
        return Optimum(value=best, plan=plan, num_allowed=allowed, num_fitting=fitting)

    def all_values(self) -> FloatArray:
        """Prices of all plans that fit, in no particular order."""
        found = [self._values(index) for index, _ in self.fitting()]
        return np.concatenate(found) if found else np.zeros(0)

    def plan(self, index: Sequence[int]) -> Plan:
        """The plan of one combination."""
        return Plan(
            placements=tuple(found[i] for found, i in zip(self.choices, index, strict=True))
        )

    def priced(self, index: Sequence[IntArray]) -> FloatArray:
        """Prices ``[N]`` of combinations, infinite where they break a rule or do not fit."""
        values = np.full(len(index[0]), np.inf)
        good = self._good(index)
        values[good] = self._values([i[good] for i in index])
        return values

    def random_plan(self, rng: np.random.Generator) -> Plan:
        """Any combination, whether it keeps the rules and fits or not."""
        return self.plan([int(rng.integers(len(found))) for found in self.choices])

    # -- private --------------------------------------------------------------------------------

    def fitting(self) -> Iterator[tuple[list[IntArray], int]]:
        """Combinations that keep the rules and fit, and how many kept the rules."""
        sizes = [len(found) for found in self.choices]
        for start in range(0, self.num_plans, _PLACES):
            flat = np.arange(start, min(start + _PLACES, self.num_plans))
            index = []
            for size in reversed(sizes):  # numpy.unravel_index takes no more than 64 tables
                flat, choice = np.divmod(flat, size)
                index.insert(0, choice)
            good = self._keep_rules(index)
            index = [i[good] for i in index]
            if good.any():
                fits = self._fit(index)
                yield [i[fits] for i in index], int(good.sum())

    def _good(self, index: Sequence[IntArray]) -> BoolArray:
        return np.asarray(self._keep_rules(index) & self._fit(index))

    def _keep_rules(self, index: Sequence[IntArray]) -> BoolArray:
        return kept(
            self.case,
            [c[i] for c, i in zip(self.counts, index, strict=True)],
            [r[i] for r, i in zip(self._received, index, strict=True)],
        )

    def _fit(self, index: Sequence[IntArray]) -> BoolArray:
        pairs = zip(self._memory, index, strict=True)
        used = sum((m[i] for m, i in pairs), start=np.zeros(1))
        return np.asarray((used <= self.judge.limits).all(axis=-1))

    def _values(self, index: Sequence[IntArray]) -> FloatArray:
        if not len(index[0]):
            return np.zeros(0)
        total = self.works[0][index[0]]
        for work, i in zip(self.works[1:], index[1:], strict=True):
            total += work[i]
        return self.judge.values(total)

    @cached_property
    def _memory(self) -> list[FloatArray]:
        return [self.judge.memory(work) for work in self.works]

    @cached_property
    def _received(self) -> list[FloatArray]:
        return [
            np.array([received_bytes(self.case, p) for p in found], dtype=np.float64)
            for found in self.choices
        ]

    def _thin_out(self) -> None:
        """Keep one of each set of mirrored placements of the table that has most of them."""
        known: dict[bytes, int] = {}
        marks = [
            [
                tuple(
                    known.setdefault(row.tobytes() + count.tobytes(), len(known))
                    for row, count in zip(work, counts, strict=True)
                )
                for work, counts in zip(works, table_counts, strict=True)
            ]
            for works, table_counts in zip(self.works, self.counts, strict=True)
        ]
        alike = [m for m in mirrors(self.case) if all(_closed(found, m) for found in marks)]
        table = max(range(len(marks)), key=lambda t: len(marks[t]))
        first = [
            i
            for i, mark in enumerate(marks[table])
            if all(mark <= tuple(mark[r] for r in mirror) for mirror in alike)
        ]
        self.choices[table] = [self.choices[table][i] for i in first]
        self.works[table] = self.works[table][first]
        self.counts[table] = self.counts[table][first]


def _closed(marks: list[tuple[int, ...]], mirror: tuple[int, ...]) -> bool:
    """Whether a mirror turns the placements of a table into one another."""
    return sorted(marks) == sorted(tuple(mark[r] for r in mirror) for mark in marks)


def mirrors(case: Case) -> Iterator[tuple[int, ...]]:
    """Exchanges of hosts, and of ranks alike in each host, that the system cannot tell."""
    topology = limited_topology(case)
    if case.limits_moves:
        return
    local, world = topology.local_world_size, topology.world_size
    domain = topology.domain_size
    speeds, device, host = topology.speeds(), topology.hbm_capacities(), topology.ddr_capacities()
    days = (case.workload, *case.scenarios)
    batches = [r for w in days if (r := batch_ratios(w, topology)) is not None]
    for hosts in itertools.permutations(range(topology.num_hosts)):
        if (host != host[list(hosts)]).any():
            continue
        for ranks in itertools.permutations(range(local)):
            mirror = tuple(h * local + r for h in hosts for r in ranks)
            at = list(mirror)
            given = (speeds, device, *batches)
            same = all((values == values[at]).all() for values in given)
            together = all(
                (a // domain == b // domain) == (mirror[a] // domain == mirror[b] // domain)
                for a in range(world)
                for b in range(a)
            )
            if same and together:
                yield mirror
