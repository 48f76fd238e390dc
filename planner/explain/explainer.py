"""Explains a plan: what each option of a table costs, which change helps, what rules cost."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property
from typing import Any, Final

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.estimates import IterationEstimate
from costmodels.pipeline import CostPipeline
from costmodels.shard_work.wire import EXCHANGING_TYPES
from costmodels.shard_work.work import INPUT, OUTPUT, REPLICATED
from costmodels.sharding import Plan, ShardingType, TablePlacement, option_of, place
from costmodels.topology import Topology
from costmodels.units import GIB
from planner import api
from planner.errors import InfeasibleError, NoPlanFoundError, StoppedError, refuse
from planner.problem import CHOICES, NO_CONSTRAINTS, Constraints, MoveLimit, PlanningProblem
from planner.profiling.stats import some_names
from planner.rules import placement_rules
from planner.rules.placement_rules import MoveBudget, received_bytes
from planner.scenarios import ScenarioRule
from planner.search.improve.single_changes import BestPlace, Placed
from planner.settings import SearchSettings
from planner.solving.prepare import search_objective, search_space
from planner.space.evaluation import Budget, Evaluator, SearchSpace
from planner.support.status import Status

_ROUNDING: Final = 1e-9
"""Two times that differ by at most this share are taken for equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionCost:
    """One option of a table, on good places beside the rest of the plan.

    Attributes:
        placement: the option with its places.
        lookup_forward_s, lookup_backward_s: seconds to look up its largest shard alone.
        exchanged_bytes: bytes of vectors and indices that all ranks exchange for it, forward.
        device_bytes: bytes on the rank that holds most of the table.
        plan_time_s: seconds per iteration of the whole plan with this option; infinite if it does
            not fit in memory, or if TorchRec cannot run its pieces on these places.
        is_chosen: whether the plan has this option.
    """

    placement: TablePlacement
    lookup_forward_s: float
    lookup_backward_s: float
    exchanged_bytes: float
    device_bytes: float
    plan_time_s: float = math.inf
    is_chosen: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TableExplanation:
    """Every option of one table; the option with the fastest plan comes first.

    Attributes:
        table: the name of the table.
        plan_time_s: seconds per iteration of the plan as it is.
        options: the options that have places beside the rest of the plan.
        rules: every constraint on the table, in words; options that one of them forbids are not
            among ``options``.
        num_stuck: how many further options have no places, because groups and counts leave none
            beside the rest of the plan.
    """

    table: str
    plan_time_s: float
    options: tuple[OptionCost, ...]
    rules: tuple[str, ...]
    num_stuck: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The best change of a single table.

    Attributes:
        table: the name of the table.
        before, after: its placement in the plan, and after the change.
        plan_time_s: seconds per iteration after the change.
        moved_bytes: bytes that ranks have to receive for the change.
    """

    table: str
    before: TablePlacement
    after: TablePlacement
    plan_time_s: float
    moved_bytes: float


class Explainer:
    """Answers questions about one plan of one problem.

    Raises:
        InvalidInputError: the plan does not fit the tables or the ranks of the problem.
    """

    def __init__(self, problem: PlanningProblem, plan: Plan) -> None:
        """List the options of all tables, and price the plan."""
        problem = problem.limited
        self.problem, self.plan = problem, plan
        self._counted_from = plan if problem.move_limit is None else problem.move_limit.start
        in_use = replace(problem, move_limit=MoveLimit(start=plan))
        self.space: SearchSpace = search_space(in_use, CostPipeline, every_name=True)
        self._pipeline = self.space.pipeline
        objective = search_objective("iteration", self.space, ScenarioRule.WORST)
        self._work = self._pipeline.plan_work(plan)
        self.plan_time_s = float(self._pipeline.iteration_times(self._work))
        self._placements = {p.table: p for p in plan.placements}
        usage = placement_rules.Usage(self.space.rules, [None] * self.space.num_tables)
        for index, table in enumerate(self.space.tables):
            ranks = np.array(plan.placement(table.table.name).ranks, dtype=np.int64)
            usage.hold(index, np.bincount(ranks, minlength=self.space.world_size))
        self._placer = BestPlace(self.space, Evaluator(self.space, objective, Budget()), usage)

    @cached_property
    def estimate(self) -> IterationEstimate:
        """The estimate of the plan as it is."""
        return self._pipeline.estimate(self.plan)

    def table(self, name: str) -> TableExplanation:
        """Every option of a table, while the rest of the plan stays as it is.

        If several sharding types cut the table in the same way, the option has the one with which
        the plan is fastest. The cut that the plan has is listed twice if its shards may also be on
        other ranks: as it is, and on the best other ranks. Options that constraints on groups and
        counts forbid are left out.

        Raises:
            InvalidInputError: there is no such table.
        """
        index = self._index(name)
        kept_plan = Plan(placements=tuple(p for p in self.plan.placements if p.table != name))
        rest = np.asarray(self._pipeline.plan_work(kept_plan))
        chosen = {"plan_time_s": self.plan_time_s, "is_chosen": True}
        own = self._figures(self._placements[name], self._work - rest, **chosen)
        cuts = [(index, i) for i in range(len(self.space.tables[index].options))]
        costs = [
            None if placed is None else self._told(placed, rest)
            for placed in self._placer.best(cuts, {index: rest}, tries_all=True)
        ]
        stuck = sum(cost is None for cost in costs)
        kept: dict[object, OptionCost] = {}
        for cost in (*filter(None, costs), *self._elsewhere(index, rest)):
            # Another name for the same shards, which may share other collectives, is an option of
            # its own where it makes the plan faster.
            is_own = _held(cost.placement) == _held(own.placement)
            if not is_own or _is_faster(cost.plan_time_s, self.plan_time_s):
                known = kept.setdefault(_cut(cost.placement), cost)
                if _is_faster(cost.plan_time_s, known.plan_time_s):
                    kept[_cut(cost.placement)] = cost
        ranked = sorted([own, *kept.values()], key=lambda c: c.plan_time_s)
        return TableExplanation(
            table=name,
            plan_time_s=self.plan_time_s,
            options=tuple(ranked),
            rules=placement_rules.rules_on(name, self.problem.constraints),
            num_stuck=stuck,
        )

    def changes(
        self, *, limit: int = 10, progress: Callable[[str], None] = lambda _: None
    ) -> tuple[Change, ...]:
        """The best change of each table on a critical rank; the fastest plan comes first.

        Equal column pieces are placed so that ranks receive the fewest bytes. If the problem has a
        plan in use, the bytes count from that plan for this choice.

        If no change makes the plan faster, these are the changes that slow it down least.

        Args:
            limit: how many changes to return at most.
            progress: called with the name of each table that has been looked at.
        """
        found, workload = [], self.problem.workload
        for name in self.critical_tables():
            own, options = self._placements[name], self.table(name).options
            others = (o for o in options if not o.is_chosen and o.plan_time_s < math.inf)
            best = next(others, None)
            if best is not None:
                after = least_moved(best.placement, self.problem, self._counted_from)
                moved = received_bytes(own, after, workload.table(name), workload)
                told = {"plan_time_s": best.plan_time_s, "moved_bytes": moved}
                found.append(Change(table=name, before=own, after=after, **told))
            progress(name)
        return tuple(sorted(found, key=lambda c: c.plan_time_s)[:limit])

    def critical_tables(self) -> tuple[str, ...]:
        """Tables with shards on the ranks of the critical path, in the workload's order."""
        ranks = {step.rank for step in self.estimate.critical_path}
        return tuple(p.table for p in self.plan.placements if ranks & set(p.ranks))

    # -- one option -------------------------------------------------------------------------------

    def _index(self, name: str) -> int:
        """The number of a table.

        Raises:
            InvalidInputError: there is no such table.
        """
        names = [t.table.name for t in self.space.tables]
        if name not in names:
            near = get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"tables are {some_names(names)}"
            hint = hint if names else "the workload has no tables"
            refuse(f"--table {name!r}: no such table; {hint}")
        return names.index(name)

    def _told(self, placed: Placed, rest: FloatArray) -> OptionCost:
        """What an option on its places costs, with ``rest`` the work of the other tables."""
        topology = self.problem.topology
        placement = place(
            placed.option,
            self.problem.workload.tables[placed.table].num_embeddings,
            placed.places,
            world_size=topology.world_size,
            local_world_size=topology.local_world_size,
        )
        return self._figures(placement, placed.work - rest, plan_time_s=float(placed.value))

    def _elsewhere(self, table: int, rest: FloatArray) -> list[OptionCost]:
        """The cut that the plan has, with one shard on another place: the fastest such plan."""
        own = self._placements[self.space.tables[table].table.name]
        located = self.space.located(table, own)
        if located is None:
            return []
        index, places = located
        ways = self._placer.moved((table, index), places, rest)
        best = min(ways, key=lambda placed: placed.value, default=None)
        return [] if best is None or best.value == math.inf else [self._told(best, rest)]

    def _figures(self, placement: TablePlacement, work: FloatArray, **more: Any) -> OptionCost:
        """What an option costs by itself, from its work ``[W, F]``; ``more`` are other fields."""
        pipeline = self._pipeline
        alone = pipeline.lookup_times(np.maximum(work, 0.0))
        sent = [way + i for way in (INPUT, OUTPUT) for i in range(len(EXCHANGING_TYPES))]
        world = self.problem.topology.world_size
        exchanged = float(work[:, sent].sum()) * world + 2.0 * float(work[:, REPLICATED].sum())
        return OptionCost(
            placement=placement,
            lookup_forward_s=float(alone[0].max()),
            lookup_backward_s=float(alone[1].max()),
            exchanged_bytes=exchanged,
            device_bytes=float(pipeline.device_bytes(work).max()),
            **more,
        )


