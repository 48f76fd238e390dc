"""2D parallelism: copies of all tables on groups of ranks, laid out as by ``DMPCollection``.

Every group holds one copy of the tables under one and the same plan. ``DMPCollection`` interleaves
groups by default: with c copies, group i has ranks i, i + c, i + 2 c and so on, so that the copies
of a shard lie side by side. With ``use_inter_host_allreduce`` a group is a block of consecutive
ranks instead. This module says what system one group sees, and what averaging the copies costs; the
study of setups and the integration of TorchRec both ask here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from costmodels.datatypes import FloatArray, IntArray
from costmodels.estimates import MemoryLedger
from costmodels.stages.models import CostModels
from costmodels.topology import Topology
from planner.errors import InfeasibleError
from planner.models import default_models
from planner.problem import (
    Constraints,
    CountLimit,
    Level,
    MemoryLimit,
    PlanningProblem,
    TableConstraint,
)
from planner.rules.words import table_words


def members(topology: Topology, group_size: int, *, between_hosts: bool = False) -> IntArray:
    """``[copies, group_size]`` the ranks of each group; column r has the copies of one shard.

    Args:
        topology: all ranks of the job.
        group_size: ranks that share one copy of the tables; it divides the number of ranks.
        between_hosts: whether groups are blocks of consecutive ranks instead of interleaved ones.
    """
    copies = topology.world_size // group_size
    ranks = np.arange(topology.world_size)
    if between_hosts:
        return ranks.reshape(copies, group_size)
    return ranks.reshape(group_size, copies).T


def group_topology(
    topology: Topology, group_size: int, *, between_hosts: bool = False
) -> Topology | None:
    """The system as one group sees it; None if a group has unequal numbers of ranks on its hosts.

    Groups with ranks on one host share its memory in proportion to those ranks. One plan serves all
    groups, so if ranks or hosts differ, each place of a group counts as the weakest that any group
    has at this place. All ranks train the dense part, whose gradients are reduced over all of them.
    """
    if group_size == topology.world_size:
        return topology
    return _part(topology, members(topology, group_size, between_hosts=between_hosts))


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
    groups = next(g for g in found if _ranks_on_first_host(g, whole) == group.local_world_size)
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


def sync_time_s(
    topology: Topology,
    group_size: int,
    memory: MemoryLedger,
    *,
    between_hosts: bool = False,
    models: CostModels | None = None,
) -> float:
    """Seconds to average weights and optimizer state over the copies of every shard, once.

    Each rank takes part in one all-reduce over its copies; all of these run at the same time, and
    the rank with the most bytes decides how long they take. Tables in host memory are averaged too;
    their bytes also cross the link between device and host, once in each direction.

    Args:
        topology: all ranks of the job.
        group_size: ranks that share one copy of the tables.
        memory: the memory of the plan of one group.
        between_hosts: as in :func:`members`.
        models: price the all-reduce; None for the models that the system names.
    """
    held = np.array([r.weights_bytes + r.optimizer_bytes + r.host_bytes for r in memory.ranks])
    on_host = np.array([r.host_bytes for r in memory.ranks])
    peers = _peers(topology, group_size, between_hosts=between_hosts)
    return _slowest_s(topology, peers, held, on_host, models)


def least_sync_s(
    topology: Topology, group_size: int, weight_bytes: float, models: CostModels | None = None
) -> float:
    """Seconds that :func:`sync_time_s` is at least, under any plan.

    Under every plan some rank holds at least the mean of all weights. More bytes never take less
    time, so that the time of the mean is a bound.
    """
    peers = _peers(topology, group_size, between_hosts=False)
    return _slowest_s(topology, peers, np.array([weight_bytes / group_size]), np.zeros(1), models)


def _peers(topology: Topology, group_size: int, *, between_hosts: bool) -> Topology:
    """The system of the ranks that hold the copies of one shard."""
    peers = _part(topology, members(topology, group_size, between_hosts=between_hosts).T)
    alone = topology.resized(topology.world_size // group_size, 1)
    return peers or replace(alone, domain_size=1)


def _slowest_s(
    topology: Topology,
    peers: Topology,
    held: FloatArray,
    on_host: FloatArray,
    models: CostModels | None,
) -> float:
    """Seconds of the slowest rank, from the bytes that ranks hold, and those of them on hosts."""
    if peers.world_size == 1:
        return 0.0
    model = (models or default_models(peers)).collective
    seconds = model.all_reduce_s(held, peers, within_host=peers.num_hosts == 1) * (held > 0)
    copied = 2.0 * on_host / topology.host.device_link_bandwidth_bytes_per_s
    return float((seconds + copied).max())


def _part(topology: Topology, groups: IntArray) -> Topology | None:
    """The system of one group: hosts as in the first group, places as weak as in any group.

    None if a group has unequal numbers of ranks on its hosts.

    Args:
        topology: all ranks of the job.
        groups: ``[groups, ranks of each]`` in rising order within a group.
    """
    hosts = groups // topology.local_world_size
    size, local = groups.shape[1], _ranks_on_first_host(groups, topology)
    if size % local:
        return None
    by_host = hosts.reshape(len(groups), -1, local)
    if (by_host != by_host[..., :1]).any():
        return None
    domains = groups[0] // topology.domain_size
    domain = int((domains == domains[0]).sum())
    share = local / topology.local_world_size
    sized = topology.resized(size // local, local)
    return replace(
        sized,
        whole=topology.trainers,
        domain_size=max(local, domain - domain % local),
        hbm_capacity_by_rank_bytes=_weakest(topology.hbm_capacities(), groups)
        if topology.hbm_capacity_by_rank_bytes
        else (),
        speed_by_rank_ratio=_weakest(topology.speeds(), groups)
        if topology.speed_by_rank_ratio
        else (),
        ddr_capacity_by_host_bytes=tuple(
            (topology.ddr_capacities()[by_host[..., 0]].min(axis=0) * share).tolist()
        ),
    )


def _weakest(values: FloatArray, places: IntArray) -> tuple[float, ...]:
    return tuple(values[places].min(axis=0).tolist())


def _ranks_on_first_host(groups: IntArray, topology: Topology) -> int:
    hosts = groups[0] // topology.local_world_size
    return int((hosts == hosts[0]).sum())


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
                f"all of its copies on these {level.value}s; allow the {level.value}s of all "
                "copies, or leave groups out"
            )
            raise InfeasibleError(message, shortfall_bytes=0.0)
    return replace(rule, ranks=kept[Level.RANK], hosts=kept[Level.HOST])


def _count_rule(rule: CountLimit, sharing: int) -> CountLimit:
    """The rule for one of the groups that share a host; they have the same tables there."""
    if rule.level is Level.RANK or not rule.counts_shards or sharing == 1:
        return rule
    if rule.most < sharing:
        message = (
            f"constraint max_shards_per_host {rule.most}: {sharing} groups share every host, each "
            "with shards of its own; allow more, or leave groups out"
        )
        raise InfeasibleError(message, shortfall_bytes=0.0)
    return replace(rule, most=rule.most // sharing)


def _memory_rule(rule: MemoryLimit, places: Mapping[Level, IntArray], sharing: int) -> MemoryLimit:
    """The rule at every place that has a copy on one of the rule's ranks or hosts."""
    limited = np.flatnonzero(np.isin(places[rule.level], rule.places).any(axis=0)).tolist()
    shared = sharing if rule.level is Level.HOST else 1
    return replace(
        rule,
        most_bytes=rule.most_bytes / shared,
        places=tuple(limited) or rule.places,
    )
