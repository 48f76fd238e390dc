"""Keeps device memory free, and tables out of host memory, where that costs almost no time.

The search minimises time alone. Its plan can fill one rank with tables that would cost the same
time on another rank, or as a single copy instead of many. Predictions of lookups in host memory
have an error of their own, so that a plan with tables there may be predicted a little faster than
one without. :func:`roomiest` moves such tables.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.pipeline import CostPipeline
from costmodels.shard_work.work import MEMORY, Memory
from costmodels.sharding import (
    ComputeKernel,
    Plan,
    ShardingOption,
    ShardingType,
    TablePlacement,
    place,
)
from costmodels.system_models import default_models
from costmodels.topology import Topology
from costmodels.units import format_bytes
from planner.options.table_limits import HOST_KERNELS
from planner.options.torchrec_rules import COLUMN_MULTIPLE
from planner.problem import Constraints
from planner.result import PlanningResult
from planner.solving.runnable import runs

RIVAL: Final = "torchrec"
"""The name of TorchRec's own plan among the baselines of a result."""
TIME: Final = "iteration"
"""The objective whose values are predicted iteration times."""

_SLOWER_RATIO: Final = 0.01
"""A plan that leaves more memory free on its fullest rank may be slower by this share."""
_LEAST_GAIN_RATIO: Final = 0.01
"""Another plan is used only if it frees at least this share of a device on the fullest rank."""
_MOST_MOVES: Final = 64
_MOST_TABLES: Final = 8
"""At most this many moves of one plan, and tables of the fullest rank that are tried for each."""
_MOST_FAR_TABLES: Final = 64
"""At most this many tables are moved out of host memory, those with the most bytes."""
_MOST_RANKS: Final = 16
"""Ranks on which a whole table from host memory is tried: those with the fewest bytes."""
_MOST_SHARDS: Final = 20_000
"""The fullest rank is relieved only if tables times ranks are at most this many, because the work
of each table is kept for every rank."""
_BY_RANK: Final = (ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE)
"""Types whose pieces are on single ranks, which can be any ranks."""


def with_memory(topology: Topology, *, ratio: float = 1.0, more_bytes: float = 0.0) -> Topology:
    """The topology with a share of the memory of its devices, and so many bytes more on each."""
    capacity = topology.device.hbm_capacity_bytes * ratio + more_bytes
    by_rank = tuple(c * ratio + more_bytes for c in topology.hbm_capacity_by_rank_bytes)
    return replace(
        topology,
        device=replace(topology.device, hbm_capacity_bytes=capacity),
        hbm_capacity_by_rank_bytes=by_rank,
    )


def host_bytes(pipeline: CostPipeline, plan: Plan) -> float:
    """Bytes of tables in host memory, over all hosts."""
    return float(pipeline.plan_work(plan)[:, MEMORY + Memory.HOST].sum())


def fullest_ratio(pipeline: CostPipeline, plan: Plan) -> float:
    """Share of its memory for tables that the fullest rank uses."""
    return float(_shares(pipeline, pipeline.plan_work(plan)).max())


def _shares(pipeline: CostPipeline, work: FloatArray) -> FloatArray:
    """``[..., W]`` share of its memory for tables that each rank uses."""
    return np.asarray(pipeline.device_bytes(work) / np.maximum(pipeline.device_limits, 1.0))


