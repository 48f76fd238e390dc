"""How a time limit and a budget of work are shared out between listing, search and baselines.

Without a time limit a search has a budget of work (:mod:`planner.space.effort`) that
follows from the problem's size, so that it ends at the same point on every machine. A time limit is
measured by the clock, so that with one the result can differ from machine to machine.
"""

import math
import time
from typing import Final

from costmodels.pipeline import CostPipeline
from planner.space.effort import priced_s
from planner.space.evaluation import Budget, SearchSpace

_WORK_S_PER_TABLE: Final = 0.16
"""Nominal seconds of a search for each table."""
_FEW_RANKS: Final = 16
"""Up to so many ranks the seconds for each table are those above; with more they grow with the root
of the ranks. Few tables on many ranks are hard to balance: on 14 drawn models with 11 to 39 tables
and 32 to 256 ranks this made plans 0.4 % better and gaps a seventh smaller (geometric means)."""
_FEW_TABLES: Final = 26
_FEW_TABLES_S: Final = 3.0
_MORE_TABLES_POWER: Final = 1.5
"""Nominal seconds at most up to so many tables, however many ranks there are, and the power of the
tables with which that grows, so that fifty tables get all of :data:`_MOST_WORK_S`. MLPerf's 26
tables on 16 ranks, and 26 drawn tables on 8, 16 and 64 ranks, got plans that were at most 0.06 %
better, and gaps at most 0.2 points narrower, from 4 to 8 nominal seconds."""
_LEAST_WORK_S, _MOST_WORK_S = 0.6, 8.0
"""Nominal seconds of a search: at least, and at most (up to :data:`_LARGE`)."""
_LARGE: Final = 110_000
"""Tables times ranks (856 x 128). In larger problems the first bound and the first plans alone take
most of these seconds, so that the search gets more of them to improve a plan."""
_MOST_TIMES: Final = 5.0
"""The search of the largest problems gets this many times the usual seconds."""
_LEAST_LIMITED_WORK_S: Final = 4.0
"""Nominal seconds at least if there is a limit on what moves: plans then improve only by chains of
moves, which take longer to find."""
_WORK_SHARE: Final = 0.7
"""Nominal seconds of a search for each second of a time limit."""
_BASELINE_S: Final = 1.0
"""Most seconds of one baseline, nominal ones and by the clock."""
_BASELINE_SHARE: Final = 0.02
"""The most time that one baseline gets, as a share of the time limit."""
_LEAST_SEARCH_SHARE: Final = 0.05
"""The search gets at least this share of the time limit, however long the rest takes."""


def default_work_s(num_tables: int, world_size: int, time_limit_s: float | None) -> float:
    """Nominal seconds that a search may take if the user gives no budget of work.

    They grow with the number of tables, and sooner if there are many ranks: to 3 nominal seconds
    for 26 tables, and to 8 for fifty tables and more. A nominal second is about a second on one
    core of a machine of 2023. If tables times ranks exceed :data:`_LARGE`, they grow further with
    the square root of that product, up to five times. With a time limit they are 0.7 times the
    limit, so that only a slower machine reaches the limit first.

    Args:
        num_tables: number of tables of the workload.
        world_size: number of ranks.
        time_limit_s: seconds by the clock that the user allows; None for no limit.
    """
    if time_limit_s is not None:
        return _WORK_SHARE * time_limit_s
    each_s = _WORK_S_PER_TABLE * math.sqrt(max(world_size / _FEW_RANKS, 1.0))
    more = max(num_tables / _FEW_TABLES, 1.0)
    few_s = _FEW_TABLES_S * math.pow(more, _MORE_TABLES_POWER)
    usual_s = min(max(each_s * num_tables, _LEAST_WORK_S), few_s, _MOST_WORK_S)
    times = math.sqrt(num_tables * world_size / _LARGE)
    return usual_s * min(max(times, 1.0), _MOST_TIMES)


class Deadline:
    """The time limit of one planning, from its start.

    Args:
        limit_s: seconds by the clock; None for no limit.
        kept_s: seconds of the limit that are needed after everything else.
        num_plans: number of plans that are priced in full after the search.
        num_baselines: number of baseline strategies that run after the search.

    Attributes:
        search_s: seconds that the last search was given; None without a limit, or before one.
    """

    def __init__(
        self, limit_s: float | None, *, kept_s: float = 0.0, num_plans: int, num_baselines: int
    ) -> None:
        """Start the clock."""
        self.limit_s = limit_s
        self._kept_s = kept_s
        self._started = time.perf_counter()
        self._plans, self._baselines = num_plans, num_baselines
        self._pricing_s = 0.0
        self.search_s: float | None = None

    @property
    def left_s(self) -> float:
        """Seconds until the limit; infinite without one."""
        if self.limit_s is None:
            return math.inf
        return self.limit_s - self._kept_s - (time.perf_counter() - self._started)

    def for_search(self, space: SearchSpace) -> float | None:
        """Seconds that the search may take by the clock; None without a time limit.

        From the time that is left, this keeps back what the baselines and the pricing of all plans
        will take. A plan has one option of each table, so that it is priced in about the part of
        the time that listing the options took.
        """
        if self.limit_s is None:
            return None
        listing_s = time.perf_counter() - self._started
        self._pricing_s = listing_s * space.num_tables / len(space.options)
        share = _BASELINE_SHARE * self._baselines * self.limit_s
        kept_s = self._plans * self._pricing_s + min(share, _BASELINE_S * self._baselines)
        self.search_s = max(self.left_s - kept_s, _LEAST_SEARCH_SHARE * self.limit_s)
        return self.search_s

    @property
    def can_price(self) -> bool:
        """Whether there is time to price one more plan in full."""
        return self.left_s >= self._pricing_s

    def for_baseline(self, space: SearchSpace, left: int, *, alone: bool = False) -> Budget:
        """The budget of the next baseline, if ``left`` baselines have still to run.

        One that runs ``alone`` may take all the time that is left but that of pricing.
        """
        most = priced_plans(_BASELINE_S, space.pipeline)
        limit_s = None
        if self.limit_s is not None:
            whole_s = max(self.left_s - left * self._pricing_s, 0.0)
            limit_s = whole_s if alone else min(whole_s / left, _BASELINE_S)
        return Budget(time_limit_s=limit_s, max_evaluations=most)


def priced_plans(work_s: float, pipeline: CostPipeline) -> int:
    """How many plans can be priced in ``work_s`` nominal seconds, at least 1.

    Searches and users count work in priced plans.

    Args:
        work_s: nominal seconds.
        pipeline: prices the plans; more ranks and more columns of work take longer.
    """
    plan_s = priced_s(1, pipeline.topology.world_size * pipeline.num_features)
    return max(round(work_s / plan_s), 1)


def default_evaluations(space: SearchSpace, time_limit_s: float | None) -> int:
    """The budget of work of a search for which the user gave none, in priced plans.

    Args:
        space: the plans that are searched.
        time_limit_s: seconds by the clock that the user allows; None for no limit.
    """
    work_s = default_work_s(space.num_tables, space.world_size, time_limit_s)
    if time_limit_s is None and space.rules.budget is not None:
        work_s = max(work_s, _LEAST_LIMITED_WORK_S)
    return priced_plans(work_s, space.pipeline)
