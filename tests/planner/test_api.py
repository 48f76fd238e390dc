"""The straight line from workload and topology to a priced, proven plan."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import planner
from costmodels.sharding import ComputeKernel, Plan, ShardingType
from planner import api
from planner.errors import InfeasibleError, InvalidInputError, NoPlanFoundError
from planner.io import load_workload_file
from planner.problem import Constraints, PlanningProblem, TableConstraint
from planner.search.base import AbstractStrategy, Record, SearchOutcome
from planner.solving.run import BASELINES
from planner.space.budget import Deadline, default_work_s
from planner.support import load_lazily
from planner.support.status import Status
from tests.planner import cases

ROOT = Path(__file__).resolve().parents[2]


def small() -> tuple[object, object]:
    return cases.synthetic(6, seed=3), cases.topology(2, 2)


def test_plan_is_priced_bounded_and_compared() -> None:
    model, system = small()
    result = planner.plan(model, system, max_evaluations=100, seed=4)  # type: ignore[arg-type]
    assert result.solver.strategy == "auto"
    assert result.solver.seed == 4
    assert result.solver.value == pytest.approx(result.estimate.time.time_s, rel=1e-9)
    assert result.bound is not None
    assert result.bound <= result.solver.value
    assert result.gap_ratio == pytest.approx(1 - result.bound / result.solver.value, abs=1e-9)
    assert result.best.memory.fits
    assert len(result.runners_up) <= 3
    plans = [result.plan, *(c.plan for c in result.runners_up)]
    assert len(set(plans)) == len(plans)
    names = {c.name for c in result.baselines} | set(result.unfit_baselines)
    assert names == set(BASELINES)
    best = result.estimate.time.time_s
    assert all(c.estimate.time.time_s >= best * (1 - 1e-9) for c in result.baselines)
    assert result.solver.progress


@pytest.mark.parametrize("objective", ["iteration", "phases", "torchrec"])
def test_the_gap_is_the_sum_of_its_parts(objective: str) -> None:
    """Evenly spread work is no dearer than the plan's own, and no ranks are above a mean twice."""
    model = cases.synthetic(9, seed=5)
    result = planner.plan(  # type: ignore[call-arg]
        model, cases.topology(1, 4), objective=objective, max_evaluations=30, time_limit_s=None
    )
    solver = result.solver
    assert solver.balanced_value is not None
    seen = solver.value if solver.separable_value is None else solver.separable_value
    assert solver.balanced_value <= seen * (1 + 1e-9)
    assert solver.uneven_gap_ratio is not None
    assert solver.gap_ratio is not None
    assert 0 <= solver.uneven_gap_ratio + solver.unseen_gap_ratio <= solver.gap_ratio + 1e-12


def test_estimate_and_compare_price_like_plan() -> None:
    model, system = small()
    result = api.plan(model, system, max_evaluations=150)  # type: ignore[arg-type]
    again = planner.estimate(model, system, result.plan)  # type: ignore[arg-type]
    assert again.estimate.time == result.estimate.time
    assert again.memory == result.best.memory
    plans = {"best": result.plan, "other": result.baselines[0].plan}
    both = planner.compare(model, system, plans)  # type: ignore[arg-type]
    assert [c.name for c in both] == ["best", "other"]
    broken = Plan(placements=result.plan.placements[1:])
    with pytest.raises(InvalidInputError, match="missing"):
        planner.estimate(model, system, broken)  # type: ignore[arg-type]


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    model, system = small()
    with pytest.raises(InvalidInputError, match="auto"):
        api.plan(model, system, strategy="magic")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="phases"):
        api.plan(model, system, objective="magic")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"robust": "best"}, "robust must be one of worst, mean, got 'best'"),
        ({"time_limit_s": -1.0}, "time_limit_s must be above 0"),
        ({"time_limit_s": float("nan")}, "time_limit_s must be above 0"),
        ({"max_evaluations": 0}, "max_evaluations must be at least 1 and finite, got 0"),
        ({"max_evaluations": 1.5}, "max_evaluations must be a whole number"),
        ({"seed": -1}, "seed must be at least 0 and finite, got -1"),
        ({"seed": 0.5}, "seed must be a whole number"),
        ({"kept_s": "1s"}, "kept_s must be a number"),
        ({"kept_s": -1}, "kept_s must be at least 0 and finite, got -1"),
        ({"with_baselines": "no"}, "with_baselines must be True or False, got 'no'"),
        ({"search": {"seed": 1}}, "is no SearchSettings"),
        ({"progress": 3}, "progress: 3 is no function"),
        (
            {"models": "roofline"},
            "models must be of class CostModels, got 'roofline'; planner.models",
        ),
        ({"scenarios": 3}, "scenarios: 3 is no Iterable; give a list"),
        ({"robust": np.array([1, 2])}, "robust must be one of worst, mean"),
        ({"strategy": np.array([1, 2])}, "strategy .* is not one of"),
        ({"objective": np.array([1, 2])}, "objective must be a text"),
        ({"time_limit_s": True}, "time_limit_s must be a number"),
        ({"max_evaluations": True}, "max_evaluations must be a whole number"),
        ({"seed": True}, "seed must be a whole number"),
    ],
)
def test_settings_that_no_search_could_honour_are_refused(
    changes: dict[str, object], words: str
) -> None:
    with pytest.raises(InvalidInputError, match=words):
        planner.plan(*small(), **changes)  # type: ignore[arg-type]


