"""Ruin and recreate: takes tables out where ranks are fullest, and puts each back where it is best.

A step that makes the plan worse is accepted with a probability that depends on a temperature, as in
simulated annealing. Other steps share out the pieces of two ranks or of two hosts
(``share_out.py``). Each kind of step gets turns in proportion to what it has gained.

References: Schrimpf et al., Record breaking optimization results using the ruin and recreate
principle, Journal of Computational Physics 159 (2000). Ropke, Pisinger, An adaptive large
neighborhood search heuristic for the pickup and delivery problem with time windows, Transportation
Science 40 (2006), for the turns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.datatypes import IntArray
from costmodels.sharding import Spread
from planner.search.common.linear import LinearModel
from planner.search.improve.partial_plan import Menu, PartialPlan
from planner.search.improve.share_out import share_out
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
_LEAST_RUINS: Final = 0.2
_LEAST_TURNS: Final = 0.05
"""Least share of steps that ruin and recreate, and of each other kind. Only the former change the
options of tables, so that they must not die out; and each kind may gain again later."""
_REMEMBERED: Final = 0.98
"""By this factor gains and work count less with each further step of their kind."""
_AT_FIRST: Final = 1e-5, 5e-3
"""Gain, as a share of the objective, and nominal seconds that each kind begins with."""


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


class Turns:
    """Which of several kinds of steps comes next, by what each has gained per nominal second.

    Args:
        kinds: number of kinds.
        rng: draws the kind.
    """

    def __init__(self, kinds: int, rng: np.random.Generator) -> None:
        """Begin with equal turns."""
        self._rng = rng
        self._gained, self._work_s = (np.full(kinds, value) for value in _AT_FIRST)
        self._least = np.full(kinds, _LEAST_TURNS)
        self._least[0] = _LEAST_RUINS

    def draw(self) -> int:
        """The kind of the next step."""
        rates = self._gained / self._work_s
        total = float(rates.sum())
        shares = rates / total if total > 0 else np.full(len(rates), 1.0 / len(rates))
        shares = self._least + (1.0 - self._least.sum()) * shares
        return int(self._rng.choice(len(shares), p=shares))

    def count(self, kind: int, gain_ratio: float, work_s: float) -> None:
        """Note a step.

        Args:
            kind: of the step.
            gain_ratio: by how much the best plan got better, as a share of its objective.
            work_s: nominal seconds of the step.
        """
        self._gained[kind] = self._gained[kind] * _REMEMBERED + gain_ratio
        self._work_s[kind] = self._work_s[kind] * _REMEMBERED + work_s


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
        *,
        shares_out: bool = True,
    ) -> None:
        """Keep what every step needs.

        Args:
            model: tangents and cuts.
            menu: of the same space.
            kept: for each table the indices of the options that are worth trying.
            rng: draws the tables and ranks of all steps.
            stopped: is asked before every step; True ends the walk.
            meter: is told of the work done.
            shares_out: whether some steps share out the pieces of two ranks or hosts.
        """
        self.model = model
        self.space: SearchSpace = model.space
        self.menu = menu
        self.rng = rng
        self.stopped = stopped
        self._meter = Meter() if meter is None else meter
        self._insertion_s = insertion_s(self.space.world_size * (model.num_tangents + 2))
        self.choices = [menu.grouped(t, k) for t, k in enumerate(kept)]
        shares_out = shares_out and not self.space.rules
        self._shared = self._kinds_to_share() if shares_out else []
        self._turns = Turns(1 + len(self._shared), rng)

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
        current = best = field.smooth
        for step in range(schedule.steps):
            if self.stopped():
                return
            kind, before_s = self._turns.draw(), self._meter.spent_s
            if kind == 0:
                changed = self._ruin_and_recreate(field, current, schedule.temperature(step))
            else:
                changed = self._share_out(field, self._shared[kind - 1])
            if changed:
                current = field.smooth
                watch(field)
            gain_ratio = max(best - current, 0.0) / best if best > 0 else 0.0
            self._turns.count(kind, gain_ratio, self._meter.spent_s - before_s)
            best = min(best, current)

    def _kinds_to_share(self) -> list[Spread]:
        """The kinds of pieces that can be shared out: on ranks, and on hosts."""
        found = [Spread.RANKS] if self.space.world_size > 1 else []
        has_blocks = self.space.num_hosts > 1 and self.space.is_on_hosts.any()
        return [*found, Spread.HOSTS] if has_blocks else found

    def _share_out(self, field: PartialPlan, spread: Spread) -> bool:
        """Share out the pieces of a rank (or host) and another one; whether that is better.

        The first one is drawn by its part in the objective.
        """
        on_ranks = spread is Spread.RANKS
        count = self.space.world_size if on_ranks else self.space.num_hosts
        rank = int(self.rng.choice(self.space.world_size, p=field.heat()))
        place = rank if on_ranks else rank // self.space.local_world_size
        other = (place + int(self.rng.integers(1, count))) % count
        return share_out(field, (place, other), spread, self.rng, self._meter)

    def _ruin_and_recreate(self, field: PartialPlan, current: float, temperature: float) -> bool:
        """Take tables out and put them back; whether the outcome is accepted. If not, undo it.

        Args:
            field: the plan.
            current: its smooth objective.
            temperature: as a share of the objective.
        """
        loads = field.loads.copy()
        ruined = self._ruin(field)
        old = {t: (field.options[t], field.places[t]) for t in ruined}
        field.take(ruined)
        complete = self._recreate(field, ruined)
        luck = -np.log(max(self.rng.random(), 1e-12))
        better = field.smooth < current + temperature * current * luck
        rules = self.space.rules
        if complete and better and (not rules or self.space.keeps_rules(field.assignment)):
            return True
        field.restore(loads, old)
        return False

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
