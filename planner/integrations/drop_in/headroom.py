"""Keeps memory free: as much as the user asks for, and more if this costs almost no time.

The search minimises time alone. Its plan can fill one rank with tables that would cost the same
time on another rank, or as a single copy instead of many. :func:`roomier` moves such tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodels.datatypes import FloatArray
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
"""A plan that leaves more memory free on its fullest rank may be slower by this share."""

LEAST_GAIN_RATIO: Final = 0.01
"""Another plan is used only if it frees at least this share of a device on the fullest rank."""
_MOST_MOVES: Final = 64
_MOST_TABLES: Final = 8
"""At most this many moves of one plan, and tables of the fullest rank that are tried for each."""
_MOST_SHARDS: Final = 20_000
"""Tables are moved only if tables times ranks are at most this many, because the work of each table
is kept for every rank."""
_BY_RANK: Final = (ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE)
"""Types whose pieces are on single ranks, which can be any ranks."""


def require_headroom(headroom_ratio: float) -> float:
    """Check and return the share of memory to keep free.

    Raises:
        InvalidInputError: the share is negative, or 1 or more.
    """
    if not 0 <= headroom_ratio < 1:
        message = f"memory_headroom must be 0 or more and below 1, got {headroom_ratio}"
        raise InvalidInputError(message)
    return headroom_ratio


def with_headroom(topology: Topology, headroom_ratio: float) -> Topology:
    """The topology with the memory of its devices reduced by a share.

    Args:
        topology: the topology, with the memory that the storage reservation has left.
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


def with_more_memory(topology: Topology, more_bytes: float) -> Topology:
    """The topology with so many bytes more on each of its devices."""
    capacity = topology.device.hbm_capacity_bytes + more_bytes
    return replace(
        topology,
        device=replace(topology.device, hbm_capacity_bytes=capacity),
        hbm_capacity_by_rank_bytes=tuple(
            c + more_bytes for c in topology.hbm_capacity_by_rank_bytes
        ),
    )


@dataclass(frozen=True, kw_only=True)
class _State:
    """A plan as placements, with the work of each of them."""

    placements: tuple[TablePlacement, ...]
    works: tuple[FloatArray, ...]

    @property
    def work(self) -> FloatArray:
        """Work of the whole plan, ``[W, columns]``."""
        return np.asarray(sum(self.works))

    def changed(self, at: int, placement: TablePlacement, work: FloatArray) -> _State:
        """The plan with one table on another place."""
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
    """A plan whose fullest rank holds less; the same plan if there is none within ``most_s``.

    One table after the other is moved: pieces from the fullest rank to other ranks, and tables with
    a copy on every rank to a single rank. This goes on as long as the memory of ranks gets more
    even, and the fullest rank not fuller.

    Args:
        plan: the fastest plan.
        pipeline: prices plans.
        constraints: the constraints of the search; tables that have to share a place are not moved.
        most_s: predicted iteration time that no plan may exceed, in seconds.
        fixed: names of further tables that are not moved.
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
    """The plan after the move that makes ranks most even; None if no move helps."""
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
    """Share of its memory for tables that the fullest rank uses."""
    return float(_shares(pipeline, pipeline.plan_work(plan)).max())


def _shares(pipeline: CostPipeline, work: FloatArray) -> FloatArray:
    """``[..., W]`` share of its memory for tables that each rank uses."""
    return np.asarray(pipeline.device_bytes(work) / np.maximum(pipeline.device_limits, 1.0))


def _largest_on(state: _State, pipeline: CostPipeline, rank: int, still: set[str]) -> Iterator[int]:
    """The movable tables with the most bytes on a rank."""
    held = np.array([pipeline.device_bytes(w)[rank] for w in state.works])
    order = [int(i) for i in np.argsort(-held, kind="stable") if held[i] > 0]
    movable = (i for i in order if state.placements[i].table not in still)
    yield from (i for _, i in zip(range(_MOST_TABLES), movable, strict=False))


def _elsewhere(
    placed: TablePlacement, pipeline: CostPipeline, constraints: Constraints, shares: FloatArray
) -> Iterator[TablePlacement]:
    """Other placements of a table whose pieces are on single ranks, or that all ranks copy."""
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
    """Placements with the whole table on one rank, under the types that its constraints leave."""
    table, topology = pipeline.workload.table(placed.table), pipeline.topology
    if table.embedding_dim % COLUMN_MULTIPLE:
        return
    kernel = ComputeKernel.FUSED
    for kind in _BY_RANK:
        if not is_allowed(constraints, table.name, kind, kernel):
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


def is_allowed(
    constraints: Constraints, table: str, kind: ShardingType, kernel: ComputeKernel
) -> bool:
    """Whether the constraints leave a table a sharding type with a kernel."""
    if kind not in constraints.sharding_types or kernel not in constraints.kernels:
        return False
    return all(
        (not rule.sharding_types or kind in rule.sharding_types)
        and (not rule.kernels or kernel in rule.kernels)
        and rule.allows_pair(kind, kernel)
        for rule in constraints.for_table(table)
    )
