"""Cycles of ruin and recreate, from thrift to balance, priced by the objective itself.

Balance alone is easiest with many small pieces, which cost more in total; cheap options alone
leave a few ranks far above the mean. A cycle begins with much weight on the mean over ranks and a
soft maximum, and ends with none and a hard one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray, IntArray
from planner.search.base import Record
from planner.search.common.linear import LinearModel
from planner.search.improve.field import PartialPlan
from planner.search.improve.menu import Menu
from planner.search.improve.ruin import Cooling, Ruiner
from planner.space.evaluation import Assignment, SearchSpace
from planner.space.objective import Cut

STAGES: Final = ((32, 4.0), (64, 2.0), (128, 1.0), (128, 0.5), (128, 0.2), (128, 0.05))
"""(power of the norm, thrift) of each stage of a cycle."""
LATE_STAGES: Final = STAGES[2:]
"""Stages of a cycle that begins with a good plan."""
_HOT_RATIO: Final = 1e-4
_COLD_RATIO: Final = 1e-6
"""Temperatures of each stage, as shares of the objective."""
_CLOSE: Final = 1.002
"""Plans whose minorant is within this factor of the best one's are priced in full."""
_CHEAP: Final = 50_000
"""Above this many tables times ranks pricing is dear, and only better minorants are priced."""
_BATCH: Final = 16
_HOT_RANKS: Final = 3
"""Ranks at the top of each phase whose tangents the minorant gets."""
_LEAST_SCALE: Final = 0.02
"""Phases are measured by no less than this share of the longest, so that tiny ones stay tiny."""


class Cycles:
    """Improves plans whose sharding types share one set of cuts."""

    def __init__(
        self, space: SearchSpace, menu: Menu, record: Record, rng: np.random.Generator
    ) -> None:
        """Keep the parts; nothing is searched yet."""
        self.space = space
        self.menu = menu
        self.record = record
        self.rng = rng
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
        """One cycle.

        Args:
            start: the plan to begin with.
            cuts: of the objective, valid for all ``allowed`` options.
            allowed: flat options worth trying.
            steps: per stage.
            stages: of the cycle.

        Returns:
            The best plan of the cycle by the objective, or the start.
        """
        model = self._model(start, cuts)
        kept = self._kept(start, allowed)
        meter = self.record.evaluate.meter
        ruiner = Ruiner(model, self.menu, kept, self.rng, lambda: self.record.stopped, meter)
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
        """A minorant that is exact on the ranks that matter in ``start``."""
        model = LinearModel(self.space, self.record.evaluate.objective)
        model.use_cuts(cuts)
        work = self.space.work(start)
        for _ in range(_HOT_RANKS):
            phases = model.phase_maxima(model.loads(work))
            for rank in dict.fromkeys(int(r) for r in np.argmax(phases, axis=0)):
                model.add_tangents(work[rank])
        return model

    def _scale(self, model: LinearModel, assignment: Assignment) -> FloatArray:
        peaks = model.phase_maxima(model.loads(self.space.work(assignment)).max(axis=0))
        return np.asarray(np.maximum(peaks, _LEAST_SCALE * float(peaks.max())))

    def _kept(self, start: Assignment, allowed: BoolArray) -> list[IntArray]:
        """Allowed options of each table, with the one it has."""
        first = self.space.first
        kept = []
        for t, option in enumerate(start.options):
            mask = allowed[first[t] : first[t + 1]].copy()
            mask[option] = True
            kept.append(np.flatnonzero(mask))
        return kept

    def _watch(self, field: PartialPlan) -> None:
        value = field.minorant
        if value < self._minorant * self._close:
            self._queue.append(field.assignment)
            self._minorant = min(self._minorant, value)
            if len(self._queue) >= _BATCH:
                self._price()

    def _price(self) -> None:
        """Price what is queued by the objective and keep the best."""
        if not self._queue:
            return
        works = np.stack([self.space.work(a) for a in self._queue])
        values = self.record.evaluate.values(works)
        at = int(np.argmin(values))
        if values[at] < self._found[0]:
            self._found = (float(values[at]), self._queue[at])
        self.record.keep_best_of(self._queue, values, "ruin and recreate")
        self._queue = []
