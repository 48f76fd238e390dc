"""What the bound by patterns is asked, as plain arrays that another process can be sent.

Loads are in the unit in which the objective of the known plan, less what it is without any load, is
1, and are multiplied by the weights of their phases.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.datatypes import FloatArray, IntArray
from planner.search.bounds.bound_program import RankFreeProgram
from planner.search.common.linear import LinearModel
from planner.space.evaluation import Assignment

SLACK: Final = 1e-9
"""Share by which rooms and memory of a rank are widened, for rounding."""
Pattern = dict[int, float]
"""How many pieces of each option a rank holds, by the number of the option."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PatternTask:
    """Options of tables, as loads of their pieces: n options, P loads and T tables.

    Attributes:
        first: ``[T + 1]`` number of each table's first option.
        pieces: ``[n]`` pieces of each option that are on one rank each; 0 if it is on every rank.
        sizes: ``[n, P + 1]`` least load of a piece, then its share of a device's memory.
        uniform: ``[n, P]`` least load that an option puts on every rank; 0 if it has pieces.
        mean: ``[n, P]`` mean load over ranks of an option with pieces; 0 if it is on every rank.
        phase: ``[P]`` the phase of each load.
        world_size: number of ranks.
        base_s: objective without any load, in its own unit.
        unit_s: how much more the known plan has.
        known: what the ranks of the known plan hold.
    """

    first: IntArray
    pieces: IntArray
    sizes: FloatArray
    uniform: FloatArray
    mean: FloatArray
    phase: IntArray
    world_size: int
    base_s: float
    unit_s: float
    known: tuple[Pattern, ...]

    @staticmethod
    def of(model: LinearModel, plan: Assignment, value: float) -> PatternTask | None:
        """The task of a search.

        Args:
            model: tangents and options; its first cut holds for every plan.
            plan: the known plan.
            value: its objective.

        Returns:
            None if no load counts, so that there is nothing to prove, or if a piece takes load away
            from its rank, so that a set of pieces could fit although one of them does not.
        """
        space, builder = model.space, RankFreeProgram(model)
        base, weights = model.cuts[0]
        unit = value - base
        slopes = weights[model.phase_index]
        counts = np.flatnonzero(slopes > 0)
        if not len(counts) or unit <= 0:
            return None
        scale = slopes[counts] / unit
        least = model.extreme(np.minimum)
        own = least[:, counts] * scale
        if (own < 0).any() or (least[:, model.num_tangents] < 0).any():
            return None
        room = float(builder.rank_limits[:, 0].max())
        uniform = space.is_uniform[:, None]
        return PatternTask(
            first=space.first,
            pieces=np.where(space.is_uniform, 0, builder.shards),
            sizes=np.column_stack([own, least[:, model.num_tangents] / room]),
            uniform=np.where(uniform, own, 0.0),
            mean=np.where(uniform, 0.0, model.mean[:, counts] * scale),
            phase=np.unique(model.phase_index[counts], return_inverse=True)[1],
            world_size=space.world_size,
            base_s=base,
            unit_s=unit,
            known=_held(model, plan),
        )

    @property
    def table_of(self) -> IntArray:
        """``[n]`` the table of each option."""
        return np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))

    @property
    def num_loads(self) -> int:
        """Number of loads, P."""
        return len(self.phase)


def _held(model: LinearModel, plan: Assignment) -> tuple[Pattern, ...]:
    """What each rank holds in a plan, as far as it is not on every rank."""
    space = model.space
    ranks: list[Pattern] = [{} for _ in range(space.world_size)]
    for table, (index, places) in enumerate(zip(plan.options, plan.places, strict=True)):
        flat = int(space.first[table]) + index
        if space.is_uniform[flat]:
            continue
        for rank in space.host_ranks(places) if space.is_on_hosts[flat] else places:
            ranks[int(rank)][flat] = ranks[int(rank)].get(flat, 0.0) + 1.0
    return tuple(ranks)