@dataclass(frozen=True, kw_only=True)
class Mover:
    """Moves tables of a plan to other memory.

    Attributes:
        pipeline: prices plans.
        constraints: the constraints of the search; tables that have to share a place keep theirs.
        most_s: predicted iteration time that no plan may exceed, in seconds.
        fixed: names of further tables that are not moved.
    """

    pipeline: CostPipeline
    constraints: Constraints
    most_s: float
    fixed: Collection[str] = ()

    def nearer(self, plan: Plan) -> Plan:
        """The plan with tables in device memory that it has in host memory, where they have room.

        Args:
            plan: a plan that fits.
        """
        workload = self.pipeline.workload
        far = [
            at
            for at, placed in enumerate(plan.placements)
            if placed.kernel in HOST_KERNELS and placed.table not in self.fixed
        ]
        far.sort(key=lambda at: -workload.table(plan.placements[at].table).weight_bytes)
        total = self.pipeline.plan_work(plan)
        for at in far[:_MOST_FAR_TABLES]:
            before, after = plan.placements[:at], plan.placements[at + 1 :]
            rest = total - self._work(plan.placements[at])
            tried = [
                (other, rest + self._work(placed))
                for placed in self._near(plan.placements[at], rest)
                if runs(other := Plan(placements=(*before, placed, *after)), workload)
            ]
            if not tried:
                continue
            times = self._times(np.stack([work for _, work in tried]))
            best = int(times.argmin())
            if np.isfinite(times[best]):
                plan, total = tried[best]
        return plan

    def roomier(self, plan: Plan) -> Plan:
        """A plan whose fullest rank holds less; the same plan if there is none within ``most_s``.

        One table after the other is moved: pieces from the fullest rank to other ranks, and tables
        with a copy on every rank to a single rank. This goes on as long as the memory of ranks gets
        more even, and the fullest rank not fuller.
        """
        if len(plan.placements) * self.pipeline.topology.world_size > _MOST_SHARDS:
            return plan
        placements = list(plan.placements)
        works = [self._work(p) for p in placements]
        for _ in range(_MOST_MOVES):
            move = self._best_move(placements, works)
            if move is None:
                break
            at, placements[at], works[at] = move
        found = Plan(placements=tuple(placements))
        gain = fullest_ratio(self.pipeline, plan) - fullest_ratio(self.pipeline, found)
        return found if gain >= _LEAST_GAIN_RATIO else plan

    def _work(self, placed: TablePlacement) -> FloatArray:
        """Work of one table, ``[W, columns]``."""
        return self.pipeline.plan_work(Plan(placements=(placed,)))

    def _times(self, works: FloatArray) -> FloatArray:
        """Predicted times, ``[n]``; infinite for plans that are too slow or do not fit."""
        times = np.array(self.pipeline.iteration_times(works))
        times[(times > self.most_s) | (self.pipeline.overflow_bytes(works, 1.0) > 0)] = np.inf
        return times

    def _shares_place(self, table: str) -> bool:
        return any(group.matches(table) for group in self.constraints.together)

    def _best_move(
        self, placements: Sequence[TablePlacement], works: Sequence[FloatArray]
    ) -> tuple[int, TablePlacement, FloatArray] | None:
        """The move that makes ranks most even; None if no move helps."""
        total = np.asarray(sum(works))
        shares = _shares(self.pipeline, total)
        held = np.array([self.pipeline.device_bytes(w)[shares.argmax()] for w in works])
        movable = [
            int(at)
            for at in np.argsort(-held, kind="stable")
            if held[at] > 0
            and placements[at].table not in self.fixed
            and not self._shares_place(placements[at].table)
        ]
        moves = [
            (at, placed, self._work(placed))
            for at in movable[:_MOST_TABLES]
            for placed in self._elsewhere(placements[at], shares)
        ]
        if not moves:
            return None
        totals = np.stack([total - works[at] + work for at, _, work in moves])
        after = _shares(self.pipeline, totals)
        uneven = (after**2).sum(axis=-1)
        fuller = after.max(axis=-1) > shares.max()
        uneven[fuller | ~np.isfinite(self._times(totals))] = np.inf
        chosen = int(uneven.argmin())
        helps = uneven[chosen] <= (shares**2).sum() - _LEAST_GAIN_RATIO**2
        return moves[chosen] if helps else None

    def _near(self, own: TablePlacement, rest: FloatArray) -> Iterator[TablePlacement]:
        """Placements of a table in device memory: as it is, cut by rows, or whole on one rank."""
        if self._is_allowed(own.table, own.sharding_type):
            yield replace(own, kernel=ComputeKernel.FUSED, cache_load_factor_ratio=None)
        if self._shares_place(own.table):
            return
        emptiest = np.argsort(self.pipeline.device_bytes(rest), kind="stable")[:_MOST_RANKS]
        yield from self._fused(own.table, ShardingType.ROW_WISE, [()])
        yield from self._fused(own.table, ShardingType.TABLE_WISE, [(int(r),) for r in emptiest])

    def _elsewhere(self, placed: TablePlacement, shares: FloatArray) -> Iterator[TablePlacement]:
        """Other placements of a table whose pieces are on single ranks, or that all ranks copy."""
        table = self.pipeline.workload.table(placed.table)
        is_copied = placed.sharding_type is ShardingType.DATA_PARALLEL
        if is_copied and table.embedding_dim % COLUMN_MULTIPLE == 0:
            for kind in _BY_RANK:
                yield from self._fused(table.name, kind, [(r,) for r in range(len(shares))])
        elif placed.sharding_type in _BY_RANK:
            on_full = [i for i, s in enumerate(placed.shards) if s.rank == shares.argmax()]
            for first in on_full[:1]:
                for rank in sorted(set(range(len(shares))) - set(placed.ranks)):
                    shards = list(placed.shards)
                    shards[first] = replace(shards[first], rank=rank)
                    yield replace(placed, shards=shards)

    def _fused(
        self, name: str, kind: ShardingType, places: Iterable[tuple[int, ...]]
    ) -> Iterator[TablePlacement]:
        """Placements of an uncut table in device memory, if the constraints leave them."""
        if not self._is_allowed(name, kind):
            return
        table, topology = self.pipeline.workload.table(name), self.pipeline.topology
        option = ShardingOption(
            table=name,
            sharding_type=kind,
            kernel=ComputeKernel.FUSED,
            column_widths=(table.embedding_dim,),
        )
        size = {"world_size": topology.world_size, "local_world_size": topology.local_world_size}
        for ranks in places:
            yield place(option, table.num_embeddings, ranks, **size)

    def _is_allowed(self, table: str, kind: ShardingType) -> bool:
        """Whether the constraints leave a table a sharding type in device memory."""
        kernel, rules = ComputeKernel.FUSED, self.constraints
        return (
            kind in rules.sharding_types
            and kernel in rules.kernels
            and all(
                (not rule.sharding_types or kind in rule.sharding_types)
                and (not rule.kernels or kernel in rule.kernels)
                and rule.allows_pair(kind, kernel)
                for rule in rules.for_table(table)
            )
        )


