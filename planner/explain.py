"""Why a plan is as it is: what each option would cost, what would help, what constraints cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from costmodels.estimates import IterationEstimate
from costmodels.pipeline import CostPipeline
from costmodels.shard_work.work import EXCHANGING_TYPES, INPUT, OUTPUT, REPLICATED
from costmodels.sharding import (
    Plan,
    ShardingOption,
    Spread,
    TablePlacement,
    place,
)
from costmodels.topology import Topology
from planner import api
from planner.errors import InfeasibleError, InvalidInputError, NoPlanFoundError, StoppedError
from planner.prepare import search_objective, search_space
from planner.problem import Constraints, PlanningProblem, TableConstraint
from planner.rules.moved_bytes import received_bytes
from planner.scenarios import ScenarioRule
from planner.settings import SearchSettings
from planner.space.evaluation import Budget, Evaluator, FloatArray, SearchSpace
from planner.support.status import Status

_BATCH: Final = 64
"""Places priced at a time."""

_MORE_MEMORY_BYTES: Final = 2.0**30


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionCost:
    """One option of a table, placed as well as the rest of the plan allows.

    Attributes:
        placement: the option with its places.
        lookup_forward_s, lookup_backward_s: of its largest shard alone on a device.
        exchanged_bytes: forward output and indices that its shards send, over all ranks.
        device_bytes: on the rank that holds most of it.
        plan_time_s: iteration time of the whole plan with this option instead; None if nothing
            fits, or TorchRec cannot run the pieces where they would be put.
        is_chosen: whether it is the plan's own.
    """

    placement: TablePlacement
    lookup_forward_s: float
    lookup_backward_s: float
    exchanged_bytes: float
    device_bytes: float
    plan_time_s: float | None
    is_chosen: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TableExplanation:
    """Every option of one table, fastest plan first. ``plan_time_s`` is the plan as it is."""

    table: str
    plan_time_s: float
    options: tuple[OptionCost, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The best that changing one table alone does. ``moved_bytes`` have to travel for it."""

    table: str
    before: TablePlacement
    after: TablePlacement
    plan_time_s: float
    moved_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintCost:
    """What dropping one constraint gains: time with it minus time without, from two searches.

    ``time_s`` is None where no plan fits even so. ``is_cut``: the clock ended one of the searches.
    """

    constraint: str
    time_s: float | None
    gain_s: float | None
    is_cut: bool = False


