"""One plan for several days that are unlike: ``--days``.

Each day may have a dense part, a pipeline, a batch, an optimizer, laws and pooling factors of its
own. Batches are drawn so that the days take about as long as one another under some plan: which day
is the worst then depends on the plan.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from costmodels.dense.base import dense_layers
from costmodels.errors import InvalidValueError
from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan
from costmodels.workload import DataType, DenseOptimizer, Optimizer, Workload
from planner.scenarios import ScenarioRule
from tests.differential.case import Case
from tests.differential.drawing.dense_parts import any_dense, any_pipeline, roomy
from tests.differential.drawing.draw_workload import draw_scenarios
from tests.differential.drawing.options import placements
from tests.differential.drawing.unusual import if_allowed

_MOST_BATCH = 4096


def with_unlike_days(rng: np.random.Generator, case: Case) -> Case:
    """The case with one to four scenarios, of which the worst or the mean counts."""
    case = draw_scenarios(rng, replace(case, scenarios=()))
    if rng.random() < 0.4:
        more = draw_scenarios(rng, case).scenarios
        named = (replace(day, name=f"later {day.name}") for day in more)
        case = replace(case, scenarios=(*case.scenarios, *named))
    days = tuple(_matched(rng, case, _otherwise(rng, case, day)) for day in case.scenarios)
    how = ScenarioRule.WORST if rng.random() < 0.7 else ScenarioRule.MEAN
    return roomy(replace(case, scenarios=days, robust=how))


def _otherwise(rng: np.random.Generator, case: Case, day: Workload) -> Workload:
    """The day trained in another way, as far as the planner allows that."""
    pick = rng.choice
    try:
        dense_layers(day)
    except InvalidValueError:  # layers that need vectors of one width, which the day has not
        day = replace(day, dense=any_dense(rng, day))
    choices: tuple[dict[str, object], ...] = (
        {"dense": any_dense(rng, day)},
        any_pipeline(rng),
        {"optimizer": Optimizer(str(pick([o.value for o in Optimizer])))},
        {"dense_optimizer": DenseOptimizer(str(pick([o.value for o in DenseOptimizer])))},
        {"output_dtype": DataType.FP16, "gradient_dtype": DataType.FP16},
        {"reserved_bytes": day.reserved_bytes + float(pick([0.0, 2.0**29]))},
    )
    for values in choices:
        if rng.random() < 0.5:
            day = if_allowed(case, day, values)
    return day


def _matched(rng: np.random.Generator, case: Case, day: Workload) -> Workload:
    """The day with a batch with which it takes about as long as the first under some plan."""
    choices = [placements(case, t) for t in case.workload.tables]
    if not all(choices) or day.dense.operators is not None:
        return day
    plan = Plan(placements=tuple(own[int(rng.integers(len(own)))] for own in choices))
    first_s, own_s = (_time_s(case, w, plan) for w in (case.workload, day))
    batch = day.batch_size_per_rank * first_s / own_s * float(rng.choice([0.9, 1.0, 1.1]))
    return replace(day, batch_size_per_rank=int(np.clip(round(batch), 1, _MOST_BATCH)))


def _time_s(case: Case, workload: Workload, plan: Plan) -> float:
    pipeline = CostPipeline(workload, case.topology)
    return float(pipeline.iteration_times(pipeline.plan_work(plan)))
