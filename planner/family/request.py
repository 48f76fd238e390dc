"""What a family of plans is asked for, and which problems have none."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from planner.errors import InvalidInputError
from planner.problem import PlanningProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyRequest:
    """What a family is asked for.

    Attributes:
        lost_hosts: how many hosts may be lost, one after the other.
        tolerance_ratio: how much slower than the fastest plan for as many hosts a member may be.
        mtbf_s: mean time between failures of one host; None chooses by bytes alone.
        keeps_global_batch: whether the samples of a step stay the same, or those of each rank.
        restore_bytes_per_s: from the checkpoint to one rank.
    """

    lost_hosts: int
    tolerance_ratio: float = 0.02
    mtbf_s: float | None = None
    keeps_global_batch: bool = True
    restore_bytes_per_s: float = 1e9


def check(problem: PlanningProblem, asked: FamilyRequest) -> None:
    """Refuse what has no families, before any search.

    Raises:
        InvalidInputError: names each obstacle.
    """
    topology, workload, rules = problem.topology, problem.workload, problem.constraints
    hosts, local = topology.num_hosts, topology.local_world_size
    found = []
    if asked.lost_hosts >= hosts:
        found.append(
            f"--survive {asked.lost_hosts} needs at least {asked.lost_hosts + 1} hosts, and there "
            f"are {hosts}; add hosts with --gpus, or survive fewer losses"
        )
    by_host = [
        np.array(values).reshape(hosts, -1)
        for values in (topology.hbm_capacity_by_rank_bytes, topology.speed_by_rank_ratio)
        if values
    ]
    by_host += [np.array(topology.ddr_capacity_by_host_bytes)[:, None]] * bool(
        topology.ddr_capacity_by_host_bytes
    )
    if any((values != values[0]).any() for values in by_host):
        found.append(
            "--survive needs hosts that are alike, for any of them may be lost and any other takes "
            "its place; this system has hosts of different memory or speed"
        )
    if local < topology.domain_size < topology.world_size:
        found.append(
            f"--survive needs hosts that reach each other alike; here {topology.domain_size} ranks "
            f"share a scale-up domain and there are {topology.world_size}, so it matters which "
            "host of which domain is lost"
        )
    if workload.batch_share_ratio not in ((), "proportional"):
        found.append("--survive and batch_shares per rank exclude each other: ranks are renumbered")
    pinned = any(t.ranks or t.hosts for t in rules.tables) or any(m.places for m in rules.memory)
    if pinned:
        found.append(
            "--survive and constraints that name ranks or hosts exclude each other: ranks are "
            "renumbered when a host is lost; remove the ranks and hosts from the constraints"
        )
    if not workload.tables:
        found.append(f"--survive is about tables, and the workload {workload.name!r} has none")
    if found:
        raise InvalidInputError(found)


def fewer_hosts(problem: PlanningProblem, asked: FamilyRequest) -> PlanningProblem:
    """The same question with one host fewer and nothing in use."""
    topology, workload = problem.topology, problem.workload
    hosts, local = topology.num_hosts - 1, topology.local_world_size
    smaller = replace(
        topology.resized(hosts, local),
        hbm_capacity_by_rank_bytes=topology.hbm_capacity_by_rank_bytes[local:],
        speed_by_rank_ratio=topology.speed_by_rank_ratio[local:],
        ddr_capacity_by_host_bytes=topology.ddr_capacity_by_host_bytes[1:],
    )
    if asked.keeps_global_batch:
        samples = workload.local_batch_size * topology.world_size
        workload = replace(workload, local_batch_size=-(-samples // smaller.world_size))
    return replace(problem, topology=smaller, workload=workload, move_limit=None)
