"""Memory that stays free: a target of the user's, and a choice among plans that are as fast.

The search looks at time alone, so that a plan may fill one rank with tables that another rank, or
one copy instead of many, would hold at the same time. :func:`roomier` moves such tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodels.memory import FloatArray
from costmodels.pipeline import CostPipeline
from costmodels.sharding import (
    ComputeKernel,
    Plan,
    ShardingOption,
    ShardingType,
    TablePlacement,
    place,
)
from costmodels.topology import Topology
from planner.errors import InvalidInputError
from planner.options.torchrec_rules import COLUMN_MULTIPLE
from planner.problem import Constraints

SLOWER_RATIO: Final = 0.01
"""How much slower a plan may be that leaves more memory free on its fullest rank."""

LEAST_GAIN_RATIO: Final = 0.01
"""Share of a device below which less memory on the fullest rank is not worth another plan."""
_MOST_MOVES: Final = 64
_MOST_TABLES: Final = 8
"""Moves of one plan, and tables of the fullest rank that are looked at for each."""
_MOST_SHARDS: Final = 20_000
"""Tables times ranks up to which tables are moved: the work of each is kept for every rank."""
_BY_RANK: Final = (ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE)
"""Types whose pieces lie on single ranks, wherever these are."""


def require_headroom(headroom_ratio: float) -> float:
    """The share of memory to keep free.

    Raises:
        InvalidInputError: it is negative, or 1 or more.
    """
    if not 0 <= headroom_ratio < 1:
        message = f"memory_headroom must be 0 or more and below 1, got {headroom_ratio}"
        raise InvalidInputError(message)
    return headroom_ratio


def with_headroom(topology: Topology, headroom_ratio: float) -> Topology:
    """A topology whose devices have so much less memory.

    Args:
        topology: with the memory that the storage reservation left.
        headroom_ratio: share of it that has to stay free on every rank, 0 to below 1.

    """
    left = 1.0 - headroom_ratio
    return replace(
        topology,
        device=replace(
            topology.device, hbm_capacity_bytes=topology.device.hbm_capacity_bytes * left
        ),
        hbm_capacity_by_rank_bytes=tuple(c * left for c in topology.hbm_capacity_by_rank_bytes),
    )


@dataclass(frozen=True, kw_only=True)
class _State:
    """A plan as placements, with the work of each and of all."""

    placements: tuple[TablePlacement, ...]
    works: tuple[FloatArray, ...]

    @property
    def work(self) -> FloatArray:
        """Of the whole plan, ``[W, columns]``."""
        return np.asarray(sum(self.works))

    def changed(self, at: int, placement: TablePlacement, work: FloatArray) -> _State:
        """The same with one table placed otherwise."""
        return _State(
            placements=(*self.placements[:at], placement, *self.placements[at + 1 :]),
            works=(*self.works[:at], work, *self.works[at + 1 :]),
        )


def roomier(
    plan: Plan,
    pipeline: CostPipeline,
    constraints: Constraints,
    *,
    most_s: float,
    fixed: Mapping[str, object],
) -> Plan:
    """A plan at most so slow whose fullest rank holds less; the same one if there is none.

    Pieces of tables go from the fullest rank to others, and tables that every rank holds a copy of
    to one rank, one table at a time, as long as ranks get more even and the fullest no fuller.

    Args:
        plan: the fastest plan.
        pipeline: prices it.
        constraints: of the search; tables that have to share a place are not moved.
        most_s: predicted iteration time that no plan may exceed, in seconds.
        fixed: names of tables that are not moved either.
    """
    if len(plan.placements) * pipeline.topology.world_size > _MOST_SHARDS:
        return plan
    still = {
        p.table
        for p in plan.placements
        if p.table in fixed or any(group.matches(p.table) for group in constraints.together)
    }
    state = _State(
        placements=plan.placements,
        works=tuple(pipeline.plan_work(Plan(placements=(p,))) for p in plan.placements),
    )
    for _ in range(_MOST_MOVES):
        better = _one_move(state, pipeline, constraints, most_s, still)
        if better is None:
            break
        state = better
    found = Plan(placements=state.placements)
    gain = fullest_ratio(pipeline, plan) - fullest_ratio(pipeline, found)
    return found if gain >= LEAST_GAIN_RATIO else plan


def _one_move(
    state: _State, pipeline: CostPipeline, constraints: Constraints, most_s: float, still: set[str]
) -> _State | None:
    """The move that leaves ranks most even; None if none does without filling the fullest."""
    total = state.work
    shares = _shares(pipeline, total)
    candidates = []
    for at in _largest_on(state, pipeline, int(shares.argmax()), still):
        for placement in _elsewhere(state.placements[at], pipeline, constraints, shares):
            work = pipeline.plan_work(Plan(placements=(placement,)))
            candidates.append((at, placement, work, total - state.works[at] + work))
    if not candidates:
        return None
    totals = np.stack([c[3] for c in candidates])
    after = _shares(pipeline, totals)
    uneven = (after**2).sum(axis=-1)
    slow = pipeline.iteration_times(totals) > most_s
    fuller = after.max(axis=-1) > shares.max()
    uneven[slow | fuller | (pipeline.overflow_bytes(totals, 1.0) > 0)] = np.inf
    chosen = int(uneven.argmin())
    if uneven[chosen] > (shares**2).sum() - LEAST_GAIN_RATIO**2:
        return None
    at, placement, work, _ = candidates[chosen]
    return state.changed(at, placement, work)


def fullest_ratio(pipeline: CostPipeline, plan: Plan) -> float:
    """Share of its memory for embeddings that the fullest rank uses."""
    return float(_shares(pipeline, pipeline.plan_work(plan)).max())


def _shares(pipeline: CostPipeline, work: FloatArray) -> FloatArray:
    """Share of its memory for embeddings that each rank uses, ``[..., W]``."""
    return np.asarray(pipeline.device_bytes(work) / np.maximum(pipeline.device_limits, 1.0))


def _largest_on(state: _State, pipeline: CostPipeline, rank: int, still: set[str]) -> Iterator[int]:
    """Tables with most bytes on a rank, that can be moved."""
    held = np.array([pipeline.device_bytes(w)[rank] for w in state.works])
    order = [int(i) for i in np.argsort(-held, kind="stable") if held[i] > 0]
    movable = (i for i in order if state.placements[i].table not in still)
    yield from (i for _, i in zip(range(_MOST_TABLES), movable, strict=False))


def _elsewhere(
    placed: TablePlacement, pipeline: CostPipeline, constraints: Constraints, shares: FloatArray
) -> Iterator[TablePlacement]:
    """Other places of a table whose pieces lie on single ranks, or of one that all ranks copy."""
    if placed.sharding_type is ShardingType.DATA_PARALLEL:
        yield from _on_one_rank(placed, pipeline, constraints)
    elif placed.sharding_type in _BY_RANK:
        full = int(shares.argmax())
        on_full = [i for i, s in enumerate(placed.shards) if s.rank == full]
        for rank in sorted(set(range(len(shares))) - set(placed.ranks)):
            shards = list(placed.shards)
            for index in on_full[:1]:
                shards[index] = replace(shards[index], rank=rank)
            yield replace(placed, shards=shards)


def _on_one_rank(
    placed: TablePlacement, pipeline: CostPipeline, constraints: Constraints
) -> Iterator[TablePlacement]:
    """The whole table on each rank, under the types that its constraints leave."""
    table, topology = pipeline.workload.table(placed.table), pipeline.topology
    if table.embedding_dim % COLUMN_MULTIPLE:
        return
    kernel = ComputeKernel.FUSED
    for kind in _BY_RANK:
        if not _is_allowed(constraints, table.name, kind, kernel):
            continue
        option = ShardingOption(
            table=table.name,
            sharding_type=kind,
            kernel=kernel,
            column_widths=(table.embedding_dim,),
        )
        for rank in range(topology.world_size):
            yield place(
                option,
                table.num_embeddings,
                (rank,),
                world_size=topology.world_size,
                local_world_size=topology.local_world_size,
            )


def _is_allowed(
    constraints: Constraints, table: str, kind: ShardingType, kernel: ComputeKernel
) -> bool:
    if kind not in constraints.sharding_types or kernel not in constraints.kernels:
        return False
    return all(
        (not rule.sharding_types or kind in rule.sharding_types)
        and (not rule.kernels or kernel in rule.kernels)
        and rule.allows_pair(kind, kernel)
        for rule in constraints.for_table(table)
    )
