"""The plan that TorchRec's planner makes with its defaults, computed without torch.

It follows ``EmbeddingShardingPlanner`` of torchrec 1.8. A proposal is one option for each table.
The planner makes all proposals if there are few (a grid search), those of two greedy walks, and one
for each sharding type that all tables have. It places each of them by ``GreedyPerfPartitioner`` and
rates it by its own estimates (:mod:`costmodels.torchrec_estimates`); the best rating wins. The
planner gets the pooling factors, and those constraints that it knows: sharding types, kernels and
the least column width. Slow tests check that these plans are equal to those of TorchRec.

A proposal that cannot rate better than the best one so far, wherever its shards are placed, is not
placed. The result stays the same, because TorchRec's next proposal does not depend on ratings.
"""

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from costmodels import sharding
from costmodels import torchrec_estimates as estimates
from costmodels.sharding import ComputeKernel, Plan, ShardingOption, ShardingType
from planner.errors import StoppedError
from planner.options.enumeration import torchrec_widths
from planner.options.torchrec_rules import COLUMN_MULTIPLE, block_rows, legal_types_and_kernels
from planner.problem import PlanningProblem

# ------------------ every option that TorchRec's default planner looks at

DEFAULT_TYPES: Final = (
    ShardingType.DATA_PARALLEL,
    ShardingType.TABLE_WISE,
    ShardingType.COLUMN_WISE,
    ShardingType.TABLE_COLUMN_WISE,
    ShardingType.ROW_WISE,
    ShardingType.TABLE_ROW_WISE,
)
"""Sharding types in the order of TorchRec's enumerator, which leaves out ``grid_shard``."""


class DefaultShard(NamedTuple):
    """Seconds, device bytes and host bytes of one shard, as TorchRec estimates them."""

    seconds: float
    hbm: float
    ddr: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DefaultOption:
    """One option of a table with the seconds and bytes of its shards.

    Sums are taken shard by shard, as TorchRec does, so that they are rounded in the same way.

    Attributes:
        table: index of the table.
        option: the option.
        shards: every shard, in TorchRec's order.
        most: the most seconds, device bytes and host bytes of a shard.
        total: the same of all shards together.
    """

    table: int
    option: ShardingOption
    shards: tuple[DefaultShard, ...]
    most: DefaultShard
    total: DefaultShard


def default_options(
    problem: PlanningProblem, machine: estimates.TorchrecMachine, index: int
) -> Iterator[DefaultOption]:
    """The options of a table, in the order of TorchRec's enumerator.

    Args:
        problem: workload, system and constraints.
        machine: the system as TorchRec's topology describes it.
        index: index of the table.
    """
    constraints, topology = problem.constraints, problem.topology
    table = problem.workload.tables[index]
    rules = constraints.for_table(table.name)
    legal = legal_types_and_kernels(table, topology.compute_device)
    least = max([COLUMN_MULTIPLE, *(r.min_column_width for r in rules)])
    sizes = table.num_embeddings, topology.world_size, topology.local_world_size
    read = estimates.TorchrecTable.of(table, problem.workload)
    named = (r.sharding_types for r in rules if r.sharding_types)
    types = set(legal).intersection(constraints.sharding_types, *named)
    kernels = set(constraints.kernels).intersection(*(r.kernels for r in rules if r.kernels))
    for kind in (kind for kind in DEFAULT_TYPES if kind in types):
        splits = kind in (ShardingType.COLUMN_WISE, ShardingType.TABLE_COLUMN_WISE)
        widths = torchrec_widths(table.embedding_dim, least if splits else table.embedding_dim)
        blocks = block_rows(kind, *sizes)
        for kernel in (kernel for kernel in legal[kind] if kernel in kernels):
            shard = estimates.TorchrecShard(read, machine, kind, kernel, widths[0])
            seconds = shard.perf().total_s
            held = {rows: DefaultShard(seconds, *shard.storage(rows)) for rows in set(blocks)}
            shards = tuple(held[rows] for rows in blocks) * len(widths)
            columns = tuple(zip(*shards, strict=True))
            cached = kernel is ComputeKernel.FUSED_UVM_CACHING
            option = ShardingOption(
                table=table.name,
                sharding_type=kind,
                kernel=kernel,
                column_widths=widths,
                cache_load_factor_ratio=estimates.CACHE_LOAD_FACTOR if cached else None,
            )
            most, total = DefaultShard(*map(max, columns)), DefaultShard(*map(sum, columns))
            yield DefaultOption(table=index, option=option, shards=shards, most=most, total=total)


# ------------------ the plan

_MOST_GRID: Final = 10_000
"""TorchRec's grid search runs only if there are at most this many proposals."""
_MOST_PLACED: Final = 400_000
"""When this many shards have been placed, the walk ends here; TorchRec itself goes on, for minutes.
"""
_ROUNDING: Final = 1e-9


