"""The constraints of one group of ranks that share a copy of the tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from costmodels.datatypes import IntArray
from costmodels.topology import Topology, group_topology, members, ranks_on_first_host
from planner.errors import InfeasibleError
from planner.problem import (
    Constraints,
    CountLimit,
    Level,
    MemoryLimit,
    PlanningProblem,
    TableConstraint,
)
from planner.rules.placement_rules import table_words


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
