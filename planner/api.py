"""The straight line: workload and topology in, the best plan with its price and its proof out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import planner.search as strategies
from costmodels import discovery
from costmodels.errors import InvalidValueError
from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan, Spread
from costmodels.stages import CostModels
from costmodels.topology import Topology
from costmodels.workload import Workload
from planner.answer import RUNNERS_UP, Point, answer, candidate
from planner.budget import Deadline, default_evaluations
from planner.collector import collector_paused
from planner.errors import InvalidInputError
from planner.evaluation import Assignment, Budget, Evaluator, SearchSpace
from planner.models import default_models
from planner.objective import AbstractObjective
from planner.option_work import ListingProgress
from planner.problem import NO_CONSTRAINTS, Constraints, MoveLimit, PlanningProblem
from planner.result import Candidate, PlanningResult
from planner.robust import Robust
from planner.search.base import AbstractStrategy, SearchOutcome, SearchProgress
from planner.search.parts.feasibility import require_feasible
from planner.search.parts.objectives import MEMORY
from planner.search_problem import (
    MakePipeline,
    search_objective,
    search_space,
)
from planner.torchrec_space import priced_for

BASELINES: Final = (
    "torchrec_greedy",
    "split_hottest",
    "size_lookup_greedy",
    "lookup_greedy",
    "size_greedy",
)
"""Strategies whose plans are reported beside the best one."""


def plan(
    workload: Workload,
    topology: Topology,
    *,
    constraints: Constraints = NO_CONSTRAINTS,
    strategy: str | AbstractStrategy = "auto",
    objective: str = "iteration",
    time_limit_s: float | None = None,
    max_evaluations: int | None = None,
    seed: int = 0,
    progress: Callable[[SearchProgress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    make_pipeline: Callable[[Workload, Topology, CostModels], CostPipeline] = CostPipeline,
    with_baselines: bool = True,
    moves: MoveLimit | None = None,
    scenarios: Sequence[Workload] = (),
    robust: Robust = Robust.WORST,
) -> PlanningResult:
    """The best plan found for a workload on a topology.

    Args:
        workload: tables, dense part and how a step is run.
        topology: ranks, memories and links.
        constraints: limits on options and places of tables, and on memory.
        strategy: name of a file in :mod:`planner.search`, or an instance.
        objective: what is made small, a name of ``shardplan list``.
        time_limit_s: by the clock, from the listing of options to the pricing of the result.
        max_evaluations: the search ends with work worth the pricing of so many plans; None for
            :func:`planner.budget.default_work_s`.
        seed: the same seed and inputs give the same plan unless the clock cuts the search.
        progress: called with every improvement.
        should_stop: asked often; True ends the search with what it has.
        make_pipeline: prices plans; another one can count memory in another way.
        with_baselines: also plan with the baseline strategies.
        moves: the plan in use, and how much may move away from it.
        scenarios: the same tables under other index distributions or batch sizes.
        robust: what counts of workload and scenarios, the worst or the mean.

    Raises:
        InvalidInputError: unknown strategy or objective, constraints that leave no option or
            contradict each other, scenarios with other tables.
        InfeasibleError: proven that no plan fits.
        NoPlanFoundError: the search ended without a plan that fits.
        StoppedError: ``should_stop`` said so before there was anything to search.
    """
    baselines = len(BASELINES) if with_baselines else 0
    deadline = Deadline(time_limit_s, num_plans=1 + RUNNERS_UP + baselines, num_baselines=baselines)
    search = _Search(
        problem=_problem(workload, topology, constraints, moves, scenarios),
        make_pipeline=priced_for(objective, make_pipeline),
        target=(objective, robust),
        deadline=deadline,
        max_evaluations=max_evaluations,
        progress=progress,
        should_stop=should_stop,
    )
    chosen = strategy if isinstance(strategy, AbstractStrategy) else strategy_named(strategy)
    space, evaluate, outcome = search.run(chosen, seed)
    points = _baselines(space, evaluate.objective, seed, deadline) if with_baselines else {}
    return answer(strategy, outcome, points, evaluate, seed)


def estimate(
    workload: Workload, topology: Topology, plan: Plan, *, name: str = "plan"
) -> Candidate:
    """Price an existing plan, whoever made it.

    Raises:
        InvalidInputError: the plan is not one of this workload on this many ranks.
    """
    pipeline = CostPipeline(workload, topology, default_models(topology))
    try:
        return Candidate(
            name=name, plan=plan, estimate=pipeline.estimate(plan), memory=pipeline.memory(plan)
        )
    except InvalidValueError as error:
        msg = f"{name}: {error}"
        raise InvalidInputError(msg) from error


def compare(
    workload: Workload, topology: Topology, plans: Mapping[str, Plan]
) -> tuple[Candidate, ...]:
    """Price several plans by the same models, in the order given.

    Raises:
        InvalidInputError: a plan is not one of this workload on this many ranks.
    """
    return tuple(estimate(workload, topology, p, name=name) for name, p in plans.items())


def strategy_names() -> tuple[str, ...]:
    """Strategies that ``plan`` knows by name."""
    return discovery.names(strategies)


def strategy_named(name: str) -> AbstractStrategy:
    """The strategy in ``planner/search/<name>.py``.

    Raises:
        InvalidInputError: there is none; the message lists those there are.
    """
    if name not in strategy_names():
        known = ", ".join(strategy_names())
        msg = f"strategy {name!r} is not one of {known}"
        raise InvalidInputError(msg)
    return discovery.load(strategies, name, AbstractStrategy)()


def _problem(
    workload: Workload,
    topology: Topology,
    constraints: Constraints,
    moves: MoveLimit | None,
    scenarios: Sequence[Workload],
) -> PlanningProblem:
    return PlanningProblem(
        workload=workload,
        topology=constraints.limited(topology),
        constraints=constraints,
        move_limit=moves,
        scenarios=tuple(scenarios),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    """What is searched for, and how long; arguments of :func:`plan`."""

    problem: PlanningProblem
    make_pipeline: MakePipeline
    target: tuple[str, Robust]
    deadline: Deadline
    max_evaluations: int | None
    progress: Callable[[SearchProgress], None] | None
    should_stop: Callable[[], bool] | None

    def run(
        self, strategy: AbstractStrategy, seed: int
    ) -> tuple[SearchSpace, Evaluator, SearchOutcome]:
        """Search the kernels that matter, and then all of them if nothing fits without them."""
        for every_kernel in dict.fromkeys((self.target[0] == MEMORY, True)):
            space = self._listed(every_kernel=every_kernel)
            evaluate = self._evaluator(space)
            outcome = strategy.search(
                space, evaluate, seed=seed, progress=self.progress, should_stop=self.should_stop
            )
            if outcome.assignments or space.listing.has_every_kernel:
                break
        return space, evaluate, outcome

    def _listed(self, *, every_kernel: bool) -> SearchSpace:
        """The space of plans; where kernels were left out, that nothing fits is not proven."""
        with collector_paused():
            space = search_space(
                self.problem,
                self.make_pipeline,
                every_kernel=every_kernel,
                progress=_listing_progress(self.progress),
                should_stop=self.should_stop,
            )
            if space.listing.has_every_kernel:
                require_feasible(space)
        return space

    def _evaluator(self, space: SearchSpace) -> Evaluator:
        limit_s = self.deadline.for_search(partial(candidate, space, _any(space), "probe"))
        most = self.max_evaluations or default_evaluations(space, self.deadline.limit_s)
        return Evaluator(
            space,
            search_objective(self.target[0], space, self.target[1]),
            Budget(time_limit_s=limit_s, max_evaluations=most),
        )


def _listing_progress(progress: Callable[[SearchProgress], None] | None) -> ListingProgress | None:
    """Tells of the tables whose options are listed, before there is any plan."""
    if progress is None:
        return None
    started = time.perf_counter()

    def tell(done: int, total: int) -> None:
        progress(
            SearchProgress(
                seconds=time.perf_counter() - started,
                incumbent=None,
                bound=None,
                gap_ratio=None,
                evaluations=0,
                phase=f"options of {done:,} of {total:,} tables listed",
            )
        )

    return tell


def _baselines(
    space: SearchSpace, objective: AbstractObjective, seed: int, deadline: Deadline
) -> dict[str, Point | None]:
    """Best plan of each baseline strategy; None for those that found none that fits."""
    points: dict[str, Point | None] = {}
    for left, name in zip(range(len(BASELINES), 0, -1), BASELINES, strict=True):
        evaluate = Evaluator(space, objective, deadline.for_baseline(space, left))
        outcome = strategy_named(name).search(space, evaluate, seed=seed)
        points[name] = (outcome.values[0], outcome.assignments[0]) if outcome.values else None
    return points


def _any(space: SearchSpace) -> Assignment:
    """Each table's first option, its pieces in turn; whether it fits is not looked at."""
    places = []
    for t in range(space.num_tables):
        option = space.option(t, 0)
        count = space.num_hosts if option.spread is Spread.HOSTS else space.world_size
        places.append(tuple((t + piece) % count for piece in range(option.num_pieces)))
    return Assignment(options=(0,) * space.num_tables, places=tuple(places))
