"""What the user asks of a family of plans, and which problems cannot have one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from planner.errors import InvalidInputError
from planner.problem import PlanningProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyRequest:
    """What the user asks of a family of plans.

    Attributes:
        lost_hosts: how many hosts may be lost, one after the other.
        tolerance_ratio: how much slower a member may be than the fastest plan for its hosts, as a
            share.
        mtbf_s: mean time between failures of one host; None to choose by bytes alone.
        keeps_global_batch: whether all ranks together keep their samples per step when a host is
            lost; otherwise each rank keeps its own.
        restore_bytes_per_s: rate from the checkpoint to one rank.
    """

    lost_hosts: int
    tolerance_ratio: float = 0.02
    mtbf_s: float | None = None
    keeps_global_batch: bool = True
    restore_bytes_per_s: float = 1e9


def check(problem: PlanningProblem, asked: FamilyRequest) -> None:
    """Refuse problems that cannot have a family, before any search.

    Raises:
        InvalidInputError: the message names each reason.
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
    traced = workload.dense.operators
    if traced is not None and asked.keeps_global_batch:
        found.append(
            "--survive keeps the samples of a step, so ranks have more of them on fewer hosts; the "
            f"operators of the dense part are for {traced.local_batch_size} per rank; add "
            "--keep-batch rank"
        )
    if not workload.tables:
        found.append(f"--survive is about tables, and the workload {workload.name!r} has none")
    if found:
        raise InvalidInputError(found)


def fewer_hosts(problem: PlanningProblem, asked: FamilyRequest, lost: int = 1) -> PlanningProblem:
    """The same problem with so many hosts fewer, and without a plan in use.

    The samples of a step are rounded up once, from those of the problem itself.
    """
    topology, workload = problem.topology, problem.workload
    hosts, local = topology.num_hosts - lost, topology.local_world_size
    smaller = replace(
        topology.resized(hosts, local),
        hbm_capacity_by_rank_bytes=topology.hbm_capacity_by_rank_bytes[lost * local :],
        speed_by_rank_ratio=topology.speed_by_rank_ratio[lost * local :],
        ddr_capacity_by_host_bytes=topology.ddr_capacity_by_host_bytes[lost:],
    )
    if asked.keeps_global_batch:
        samples = workload.local_batch_size * topology.world_size
        workload = replace(workload, local_batch_size=-(-samples // smaller.world_size))
    return replace(problem, topology=smaller, workload=workload, move_limit=None)
