"""Ruin and recreate: take a few tables out where ranks are fullest, put each back where it is best.

Reference: Schrimpf et al., Record breaking optimization results using the ruin and recreate
principle (2000); the temperature is that of simulated annealing.
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
"""Share of ranks that an insertion overlooks, so that the same ruin can end differently."""
_HOT: Final = 0.7
"""Share of removals that start from a rank drawn by its part in the objective."""
_MOST_RUINED: Final = 5
"""Tables taken out at a time, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cooling:
    """How a walk cools: temperatures as shares of the objective."""

    steps: int
    hot_ratio: float
    cold_ratio: float

    def temperature(self, step: int) -> float:
        """Geometric from hot to cold."""
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
        """Keep the parts.

        Args:
            model: tangents and cuts.
            menu: of the same space.
            kept: options of each table worth trying, as indices within the table.
            rng: of the whole walk.
            stopped: asked before every step.
            meter: told of the work done.
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
        """Fill an empty field table by table; False if one fits nowhere or time is up."""
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
        """Ruin and recreate ``schedule.steps`` times; ``watch`` sees every plan accepted."""
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
        blocked = self.rng.random(self.space.world_size) < _BLINK
        for table in tables:
            self._meter.spend(self._insertion_s)
            best = field.best_insertion(table, self.choices[table], blocked)
            if best is None or not np.isfinite(best.value):
                return False
            field.put(table, best.option, best.places)
        return True

    def _ruin(self, field: PartialPlan) -> list[int]:
        """Tables of a hot rank, and a few from elsewhere to make room for."""
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
