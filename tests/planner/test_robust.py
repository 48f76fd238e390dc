"""Plans for several scenarios, and the objective in money."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from costmodels.distribution.zipf import Zipf
from costmodels.estimates import HostMemory, MemoryLedger, RankMemory
from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan, ShardingType
from costmodels.workload import DataType, Feature, Pooling, Workload
from planner import api
from planner.errors import InvalidInputError
from planner.problem import Constraints, PlanningProblem
from planner.scenarios import ScenarioPipeline, ScenarioRule
from planner.search.base import Record
from planner.search.construct.walk import count_assignments, every_assignment
from planner.settings import SearchSettings
from planner.solving.prepare import search_objective, search_space
from planner.solving.run import strategy_named
from planner.space.evaluation import Budget, Evaluator
from tests.planner import cases

pytestmark = pytest.mark.usefixtures("no_process_beside")


def variant(model: Workload, seed: int) -> Workload:
    """Other skews, pooling factors and another batch for the same tables."""
    rng = np.random.default_rng(seed)
    tables = tuple(
        replace(
            t,
            features=tuple(
                replace(f, pooling_factor=f.pooling_factor * float(rng.uniform(0.2, 5)))
                for f in t.features
            ),
            distribution=Zipf(
                num_embeddings=t.num_embeddings, exponent=float(rng.uniform(0.2, 1.3))
            ),
        )
        for t in model.tables
    )
    batch = int(model.batch_size_per_rank * rng.choice([0.5, 1, 2]))
    return replace(model, name=f"variant{seed}", tables=tables, batch_size_per_rank=max(batch, 1))


def test_a_rule_given_as_a_text_is_the_rule() -> None:
    """Of whatever is compared by identity, as the rule is, a text would be another one."""
    for how in ScenarioRule:
        assert SearchSettings(robust=how.value).robust is how  # type: ignore[arg-type]


@pytest.mark.parametrize("how", list(ScenarioRule))
@pytest.mark.parametrize("seed", cases.first((0, 4, 2), 1))
def test_the_value_is_that_of_each_scenario_alone_and_the_bound_holds(
    seed: int, how: ScenarioRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = cases.tiny(seed)
    model, system = free.problem.workload, free.problem.topology
    scenarios = (variant(model, seed), variant(model, seed + 50))
    problem = PlanningProblem(
        workload=model,
        topology=system,
        scenarios=scenarios,
        constraints=free.problem.constraints,
    )
    space = search_space(problem, CostPipeline)
    objective = search_objective("iteration", space, how)
    if count_assignments(space, 8000) > 8000:
        pytest.skip("too many plans to look at each")
    alone = [CostPipeline(w, system, space.pipeline.models) for w in (model, *scenarios)]
    merge = np.max if how is ScenarioRule.WORST else np.mean
    best = np.inf
    for found, works in every_assignment(space):
        values = Evaluator(space, objective, Budget()).values(works)
        at = int(np.argmin(values))
        best = min(best, float(values[at]))
        plan = space.plan(found[at])
        times = [float(p.iteration_times(p.plan_work(plan))) for p in alone]
        if np.isfinite(values[at]):
            assert values[at] == pytest.approx(merge(times), rel=1e-9)
            assert all(p.memory(plan).fits for p in alone)
    monkeypatch.setattr("planner.search.auto.can_price_all", lambda *_: False)
    evaluate = Evaluator(space, objective, Budget(max_evaluations=200))
    outcome = strategy_named("auto").search(Record(evaluate), seed=0)
    assert outcome.bound is not None
    assert outcome.bound <= best * (1 + 1e-9)
    assert outcome.values[0] == pytest.approx(best, rel=1e-3)
    assert outcome.bound >= 0.5 * best


def test_a_robust_plan_is_best_in_its_worst_scenario() -> None:
    model, system = cases.synthetic(8, seed=3), cases.topology(2, 2)
    other = variant(model, 7)

    def worst(scenarios: tuple[Workload, ...]) -> tuple[float, api.PlanningResult]:
        result = api.plan(
            model,
            system,
            scenarios=scenarios,
            time_limit_s=None,
            max_evaluations=60,
            with_baselines=False,
        )
        times = [api.estimate(w, system, result.plan).estimate.time.time_s for w in (model, other)]
        return max(times), result

    alone, _ = worst(())
    together, result = worst((other,))
    assert together <= alone * (1 + 1e-9)
    assert [s.name for s in result.scenarios] == [model.name, other.name]
    assert max(s.time_s for s in result.scenarios) == pytest.approx(together)
    assert result.solver.objective == "worst iteration"
    assert result.solver.value == pytest.approx(together)


def test_what_is_reported_is_the_first_scenario_alone() -> None:
    """The works of all scenarios stand side by side; none of the others may be priced with it.

    Tables that are cut inside hosts, whose exchange read the second scenario as its codecs' work.
    """
    model, system = cases.synthetic(4, seed=3), cases.topology(2, 2)
    first = CostPipeline(model, system)
    together = ScenarioPipeline([first, CostPipeline(variant(model, 7), system)])
    inside = Constraints(sharding_types=(ShardingType.TABLE_ROW_WISE,))
    search = SearchSettings(max_evaluations=20, with_baselines=False)
    problem = PlanningProblem(workload=model, topology=system, constraints=inside)
    plan = api.solve(problem, search=search).plan
    assert together.estimate(plan) == first.estimate(plan)
    assert together.sampled_times(plan).tolist() == first.sampled_times(plan).tolist()


@pytest.mark.parametrize(
    "second",
    [
        pytest.param({"ranks": (10.0, 15.0)}, id="less on a rank, which is smaller"),
        pytest.param({"ranks": (10.0, 5.0), "host": 200.0}, id="more than a host holds"),
    ],
)
def test_the_memory_shown_is_of_the_scenario_that_leaves_least(
    second: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Devices of 80 and 16 bytes, a host of 100: most bytes on a rank is not least room."""
    free = cases.tiny(0).problem
    pipelines = [CostPipeline(free.workload, free.topology) for _ in range(2)]
    shown = [_ledger(ranks=(60.0, 5.0)), _ledger(**second)]
    for pipeline, ledger in zip(pipelines, shown, strict=True):
        monkeypatch.setattr(pipeline, "memory", lambda _, ledger=ledger: ledger)
    assert ScenarioPipeline(pipelines).memory(Plan(placements=())) == shown[1]


