"""Prices setups: by a search for the best plan, and by a proof of what no plan can better."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from costmodels.system_models import sync_time_s
from planner import api
from planner.result import PlanningResult
from planner.search.bounds.quick import Floor
from planner.settings import SearchSettings
from planner.support.status import Status
from planner.tuning.design import DesignSpace
from planner.tuning.goals import Facts, facts_of
from planner.tuning.setups import Setup

StopCallback = Callable[[], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """A setup with its plan; ``sync_s`` are the seconds per iteration for averaging copies."""

    setup: Setup
    result: PlanningResult
    sync_s: float
    facts: Facts

    @property
    def value_s(self) -> float:
        """Seconds per iteration, including the averaging of copies."""
        return self.facts.time_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a study keeps of a search.

    Attributes:
        facts: the figures of the plan.
        sync_s: seconds per iteration for averaging copies.
        bound_s: proven bound on the iteration, without the averaging of copies.
        evaluations: plans that the search priced.
        is_cut: whether the clock ended the search.
        tuned: the setup with its plan.
    """

    facts: Facts
    sync_s: float
    bound_s: float | None
    evaluations: int
    is_cut: bool
    tuned: Tuned | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pricer:
    """Prices setups by searches with the same budget and the same seed.

    The price of a setup therefore depends on the setup alone, not on the process that asks, or on
    the setups before it.
    """

    space: DesignSpace
    time_limit_s: float | None = None
    max_evaluations: int | None = None
    seed: int = 0

    def solve(self, setup: Setup, should_stop: StopCallback | None = None) -> Outcome:
        """The best plan under a setup; the best so far if ``should_stop`` ends the search.

        Raises:
            InvalidInputError: the setup contradicts the workload or its constraints.
            InfeasibleError: it is proven that nothing fits under the setup.
            NoPlanFoundError: the search found no plan that fits.
            StoppedError: ``should_stop`` was True before there was a plan.
        """
        search = SearchSettings(
            time_limit_s=self.time_limit_s,
            max_evaluations=self.max_evaluations,
            seed=self.seed,
            with_baselines=False,
        )
        result = api.solve(self.space.restricted(setup), search=search, should_stop=should_stop)
        found = tuned(self.space, setup, result)
        return Outcome(
            facts=found.facts,
            sync_s=found.sync_s,
            bound_s=result.bound,
            evaluations=result.solver.evaluations,
            is_cut=result.solver.status is Status.TIME_LIMIT,
            tuned=found,
        )

    def floor(self, setup: Setup, should_stop: StopCallback | None = None) -> Floor:
        """Bounds that hold for every plan of a setup's family.

        The time is without the averaging of copies; free memory includes the reserve.

        Raises:
            InvalidInputError: the setup contradicts the workload or its constraints.
            InfeasibleError: it is proven that nothing fits under any setup of the family.
            StoppedError: ``should_stop`` was True.
        """
        loosest = self.space.loosest(setup)
        found = api.floor(self.space.restricted(loosest), should_stop=should_stop)
        return replace(found, free_bytes=found.free_bytes + loosest.reserved_bytes)


def tuned(space: DesignSpace, setup: Setup, result: PlanningResult) -> Tuned:
    """A plan found under a setup, with the time for averaging copies and its figures."""
    problem, memory = space.problem_of(setup), result.best.memory
    once_s = sync_time_s(problem.topology, setup.group_size, memory, models=problem.models)
    sync_s = once_s / setup.sync_interval
    time_s = result.estimate.time.time_s + sync_s
    facts = facts_of(space, setup, time_s, memory.fullest.headroom_bytes)
    return Tuned(setup=setup, result=result, sync_s=sync_s, facts=facts)


def best_facts(space: DesignSpace, setup: Setup, time_s: float, free_bytes: float) -> Facts:
    """Figures that no plan of a setup can better.

    Args:
        space: the design space, which has the problem on the setup's cluster.
        setup: the setup.
        time_s: proven bound on the iteration of one group, without the averaging of copies.
        free_bytes: proven bound on the free bytes of the fullest rank, including the reserve.
    """
    time_s += space.least_sync_s(setup)
    return facts_of(space, setup, time_s, free_bytes - setup.reserved_bytes)
