"""What constraints and memory leave to each table: its options, and the places of its shards."""

import fnmatch
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Final, Self

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray, IntArray
from costmodels.memory import dense_parts
from costmodels.pipeline import CostPipeline
from costmodels.shard_work.cells import OptionWork
from costmodels.sharding import (
    SPREAD,
    ComputeKernel,
    Plan,
    ShardingOption,
    ShardingType,
    Spread,
    TablePlacement,
)
from costmodels.topology import Topology
from costmodels.units import format_bytes
from costmodels.workload import Interaction, Table, Workload
from planner.errors import InfeasibleError, InvalidInputError, refuse, refuse_any
from planner.options import torchrec_rules as runtime
from planner.problem import Constraints, Level, PlanningProblem
from planner.rules.placement_rules import PlacementRules, memory_words, rules_in_words

CACHE_LOAD_FACTORS: Final = (0.05, 0.1, 0.2, 0.4)
"""Shares of a table that a cache may keep on the device, if no constraint names others."""

Places = tuple[tuple[int, ...], ...]

HOST_KERNELS: Final = (ComputeKernel.FUSED_UVM, ComputeKernel.FUSED_UVM_CACHING)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableOptions:
    """What all constraints together leave to one table, and its options once they are listed.

    Attributes:
        table: the table.
        kernels: the sharding types that are left, each with its kernels.
        min_column_width: the least width of column pieces.
        ranks, hosts: the places that shards may use.
        cache_load_factors: the cache load factors to list; :data:`CACHE_LOAD_FACTORS` itself if no
            constraint names any, so that others are allowed too.
        obstacle: says which rule an option breaks on all places; None if it breaks none.
        options: the listed options.
        works: the work of each option.
    """

    table: Table
    kernels: dict[ShardingType, tuple[ComputeKernel, ...]]
    min_column_width: int
    ranks: tuple[int, ...]
    hosts: tuple[int, ...]
    cache_load_factors: tuple[float, ...]
    obstacle: Callable[[ShardingOption], str | None]
    options: tuple[ShardingOption, ...] = ()
    works: tuple[OptionWork, ...] = ()

    def needs_host(self, sharding_type: ShardingType) -> bool:
        """Whether the sharding type is left only with kernels that keep weights in host memory."""
        return all(kernel in HOST_KERNELS for kernel in self.kernels.get(sharding_type, ()))

    def only(self, keep: Sequence[bool]) -> Self:
        """The table with the options for which ``keep`` is True."""
        return replace(
            self,
            options=tuple(itertools.compress(self.options, keep)),
            works=tuple(itertools.compress(self.works, keep)),
        )


def table_limits(problem: PlanningProblem) -> tuple[TableOptions, ...]:
    """The limits of every table, in the workload's order.

    Raises:
        InvalidInputError: constraints match no table, name ranks that do not exist, leave a table
            without any option, or contradict each other.
    """
    names = [t.name for t in problem.workload.tables]
    problems = constraint_problems(problem.constraints, names, problem.topology)
    rules, limits = PlacementRules.of(problem), []
    for index, table in enumerate(problem.workload.tables):
        try:
            limits.append(_limit(problem, table, partial(rules.obstacle, index)))
        except InvalidInputError as error:
            problems += error.problems
    if rules and not problems:
        every = np.arange(problem.topology.world_size)
        allowed = np.array([np.isin(every, limit.ranks) for limit in limits])
        problems = contradictions(rules, names, allowed)
    refuse_any(problems)
    return tuple(limits)


def have_host_kernels(tables: Iterable[Table], topology: Topology) -> bool:
    """Whether TorchRec has kernels in host memory for any of the tables on these ranks."""
    menus = (runtime.legal_types_and_kernels(table, topology.compute_device) for table in tables)
    return any(k in HOST_KERNELS for menu in menus for kernels in menu.values() for k in kernels)