def roomiest(
    result: PlanningResult,
    make_pipeline: Callable[..., CostPipeline],
    key_values: Mapping[str, object],
) -> PlanningResult:
    """The result with the plan in the nearest and emptiest memory, among those about as fast.

    These are plans that are at most 1 % slower than the best one, and not slower than TorchRec's.
    Of these, the one with the fewest bytes in host memory is taken; its tables go from there to
    device memory if they have room; and then it is made to leave most device memory free.

    Args:
        result: the result of a search.
        make_pipeline: makes what prices the plans.
        key_values: the key-value tables, which are not moved.
    """
    if result.solver.objective != TIME:
        return result
    problem, best = result.problem, result.best
    pipeline = make_pipeline(problem.workload, problem.topology, default_models(problem.topology))
    theirs = [c.estimate.time.time_s for c in result.baselines if c.name == RIVAL]
    most_s = min([best.estimate.time.time_s * (1.0 + _SLOWER_RATIO), *theirs])
    filled, far = fullest_ratio(pipeline, best.plan), host_bytes(pipeline, best.plan)
    start, emptiest, least = best, filled, far
    others = (*result.runners_up, *result.baselines)
    for other in (c for c in others if runs(c.plan, problem.workload)):
        share, beyond = fullest_ratio(pipeline, other.plan), host_bytes(pipeline, other.plan)
        is_emptier = beyond == least and share < emptiest - _LEAST_GAIN_RATIO
        if other.estimate.time.time_s <= most_s and (beyond < least or is_emptier):
            start, emptiest, least = other, share, beyond
    mover = Mover(
        pipeline=pipeline, constraints=problem.constraints, most_s=most_s, fixed=key_values.keys()
    )
    found = mover.roomier(mover.nearer(start.plan))
    if found == best.plan:
        return result
    estimate = pipeline.estimate(found)
    kept, slower = host_bytes(pipeline, found), estimate.time.time_s / best.estimate.time.time_s - 1
    pace = f"{slower:.2%} slower" if slower >= 0 else f"{-slower:.2%} faster"
    why = (
        f"its fullest rank uses {fullest_ratio(pipeline, found):.0%} of the memory for embeddings "
        f"instead of {filled:.0%}"
    )
    if kept < far:
        why = f"it has {format_bytes(kept)} of tables in host memory instead of {format_bytes(far)}"
    return replace(
        result,
        best=replace(start, plan=found, estimate=estimate, memory=pipeline.memory(found)),
        warnings=(
            *result.warnings,
            f"a plan predicted {pace} than the fastest one was taken, because {why}",
        ),
    )
