"""Rules on groups and counts of tables, as arrays that every search uses.

A rule sees a plan as ``counts[t, r]``, the number of shards of table t on rank r. Every rule is one
of two kinds:

- a *cap* limits, on each rank or host, the shards or the distinct tables of its members. Keeping
  tables apart is a cap of one distinct table;
- a *union* allows all its members together only one rank or host.

A limit on what moves (:class:`MoveBudget`) is checked with them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, Self, TypeVar

import numpy as np

from costmodels import sharding, units
from costmodels.datatypes import BoolArray, FloatArray, IntArray
from costmodels.topology import Topology, group_topology, members, ranks_on_first_host
from costmodels.workload import Table, Workload
from planner.errors import InfeasibleError
from planner.problem import (
    CHOICES,
    Constraints,
    CountLimit,
    Level,
    MemoryLimit,
    MoveLimit,
    PlanningProblem,
    TableConstraint,
    TableGroup,
)

# ------------------ bytes that ranks receive when a plan replaces another one
#
# A rank receives each cell (an element of a table) that it holds under the new plan and did not
# hold under the old one. The bytes of a cell are those of its weight and of its share of the row's
# optimizer state.

MOVED_BYTES = 0.5
"""A table counts as moved if ranks receive more bytes than this; less is rounding of sums."""
_BYTES_ROUNDING = 1.0 + 1e-9


def cell_bytes(table: Table, workload: Workload) -> float:
    """Bytes of one cell, with its share of the row's optimizer state."""
    return workload.trained_row_bytes(table) / table.embedding_dim


def rectangles(shards: sharding.Shards) -> IntArray:
    """``[N, 4]`` of each shard: first row, row after the last, first column, column after it."""
    _, row, rows, col, cols = shards.columns
    return np.stack([row, row + rows, col, col + cols], axis=1)


def overlaps(a: IntArray, b: IntArray) -> FloatArray:
    """``[N, M]`` how many cells each rectangle of ``a [N, 4]`` shares with each of ``b [M, 4]``."""
    rows = np.minimum(a[:, None, 1], b[None, :, 1]) - np.maximum(a[:, None, 0], b[None, :, 0])
    cols = np.minimum(a[:, None, 3], b[None, :, 3]) - np.maximum(a[:, None, 2], b[None, :, 2])
    return np.asarray(np.maximum(rows, 0).astype(float) * np.maximum(cols, 0))


def received_bytes(
    before: sharding.TablePlacement,
    after: sharding.TablePlacement,
    table: Table,
    workload: Workload,
) -> float:
    """Bytes of weights and optimizer state that all ranks receive when one table is placed anew.

    Args:
        before: the placement of the table now.
        after: the placement that it gets.
        table: the table.
        workload: names the optimizer, which decides the state of a row.
    """
    old, new = rectangles(before.cells), rectangles(after.cells)
    same_rank = after.cells.rank[:, None] == before.cells.rank
    cells = float((after.cells.num_rows.astype(float) * after.cells.num_cols).sum())
    held = float((overlaps(new, old) * same_rank).sum())
    return (cells - held) * cell_bytes(table, workload)


