"""A bound for plans under a limit on what may move away from the plan in use.

Tables that stay load the ranks on which they are. If only few tables may move, the busiest ranks
keep most of their load, however well the moved tables are spread.

Variables: ``stay[s]`` is 1 if option s of a table is placed where nothing has to move. There is
such a variable for each option whose pieces have exactly one place each where nothing moves.
``y[o]`` is 1 if a table has option o in any other places. ``z[k]`` is the largest value of phase k
over ranks, and ``v`` the objective. Every plan within the limit satisfies, for each tangent c of
phase k:

- every table has one option, which stays or not;
- on every rank r: ``sum_s load[s, r, c] stay[s] + sum_o load[o, r, c] y[o] <= z[k]``, where the
  second sum is over options that load every rank;
- the means over ranks of all loads are at most ``z[k]``;
- no more tables and bytes move than the limit allows. An option counts with the fewest bytes that
  it can receive; these are 0 where several ranks hold what a piece needs.

For each cut of the objective, ``v >= base + slopes @ z``. A cut holds for one set of sharding
types. So there is one such program for each set, and the least of their solutions is a bound.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Final

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.sharding import ShardingOption
from planner.rules.placement_rules import MOVED_BYTES, MoveBudget
from planner.search.bounds.bound_program import TypeSet, cut_rows, uses
from planner.search.common.linear import LinearModel
from planner.search.common.lp import LinearProgram, Rows, solve
from planner.search.common.schedule import USUAL
from planner.space.effort import Meter
from planner.space.evaluation import ROUNDED
from planner.space.objective import Cut

_ROUNDS: Final = 4
"""Most linear programs for one set of sharding types; each has one more cut, the highest one at the
last solution."""
_ROOM: Final = 1e3
"""Upper limit of the objective in a program, times the best plan's; phases have similar limits. No
better plan comes near it, and solvers prove more if every variable has a limit."""


class MoveBound:
    """Solves the programs of one search under a limit on moves."""

    def __init__(
        self, model: LinearModel, budget: MoveBudget, meter: Meter, *, most: float
    ) -> None:
        """Work out what tables that stay put on every rank, and what each option has to move.

        Args:
            model: tangents and options; tangents at the busiest ranks of the plan in use are added.
            budget: the limit on moves.
            meter: is told of the work done.
            most: the objective of the best plan, which is 1 in the programs.
        """
        self._most = most
        self._model, self._space = model, model.space
        self._budget, self._meter = budget, meter
        found = [_least_move(budget, option) for option in self._space.options]
        self._moved = np.array([moved for moved, _ in found])
        self._staying = np.flatnonzero([places is not None for _, places in found])
        work = self._work([found[i][1] or () for i in self._staying])
        home = self._space.in_use or []
        kept = [int(self._space.first[t]) + own[0] for t, own in enumerate(home) if own is not None]
        now = work[np.isin(self._staying, kept)].sum(axis=0)
        for rank in np.unique(np.argmax(self._loads(now), axis=0)):
            model.add_tangents(now[rank])
        loads = self._loads(work)
        most = max(USUAL.program_entries // max(len(loads) * loads.shape[-1], 1), 1)
        total = self._loads(now)
        busiest = (total / np.maximum(total.max(axis=0), 1e-300)).max(axis=-1)
        self._ranks = np.sort(np.argsort(-busiest, kind="stable")[:most])
        self._stay = loads[:, self._ranks]
        self._stay_mean = loads.mean(axis=1)

    def bound(
        self, types: TypeSet | None, cuts: Sequence[Cut], certain: TypeSet = frozenset()
    ) -> float:
        """The bound of plans within the limit that have sharding types of one set alone.

        Args:
            types: the set; None for all types.
            cuts: cuts of the objective that hold for these plans. Higher ones are added.
            certain: types that all these plans have.

        Returns:
            Infinite if no plan within the limit has types of the set alone.
        """
        most, cuts = self._most, list(cuts)
        for _ in range(_ROUNDS):
            program = self._program(types, cuts)
            found = solve(program, self._meter)
            if found.x is None:
                break
            maxima = found.x[-1 - len(self._model.used) : -1] * most
            cut = self._model.longer_cut(maxima, certain, float(found.x[-1]) * most)
            if cut is None:
                break
            cuts.append(cut)
        return found.bound * most * (1 - ROUNDED)

    # -- building ---------------------------------------------------------------------------------

    def _loads(self, work: FloatArray) -> FloatArray:
        """Loads of the tangents, ``[..., P]``, from work ``[..., F]``."""
        return np.asarray(self._model.loads(work)[..., : self._model.num_tangents])

    def _work(self, places: Sequence[tuple[int, ...]]) -> FloatArray:
        """``[S, W, F]`` work on each rank of the S options that stay, in the given places."""
        space = self._space
        work = np.zeros((len(self._staying), space.world_size, space.pool.shape[1]))
        for i, (flat, where) in enumerate(zip(self._staying.tolist(), places, strict=True)):
            table = int(space.table_of[flat])
            index = flat - int(space.first[table])
            ranks, rows = space.placed_rows(table, index, where)
            np.add.at(work[i], ranks, rows)
        return work

    def _program(self, types: TypeSet | None, cuts: Sequence[Cut]) -> LinearProgram:
        """The linear program for a set of sharding types.

        Variables in order: y of each option, stay of each option that stays, z of each phase in
        use, v. All are in units of the best plan's objective.
        """
        space, model = self._space, self._model
        chosen = len(space.options) + len(self._staying)
        size = chosen + len(model.used) + 1
        inside = uses(types, space).astype(float)
        slopes = model.objective.always().slopes[model.used]
        largest = np.where(slopes > 0, _ROOM / np.maximum(slopes, 1.0 / _ROOM), _ROOM**2)
        upper = np.concatenate([inside, inside[self._staying], largest, [_ROOM]])
        one_each = Rows.one_of_each(np.concatenate([space.table_of, space.table_of[self._staying]]))
        paths = cut_rows(model, cuts, chosen, size, self._most)
        cost = np.zeros(size)
        cost[-1] = 1.0
        rows = Rows.stack([one_each, self._below, paths])
        return LinearProgram(cost=cost, upper=upper, rows=rows)

    @cached_property
    def _below(self) -> Rows:
        """Rows that are the same for every set of sharding types.

        They are about each rank (what stays there, and uniform options, less the phase's maximum),
        about the means over ranks, and about what moves: tables, and bytes as a share of the limit.
        """
        space, model, count = self._space, self._model, len(self._space.options)
        stay, tangents = slice(count, count + len(self._staying)), model.num_tangents
        loads = np.zeros((len(self._ranks) + 1, tangents, stay.stop + len(model.used) + 1))
        loads[:-1, :, stay] = self._stay.transpose(1, 2, 0)
        for flat in np.flatnonzero(space.is_uniform):
            loads[:-1, :, flat] = model.option_rows(int(flat))[self._ranks, :tangents]
        loads[-1, :, :count] = model.mean[:, :tangents].T
        loads[-1, :, stay] = self._stay_mean.T
        loads /= self._most
        loads[:, np.arange(tangents), stay.stop + model.phase_index] = -1.0
        rows = [*loads.reshape(-1, loads.shape[-1])]
        limits = [0.0] * len(rows)
        unit = max(self._budget.max_bytes, 1.0)
        for moved, limit in (
            (self._moved > MOVED_BYTES, self._budget.max_tables),
            (self._moved / unit, self._budget.max_bytes / unit),
        ):
            if math.isfinite(limit):
                rows.append(np.zeros(loads.shape[-1]))
                rows[-1][:count] = moved
                limits.append(float(limit))
        return Rows.dense(np.array(rows), -math.inf, np.array(limits))


def _least_move(budget: MoveBudget, option: ShardingOption) -> tuple[float, tuple[int, ...] | None]:
    """What an option has to move at least.

    Returns:
        Bytes that it receives at least, and the one choice of places in which it receives none. The
        places are None if there is no such choice, or several; otherwise the bytes are those that
        it receives at least in any other places.
    """
    received = budget.piece_bytes(option)
    if option.is_uniform:
        return float(received[0]), None
    ordered = np.sort(received, axis=-1)
    least = float(ordered[:, 0].sum())
    if least > MOVED_BYTES or ordered.shape[-1] == 1:
        return least, None
    elsewhere = float(ordered[:, 1].min())
    if elsewhere <= MOVED_BYTES:
        return least, None
    return elsewhere, tuple(np.argmin(received, axis=-1).tolist())
