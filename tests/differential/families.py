"""Families of plans for N hosts and fewer: ``python -m tests.differential.families --help``.

Every plan of every number of hosts is priced. Each member of a family has to be legal, to fit, to
keep the constraints and to be priced right; its bound may not be above the fastest plan for as many
hosts. What each lost host takes is counted again, shard by shard, for every way in which the hosts
that are left may take their seats.
"""

from __future__ import annotations

import itertools
import math
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.sharding import Plan, ShardingType
from costmodels.topology import Topology
from costmodels.workload import Workload
from planner.api import estimate, solve
from planner.errors import InfeasibleError, InvalidInputError, NoPlanFoundError
from planner.family.chain import with_family
from planner.family.request import FamilyRequest, check, fewer_hosts
from planner.problem import PlanningProblem
from planner.result import FamilyMember, HostLoss, PlanFamily
from planner.settings import SearchSettings
from planner.support.status import Status
from tests.differential.asking import Answer, Run, problem_of
from tests.differential.case import Case, cell_bytes, common_cells
from tests.differential.check import faults_of
from tests.differential.drawing.problems import draw
from tests.differential.judging.enumerator import Enumerator
from tests.differential.seeds import look_at, seed_parser

_ROUNDING: Final = 1e-9
_BYTES: Final = 1.0
"""Bytes up to which two counts of the same cells may differ."""
_TRIED: Final = 1000
"""Drawn problems among which there is one that has families."""


def draw_family(seed: int) -> tuple[Case, FamilyRequest]:
    """A small problem that has families, without scenarios and a plan in use, and a request."""
    rng = np.random.default_rng([seed, 37])
    for _ in range(_TRIED):
        case = draw(int(rng.integers(10**6)))
        hosts = case.topology.num_hosts
        asked = FamilyRequest(
            lost_hosts=int(rng.integers(1, max(hosts, 2))),
            tolerance_ratio=float(rng.choice([0.0, 0.02, 0.3])),
            mtbf_s=float(rng.choice([600.0, 1e6])) if rng.random() < 0.3 else None,
            keeps_global_batch=bool(rng.random() < 0.6),
            restore_bytes_per_s=float(rng.choice([1e6, 1e9])),
        )
        case = replace(case, objective="iteration", scenarios=(), moves=None)
        try:
            check(problem_of(case), asked)
        except InvalidInputError:
            continue
        return replace(case, name=f"family seed {seed}"), asked
    msg = "no problem has families"
    raise AssertionError(msg)


def family_faults(case: Case, asked: FamilyRequest, *, max_evaluations: int) -> list[str]:
    """One line for each promise that the family of a problem breaks."""
    search = SearchSettings(max_evaluations=max_evaluations)
    problems = [problem_of(case)]
    problems += [fewer_hosts(problems[0], asked, n + 1) for n in range(asked.lost_hosts)]
    spaces = [Enumerator(_case_of(case, problem)) for problem in problems]
    try:
        result = with_family(solve(problems[0], search=search), asked, search=search)
    except (InfeasibleError, InvalidInputError, NoPlanFoundError) as error:
        possible = all(math.isfinite(s.optimum().value) for s in spaces)
        return [f"every number of hosts has a plan, but: {error}"] if possible else []
    if result.family is None:
        return ["no family"]
    lines = []
    for member, space in zip(result.family.members, spaces, strict=True):
        name = f"{space.case.topology.num_hosts} hosts"
        lines += [f"{name}: {line}" for line in _member_faults(member, space, asked)]
    return lines + list(_loss_faults(result.family, asked))


def _case_of(case: Case, problem: PlanningProblem) -> Case:
    return replace(case, workload=problem.workload, topology=problem.topology)


def _member_faults(member: FamilyMember, space: Enumerator, asked: FamilyRequest) -> Iterator[str]:
    result, case = member.result, space.case
    found = estimate(case.workload, case.topology, result.plan).estimate.time.time_s
    answer = Answer(
        run=Run.USERS,
        plan=result.plan,
        value=result.solver.value,
        bound=result.bound,
        is_optimal=result.solver.status is Status.OPTIMAL,
        estimate_s=found,
        others=tuple(c.plan for c in (*result.runners_up, *result.baselines)),
    )
    optimum = space.optimum()
    if not _is_listed(result.plan, space):  # it keeps a cut of a larger plan
        optimum = replace(optimum, is_exact=False)
    yield from map(str, faults_of(case, optimum, answer, space))
    most_s = member.fastest_s * (1.0 + asked.tolerance_ratio)
    if result.estimate.time.time_s > most_s * (1.0 + _ROUNDING):
        yield f"{result.estimate.time.time_s:.9g} s, beyond the tolerance of {most_s:.9g} s"
    if member.fastest_s > member.alone_s * (1.0 + _ROUNDING):
        yield f"the plan made alone takes {member.alone_s:.9g} s, the fastest {member.fastest_s}"