class Explainer:
    """Answers questions about one plan of one problem.

    Raises:
        InvalidInputError: the plan is not one of the problem.
    """

    def __init__(self, problem: PlanningProblem, plan: Plan) -> None:
        """Enumerate the options and price the plan."""
        self.problem, self.plan = problem, plan
        self.space: SearchSpace = search_space(problem, CostPipeline)
        self._pipeline = self.space.pipeline
        objective = search_objective("iteration", self.space, ScenarioRule.WORST)
        self._evaluate = Evaluator(self.space, objective, Budget())
        self._work = self._pipeline.plan_work(plan)
        self.plan_time_s = float(self._pipeline.iteration_times(self._work))
        self._placements = {p.table: p for p in plan.placements}

    @cached_property
    def estimate(self) -> IterationEstimate:
        """The plan as it is."""
        return self._pipeline.estimate(self.plan)

    def table(self, name: str) -> TableExplanation:
        """Every option of a table with the rest of the plan left alone.

        Raises:
            InvalidInputError: there is no such table.
        """
        index = self._index(name)
        rest = self._without(name)
        costs = [self._cost(index, i, rest) for i in range(len(self.space.tables[index].options))]
        own = self._own(name, rest)
        costs = [c for c in costs if not _same_option(c.placement, own.placement)]
        ranked = sorted([own, *costs], key=lambda c: (c.plan_time_s is None, c.plan_time_s or 0.0))
        return TableExplanation(table=name, plan_time_s=self.plan_time_s, options=tuple(ranked))

    def changes(
        self, *, limit: int = 10, progress: Callable[[str], None] | None = None
    ) -> tuple[Change, ...]:
        """For each table on a critical rank the best single change, the fastest plans first.

        A plan at a local optimum has none that makes it faster; then these are the cheapest.
        """
        found = []
        for name in self.critical_tables():
            own = self._placements[name]
            options = [
                o for o in self.table(name).options if not o.is_chosen and o.plan_time_s is not None
            ]
            if progress is not None:
                progress(name)
            if options:
                best = options[0]
                found.append(
                    Change(
                        table=name,
                        before=own,
                        after=best.placement,
                        plan_time_s=best.plan_time_s or 0.0,
                        moved_bytes=received_bytes(
                            own,
                            best.placement,
                            self.problem.workload.table(name),
                            self.problem.workload,
                        ),
                    )
                )
        return tuple(sorted(found, key=lambda c: c.plan_time_s)[:limit])

    def critical_tables(self) -> tuple[str, ...]:
        """Tables with shards on the ranks of the critical path, in the workload's order."""
        ranks = {step.rank for step in self.estimate.critical_path}
        return tuple(p.table for p in self.plan.placements if ranks & set(p.ranks))

    # -- one option -------------------------------------------------------------------------------

    def _index(self, name: str) -> int:
        names = [t.table for t in self.space.tables]
        if name not in names:
            from difflib import get_close_matches

            near = get_close_matches(name, names, n=1)
            hint = (
                f"did you mean {near[0]!r}?" if near else f"tables are {', '.join(names[:5])} ..."
            )
            message = f"--table {name!r}: no such table; {hint}"
            raise InvalidInputError(message)
        return names.index(name)

    def _without(self, name: str) -> FloatArray:
        kept = Plan(placements=tuple(p for p in self.plan.placements if p.table != name))
        return np.asarray(self._pipeline.plan_work(kept))

    def _own(self, name: str, rest: FloatArray) -> OptionCost:
        own = self._placements[name]
        return replace(
            self._figures(own, self._work - rest), plan_time_s=self.plan_time_s, is_chosen=True
        )

    def _cost(self, table: int, option: int, rest: FloatArray) -> OptionCost:
        places, work = self._placed(table, option, rest)
        chosen: ShardingOption = self.space.tables[table].options[option]
        item = self.problem.workload.tables[table]
        topology = self.problem.topology
        placement = place(
            chosen,
            item.num_embeddings,
            places,
            world_size=topology.world_size,
            local_world_size=topology.local_world_size,
        )
        value = float(self._evaluate.values(work[None])[0])
        if not chosen.may_be_at(places, topology.local_world_size):
            value = np.inf
        figures = self._figures(placement, work - rest)
        return replace(figures, plan_time_s=value if np.isfinite(value) else None)

    def _placed(
        self, table: int, option: int, rest: FloatArray
    ) -> tuple[tuple[int, ...], FloatArray]:
        """Pieces one after the other where they hurt least, and the work of all ranks then."""
        flat = int(self.space.first[table]) + option
        spread = self.space.options[flat].spread
        rows = self.space.pool[self.space.rows[flat]]
        if spread is Spread.UNIFORM:
            return (), rest + rows
        hosts = spread is Spread.HOSTS
        every = self.space.tables[table].hosts if hosts else self.space.tables[table].ranks
        may_be_at, local = self.space.options[flat].may_be_at, self.space.local_world_size
        work = rest
        places: list[int] = []
        for piece in rows:
            allowed = [p for p in every if may_be_at((*places, p), local)] or every
            best = self._best_place(work, piece, allowed, hosts=hosts)
            places.append(best)
            work = self._added(work, piece, best, hosts=hosts)
        return tuple(places), work

    def _best_place(
        self, work: FloatArray, piece: FloatArray, allowed: Sequence[int], *, hosts: bool
    ) -> int:
        """The place with the fastest plan; where none fits, the emptiest."""
        best, least = allowed[0], np.inf
        for start in range(0, len(allowed), _BATCH):
            some = allowed[start : start + _BATCH]
            tried = np.stack([self._added(work, piece, p, hosts=hosts) for p in some])
            values = self._evaluate.values(tried)
            if not np.isfinite(values).any():
                values = 1e6 * (1.0 + self.space.overflow_ratio(tried))
            at = int(values.argmin())
            if values[at] < least:
                best, least = some[at], float(values[at])
        return best

    def _added(self, work: FloatArray, piece: FloatArray, at: int, *, hosts: bool) -> FloatArray:
        local = self.space.local_world_size
        ranks = slice(at * local, (at + 1) * local) if hosts else slice(at, at + 1)
        changed = work.copy()
        changed[ranks] += piece
        return changed

    def _figures(self, placement: TablePlacement, work: FloatArray) -> OptionCost:
        pipeline = self._pipeline
        alone = pipeline.lookup_times(np.maximum(work, 0.0))
        sent = [
            *range(INPUT, INPUT + len(EXCHANGING_TYPES)),
            *range(OUTPUT, OUTPUT + len(EXCHANGING_TYPES)),
        ]
        world = self.problem.topology.world_size
        exchanged = float(work[:, sent].sum()) * world + 2.0 * float(work[:, REPLICATED].sum())
        return OptionCost(
            placement=placement,
            lookup_forward_s=float(alone[0].max()),
            lookup_backward_s=float(alone[1].max()),
            exchanged_bytes=exchanged,
            device_bytes=float(pipeline.device_bytes(work).max()),
            plan_time_s=None,
        )


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
    return ConstraintCost(constraint=name, time_s=without_s, gain_s=gain)


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
    if rule.min_column_width > 4:
        parts.append(f"columns >= {rule.min_column_width}")
    return " ".join(parts)


def _with_more_memory(topology: Topology) -> Topology:
    device = topology.device
    roomier = replace(device, hbm_capacity_bytes=device.hbm_capacity_bytes + _MORE_MEMORY_BYTES)
    by_rank = tuple(c + _MORE_MEMORY_BYTES for c in topology.hbm_capacity_by_rank_bytes)
    return replace(topology, device=roomier, hbm_capacity_by_rank_bytes=by_rank)


def _same_option(one: TablePlacement, other: TablePlacement) -> bool:
    """Whether two placements cut the table in the same way, wherever the shards are."""

    def cut(placement: TablePlacement) -> tuple[object, ...]:
        shards = sorted(
            (s.row_offset, s.col_offset, s.num_rows, s.num_cols) for s in placement.shards
        )
        replicated = placement.sharding_type.value == "data_parallel"
        factor = placement.cache_load_factor_ratio
        return placement.kernel, factor, replicated, tuple(shards)

    return cut(one) == cut(other)
