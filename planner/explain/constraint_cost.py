"""What each constraint costs: planning again without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from costmodels.topology import Topology
from planner import api
from planner.errors import InfeasibleError, NoPlanFoundError, StoppedError
from planner.problem import Constraints, PlanningProblem, TableConstraint
from planner.settings import SearchSettings
from planner.support.status import Status

_MORE_MEMORY_BYTES: Final = 2.0**30


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintCost:
    """What dropping one constraint gains: time with it minus time without, from two searches.

    ``kept_s`` is the time with all constraints, and ``time_s`` the one without this; each is None
    where no plan fits. ``is_cut``: the clock ended one of the searches.
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
    """What each constraint costs, by planning again without it; the dearest first.

    The last line gives every rank one GiB more, the price of memory. Each gain is the difference of
    two searches, so gains below the optimality gap say nothing.

    Raises:
        StoppedError: ``should_stop``, which is asked often, said so.
    """
    cut: set[str] = set()

    def time_of(name: str, constraints: Constraints, topology: Topology) -> float | None:
        try:
            found = api.solve(
                replace(problem, topology=topology, constraints=constraints),
                search=SearchSettings(time_limit_s=time_limit_s, with_baselines=False),
                should_stop=should_stop,
            )
        except (InfeasibleError, NoPlanFoundError):
            return None
        if found.solver.status is Status.INTERRUPTED:
            message = f"stopped before it was known what {name or 'the plan'} costs"
            raise StoppedError(message)
        if found.solver.status is Status.TIME_LIMIT:
            cut.add(name)
        return found.estimate.time.time_s

    given, topology = problem.constraints, problem.topology
    now_s = time_of("", given, topology)
    costs = []
    for name, without in _relaxed(given):
        if progress is not None:
            progress(name)
        costs.append(_gain(name, now_s, time_of(name, without, topology)))
    more = "one GiB more per rank"
    costs.append(_gain(more, now_s, time_of(more, given, _with_more_memory(topology))))
    told = [replace(c, is_cut=bool(cut & {"", c.constraint})) for c in costs]
    return tuple(sorted(told, key=lambda c: -(c.gain_s or 0.0)))


def _gain(name: str, with_s: float | None, without_s: float | None) -> ConstraintCost:
    both = with_s is not None and without_s is not None
    gain = (with_s or 0.0) - (without_s or 0.0) if both else None
    return ConstraintCost(constraint=name, kept_s=with_s, time_s=without_s, gain_s=gain)


def _relaxed(given: Constraints) -> list[tuple[str, Constraints]]:
    """Each constraint in words, with what is left when it is dropped."""
    found: list[tuple[str, Constraints]] = [
        (_describe(rule), replace(given, tables=tuple(r for r in given.tables if r is not rule)))
        for rule in given.tables
    ]
    for field, what in (
        ("together", "keep together"),
        ("apart", "keep apart"),
        ("counts", "at most so many"),
        ("memory", "memory limit"),
    ):
        rules = getattr(given, field)
        for rule in rules:
            patterns = ", ".join(getattr(rule, "patterns", ()))
            left = tuple(r for r in rules if r is not rule)
            found.append((f"{what} {patterns}".strip(), replace(given, **{field: left})))
    return found


def _describe(rule: TableConstraint) -> str:
    parts = [f"{rule.pattern}:"]
    parts += [t.value for t in rule.sharding_types]
    parts += [k.value for k in rule.kernels]
    parts += [f"{kind.value} with {kernel.value}" for kind, kernel in rule.pairs]
    if rule.ranks:
        parts.append(f"ranks {', '.join(map(str, rule.ranks))}")
    if rule.hosts:
        parts.append(f"hosts {', '.join(map(str, rule.hosts))}")
    if rule.cache_load_factors:
        parts.append(f"cached {', '.join(f'{ratio:.0%}' for ratio in rule.cache_load_factors)}")
    if rule.min_column_width > 4:
        parts.append(f"columns >= {rule.min_column_width}")
    return " ".join(parts)


def _with_more_memory(topology: Topology) -> Topology:
    device = topology.device
    roomier = replace(device, hbm_capacity_bytes=device.hbm_capacity_bytes + _MORE_MEMORY_BYTES)
    by_rank = tuple(c + _MORE_MEMORY_BYTES for c in topology.hbm_capacity_by_rank_bytes)
    return replace(topology, device=roomier, hbm_capacity_by_rank_bytes=by_rank)