def test_a_time_without_end_and_any_iterable_of_scenarios_are_taken() -> None:
    model, system = small()
    given = {"time_limit_s": float("inf"), "max_evaluations": 10, "with_baselines": False}
    result = planner.plan(model, system, scenarios=(m for m in [model]), **given)  # type: ignore[arg-type]
    assert result.problem.scenarios == (model,)


def test_names_in_place_of_what_they_name_are_refused() -> None:
    """With the function that reads it."""
    model, system = small()
    for given, loader in (
        (("small_demo", system), "load_workload"),
        ((model, "h100_sxm"), "load_system"),
    ):
        with pytest.raises(InvalidInputError, match=rf"planner\.{loader}\(\.\.\.\) reads one"):
            planner.plan(*given)  # type: ignore[arg-type]
    with pytest.raises(
        InvalidInputError,
        match=r"scenarios\[0\] must be of class Workload, got 'day2\.yaml'; give a list",
    ):
        planner.plan(model, system, scenarios=("day2.yaml",))  # type: ignore[arg-type]


def test_what_is_no_plan_is_named_with_what_gives_one() -> None:
    """A saved plan and a result hold a plan, and neither is one; a long value goes by its class."""
    model, system = small()
    result = planner.plan(model, system, max_evaluations=10, with_baselines=False)
    hint = r"planner\.load_plan\(\.\.\.\)\.plan reads one"
    for given in (result, "plan.json"):
        with pytest.raises(InvalidInputError, match=hint):
            planner.estimate(model, system, given)  # type: ignore[arg-type]
        with pytest.raises(InvalidInputError, match=f"^first: .* is no Plan; {hint}"):
            planner.compare(model, system, {"first": given})  # type: ignore[dict-item]
        with pytest.raises(
            InvalidInputError, match=f"^start must be of class Plan, got .*; {hint}"
        ):
            planner.MoveLimit(start=given)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match=r"^plan: a PlanningResult is no Plan"):
        planner.estimate(model, system, result)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="plans: a list is no Mapping"):
        planner.compare(model, system, [result.plan] * 2)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_bytes": -1.0}, "max_bytes must be at least 0 and finite, got -1.0"),
        ({"max_bytes": "1 GiB"}, "max_bytes must be a number"),
        ({"max_bytes": float("nan")}, "max_bytes must be at least 0 and finite, got nan"),
        ({"max_tables": -1}, "max_tables must be at least 0 and finite, got -1"),
        ({"max_tables": 1.5}, "max_tables must be a whole number"),
        ({"max_tables": True}, "max_tables must be a whole number"),
    ],
)
def test_limits_on_moves_are_numbers(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        planner.MoveLimit(start=Plan(placements=()), **changes)


def test_what_is_no_list_of_scenarios_and_no_pipeline_is_named() -> None:
    model, system = small()
    for given in (None, 3, model):
        with pytest.raises(
            InvalidInputError, match=r"^scenarios must be a tuple or a list, got .*; give a list"
        ):
            PlanningProblem(workload=model, topology=system, scenarios=given)  # type: ignore[arg-type]
    problem = PlanningProblem(workload=model, topology=system, scenarios=[model])  # type: ignore[arg-type]
    assert problem.scenarios == (model,)
    with pytest.raises(InvalidInputError, match=r"^make_pipeline: None is no function; give one$"):
        planner.solve(problem, make_pipeline=None)  # type: ignore[arg-type]


def test_what_is_no_path_is_named() -> None:
    for load in (planner.load_workload, planner.load_system, planner.load_plan):
        with pytest.raises(InvalidInputError, match="None is no path; give a text"):
            load(None)  # type: ignore[operator]
    with pytest.raises(InvalidInputError, match="workload: 'small_demo' is no Workload"):
        planner.load_plan("plan.json", "small_demo")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="result: None is no PlanningResult"):
        planner.save_plan("plan.json", None)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match=r"overrides: 'training\.pipeline' is no pair"):
        load_workload_file("small_demo", overrides=["training.pipeline"])  # type: ignore[arg-type]
    for given in (None, {"training.pipeline": "none"}):
        with pytest.raises(InvalidInputError, match=r"overrides: .* is no pair of texts; give"):
            load_workload_file("small_demo", overrides=given)  # type: ignore[arg-type]