def least_moved(placement: TablePlacement, problem: PlanningProblem, start: Plan) -> TablePlacement:
    """The placement with its equal column pieces exchanged so that ranks receive fewest bytes.

    The price of the plan stays the same.

    Args:
        placement: the placement of one table.
        problem: tables and ranks.
        start: the plan that says what ranks hold before.
    """
    from scipy.optimize import linear_sum_assignment

    topology, table = problem.topology, problem.workload.table(placement.table)
    world, local = topology.world_size, topology.local_world_size
    option = option_of(placement, table, world_size=world, local_world_size=local)
    if option is None or option.num_pieces < 2:
        return placement
    received = MoveBudget(MoveLimit(start=start), problem.workload, topology).piece_bytes(option)
    places = np.array(option.places_of(placement.ranks, local), dtype=np.int64)
    widths = np.array(option.column_widths)
    for width in np.unique(widths):
        same = np.flatnonzero(widths == width)
        _, order = linear_sum_assignment(received[np.ix_(same, places[same])])
        places[same] = places[same][order]
    where = tuple(places.tolist())
    return place(option, table.num_embeddings, where, world_size=world, local_world_size=local)


def _cut(placement: TablePlacement) -> tuple[object, ...]:
    """A key that two placements share if they cut a table alike, under any name, on any ranks."""
    shards = sorted((s.row_offset, s.col_offset, s.num_rows, s.num_cols) for s in placement.shards)
    replicated = placement.sharding_type is ShardingType.DATA_PARALLEL
    return placement.kernel, placement.cache_load_factor_ratio, replicated, tuple(shards)


