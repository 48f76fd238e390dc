"""The constraints of a problem that a given plan breaks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from costmodels.memory import ledger
from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan, TablePlacement
from costmodels.units import format_bytes
from planner.problem import Constraints, Level, PlanningProblem
from planner.rules.placement_rules import PlacementRules, memory_words

_SHOWN: Final = 3
_ROUNDING: Final = 1e-9
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
    if len(lines) > _SHOWN:
        lines[_SHOWN:] = [f"and {len(lines) - _SHOWN} more tables are not as asked"]
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
    work = CostPipeline(problem.workload, topology).plan_work(plan)
    held = ledger(work, problem.workload, topology)
    for rule in problem.constraints.memory:
        by_rank = rule.level is Level.RANK
        used = [place.used_bytes for place in (held.ranks if by_rank else held.hosts)]
        places = rule.places or range(len(used))
        if max(places) >= len(used):
            yield f"{memory_words(rule)} is outside {rule.level}s 0..{len(used) - 1}"
        over = [p for p in places if p < len(used) and used[p] > rule.most_bytes * (1 + _ROUNDING)]
        if over:
            excess = format_bytes(used[over[0]] - rule.most_bytes)
            yield f"{rule.level} {over[0]} is {excess} over {memory_words(rule)}"


def _reasons(
    placement: TablePlacement, constraints: Constraints, local_world_size: int
) -> Iterator[str]:
    kind, kernel = placement.sharding_type, placement.kernel
    rules = constraints.for_table(placement.table)
    types = [constraints.sharding_types, *(r.sharding_types for r in rules)]
    kernels = [constraints.kernels, *(r.kernels for r in rules)]
    if any(allowed and kind not in allowed for allowed in types):
        yield f"is {kind}"
    elif any(allowed and kernel not in allowed for allowed in kernels):
        yield f"has the kernel {kernel}"
    elif not all(r.allows_pair(kind, kernel) for r in rules):
        yield f"is {kind} with the kernel {kernel}"
    if not rules:
        return
    used = set(placement.ranks)
    hosts = {rank // local_world_size for rank in used}
    for r in rules:
        if r.ranks and not used <= set(r.ranks):
            yield f"lies on rank {min(used - set(r.ranks))}"
        if r.hosts and not hosts <= set(r.hosts):
            yield f"lies on host {min(hosts - set(r.hosts))}"
    cells, least = placement.cells, max((r.min_column_width for r in rules), default=0)
    if len(np.unique(cells.col_offset)) > 1 and cells.num_cols.min() < least:
        yield f"has pieces of {cells.num_cols.min()} columns"
    cached = placement.cache_load_factor_ratio
    if cached and any(r.cache_load_factors and cached not in r.cache_load_factors for r in rules):
        yield f"keeps {cached:g} of its rows in the cache"