def test_ranks_are_whole_numbers() -> None:
    for gpus in ("8", 2.0, 0):
        with pytest.raises(InvalidInputError, match="both must be whole numbers from 1"):
            planner.load_system("h100_sxm", gpus=gpus)  # type: ignore[arg-type]


def test_a_table_too_large_for_every_option_is_named() -> None:
    model = cases.workload((cases.table("huge", 50_000_000, 64), cases.table("small")))
    only = Constraints(sharding_types=(ShardingType.TABLE_WISE,), kernels=(ComputeKernel.FUSED,))
    with pytest.raises(InfeasibleError, match="huge") as caught:
        api.plan(model, cases.topology(1, 2, hbm_gib=4), constraints=only)
    bytes_needed = 50_000_000 * 64 * 4
    assert caught.value.shortfall_bytes == pytest.approx(bytes_needed - 4 * cases.GIB, rel=0.1)
    advice = " ".join(caught.value.advice)
    assert "GPUs" in advice
    assert "fused_uvm" in advice
    assert "row_wise" in advice
    assert "column_wise" in advice


@pytest.mark.parametrize("rows", [3_000_000_000, 40_000_000_000, 2_000_000_000_000])
@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize(
    "kernels", [{ComputeKernel.FUSED}, {ComputeKernel.FUSED_UVM}, set(ComputeKernel)]
)
def test_what_a_table_lacks_is_never_negative(
    rows: int, hosts: int, kernels: set[ComputeKernel]
) -> None:
    """One option lacks device memory and another host memory: each lacks more than nothing."""
    model = cases.workload((cases.table("huge", rows, 64), cases.table("small")))
    with pytest.raises(InfeasibleError, match=r"huge|short") as caught:
        api.plan(
            model,
            cases.topology(hosts, 2, hbm_gib=40, ddr_gib=100),
            constraints=Constraints(kernels=tuple(sorted(kernels))),
        )
    assert caught.value.shortfall_bytes > 0
    assert " -" not in str(caught.value)
    memories = {"device memory": kernels != {ComputeKernel.FUSED_UVM},
                "host memory": kernels != {ComputeKernel.FUSED}}  # fmt: skip
    assert any(memories[word] for word in memories if word in str(caught.value))