def _ledger(ranks: tuple[float, float], host: float = 0.0) -> MemoryLedger:
    empty = dict.fromkeys((f.name for f in fields(RankMemory)), 0.0)
    found = (
        {**empty, "rank": i, "weights_bytes": used, "capacity_bytes": capacity}
        for i, (used, capacity) in enumerate(zip(ranks, (80.0, 16.0), strict=True))
    )
    return MemoryLedger(
        ranks=tuple(RankMemory(**f) for f in found),  # type: ignore[arg-type]
        hosts=(HostMemory(host=0, used_bytes=host, capacity_bytes=100.0),),
    )


def test_scenarios_have_the_same_tables() -> None:
    model = cases.synthetic(4, seed=3)
    fewer = replace(model, name="fewer", tables=model.tables[:3])
    swapped = replace(model, name="swapped", tables=model.tables[::-1])
    with pytest.raises(InvalidInputError) as caught:
        api.plan(model, cases.topology(), scenarios=(fewer, swapped))
    assert len(caught.value.problems) == 2
    assert "'t3'" in caught.value.problems[0]
    assert "order" in caught.value.problems[1]


@pytest.mark.parametrize(
    "change",
    [
        {"pooling": Pooling.MEAN},
        {"is_weighted": True},
        {"module": "another"},
        {"features": (Feature(name="another", pooling_factor=3.0),)},
        {"dtype": DataType.FP16},
    ],
)
def test_a_scenario_of_another_model_is_refused(change: dict[str, object]) -> None:
    """Only how often rows are looked up may differ."""
    model = cases.synthetic(3, seed=3)
    first, *others = model.tables
    other = replace(model, name="other", tables=(replace(first, **change), *others))
    with pytest.raises(InvalidInputError, match=f"differs from 'test' in table '{first.name}'"):
        api.plan(model, cases.topology(), scenarios=(other,))