def _limit(
    problem: PlanningProblem, table: Table, obstacle: Callable[[ShardingOption], str | None]
) -> TableOptions:
    """The limits of a table.

    Raises:
        InvalidInputError: they leave it no option; the message says why.
    """
    topology, constraints = problem.topology, problem.constraints
    rules = constraints.for_table(table.name)
    multiple = runtime.column_multiple(problem.workload)
    legal = runtime.legal_types_and_kernels(table, topology.compute_device, multiple=multiple)
    named = [set(r.cache_load_factors) for r in rules if r.cache_load_factors]
    factors = tuple(sorted(set.intersection(*named))) if named else CACHE_LOAD_FACTORS
    kernels_left = set(constraints.kernels).intersection(*(r.kernels for r in rules if r.kernels))
    if not factors and ComputeKernel.FUSED_UVM_CACHING in kernels_left:
        patterns = ", ".join(repr(r.pattern) for r in rules if r.cache_load_factors)
        refuse(
            f"table {table.name!r}: {patterns} name cache_load_factors that have none in common; "
            "name one in all of them"
        )
    types_left = set(constraints.sharding_types)
    types_left.intersection_update(*(r.sharding_types for r in rules if r.sharding_types))
    ranks, hosts = _places(
        topology.num_hosts,
        topology.local_world_size,
        tuple(r.ranks for r in rules if r.ranks),
        tuple(r.hosts for r in rules if r.hosts),
    )
    places = {Spread.UNIFORM: len(ranks) == topology.world_size, Spread.RANKS: True}
    places[Spread.HOSTS] = bool(hosts)
    kernels: dict[ShardingType, tuple[ComputeKernel, ...]] = {}
    for kind, choices in legal.items():
        usable = kernels_left if kind in types_left and places[SPREAD[kind]] else ()
        left = [k for k in choices if k in usable and all(r.allows_pair(kind, k) for r in rules)]
        if left:
            kernels[kind] = tuple(left)
    if not kernels or not ranks:
        patterns = ", ".join(repr(r.pattern) for r in rules)
        refuse(_no_option(table, patterns, tuple(legal), len(ranks)))
    return TableOptions(
        table=table,
        kernels=kernels,
        min_column_width=max([runtime.COLUMN_MULTIPLE, *(r.min_column_width for r in rules)]),
        ranks=ranks,
        hosts=hosts,
        cache_load_factors=factors,
        obstacle=obstacle,
    )


def _no_option(table: Table, named: str, legal: Sequence[str], num_ranks: int) -> str:
    """Why a table has no option: its constraints, or TorchRec alone where it knows no type."""
    if not legal:
        return (
            f"table {table.name!r}: TorchRec cannot train unpooled tables of {table.embedding_dim} "
            f"columns on CPU cores, where they need a multiple of {runtime.COLUMN_MULTIPLE}; "
            "change embedding_dim"
        )
    reasons = [
        f"table {table.name!r}: {named or 'the general constraints'} leave it no option",
        f"TorchRec knows {', '.join(legal)} for it, ranks left: {num_ranks}",
        "allow more sharding types, kernels or ranks",
        runtime.unsummed_words(table),
    ]
    return "; ".join(filter(None, reasons))