def test_more_bytes_than_all_devices_is_proven_infeasible() -> None:
    model = cases.workload(tuple(cases.table(f"t{i}", 10_000_000, 64) for i in range(8)))
    device_only = Constraints(kernels=(ComputeKernel.FUSED, ComputeKernel.DENSE))
    with pytest.raises(InfeasibleError, match="device memory") as caught:
        api.plan(model, cases.topology(1, 2, hbm_gib=8), constraints=device_only)
    per_rank = 8 * 10_000_000 * (64 * 4 + 4) / 2 - 8 * cases.GIB
    assert caught.value.shortfall_bytes == pytest.approx(per_rank, rel=0.05)
    with pytest.raises(InfeasibleError):
        api.plan(model, cases.topology(1, 2, hbm_gib=2, ddr_gib=4))
    assert api.plan(model, cases.topology(1, 2, hbm_gib=8), max_evaluations=30).best.memory.fits


def test_too_many_large_shards_are_counted() -> None:
    model = cases.workload(tuple(cases.table(f"t{i}", 10_000_000, 64) for i in range(3)))
    whole = Constraints(sharding_types=(ShardingType.TABLE_WISE,), kernels=(ComputeKernel.FUSED,))
    with pytest.raises(InfeasibleError, match="3 tables") as caught:
        api.plan(model, cases.topology(1, 2, hbm_gib=4), constraints=whole)
    assert 0 < caught.value.shortfall_bytes < 2 * cases.GIB


def test_a_packing_without_solution_is_infeasible_by_exhaustion() -> None:
    sizes = (7_000_000, 7_000_000, 3_000_000, 3_000_000, 3_000_000)
    model = cases.workload(tuple(cases.table(f"t{i}", n, 64) for i, n in enumerate(sizes)))
    whole = Constraints(sharding_types=(ShardingType.TABLE_WISE,), kernels=(ComputeKernel.FUSED,))
    system = cases.topology(1, 2, hbm_gib=12.3e6 * 260 / cases.GIB)
    with pytest.raises(InfeasibleError, match="every combination") as caught:
        api.plan(model, system, constraints=whole)
    assert 0 < caught.value.shortfall_bytes < cases.GIB


def test_no_room_beside_the_dense_part() -> None:
    model = replace(cases.workload((cases.table("a"),)), reserved_bytes=9e9)
    with pytest.raises(InfeasibleError, match="reserve"):
        api.plan(model, cases.topology(1, 2, hbm_gib=8))


def test_host_memory_can_be_the_limit() -> None:
    model = cases.workload((cases.table("a", 50_000_000, 64),))
    rule = TableConstraint(
        pattern="a",
        kernels=(ComputeKernel.FUSED_UVM,),
        sharding_types=(
            ShardingType.TABLE_WISE,
            ShardingType.ROW_WISE,
            ShardingType.TABLE_ROW_WISE,
        ),
    )
    for types in (rule.sharding_types, (ShardingType.TABLE_ROW_WISE,)):
        limited = Constraints(tables=(replace(rule, sharding_types=types),))
        with pytest.raises(InfeasibleError, match="host memory"):
            api.plan(model, cases.topology(2, 2, ddr_gib=2), constraints=limited)


class Stubborn(AbstractStrategy):
    """Finds nothing, and may claim that there is nothing."""

    def __init__(self, bound: float | None) -> None:
        self.bound = bound

    def search(self, record: Record, *, seed: int) -> SearchOutcome:
        if self.bound is not None:
            record.raise_bound(self.bound, "claim")
        return record.outcome(proves=True)


def test_finding_nothing_is_not_a_proof() -> None:
    model, system = small()
    with pytest.raises(NoPlanFoundError, match="not proven impossible"):
        api.plan(model, system, strategy=Stubborn(None))  # type: ignore[arg-type]
    with pytest.raises(InfeasibleError):
        api.plan(model, system, strategy=Stubborn(float("inf")))  # type: ignore[arg-type]


def test_statuses() -> None:
    tiny = cases.tiny(2).problem
    optimal = api.plan(tiny.workload, tiny.topology)
    assert optimal.solver.status is Status.OPTIMAL
    assert optimal.gap_ratio == pytest.approx(0.0, abs=1e-4)
    model, system = small()
    greedy = api.plan(model, system, strategy="size_greedy")  # type: ignore[arg-type]
    assert greedy.solver.status is Status.HEURISTIC
    assert greedy.bound is None
    stopped = api.plan(model, system, strategy="random", max_evaluations=40)  # type: ignore[arg-type]
    assert stopped.solver.status is Status.WORK_LIMIT