def _is_listed(plan: Plan, space: Enumerator) -> bool:
    """Whether every table is cut in a way that a problem without larger plans has."""
    return all(
        {s.num_cols for s in p.shards} in [{s.num_cols for s in other.shards} for other in found]
        for p, found in zip(plan.placements, space.choices, strict=True)
    )


# ------------------------------------------------------------------ what a lost host takes


def _loss_faults(family: PlanFamily, asked: FamilyRequest) -> Iterator[str]:
    for before, after in itertools.pairwise(family.members):
        topology, workload = after.result.problem.topology, after.result.problem.workload
        hosts = range(topology.num_hosts + 1)
        if [loss.lost_host for loss in after.losses] != list(hosts):
            yield f"losses of hosts {[loss.lost_host for loss in after.losses]}"
        for loss in after.losses:
            left = [h for h in hosts if h != loss.lost_host]
            if sorted(loss.seats) != left:
                yield f"host {loss.lost_host} is lost, and the seats are {loss.seats}"
                continue
            counts = {
                seats: _received(before.result.plan, after.result.plan, workload, topology, seats)
                for seats in itertools.permutations(left)
            }
            least = min(float(count.sum()) for count in counts.values())
            yield from _unlike(loss, counts[loss.seats], least, topology, asked)


def _unlike(
    loss: HostLoss, count: FloatArray, least: float, topology: Topology, asked: FamilyRequest
) -> Iterator[str]:
    """Lines where a loss is told otherwise than it was counted."""
    local = topology.local_world_size
    gone = range(loss.lost_host * local, (loss.lost_host + 1) * local)
    restored = count[list(gone)].sum(axis=0)
    moved = np.delete(count, list(gone), axis=0)
    pairs = (
        ("restored", loss.restored_bytes, float(restored.sum())),
        ("moved", loss.moved_bytes, float(moved.sum())),
        ("received at least", loss.restored_bytes + loss.moved_bytes, least),
    )
    for name, told, counted in pairs:
        if abs(told - counted) > _BYTES + _ROUNDING * counted:
            yield f"host {loss.lost_host} is lost: {name} {told:.9g} bytes, counted {counted:.9g}"
    least_s = float(restored.max()) / asked.restore_bytes_per_s
    if loss.time_s < least_s * (1.0 - _ROUNDING):
        yield f"host {loss.lost_host} is lost: {loss.time_s:.9g} s, to restore takes {least_s:.9g}"


def _received(
    before: Plan, after: Plan, workload: Workload, topology: Topology, seats: tuple[int, ...]
) -> FloatArray:
    """Bytes that each rank of the smaller plan gets from each rank of the larger one, ``[W, V]``.

    Without those that it has already. Tables that every rank held whole are received by none.
    """
    local = topology.local_world_size
    count = np.zeros((topology.world_size + local, topology.world_size))
    for table in workload.tables:
        old = before.placement(table.name)
        if old.sharding_type is ShardingType.DATA_PARALLEL:
            continue
        cell = cell_bytes(workload, table)
        for there, here in itertools.product(old.shards, after.placement(table.name).shards):
            own = seats[here.rank // local] * local + here.rank % local
            if there.rank != own:
                count[there.rank, here.rank] += cell * common_cells(there, here)
    return count


def main(arguments: list[str] | None = None) -> int:
    """Look at families of drawn problems; 1 if one breaks a promise."""
    parser = seed_parser(__doc__, count=50)
    parser.add_argument("--evaluations", type=int, default=300, help="most plans priced each")
    flags = parser.parse_args(arguments)

    def faults(seed: int) -> list[str]:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            lines = family_faults(*draw_family(seed), max_evaluations=flags.evaluations)
        return [f"seed {seed}: {line}" for line in lines]

    seeds = range(flags.start, flags.start + flags.count)
    return look_at(seeds, faults, "families keep every promise")


if __name__ == "__main__":
    sys.exit(main())
