"""The space of plans on TorchRec's terms: every option that can be part of the best plan.

A bound has to hold over all that TorchRec's enumerator would try, with its host kernels, and those
are a hundred options per table. Most can be ruled out before they are priced in full: a plan's
value, as TorchRec's rating or as its critical path, is at least

- the mean over ranks of all its shards' costs, and
- the cost of any one shard.

So an option whose cost is above its table's least by more than a known plan is above the mean of
least costs is in no better plan, and neither is one with a shard costlier than that plan. What is
left holds every plan that is no worse than the known one, that one included.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from costmodels.pipeline import CostPipeline
from costmodels.sharding import ShardingOption
from costmodels.stages import CostModels
from costmodels.topology import Topology
from costmodels.workload import Workload
from planner.enumeration import enumerate_options
from planner.evaluation import BoolArray, FloatArray, IntArray, SearchSpace
from planner.problem import PlanningProblem
from planner.search.parts.construct import Pressure, place_options
from planner.search.parts.linear import LinearModel
from planner.search.parts.torchrec import TorchrecCriticalPath, TorchrecRating
from planner.torchrec_pipeline import HBM, TorchrecPipeline, TorchrecPricing

MakePipeline = Callable[[Workload, Topology, CostModels], CostPipeline]

_POWER: Final = 16.0
_CEILINGS: Final = (1.0, 0.7, 0.5, 0.35, 0.25)
"""Costliest shard allowed, as a share of the mean load of a rank."""
_BYTE_PRICES: Final = (0.0, 0.1, 1.0, 10.0)
"""Cost of filling all devices, in mean loads, tried until a plan fits."""
_ROUNDING: Final = 1e-9


def priced_for(objective: str, make_pipeline: MakePipeline) -> MakePipeline:
    """What counts the work of a search for an objective: for TorchRec's, its own estimates."""
    if objective not in (TorchrecRating.name, TorchrecCriticalPath.name):
        return make_pipeline
    known = make_pipeline if isinstance(make_pipeline, TorchrecPricing) else TorchrecPricing()
    return replace(known, by_phase=objective == TorchrecCriticalPath.name)


def torchrec_space(problem: PlanningProblem, pipeline: TorchrecPipeline) -> SearchSpace:
    """Every option that can be part of a plan no worse than a quick one.

    Args:
        problem: the question.
        pipeline: counts work in TorchRec's estimates, for one of its objectives.

    Raises:
        InvalidInputError: as :func:`planner.enumeration.enumerate_options`.
    """
    lean = SearchSpace(problem, pipeline, enumerate_options(problem, pipeline))
    if problem.has_rules or not all(t.options for t in lean.tables):
        return lean
    known = _quick_value(lean, pipeline)
    least: dict[str, float] = {}

    def look(option: ShardingOption) -> bool:
        total, _ = pipeline.option_cost_s(option)
        least[option.table] = min(total, least.get(option.table, math.inf))
        return False

    enumerate_options(problem, pipeline, worth=look)
    slack = known * lean.world_size - sum(least.values())

    def worth(option: ShardingOption) -> bool:
        total, largest = pipeline.option_cost_s(option)
        dear = total - least[option.table] > slack + _ROUNDING * known * lean.world_size
        return not dear and largest <= known * (1 + _ROUNDING)

    return SearchSpace(problem, pipeline, enumerate_options(problem, pipeline, worth=worth))


def _quick_value(space: SearchSpace, pipeline: TorchrecPipeline) -> float:
    """Value of a plan that is quick to find; infinite if none fits."""
    objective = TorchrecCriticalPath(space) if pipeline.by_phase else TorchrecRating(space)
    model = LinearModel(space, objective)
    costs = np.array([pipeline.option_cost_s(o) for o in space.options])
    rows = np.minimum.reduceat(costs[:, 0], space.first[:-1])
    mean = float(rows.sum()) / space.world_size
    room = max(float(pipeline.device_limits.sum()), 1.0)
    taken = space.mean_work[:, HBM] * space.world_size / room
    best = math.inf
    for price in _BYTE_PRICES:
        prices = costs[:, 0] + price * mean * space.world_size * taken
        for ceiling in _CEILINGS:
            choice = _cheapest(space, prices, costs[:, 1] <= ceiling * mean)
            best = min(best, _placed_value(model, choice))
        if math.isfinite(best):
            break
    return best


def _cheapest(space: SearchSpace, prices: FloatArray, small: BoolArray) -> IntArray:
    """Cheapest small option of each table; the cheapest of all where none is small."""
    shown = np.where(small, prices, prices + float(prices.max()) * space.num_tables + 1.0)
    return np.array([int(np.argmin(shown[a:b])) for a, b in itertools.pairwise(space.first)])


def _placed_value(model: LinearModel, choice: IntArray) -> float:
    space = model.space
    peaks = model.mean[space.first[:-1] + choice].sum(axis=0)
    pressure = Pressure(targets=model.targets(peaks), power=_POWER)
    assignment = place_options(model, choice, pressure)
    work = space.work(assignment)
    fits = space.overflow_ratio(work) <= 0 and space.keeps_rules(assignment)
    return float(model.objective.values(work)) if fits else math.inf
