"""Ruin and recreate: takes tables out where ranks are fullest, and puts each back where it is best.

A step that makes the plan worse is accepted with a probability that depends on a temperature, as in
simulated annealing.

Reference: Schrimpf et al., Record breaking optimization results using the ruin and recreate
principle, Journal of Computational Physics 159 (2000).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.datatypes import IntArray
from planner.search.common.linear import LinearModel
from planner.search.improve.field import PartialPlan
from planner.search.improve.menu import Menu
from planner.space.effort import Meter, insertion_s
from planner.space.evaluation import SearchSpace

_BLINK: Final = 0.03
"""Share of ranks that the insertions of a step leave alone if they can. So the same tables, taken
out again, may be put back in other places; with a larger share they are put back worse."""
_HOT: Final = 0.7
"""Share of steps that take tables out of a rank which is drawn by its part in the objective. The
other steps take tables out anywhere."""
_MOST_RUINED: Final = 5
"""Most tables that a step takes out. With more of them more tables can change places together, and
each step takes longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cooling:
    """How the temperature of a walk falls from its first to its last step.

    Attributes:
        steps: number of steps.
        hot_ratio: temperature at the first step, as a share of the objective.
        cold_ratio: temperature at the last step.
    """

    steps: int
    hot_ratio: float
    cold_ratio: float

    def temperature(self, step: int) -> float:
        """The temperature at a step; it falls by the same factor from step to step."""
        share = step / max(self.steps - 1, 1)
        return float(self.hot_ratio * (self.cold_ratio / self.hot_ratio) ** share)


class Ruiner:
    """Walks from plan to plan of one search space."""

    def __init__(
        self,
        model: LinearModel,
        menu: Menu,
        kept: list[IntArray],
        rng: np.random.Generator,
        stopped: Callable[[], bool],
        meter: Meter | None = None,
    ) -> None:
        """Keep what every step needs.

        Args:
            model: tangents and cuts.
            menu: of the same space.
            kept: for each table the indices of the options that are worth trying.
            rng: draws the tables and ranks of all steps.
            stopped: is asked before every step; True ends the walk.
            meter: is told of the work done.
        """
        self.model = model
        self.space: SearchSpace = model.space
        self.menu = menu
        self.rng = rng
        self.stopped = stopped
        self._meter = Meter() if meter is None else meter
        self._insertion_s = insertion_s(self.space.world_size * (model.num_tangents + 2))
        self.choices = [menu.grouped(t, k) for t, k in enumerate(kept)]

    def build(self, field: PartialPlan, order: IntArray) -> bool:
        """Put all tables into an empty plan, in this order.

        Returns:
            False if a table fits nowhere, or if the search has to end.
        """
        for table in order:
            self._meter.spend(self._insertion_s)
            best = field.best_insertion(int(table), self.choices[int(table)])
            if best is None or not np.isfinite(best.value) or self.stopped():
                return False
            field.put(int(table), best.option, best.places)
        return True

    def walk(
        self, field: PartialPlan, schedule: Cooling, watch: Callable[[PartialPlan], None]
    ) -> None:
        """Ruin and recreate step by step.

        Args:
            field: the plan to begin with, which is changed.
            schedule: number of steps, and the temperature at each.
            watch: is shown every plan that is accepted.
        """
        current = field.smooth
        rules = self.space.rules
        for step in range(schedule.steps):
            if self.stopped():
                return
            loads = field.loads.copy()
            ruined = self._ruin(field)
            old = {t: (field.options[t], field.places[t]) for t in ruined}
            field.take(ruined)
            complete = self._recreate(field, ruined)
            value = field.smooth
            luck = -np.log(max(self.rng.random(), 1e-12))
            better = value < current + schedule.temperature(step) * current * luck
            if complete and better and (not rules or self.space.keeps_rules(field.assignment)):
                current = value
                watch(field)
            else:
                field.restore(loads, old)

    def _recreate(self, field: PartialPlan, tables: list[int]) -> bool:
        """Put tables back one by one, each where it is best; False if one fits nowhere."""
        blocked = self.rng.random(self.space.world_size) < _BLINK
        for table in tables:
            self._meter.spend(self._insertion_s)
            best = field.best_insertion(table, self.choices[table], blocked)
            if best is None or not np.isfinite(best.value):
                return False
            field.put(table, best.option, best.places)
        return True

    def _ruin(self, field: PartialPlan) -> list[int]:
        """Choose the tables to take out: mostly some of one rank, and as many from anywhere."""
        count = int(self.rng.integers(1, min(_MOST_RUINED, self.space.num_tables) + 1))
        chosen: list[int] = []
        if self.rng.random() < _HOT:
            rank = int(self.rng.choice(self.space.world_size, p=field.heat()))
            there = sorted(field.on_rank[rank])
            self.rng.shuffle(there)
            chosen = there[: max(1, count // 2)]
        while len(chosen) < count:
            table = int(self.rng.integers(self.space.num_tables))
            if table not in chosen:
                chosen.append(table)
        self.rng.shuffle(chosen)
        return chosen