class TorchrecDefault(NamedTuple):
    """What TorchRec's planner returns.

    Attributes:
        plan: its plan; None if it finds no plan that fits.
        is_cut: whether the walk was ended early, so that TorchRec itself may find a plan that it
            rates better.
    """

    plan: Plan | None
    is_cut: bool = False


_Proposal = tuple[list[DefaultOption], float, float]
"""One option of each table, and seconds and device bytes of all their shards."""


class _NoRoomError(Exception):
    """A shard fits on no rank."""


def torchrec_default(
    problem: PlanningProblem, late: Callable[[], bool] = lambda: False
) -> TorchrecDefault:
    """The plan that TorchRec's planner makes for a workload on a system.

    The plan can break rules that TorchRec does not have: named ranks, groups, counts, and limits on
    what moves.

    Args:
        problem: workload, system and constraints.
        late: called again and again; True ends the walk.

    Raises:
        StoppedError: ``late`` was True before there was a plan.
    """

    def stop() -> None:
        if late():
            message = "stopped before TorchRec's plan was made"
            raise StoppedError(message)

    kept = _kept(problem)
    if not kept:
        kept.append(_walked(problem, stop))
    return kept[0]


@lru_cache(maxsize=2)
def _kept(problem: PlanningProblem) -> list[TorchrecDefault]:
    """Where the plan of a problem is kept once it is made."""
    del problem
    return []


def _walked(problem: PlanningProblem, stop: Callable[[], None]) -> TorchrecDefault:
    """Try proposals in TorchRec's order until there are no more, or too many shards are placed.

    A proposal is not placed if it cannot be the best: its bytes are too many for all ranks
    together, or the mean over ranks, or one of its shards alone, takes too long.
    """
    workload, topology = problem.workload, problem.topology
    machine = estimates.TorchrecMachine.of(topology)
    limits = machine.device_limits_bytes(workload)
    options: list[list[DefaultOption]] = []
    for index in range(len(workload.tables)):
        stop()
        options.append(list(default_options(problem, machine, index)))
    if min(limits) < 0 or not all(options):
        return TorchrecDefault(plan=None)
    most_bytes, rating_s, placed = sum(limits) * (1 + _ROUNDING), math.inf, 0
    best: tuple[list[DefaultOption], list[tuple[int, ...]]] = [], []
    for chosen, total_s, device_bytes in _proposals(options):
        stop()
        if placed > _MOST_PLACED:
            break
        most_s = rating_s * (1 + _ROUNDING)
        is_slow = total_s / machine.world_size > most_s
        if is_slow or device_bytes > most_bytes or max(o.most.seconds for o in chosen) > most_s:
            continue
        placed += sum(len(o.shards) for o in chosen)
        placing = _Placing(machine, limits)
        try:
            places = placing.place(chosen)
        except _NoRoomError:
            continue
        if max(placing.seconds) < rating_s:
            rating_s, best = max(placing.seconds), (list(chosen), places)
    sizes = {"world_size": topology.world_size, "local_world_size": topology.local_world_size}
    placements = tuple(
        sharding.place(option.option, workload.tables[option.table].num_embeddings, where, **sizes)
        for option, where in zip(*best, strict=True)
    )
    plan = Plan(placements=placements) if placements else None
    return TorchrecDefault(plan=plan, is_cut=placed > _MOST_PLACED)


def _proposals(options: Sequence[Sequence[DefaultOption]]) -> Iterator[_Proposal]:
    by_depth = [sorted(o, key=lambda x: x.most.seconds) for o in options]
    if math.prod(len(o) for o in by_depth) <= _MOST_GRID:
        yield from map(_summed, itertools.product(*by_depth))
    yield from _greedy(by_depth)
    yield from _greedy([sorted(o, key=lambda x: x.total.seconds) for o in options])
    for kind in DEFAULT_TYPES:
        alike = [[o for o in own if o.option.sharding_type is kind] for own in by_depth]
        if all(alike):
            yield _summed(own[0] for own in alike)


def _summed(options: Iterable[DefaultOption]) -> _Proposal:
    chosen = list(options)
    return chosen, sum(o.total.seconds for o in chosen), sum(o.total.hbm for o in chosen)