def _held(placement: TablePlacement) -> tuple[object, ...]:
    """A key of what each rank holds of a table; it ignores which of equal pieces that is."""
    shards = Counter((s.rank, s.num_rows, s.num_cols) for s in placement.shards)
    return _cut(placement), frozenset(shards.items())


def _is_faster(one_s: float, other_s: float) -> bool:
    """Whether one time is shorter by more than rounding."""
    return one_s < other_s * (1 - _ROUNDING)


# ------------------------------------------------------------------ what constraints cost


MORE_MEMORY: Final = "one GiB more per rank"
"""The words for more memory, which stand in the place of a constraint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintCost:
    """What dropping one constraint gains, as the difference of two searches.

    Attributes:
        constraint: the constraint in words.
        kept_s: seconds per iteration of the best plan with all constraints; None if none fits.
        time_s: seconds per iteration of the best plan without this one; None if none fits.
        is_cut: whether the clock ended one of the two searches.
    """

    constraint: str
    kept_s: float | None
    time_s: float | None
    is_cut: bool = False

    @property
    def gain_s(self) -> float | None:
        """The first minus the second; None if one of them is missing."""
        return None if self.kept_s is None or self.time_s is None else self.kept_s - self.time_s


def constraint_costs(
    problem: PlanningProblem,
    *,
    time_limit_s: float | None = None,
    progress: Callable[[str], None] = lambda _: None,
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

    def searched(
        constraints: Constraints, topology: Topology, name: str
    ) -> tuple[float | None, bool]:
        """Seconds of the plan that was found, None for none, and whether the clock ended it."""
        try:
            found = api.solve(
                replace(problem, topology=topology, constraints=constraints),
                search=SearchSettings(time_limit_s=time_limit_s, with_baselines=False),
                should_stop=should_stop,
            )
        except (InfeasibleError, NoPlanFoundError):
            return None, False
        if found.solver.status is Status.INTERRUPTED:
            message = f"stopped before it was known what {name} costs"
            raise StoppedError(message)
        return found.estimate.time.time_s, found.solver.status is Status.TIME_LIMIT

    given, topology = problem.constraints, problem.topology
    kept_s, kept_is_cut = searched(given, topology, "the plan")
    roomier = replace(given, memory=()), _with_more_memory(given.limited(topology))
    questions = [(name, without, topology) for name, without in relaxed(given)]
    costs = []
    for name, without, there in (*questions, (MORE_MEMORY, *roomier)):
        progress(name)
        time_s, is_cut = searched(without, there, name)
        is_cut = is_cut or kept_is_cut
        costs.append(ConstraintCost(constraint=name, kept_s=kept_s, time_s=time_s, is_cut=is_cut))
    return tuple(sorted(costs, key=lambda c: -(c.gain_s or 0.0)))


def relaxed(given: Constraints) -> list[tuple[str, Constraints]]:
    """Each constraint in words, with the constraints that are left when it is dropped."""
    found = []
    for field, rule, words in placement_rules.rules_in_words(given):
        left: Any = [*getattr(NO_CONSTRAINTS if field in CHOICES else given, field)]
        if field not in CHOICES:
            left.remove(rule)
        found.append((words, replace(given, **{field: left})))
    return found


def _with_more_memory(topology: Topology) -> Topology:
    """The system with one GiB more device memory on each rank."""
    device = topology.device
    roomier = replace(device, hbm_capacity_bytes=device.hbm_capacity_bytes + GIB)
    by_rank = tuple(c + GIB for c in topology.hbm_capacity_by_rank_bytes)
    return replace(topology, device=roomier, hbm_capacity_by_rank_bytes=by_rank)