def test_public_names_are_lazy_and_complete() -> None:
    assert set(dir(planner)) == set(planner.__all__)
    for name in planner.__all__:
        assert getattr(planner, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        planner.nonsense  # noqa: B018
    code = (
        "import sys, planner\n"
        "heavy = {'torch', 'ortools', 'optuna', 'sklearn', 'pandas', 'numpy'}\n"
        "found = heavy & set(sys.modules)\n"
        "import planner.api\n"
        "print(sorted(found | {'numpy.random'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_lazy_names_are_read_from_code_not_from_text() -> None:
    """Imports in brackets count; lines of a docstring that look like imports do not."""
    source = (
        'if TYPE_CHECKING:\n    """\n    from a import b as b\n    """\n'
        "    from math import (\n        inf as inf,\n        pi as pi,\n    )\n"
    )
    loader = SimpleNamespace(get_source=lambda _: source)
    package = {"__name__": "own", "__spec__": SimpleNamespace(loader=loader)}
    load_lazily(package)
    assert package["__all__"] == ["inf", "pi"]
    assert package["__getattr__"]("pi") == math.pi  # type: ignore[operator]


def test_a_plan_is_never_worse_than_a_baseline_however_short_the_search() -> None:
    model, system = cases.synthetic(12, seed=2), cases.topology(2, 2)
    result = api.plan(model, system, max_evaluations=1)
    assert result.baselines
    values = [c.estimate.time.time_s for c in result.baselines]
    assert result.estimate.time.time_s <= min(values) * (1 + 1e-9)
    assert result.solver.value == pytest.approx(result.estimate.time.time_s, rel=1e-9)


def test_the_time_limit_is_shared_out_and_leaves_the_search_its_least() -> None:
    space = cases.space(*small())  # type: ignore[arg-type]

    def deadline(limit_s: float | None) -> Deadline:
        return Deadline(limit_s, num_plans=9, num_baselines=5)

    assert deadline(1e-6).for_search(space) == pytest.approx(0.05e-6)
    assert deadline(1e-6).for_baseline(space, 3).time_limit_s == 0.0
    assert deadline(None).for_search(space) is None
    assert deadline(None).for_baseline(space, 3).time_limit_s is None
    assert 900 < (deadline(1000.0).for_search(space) or 0.0) < 1000


def test_a_budget_that_follows_from_the_problem_and_not_from_the_clock() -> None:
    """Fewer tables, less work; a time limit gives as much as it can take."""
    few, some, many = (default_work_s(tables, 16, None) for tables in (3, 26, 300))
    assert default_work_s(10, 16, None) < default_work_s(10, 32, None) < some
    assert some == default_work_s(26, 256, None) == 3.0 < default_work_s(40, 16, None)
    assert few < some < many == default_work_s(856, 128, None) == default_work_s(50, 8, None)
    assert 3 * many < default_work_s(3000, 512, None) < 5 * many
    assert default_work_s(6000, 1024, None) == default_work_s(10_000, 4096, None) == 5 * many
    assert default_work_s(3, 8, 60.0) == default_work_s(300, 512, 60.0) < 60.0
    model, system = cases.synthetic(4, seed=3), cases.topology(1, 2)
    results = [api.plan(model, system) for _ in range(2)]
    assert results[0].plan == results[1].plan
    assert results[0].bound == results[1].bound
    assert results[0].solver.work == results[1].solver.work


def test_a_bound_above_a_known_plan_is_withdrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a proof says, a plan that is better than it is the better argument."""

    def lie(self: Record, bound: float, phase: str) -> None:
        self.bound = 1e9 * bound

    monkeypatch.setattr(Record, "raise_bound", lie)
    model, system = small()
    result = api.plan(model, system, max_evaluations=60)  # type: ignore[arg-type]
    assert result.solver.status is Status.NO_PROOF
    assert result.bound is None
    assert any("withdrawn" in text for text in result.warnings)