@lru_cache(maxsize=256)
def _places(
    num_hosts: int, local_world_size: int, rank_limits: Places, host_limits: Places
) -> Places:
    """The ranks that all limits leave, and the hosts of which they leave every rank."""
    hosts = set(range(num_hosts)).intersection(*host_limits)
    ranks = set(range(num_hosts * local_world_size)).intersection(*rank_limits)
    left = sorted(r for r in ranks if r // local_world_size in hosts)
    counts = Counter(r // local_world_size for r in left)
    return tuple(left), tuple(sorted(h for h in hosts if counts[h] == local_world_size))


# ------------------ contradictions
#
# Contradictions among constraints, named before any search, and constraints that a plan breaks.


def constraint_problems(
    constraints: Constraints, names: Sequence[str], topology: Topology
) -> list[str]:
    """One line for each rule that matches no table, too few tables, or names a missing place."""
    places = {Level.RANK: topology.world_size, Level.HOST: topology.num_hosts}
    told = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    problems = [
        f"constraint {c.pattern!r} matches no table; tables are {told or 'none'}"
        for c in constraints.tables
        if not any(map(c.matches, names))
    ]
    for field, rule, words in rules_in_words(constraints):
        if field not in ("together", "apart", "counts"):
            continue
        least, wanted = (1, "a table") if field == "counts" else (2, "two tables")
        unknown = [p for p in rule.patterns if not fnmatch.filter(names, p)]
        matched = [name for name in names if rule.matches(name)]
        if unknown and (field != "counts" or not matched):
            text = f"{unknown[0]!r} matches no table; check its spelling"
            problems.append(f"constraint {words}: {text}")
        elif len(matched) < least:
            problems.append(f"constraint {words}: matches {matched} alone; name {wanted} or more")
    named = [
        *((repr(c.pattern), Level.RANK, c.ranks) for c in constraints.tables),
        *((repr(c.pattern), Level.HOST, c.hosts) for c in constraints.tables),
        *((memory_words(m).split()[0], m.level, m.places) for m in constraints.memory),
    ]
    for rule, level, found in named:
        bad = [p for p in found if not 0 <= p < places[level]]
        if bad:
            outside = f"{level}s {bad[:5]} are outside 0..{places[level] - 1}"
            problems.append(f"constraint {rule}: {outside}")
    return problems


def contradictions(rules: PlacementRules, names: Sequence[str], allowed: BoolArray) -> list[str]:
    """One line for each set of rules that cannot hold at the same time.

    Every table needs at least one place. Tables that are kept apart (or limited in number) need
    enough different places between them; tables that are kept together need a place that all of
    them may use.

    Args:
        rules: the rules.
        names: the names of the tables.
        allowed: ``[T, W]`` ranks that each table may use under its own limits.
    """
    per_host = allowed.reshape(len(names), rules.num_hosts, -1).any(axis=-1)
    reach = {Level.RANK: allowed, Level.HOST: np.asarray(per_host, dtype=bool)}
    problems = [
        f"constraint {union.text}: no {union.level} is allowed for all of "
        f"{_named(np.flatnonzero(union.members), names)} by their own ranks and hosts; widen those "
        "limits"
        for union in rules.unions
        if not reach[union.level][union.members].all(axis=0).any()
    ]
    for union, cap in itertools.product(rules.unions, rules.caps):
        both = np.flatnonzero(union.members & cap.members)
        nested = union.level is Level.RANK or cap.level is Level.HOST
        if len(both) > cap.most and (nested or rules.local_world_size == 1):
            problems.append(
                f"constraints {union.text} and {cap.text} both name {_named(both, names)}: "
                f"{len(both)} tables have to share one {cap.level}; raise the limit, or drop "
                "tables from one of the two"
            )
    for cap in rules.caps:
        members = np.flatnonzero(cap.members)
        stuck = _unmatched(reach[cap.level][members], cap.most)
        if stuck:
            places = np.flatnonzero(reach[cap.level][members[stuck]].any(axis=0))
            problems.append(
                f"constraint {cap.text}: {_named(members[stuck], names)} need more than the "
                f"{len(places)} {cap.level}s {places[:8].tolist()} that they may use; allow more "
                f"{cap.level}s, or drop tables from the rule"
            )
    return problems


def _unmatched(reach: BoolArray, most: int) -> list[int]:
    """Rows of ``reach [m, places]`` that do not all find a place with ``most`` rows in each.

    The list is empty if they do. Where a largest matching leaves a row without a place, these are
    that row, and the rows that hold the places which it could reach if others changed theirs: they
    have too few places between them (Hall's theorem).
    """
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import maximum_bipartite_matching

    seats = csr_matrix(np.repeat(reach, most, axis=1))
    place_of = maximum_bipartite_matching(seats, perm_type="column") // most
    alone = np.flatnonzero(place_of < 0)
    stuck = np.isin(np.arange(len(reach)), alone[:1])
    while True:
        more = stuck | np.isin(place_of, np.flatnonzero(reach[stuck].any(axis=0)))
        if (more == stuck).all():
            return [int(row) for row in np.flatnonzero(stuck)]
        stuck = more


def _named(members: IntArray, names: Sequence[str]) -> str:
    shown = ", ".join(repr(names[i]) for i in members[:4])
    return shown if len(members) <= 4 else f"{shown} and {len(members) - 4} more"


_NUM_TOLD: Final = 3
_EXCESS_RATIO: Final = 1e-9
"""Share of a limit on memory by which a sum of bytes may exceed it because of rounding."""


def broken_constraints(problem: PlanningProblem, plan: Plan) -> tuple[str, ...]:
    """One line for each table that breaks its constraints, and for each broken rule.

    A search never returns such a plan, but a plan that somebody else made is priced as it is. The
    first three tables are named; a last line counts the others.
    """
    constraints, topology = problem.constraints, problem.topology
    lines = []
    for placement in plan.placements:
        reasons = list(_reasons(placement, constraints, topology.local_world_size))
        if reasons:
            lines.append(f"table {placement.table!r} {' and '.join(reasons)}")
    if len(lines) > _NUM_TOLD:
        lines[_NUM_TOLD:] = [f"and {len(lines) - _NUM_TOLD} more tables are not as asked"]
    rules = PlacementRules(constraints, [t.name for t in problem.workload.tables], topology)
    if rules and plan.placements:
        ranks = [plan.placement(t.name).ranks for t in problem.workload.tables]
        counts = np.array([np.bincount(r, minlength=topology.world_size) for r in ranks])
        lines += [f"tables do not lie as {text} asks" for text in rules.broken(counts)]
    if constraints.memory:
        lines += _overfull(problem, plan)
    return tuple(lines)


def _overfull(problem: PlanningProblem, plan: Plan) -> Iterator[str]:
    """For each limit on memory that a plan breaks, a line with the first place that holds more.

    A limit on a place that there is not, which a search refuses, is a line too.
    """
    topology = problem.topology
    held = CostPipeline(problem.workload, topology).memory(plan)
    for rule in problem.constraints.memory:
        by_rank = rule.level is Level.RANK
        used = [place.used_bytes for place in (held.ranks if by_rank else held.hosts)]
        places = rule.places or range(len(used))
        if max(places) >= len(used):
            yield f"{memory_words(rule)} is outside {rule.level}s 0..{len(used) - 1}"
        over = [
            p for p in places if p < len(used) and used[p] > rule.most_bytes * (1 + _EXCESS_RATIO)
        ]
        if over:
            excess = format_bytes(used[over[0]] - rule.most_bytes)
            yield f"{rule.level} {over[0]} is {excess} over {memory_words(rule)}"


def _reasons(
    placement: TablePlacement, constraints: Constraints, local_world_size: int
) -> Iterator[str]:
    """What a table has that some rule on it does not allow."""
    rules = constraints.for_table(placement.table)
    kind, kernel, ranks = placement.sharding_type, placement.kernel, set(placement.ranks)
    cached = {placement.cache_load_factor_ratio} - {None}
    found: tuple[tuple[str, str, set[Any]], ...] = (
        ("sharding_types", "is {}", {kind}),
        ("kernels", "has the kernel {}", {kernel}),
        ("pairs", "is {0[0]} with the kernel {0[1]}", {(kind, kernel)}),
        ("ranks", "lies on rank {}", ranks),
        ("hosts", "lies on host {}", {rank // local_world_size for rank in ranks}),
        ("cache_load_factors", "keeps {:g} of its rows in the cache", cached),
    )
    told = False
    for key, words, values in found:
        limits = filter(None, (getattr(rule, key, ()) for rule in (constraints, *rules)))
        bad = set[Any]().union(*(values.difference(limit) for limit in limits))
        if bad and not (told and key == "pairs"):
            told = True
            yield words.format(min(bad))
    cells, least = placement.cells, max((r.min_column_width for r in rules), default=0)
    if len(np.unique(cells.col_offset)) > 1 and cells.num_cols.min() < least:
        yield f"has pieces of {cells.num_cols.min()} columns"


# ------------------ memory
#
# Which options fit, and whether device memory is scarce.

_CROWDED_RATIO: Final = 0.7
"""If tables take more than this share of device memory, kernels in host memory are listed; if they
take less, tables fit without such kernels."""

_ROUNDING: Final = 1.0 + 1e-12


def memory_coefficients(pipeline: CostPipeline) -> tuple[FloatArray, FloatArray]:
    """Device and host bytes per unit of each work column; memory is linear in work.

    Returns:
        Two arrays ``[features]``: a work row ``y`` takes ``device @ y`` and ``host @ y`` bytes.
    """
    size = pipeline.num_features
    device, host = np.zeros((2, size))
    probe = np.zeros((pipeline.topology.world_size, size))
    for column, unit in enumerate(np.eye(size)):
        probe[0] = unit
        device[column] = pipeline.device_bytes(probe)[0]
        host[column] = pipeline.host_bytes(probe)[0]
    return device, host


def crowded(
    problem: PlanningProblem,
    limits: Sequence[TableOptions],
    table_bytes: Sequence[float],
    device_limits: FloatArray,
) -> bool:
    """Whether device memory is so scarce that tables may not get their fastest option.

    It is if tables take more than :data:`_CROWDED_RATIO` of all ranks together, of the ranks that
    constraints leave to them, or of the rank or host that a rule keeps them on.

    Args:
        problem: has the rules that keep tables together.
        limits: what constraints leave to each table.
        table_bytes: bytes that each table takes at least.
        device_limits: ``[W]`` bytes that devices have for tables.
    """
    if device_limits.min() <= 0 or surely_crowded(table_bytes, device_limits):
        return True
    bytes_on: dict[tuple[int, ...], float] = defaultdict(float)
    for limit, size in zip(limits, table_bytes, strict=True):
        bytes_on[limit.ranks] += size
    places = {ranks: frozenset(ranks) for ranks in bytes_on}
    found = []
    for ranks, every in places.items():
        inside = sum(bytes_on[p] for p, these in places.items() if these <= every)
        found.append((inside, device_limits[list(ranks)].sum()))
    for group in problem.constraints.together:
        pairs = zip(limits, table_bytes, strict=True)
        together = sum(size for limit, size in pairs if group.matches(limit.table.name))
        ranks_each = 1 if group.level is Level.RANK else problem.topology.local_world_size
        found.append((together, device_limits.min() * ranks_each))
    return any(size > _CROWDED_RATIO * float(room) for size, room in found)


def surely_crowded(table_bytes: Sequence[float], device_limits: FloatArray) -> bool:
    """Whether tables take more than :data:`_CROWDED_RATIO` of all device memory.

    Args:
        table_bytes: bytes that each table takes at least.
        device_limits: ``[W]`` bytes that devices have for tables.
    """
    return sum(table_bytes) > _CROWDED_RATIO * float(np.maximum(device_limits, 0.0).sum())


def drop_unfit(
    tables: Sequence[TableOptions], pipeline: CostPipeline, device: FloatArray, host: FloatArray
) -> tuple[TableOptions, ...]:
    """The tables without the options that do not fit even on empty devices and hosts.

    Args:
        tables: all options of each table.
        pipeline: knows the limits of memory.
        device: ``[F]`` device bytes per unit of work, from :func:`memory_coefficients`.
        host: ``[F]`` host bytes per unit of work.
    """
    kept: list[TableOptions] = []
    limit, host_limit = pipeline.device_limits.min(), pipeline.host_limits.min()
    for table in tables:
        # All fit if the smallest device holds the largest shard, and the smallest host the largest
        # one of each of its ranks.
        rows = np.concatenate([np.zeros((1, len(device))), *(w.rows for w in table.works)])
        together = (rows @ host).max() * pipeline.topology.local_world_size
        if (rows @ device).max() > limit or together > host_limit:
            pairs = zip(table.options, table.works, strict=True)
            lacks = [lacking_bytes(o, w @ device, w @ host, table, pipeline) for o, w in pairs]
            table = table.only([not any(lack) for lack in lacks])
        kept.append(table)
    return tuple(kept)


def lacking_bytes(
    option: ShardingOption,
    device: FloatArray,
    host: FloatArray,
    table: TableOptions,
    pipeline: CostPipeline,
) -> tuple[float, float]:
    """Device bytes per rank, and host bytes per host, that an option lacks on empty ranks.

    Args:
        option: the option.
        device: device bytes of its shards: ``[W]`` of uniform options, ``[pieces]`` of pieces on
            ranks, ``[pieces, L]`` of pieces on hosts of L ranks.
        host: host bytes of its shards, in the same shape.
        table: knows which places the table may have.
        pipeline: knows the limits.
    """
    limits, host_limits = pipeline.device_limits * _ROUNDING, pipeline.host_limits * _ROUNDING
    local, ranks, hosts = pipeline.topology.local_world_size, list(table.ranks), list(table.hosts)
    if option.is_uniform:
        per_host = host.reshape(-1, local).sum(axis=-1)
        lacks = (device - limits).max(), (per_host - host_limits).max()
    elif option.spread is Spread.RANKS:
        beside = host_limits[np.array(ranks) // local].max()
        lacks = device.max() - limits[ranks].max(), host.max() - beside
    else:
        on_device = (device[:, None, :] - limits.reshape(-1, local)[hosts]).max(axis=-1)
        on_host = host.sum(axis=-1).max() - host_limits[hosts].max()
        lacks = on_device.min(axis=-1).max(), on_host
    return max(float(lacks[0]), 0.0), max(float(lacks[1]), 0.0)


# ------------------ besides tables
#
# Problems that no plan can solve are refused before options are listed.

_MANY_VECTORS: Final = 256
"""If a dot interaction has at least this many vectors, the error names it as a likely cause."""


def refuse_hopeless(problem: PlanningProblem, pipeline: CostPipeline) -> None:
    """Refuse a problem whose ranks have no room for what they need besides tables.

    Args:
        problem: tables, topology and constraints.
        pipeline: knows the limits of memory.

    Raises:
        InfeasibleError: the message has the bytes, and what to change.
    """
    workload, topology, limits = problem.workload, problem.topology, pipeline.device_limits
    # Without tables every rank has to hold the dense part; with them one rank is enough.
    has_tables = bool(workload.tables)
    missing = -float(limits.max() if has_tables else limits.min())
    if missing <= 0:
        return
    which, most = ("largest", np.max) if has_tables else ("smallest", np.min)
    parts = dense_parts(workload, topology) | {"memory reserve": workload.reserved_bytes}
    needs = [f"{format_bytes(size)} {name}" for name, size in parts.items() if size > 0]
    msg = (
        f"nothing fits: the dense part and the reserve alone exceed "
        f"{'every' if has_tables else 'a'} device by {format_bytes(missing)}"
        f"{' before any table is placed' if has_tables else ''}"
    )
    if type(pipeline).device_bytes is CostPipeline.device_bytes:
        has = format_bytes(float(most(topology.hbm_capacities())))
        msg += f": {', '.join(needs)}, and the {which} device has {has}"
    raise InfeasibleError(msg, shortfall_bytes=missing, advice=_dense_advice(workload))


def _dense_advice(workload: Workload) -> tuple[str, ...]:
    lines = []
    vectors = sum(len(t.features) for t in workload.tables)
    if workload.dense.interaction is Interaction.DOT and vectors >= _MANY_VECTORS:
        pairs = vectors * (vectors - 1) // 2
        lines.append(
            f"a dot interaction of {vectors:,} vectors hands {pairs:,} products to the top MLP: "
            "use interaction cat or dcn, or fewer features"
        )
    lines += filter(None, (layer.remark for layer in workload.dense.layers))
    lines.append("reduce the memory reserve, the batch size or the layers of the dense part")
    lines.append("use devices with more memory")
    return tuple(lines)