def _greedy(options: Sequence[Sequence[DefaultOption]]) -> Iterator[_Proposal]:
    """Start with the first option of each table; then the largest table takes its next one.

    The largest table is the one whose present option takes most memory; the first one in a tie.
    """
    chosen, total_s, device_bytes = _summed(own[0] for own in options)
    at = [0] * len(options)

    def entry(table: int) -> list[tuple[tuple[float, ...], int]]:
        """The table with its size, if it can take another option."""
        most, total = chosen[table].most, chosen[table].total
        size = most.hbm, total.hbm, most.ddr, total.ddr
        movable = at[table] + 1 < len(options[table]) and any(size)
        return [(tuple(-s for s in size), table)] if movable else []

    heap = [e for table in range(len(options)) for e in entry(table)]
    heapq.heapify(heap)
    yield chosen, total_s, device_bytes
    while heap:
        _, table = heapq.heappop(heap)
        before, at[table] = chosen[table], at[table] + 1
        chosen[table] = after = options[table][at[table]]
        total_s += after.total.seconds - before.total.seconds
        device_bytes += after.total.hbm - before.total.hbm
        for again in entry(table):
            heapq.heappush(heap, again)
        yield chosen, total_s, device_bytes


class _Placing:
    """Places one proposal as ``GreedyPerfPartitioner`` does.

    Tables that load all ranks come first, and then the others in order of decreasing memory.
    """

    def __init__(self, machine: estimates.TorchrecMachine, limits: Sequence[float]) -> None:
        self._local = machine.group_size
        self._room = list(limits)
        self._host_room = list(machine.ddr_limits_bytes)
        self.seconds = [0.0] * machine.world_size
        # (seconds, rank in its host, rank) of all ranks; empty when seconds have changed since.
        self._heap: list[tuple[float, int, int]] = []

    def place(self, proposal: Sequence[DefaultOption]) -> list[tuple[int, ...]]:
        """Ranks (or hosts) of the pieces of every table.

        Raises:
            _NoRoomError: a shard fits on no rank.
        """
        places: list[tuple[int, ...]] = [()] * len(proposal)
        by_memory = sorted(proposal, key=lambda o: (o.total.hbm, o.total.ddr), reverse=True)
        for option in filter(lambda o: o.option.is_uniform, proposal):
            self._uniform(option, 0)
        for option in filter(lambda o: not o.option.is_uniform, by_memory):
            kind = option.option.sharding_type
            if kind in (ShardingType.TABLE_ROW_WISE, ShardingType.TABLE_COLUMN_WISE):
                places[option.table] = self._on_a_host(option)
            else:
                places[option.table] = self._on_ranks(option, range(len(self.seconds)))
        return places

    def _fits(self, shard: DefaultShard, rank: int) -> bool:
        device = shard.hbm <= self._room[rank]
        return device and shard.ddr <= self._host_room[rank]

    def _take(self, shard: DefaultShard, rank: int) -> None:
        self._room[rank] -= shard.hbm
        self._host_room[rank] -= shard.ddr
        self.seconds[rank] += shard.seconds

    def _uniform(self, option: DefaultOption, first: int) -> None:
        self._heap = []
        for rank, shard in enumerate(option.shards, first):
            if not self._fits(shard, rank):
                raise _NoRoomError
            self._take(shard, rank)

    def _on_ranks(self, option: DefaultOption, ranks: range) -> tuple[int, ...]:
        """Put each shard on the rank with the fewest seconds among those with room for it."""
        everywhere = len(ranks) == len(self.seconds)
        heap = self._heap if everywhere else []
        self._heap = []
        if not heap:
            heap = [(self.seconds[r], r % self._local, r) for r in ranks]
            heapq.heapify(heap)
        places = []
        for shard in option.shards:
            passed = []
            while heap and not self._fits(shard, heap[0][2]):
                passed.append(heapq.heappop(heap))
            if not heap:
                raise _NoRoomError
            rank = heap[0][2]
            self._take(shard, rank)
            heapq.heapreplace(heap, (self.seconds[rank], rank % self._local, rank))
            for entry in passed:
                heapq.heappush(heap, entry)
            places.append(rank)
        self._heap = heap if everywhere else []
        return tuple(places)

    def _on_a_host(self, option: DefaultOption) -> tuple[int, ...]:
        """Put all shards on the host with the fewest seconds among those where they fit."""
        hosts = range(len(self.seconds) // self._local)
        loads = [sum(self.seconds[h * self._local : (h + 1) * self._local]) for h in hosts]
        for host in sorted(hosts, key=lambda h: loads[h]):
            first = host * self._local
            ranks = range(first, first + self._local)
            room, host_room = (sum(r[first : ranks.stop]) for r in (self._room, self._host_room))
            if option.total.hbm > room or option.total.ddr > host_room:
                continue
            kept = self._room[:], self._host_room[:], self.seconds[:]
            try:
                if option.option.sharding_type is ShardingType.TABLE_ROW_WISE:
                    self._uniform(option, first)
                    return (host,)
                return self._on_ranks(option, ranks)
            except _NoRoomError:
                self._room, self._host_room, self.seconds = kept
        raise _NoRoomError
