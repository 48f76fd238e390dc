"""What each constraint costs, found by planning again without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from costmodels.topology import Topology
from planner import api
from planner.errors import InfeasibleError, NoPlanFoundError, StoppedError
from planner.problem import NO_CONSTRAINTS, Constraints, PlanningProblem
from planner.rules.placement_rules import (
    apart_words,
    count_words,
    general_words,
    memory_words,
    table_words,
    together_words,
)
from planner.settings import SearchSettings
from planner.support.status import Status

MORE_MEMORY: Final = "one GiB more per rank"
"""The words for more memory, which stand in the place of a constraint."""
_MORE_MEMORY_BYTES: Final = 2.0**30
"""What :data:`MORE_MEMORY` adds to the device memory of each rank, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintCost:
    """What dropping one constraint gains, as the difference of two searches.

    Attributes:
        constraint: the constraint in words.
        kept_s: seconds per iteration of the best plan with all constraints; None if none fits.
        time_s: seconds per iteration of the best plan without this one; None if none fits.
        gain_s: the first minus the second; None if one of them is missing.
        is_cut: whether the clock ended one of the two searches.
    """

    constraint: str
    kept_s: float | None
    time_s: float | None
    gain_s: float | None
    is_cut: bool = False


def constraint_costs(
    problem: PlanningProblem,
    *,
    time_limit_s: float | None = None,
    progress: Callable[[str], None] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> tuple[ConstraintCost, ...]:
    """What each constraint costs, found by planning again without it; the costliest first.

    One more line says what memory costs: there every rank has one GiB more than devices and limits
    on memory leave it. Each gain is the difference of two searches, so that a gain below the
    optimality gap says nothing.

    Args:
        problem: workload, system and constraints.
        time_limit_s: seconds by the clock for each search; None for the usual budget of work.
        progress: called with the name of each constraint that is done.
        should_stop: called again and again; True ends the searches.

    Raises:
        StoppedError: ``should_stop`` was True.
    """

    def searched(constraints: Constraints, topology: Topology, name: str) -> _Search:
        try:
            found = api.solve(
                replace(problem, topology=topology, constraints=constraints),
                search=SearchSettings(time_limit_s=time_limit_s, with_baselines=False),
                should_stop=should_stop,
            )
        except (InfeasibleError, NoPlanFoundError):
            return _Search(time_s=None)
        if found.solver.status is Status.INTERRUPTED:
            message = f"stopped before it was known what {name} costs"
            raise StoppedError(message)
        is_cut = found.solver.status is Status.TIME_LIMIT
        return _Search(time_s=found.estimate.time.time_s, is_cut=is_cut)

    given, topology = problem.constraints, problem.topology
    kept = searched(given, topology, "the plan")
    roomier = replace(given, memory=()), _with_more_memory(given.limited(topology))
    questions = [(name, without, topology) for name, without in relaxed(given)]
    costs = []
    for name, without, there in (*questions, (MORE_MEMORY, *roomier)):
        if progress is not None:
            progress(name)
        costs.append(_cost(name, kept, searched(without, there, name)))
    return tuple(sorted(costs, key=lambda c: -(c.gain_s or 0.0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    """What a search found: ``time_s`` is None if it found no plan that fits."""

    time_s: float | None
    is_cut: bool = False


def _cost(name: str, kept: _Search, free: _Search) -> ConstraintCost:
    """What the constraint ``name`` costs, from the searches with it and without it."""
    gain_s = None
    if kept.time_s is not None and free.time_s is not None:
        gain_s = kept.time_s - free.time_s
    return ConstraintCost(
        constraint=name,
        kept_s=kept.time_s,
        time_s=free.time_s,
        gain_s=gain_s,
        is_cut=kept.is_cut or free.is_cut,
    )


def relaxed(given: Constraints) -> list[tuple[str, Constraints]]:
    """Each constraint in words, with the constraints that are left when it is dropped."""
    found: list[tuple[str, Constraints]] = []
    for field, told in general_words(given).items():
        found.append((told, replace(given, **{field: getattr(NO_CONSTRAINTS, field)})))
    words: tuple[tuple[str, Callable[[Any], str]], ...] = (
        ("tables", table_words),
        ("together", together_words),
        ("apart", apart_words),
        ("counts", count_words),
        ("memory", memory_words),
    )
    for field, say in words:
        rules = getattr(given, field)
        for index, rule in enumerate(rules):
            left = rules[:index] + rules[index + 1 :]
            found.append((say(rule), replace(given, **{field: left})))
    return found


def _with_more_memory(topology: Topology) -> Topology:
    """The system with one GiB more device memory on each rank."""
    device = topology.device
    roomier = replace(device, hbm_capacity_bytes=device.hbm_capacity_bytes + _MORE_MEMORY_BYTES)
    by_rank = tuple(c + _MORE_MEMORY_BYTES for c in topology.hbm_capacity_by_rank_bytes)
    return replace(topology, device=roomier, hbm_capacity_by_rank_bytes=by_rank)