class MoveBudget:
    """Counts the bytes that leave a plan in use for a placed option, and compares with a limit."""

    def __init__(self, limit: MoveLimit, workload: Workload, topology: Topology) -> None:
        """Keep the shards that ranks hold under the plan in use."""
        self.max_bytes = np.inf if limit.max_bytes is None else limit.max_bytes * _BYTES_ROUNDING
        self.max_tables = np.inf if limit.max_tables is None else limit.max_tables
        self._workload, self._start = workload, limit.start
        self._tables = {t.name: t for t in workload.tables}
        self._world_size = topology.world_size
        self._local_world_size = topology.local_world_size
        self._known: dict[sharding.ShardingOption, FloatArray] = {}

    def piece_bytes(self, option: sharding.ShardingOption) -> FloatArray:
        """Bytes that ranks receive for each piece of an option on each place.

        ``[pieces, W]`` for spread ranks, ``[pieces, H]`` for hosts, and ``[1]`` for uniform.
        """
        if option not in self._known:
            self._known[option] = self._piece_bytes(option)
        return self._known[option]

    def table_bytes(self, option: sharding.ShardingOption, places: tuple[int, ...]) -> float:
        """Bytes that all ranks together receive for one placed table."""
        received = self.piece_bytes(option)
        if option.is_uniform:
            return float(received[0])
        return float(received[np.arange(len(places)), list(places)].sum())

    def keeps(self, moved_bytes: FloatArray) -> BoolArray:
        """``[...]`` whether plans keep the limit, from the bytes of each table ``[..., T]``."""
        few = (moved_bytes > MOVED_BYTES).sum(axis=-1) <= self.max_tables
        return np.asarray(few & (moved_bytes.sum(axis=-1) <= self.max_bytes))

    def _piece_bytes(self, option: sharding.ShardingOption) -> FloatArray:
        table = self._tables[option.table]
        world, local = self._world_size, self._local_world_size
        sizes = {"world_size": world, "local_world_size": local}
        where = (0,) * option.num_pieces
        shards = sharding.place(option, table.num_embeddings, where, **sizes).cells
        missing = self._missing(table, shards)
        if option.is_uniform:
            return np.asarray(missing[np.arange(len(shards)), shards.rank].sum(keepdims=True))
        if option.spread is sharding.Spread.RANKS:
            return missing
        blocks = missing.reshape(option.num_pieces, local, world // local, local)
        return np.asarray(np.einsum("pihi->ph", blocks))

    def _missing(self, table: Table, shards: sharding.Shards) -> FloatArray:
        """``[shards, W]`` bytes that each rank would receive to hold each shard."""
        cells = (shards.num_rows * shards.num_cols).astype(float)
        missing = np.repeat(cells[:, None], self._world_size, axis=1)
        held = self._start.placement(table.name).cells
        np.subtract.at(missing.T, held.rank, overlaps(rectangles(shards), rectangles(held)).T)
        return missing * cell_bytes(table, self._workload)


# ------------------ words
#
# Constraints in words, close enough to the constraint file that people find them there.

T = TypeVar("T", bound=StrEnum)

_USUAL_COLUMNS = 4
"""The least width of column pieces if no rule gives one."""


def table_words(rule: TableConstraint) -> str:
    """A rule on tables, such as ``user: row_wise, table_wise; fused; ranks 0, 1``."""
    told = (
        rule.sharding_types and _of(rule.sharding_types, sharding.ShardingType),
        rule.kernels and _of(rule.kernels, sharding.ComputeKernel),
        ", ".join(f"{kind.value} with {kernel.value}" for kind, kernel in rule.pairs),
        rule.ranks and f"ranks {_listed(rule.ranks)}",
        rule.hosts and f"hosts {_listed(rule.hosts)}",
        rule.cache_load_factors
        and f"cached {', '.join(f'{ratio:.4g}' for ratio in rule.cache_load_factors)}",
    )
    parts = [str(text) for text in told if text]
    if rule.min_column_width != _USUAL_COLUMNS or not parts:
        parts.append(f"columns >= {rule.min_column_width}")
    return f"{rule.pattern}: {'; '.join(parts)}"


def together_words(group: TableGroup) -> str:
    """A rule that keeps tables together, such as ``together [user, item] on one rank``."""
    return f"together {_patterns(group.patterns)} on one {group.level.value}"


def apart_words(group: TableGroup) -> str:
    """A rule that keeps tables apart, such as ``apart [user, item] on different hosts``."""
    return f"apart {_patterns(group.patterns)} on different {group.level.value}s"


def count_words(limit: CountLimit) -> str:
    """A limit such as ``max_tables_per_rank 2 of [user, item]``; no names if all tables count."""
    what = "shards" if limit.counts_shards else "tables"
    whose = "" if limit.patterns == ("*",) else f" of {_patterns(limit.patterns)}"
    return f"max_{what}_per_{limit.level.value} {limit.most}{whose}"


def memory_words(limit: MemoryLimit) -> str:
    """A limit such as ``device_memory 12 GiB on ranks 0, 1``; no places if it holds for all."""
    what = "device" if limit.level is Level.RANK else "host"
    where = f" on {limit.level.value}s {_listed(limit.places)}" if limit.places else ""
    return f"{what}_memory {units.format_bytes(limit.most_bytes)}{where}"


_WORDS: Final[dict[str, Callable[[Any], str]]] = {
    "tables": table_words,
    "together": together_words,
    "apart": apart_words,
    "counts": count_words,
    "memory": memory_words,
}


def rules_in_words(constraints: Constraints) -> Iterator[tuple[str, Any, str]]:
    """Every rule: its field, the rule, and its words.

    A rule on all tables, such as ``all tables: not grid_shard``, is the value of its field.
    """
    for key, kinds in CHOICES.items():
        chosen = getattr(constraints, key)
        if {*chosen} != {*kinds}:
            yield key, chosen, f"all tables: {_of(chosen, kinds)}"
    for key, words in _WORDS.items():
        yield from ((key, rule, words(rule)) for rule in getattr(constraints, key))


def rules_on(table: str, constraints: Constraints) -> tuple[str, ...]:
    """Every rule that holds for a table, in words: those of all tables first, memory last."""
    found = rules_in_words(constraints)
    return tuple(t for _, rule, t in found if not hasattr(rule, "matches") or rule.matches(table))


def _of(chosen: Sequence[T], kinds: type[T]) -> str:
    """The chosen members of an enumeration; the missing ones after "not" if they are fewer."""
    missing = [kind.value for kind in kinds if kind not in chosen]
    if 0 < len(missing) < len(set(chosen)):
        return f"not {', '.join(missing)}"
    return ", ".join(kind.value for kind in chosen)


def _patterns(patterns: Sequence[str]) -> str:
    return f"[{', '.join(patterns)}]"


def _listed(places: Sequence[int]) -> str:
    return ", ".join(map(str, places))


# ------------------ placement rules
#
# Rules on groups and counts of tables, as arrays that every search uses.
#
# A rule sees a plan as ``counts[t, r]``, the number of shards of table t on rank r. Every rule is
# one of two kinds:
#
# - a *cap* limits, on each rank or host, the shards or the distinct tables of its members. Keeping
#   tables apart is a cap of one distinct table;
# - a *union* allows all its members together only one rank or host.
#
# A limit on what moves (:class:`MoveBudget`) is checked with them.

Placed = tuple[sharding.ShardingOption, tuple[int, ...]]
"""An option with its ranks or hosts."""

Relocation = Sequence[tuple[int, sharding.ShardingOption, tuple[int, ...]]]
"""Tables with their new options and places."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cap:
    """Each place may hold at most ``most`` shards (or distinct tables) of the members ``[T]``."""

    members: BoolArray
    level: Level
    distinct: bool
    most: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Union:
    """All shards of the members ``[T]`` have to be on one place."""

    members: BoolArray
    level: Level
    text: str


class PlacementRules:
    """The rules of a problem that couple tables, with the tables in the workload's order.

    Attributes:
        budget: the limit on what moves; None without one.
        every: the caps, then the unions.
    """

    def __init__(self, constraints: Constraints, names: Sequence[str], topology: Topology) -> None:
        """Find the members of every rule."""
        self.budget: MoveBudget | None = None
        self.num_tables = len(names)
        self.world_size = topology.world_size
        self.local_world_size = topology.local_world_size
        self.num_hosts = topology.num_hosts
        limits: list[tuple[TableGroup | CountLimit, bool, int, str]] = [
            *((g, True, 1, apart_words(g)) for g in constraints.apart),
            *((c, not c.counts_shards, c.most, count_words(c)) for c in constraints.counts),
        ]
        self.caps = tuple(
            Cap(members=_members(r, names), level=r.level, distinct=distinct, most=most, text=text)
            for r, distinct, most, text in limits
        )
        self.unions = tuple(
            Union(members=_members(g, names), level=g.level, text=together_words(g))
            for g in constraints.together
        )
        self.every: tuple[Cap | Union, ...] = (*self.caps, *self.unions)

    @classmethod
    def of(cls, problem: PlanningProblem) -> Self:
        """The rules of a problem, including its limit on what moves."""
        names = [t.name for t in problem.workload.tables]
        rules = cls(problem.constraints, names, problem.topology)
        limit = problem.move_limit
        if limit is not None and (limit.max_bytes is not None or limit.max_tables is not None):
            rules.budget = MoveBudget(limit, problem.workload, problem.topology)
        return rules

    def __bool__(self) -> bool:
        """Whether there is any rule."""
        return bool(self.caps or self.unions or self.budget)

    def tied(self, level: Level) -> list[BoolArray]:
        """Groups of at least two tables, each ``[T]``, that have to share one rank (or one host).

        Rules with a table in common make one group. Tables on one rank are also on one host, so the
        groups of hosts include the rules on ranks.
        """
        groups: list[BoolArray] = []
        for union in self.unions:
            if union.level not in (level, Level.RANK):
                continue
            met = [g for g in groups if (g & union.members).any()]
            groups = [g for g in groups if not (g & union.members).any()]
            groups.append(np.logical_or.reduce([union.members, *met]))
        return [g for g in groups if g.sum() > 1]

    def table_counts(self, spread: sharding.Spread, places: Sequence[int]) -> IntArray:
        """``[W]`` how many shards of one placed table each rank has."""
        if spread is sharding.Spread.UNIFORM:
            return np.ones(self.world_size, dtype=np.int64)
        step = self.local_world_size if spread is sharding.Spread.HOSTS else 1
        pieces = np.bincount(np.array(places, dtype=np.int64), minlength=self.world_size // step)
        return np.repeat(pieces, step)

    def num_places(self, level: Level) -> int:
        """The number of ranks, or of hosts."""
        return self.world_size if level is Level.RANK else self.num_hosts

    def at(self, level: Level, counts: IntArray) -> IntArray:
        """Counts ``[..., W]`` as they are for ranks; for hosts summed over their ranks."""
        if level is Level.RANK:
            return counts
        return np.asarray(counts.reshape(*counts.shape[:-1], self.num_hosts, -1).sum(axis=-1))

    def excess(self, counts: IntArray) -> IntArray:
        """``[...]`` shards or tables beyond the rules, summed over places; from ``[..., T, W]``."""
        total = np.zeros(counts.shape[:-2], dtype=np.int64)
        for rule in self.every:
            total = total + self.excess_of(rule, counts)
        return total

    def broken(self, counts: IntArray) -> tuple[str, ...]:
        """The rules, in words, that a plan with counts ``[T, W]`` breaks."""
        over = (rule.text for rule in self.every if self.excess_of(rule, counts).item() > 0)
        return tuple(over)

    def obstacle(self, table: int, option: sharding.ShardingOption) -> str | None:
        """A rule, in words, that an option breaks on all places; None if there is no such rule.

        Also a rule that would put several column pieces on one rank, because the option with one
        piece does the same.
        """
        for cap in self.caps:
            if not cap.members[table]:
                continue
            in_blocks = option.spread is sharding.Spread.HOSTS and cap.level is Level.HOST
            block = self.local_world_size if in_blocks and not cap.distinct else 1
            room = self.num_places(cap.level) * (cap.most - cap.most % block)
            is_alone = cap.distinct and cap.most == 1 and cap.members.sum() > 1
            if taken(cap, option, self) > room or (is_alone and option.is_uniform):
                return cap.text
        for union in self.unions:
            if union.members[table] and not self._fits_union(union.level, option):
                return union.text
        return None

    def excess_of(self, rule: Cap | Union, counts: IntArray) -> IntArray:
        """``[...]`` shards, tables or places beyond one rule, from counts ``[..., T, W]``."""
        inside = self.at(rule.level, counts[..., rule.members, :])
        if isinstance(rule, Cap):
            held = (inside > 0) if rule.distinct else inside
            return np.asarray(np.maximum(held.sum(axis=-2) - rule.most, 0).sum(axis=-1))
        used = inside.sum(axis=-2) > 0
        return np.asarray(np.maximum(used.sum(axis=-1) - 1, 0))

    def _fits_union(self, level: Level, option: sharding.ShardingOption) -> bool:
        if level is Level.HOST:
            return not option.is_uniform or self.num_hosts == 1
        if option.is_uniform:
            return self.world_size == 1
        one_rank = option.spread is sharding.Spread.RANKS or self.local_world_size == 1
        return one_rank and not (option.num_pieces > 1 and option.keeps_pieces_apart)


class Usage:
    """How much of every rule the placed tables use; it is updated when tables come and go.

    Attributes:
        placed: option and places of each table; None for a table without a place.
        counts: ``[T, W]`` shards of each table on each rank.
        moved: ``[T]`` bytes that ranks receive for each table.
    """

    def __init__(self, rules: PlacementRules, placed: Sequence[Placed | None]) -> None:
        """Count the placed tables."""
        self.rules = rules
        self.placed: list[Placed | None] = [None] * rules.num_tables
        self.counts: IntArray = np.zeros((rules.num_tables, rules.world_size), dtype=np.int64)
        self.moved: FloatArray = np.zeros(rules.num_tables)
        ranks = np.zeros(rules.world_size, dtype=np.int64)
        self._loads = [rules.at(cap.level, ranks).copy() for cap in rules.caps]
        for table, item in enumerate(placed):
            if item is not None:
                self.put(table, item)

    def put(self, table: int, placed: Placed | None) -> None:
        """Place a table anew, or take it out of the plan (None)."""
        self.placed[table] = placed
        rules, counts, received = self.rules, np.zeros(self.rules.world_size, dtype=np.int64), 0.0
        if placed is not None:
            counts = rules.table_counts(placed[0].spread, placed[1])
            received = 0.0 if rules.budget is None else rules.budget.table_bytes(*placed)
        self.hold(table, counts)
        self.moved[table] = received

    def hold(self, table: int, counts: IntArray) -> None:
        """Set the shards ``[W]`` of a table on each rank, which need not be those of an option.

        The bytes received for the table stay as they are.
        """
        for cap, load in zip(self.rules.caps, self._loads, strict=True):
            if cap.members[table]:
                old = self.rules.at(cap.level, self.counts[table])
                new = self.rules.at(cap.level, counts)
                load += (new > 0).astype(np.int64) - (old > 0) if cap.distinct else new - old
        self.counts[table] = counts

    @property
    def kept(self) -> bool:
        """Whether every rule holds."""
        rules, caps = self.rules, zip(self.rules.caps, self._loads, strict=True)
        if any((load > cap.most).any() for cap, load in caps):
            return False
        if any(rules.excess_of(union, self.counts) for union in rules.unions):
            return False
        return rules.budget is None or bool(rules.budget.keeps(self.moved))

    def allows(self, move: Relocation) -> bool:
        """Whether every rule would hold after a move; the usage itself stays as it is."""
        before = [(table, self.placed[table]) for table, _, _ in move]
        for table, option, places in move:
            self.put(table, (option, places))
        kept = self.kept
        for table, item in before:
            self.put(table, item)
        return kept

    def free_for(self, table: int, spread: sharding.Spread, taken: Sequence[int] = ()) -> BoolArray:
        """``[W]`` ranks (or hosts) that may take one more piece; the limit on moves is ignored.

        A piece on a host is a shard on each of its ranks.

        Args:
            table: whose piece it is.
            spread: what the pieces are on.
            taken: the places of its other pieces.
        """
        before = self.counts[table].copy()
        self.hold(table, self.rules.table_counts(spread, taken) if taken else 0 * before)
        free = self._free(table, spread)
        self.hold(table, before)
        return free

    def _free(self, table: int, spread: sharding.Spread) -> BoolArray:
        rules, on_hosts = self.rules, spread is sharding.Spread.HOSTS
        shards = {Level.RANK: 1, Level.HOST: rules.local_world_size if on_hosts else 1}
        allowed = np.ones(rules.world_size, dtype=bool)
        for cap, load in zip(rules.caps, self._loads, strict=True):
            if cap.members[table]:
                own = rules.at(cap.level, self.counts[table])
                more = (own == 0) if cap.distinct else shards[cap.level]
                allowed &= self._spread(load + more <= cap.most)
        for union in rules.unions:
            if union.members[table]:
                used = rules.at(union.level, self.counts[union.members].sum(axis=0)) > 0
                if used.any():
                    allowed &= self._spread(used)
        return np.asarray(allowed.reshape(rules.num_hosts, -1).all(-1)) if on_hosts else allowed

    def _spread(self, places: BoolArray) -> BoolArray:
        """A mask of places, ranks or hosts, as a mask of ranks ``[W]``."""
        return np.repeat(places, self.rules.world_size // len(places))


def _members(rule: TableGroup | CountLimit, names: Sequence[str]) -> BoolArray:
    return np.array([rule.matches(n) for n in names], dtype=bool)


# ------------------ unmet
#
# Rules that no plan can keep, whatever memory there is; named when a search finds no plan.


def unmet_rules(
    rules: PlacementRules, options: Sequence[Sequence[sharding.ShardingOption]]
) -> tuple[str, ...]:
    """One line for each limit that tables exceed even with their smallest options.

    Args:
        rules: the rules of the problem.
        options: the options of each table, in the order of the rules' tables.
    """
    lines = []
    for cap in rules.caps:
        members = (own for own, is_member in zip(options, cap.members, strict=True) if is_member)
        least = sum(min(taken(cap, option, rules) for option in own) for own in members)
        places = rules.num_places(cap.level)
        if least > cap.most * places:
            what = "tables" if cap.distinct else "shards"
            lines.append(
                f"{cap.text} leaves room for {cap.most * places:,} {what} over {places:,} "
                f"{cap.level.value}s, and the ways in which its tables may be cut take {least:,}"
            )
    return tuple(lines)


def rule_names(rules: PlacementRules) -> tuple[str, ...]:
    """Every rule that couples tables, in words."""
    moves = ("the limit on what moves",) if rules.budget is not None else ()
    return (*(rule.text for rule in rules.every), *moves)


def taken(cap: Cap, option: sharding.ShardingOption, rules: PlacementRules) -> int:
    """How much an option uses of a cap at least: places if tables count, otherwise shards."""
    if option.is_uniform:
        return rules.num_places(cap.level) if cap.distinct else rules.world_size
    block = rules.local_world_size if option.spread is sharding.Spread.HOSTS else 1
    if cap.distinct:
        return block if cap.level is Level.RANK else 1
    return option.num_pieces * block


# ------------------ groups
#
# The constraints of one group of ranks that share a copy of the tables.


def group_constraints(
    constraints: Constraints, group: Topology, *, between_hosts: bool | None = None
) -> Constraints:
    """The constraints as the plan of one group has to keep them, so that every group keeps them.

    A shard on one place of the plan has a copy on the rank of that place in every group. A table
    may therefore be on a place only if it may be on all of these ranks, and the memory of a place
    is limited as that of the most limited of them. Where several groups share a host, its memory
    and its number of shards are shared out equally.

    Args:
        constraints: rules on ranks and hosts of the whole job.
        group: a system that :func:`group_topology` has made, or that of the whole job.
        between_hosts: as in :func:`members`; None finds out from the number of ranks on a host.

    Raises:
        InfeasibleError: a table may be on no place, because some copy would break its rule.
    """
    whole = group.whole
    if whole is None or whole.world_size == group.world_size:
        return constraints
    layouts = (False, True) if between_hosts is None else (between_hosts,)
    found = (members(whole, group.world_size, between_hosts=b) for b in layouts)
    groups = next(g for g in found if ranks_on_first_host(g, whole) == group.local_world_size)
    hosts = groups[:, :: group.local_world_size] // whole.local_world_size
    places = {Level.RANK: groups, Level.HOST: hosts}
    sharing = whole.local_world_size // group.local_world_size
    return replace(
        constraints,
        tables=tuple(_table_rule(rule, places) for rule in constraints.tables),
        counts=tuple(_count_rule(rule, sharing) for rule in constraints.counts),
        memory=tuple(_memory_rule(rule, places, sharing) for rule in constraints.memory),
    )


def group_problem(
    problem: PlanningProblem, group_size: int, *, between_hosts: bool = False
) -> PlanningProblem | None:
    """The problem of one group: its system and its constraints; None as in :func:`group_topology`.

    Raises:
        InfeasibleError: as in :func:`group_constraints`.
    """
    group = group_topology(problem.topology, group_size, between_hosts=between_hosts)
    if group is None:
        return None
    rules = group_constraints(problem.constraints, group, between_hosts=between_hosts)
    return replace(problem, topology=group, constraints=rules)


def _table_rule(rule: TableConstraint, places: Mapping[Level, IntArray]) -> TableConstraint:
    """The rule with the places at which the ranks and hosts of all groups are allowed ones."""
    kept = {Level.RANK: rule.ranks, Level.HOST: rule.hosts}
    for level, allowed in kept.items():
        if not allowed:
            continue
        copies = places[level]
        kept[level] = tuple(np.flatnonzero(np.isin(copies, allowed).all(axis=0)).tolist())
        if not kept[level]:
            message = (
                f"constraint {table_words(rule)}: each of {len(copies)} groups of "
                f"{places[Level.RANK].shape[1]} ranks has a copy of every table, and no place has "
                f"all of its copies on these {level.value}s; allow those of all copies"
            )
            raise InfeasibleError(message, shortfall_bytes=0.0)
    return replace(rule, ranks=kept[Level.RANK], hosts=kept[Level.HOST])


def _count_rule(rule: CountLimit, sharing: int) -> CountLimit:
    """The rule for one of the groups that share a host; they have the same tables there."""
    if rule.level is Level.RANK or not rule.counts_shards or sharing == 1:
        return rule
    if rule.most < sharing:
        message = f"constraint max_shards_per_host {rule.most}: {sharing} groups share every host"
        raise InfeasibleError(message, shortfall_bytes=0.0)
    return replace(rule, most=rule.most // sharing)


def _memory_rule(rule: MemoryLimit, places: Mapping[Level, IntArray], sharing: int) -> MemoryLimit:
    """The rule at every place that has a copy on one of the rule's ranks or hosts."""
    limited = np.flatnonzero(np.isin(places[rule.level], rule.places).any(axis=0)).tolist()
    shared = sharing if rule.level is Level.HOST else 1
    return replace(rule, most_bytes=rule.most_bytes / shared, places=tuple(limited) or rule.places)
