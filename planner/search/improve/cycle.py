"""Cycles of ruin and recreate, which go from cheap plans to balanced ones.

Loads are easiest to balance with many small pieces; but these cost more in total. Options that cost
little in total leave a few ranks far above the mean. Therefore a cycle has several stages. The
first one gives much weight to the mean over ranks and has a soft maximum (a low power of the norm,
see ``partial_plan.py``). The last one gives hardly any weight to the mean and has a hard maximum.
The objective itself prices the best plans of a cycle.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray, IntArray
from planner.search.base import Record
from planner.search.common.linear import LinearModel
from planner.search.improve.partial_plan import Menu, PartialPlan
from planner.search.improve.ruin import Cooling, Ruiner
from planner.space.evaluation import Assignment, SearchSpace
from planner.space.objective import Cut

STAGES: Final = ((32, 4.0), (64, 2.0), (128, 1.0), (128, 0.5), (128, 0.2), (128, 0.05))
"""Power of the norm, and weight of the mean over ranks (thrift), in each stage of a cycle."""
LATE_STAGES: Final = STAGES[2:]
"""Stages of a cycle that begins with a good plan, which the first stages would spoil."""
_HOT_RATIO: Final = 1e-4
_COLD_RATIO: Final = 1e-6
"""Temperature at the beginning and at the end of each stage, as a share of the objective. Hotter
stages leave poor plans more easily, colder ones keep good ones."""
_CLOSE: Final = 1.002
"""Plans are priced by the objective if their minorant is within this factor of the least one of the
cycle: the objective may order such plans otherwise. Each price takes time from the walk."""
_CHEAP: Final = 50_000
"""Tables times ranks above which only plans with a smaller minorant than all before are priced,
because pricing takes long there."""
_BATCH: Final = 16
"""Plans that are priced together, which takes less time than one by one."""
_HOT_RANKS: Final = 3
"""Times that the minorant gets tangents at the fullest rank of each phase. More tangents bring it
closer to the objective, and every insertion takes longer."""
_LEAST_SCALE: Final = 0.02
"""Least scale of a phase, as a share of the longest phase. Otherwise tiny phases would count like
long ones."""


class Cycles:
    """Runs the cycles of one search.

    Args:
        space: options and places.
        menu: of the same space.
        record: is offered the plans that are priced.
        rng: of all random choices.
        shares_out: whether some steps share out the pieces of two ranks or hosts.
    """

    def __init__(
        self,
        space: SearchSpace,
        menu: Menu,
        record: Record,
        rng: np.random.Generator,
        *,
        shares_out: bool = True,
    ) -> None:
        """Keep the parts; nothing is searched yet."""
        self.space = space
        self.menu = menu
        self.record = record
        self.rng = rng
        self._shares_out = shares_out
        self._close = _CLOSE if space.num_tables * space.world_size <= _CHEAP else 1 - 1e-6
        self._queue: list[Assignment] = []
        self._minorant = np.inf
        self._found: tuple[float, Assignment | None] = (np.inf, None)

    def run(
        self,
        start: Assignment,
        cuts: Sequence[Cut],
        allowed: BoolArray,
        steps: int,
        stages: Sequence[tuple[int, float]] = STAGES,
    ) -> Assignment:
        """Run one cycle.

        Args:
            start: the plan to begin with.
            cuts: cuts of the objective that hold for all ``allowed`` options.
            allowed: ``[n]`` True for options that are worth trying.
            steps: number of steps in each stage.
            stages: power of the norm, and weight of the mean, of each stage.

        Returns:
            The plan with the smallest objective of those that were priced, the start included.
        """
        model = self._model(start, cuts)
        kept = self._kept(start, allowed)
        meter = self.record.evaluate.meter
        ruiner = Ruiner(
            model,
            self.menu,
            kept,
            self.rng,
            lambda: self.record.stopped,
            meter,
            shares_out=self._shares_out,
        )
        self._found = (self.record.evaluate.value(start), start)
        self._minorant = np.inf
        current = start
        for power, thrift in stages:
            if self.record.stopped:
                break
            field = PartialPlan(model, self.menu, self._scale(model, current), power, thrift)
            field.load(current)
            schedule = Cooling(steps=steps, hot_ratio=_HOT_RATIO, cold_ratio=_COLD_RATIO)
            ruiner.walk(field, schedule, self._watch)
            current = field.assignment
        self._price()
        return self._found[1] or start

    # -- private ----------------------------------------------------------------------------------

    def _model(self, start: Assignment, cuts: Sequence[Cut]) -> LinearModel:
        """A linear model with tangents at the ranks that have the longest phases in ``start``."""
        model = LinearModel(self.space, self.record.evaluate.objective)
        model.use_cuts(cuts)
        work = self.space.work(start)
        for _ in range(_HOT_RANKS):
            phases = model.phase_maxima(model.loads(work))
            for rank in dict.fromkeys(int(r) for r in np.argmax(phases, axis=0)):
                model.add_tangents(work[rank])
        return model

    def _scale(self, model: LinearModel, assignment: Assignment) -> FloatArray:
        """``[K']`` the unit in which the norm of each phase is computed: about its maximum."""
        peaks = model.phase_maxima(model.loads(self.space.work(assignment)).max(axis=0))
        return np.asarray(np.maximum(peaks, _LEAST_SCALE * float(peaks.max())))

    def _kept(self, start: Assignment, allowed: BoolArray) -> list[IntArray]:
        """Indices of the allowed options of each table, and of the one it has in ``start``."""
        first = self.space.first
        kept = []
        for t, option in enumerate(start.options):
            mask = allowed[first[t] : first[t + 1]].copy()
            mask[option] = True
            kept.append(np.flatnonzero(mask))
        return kept

    def _watch(self, field: PartialPlan) -> None:
        """Put a plan into the queue of those to be priced, if its minorant is small enough."""
        value = field.minorant
        if value < self._minorant * self._close:
            self._queue.append(field.assignment)
            self._minorant = min(self._minorant, value)
            if len(self._queue) >= _BATCH:
                self._price()

    def _price(self) -> None:
        """Price the plans in the queue by the objective, and keep the best one."""
        if not self._queue:
            return
        works = np.stack([self.space.work(a) for a in self._queue])
        values = self.record.evaluate.values(works)
        at = int(np.argmin(values))
        if values[at] < self._found[0]:
            self._found = (float(values[at]), self._queue[at])
        self.record.keep_best_of(self._queue, values, "ruin and recreate")
        self._queue = []
