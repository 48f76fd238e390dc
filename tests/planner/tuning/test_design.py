"""Design spaces: what varies, what is proven about it, and that bounds lose nothing."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costmodels.pipeline import CostPipeline
from costmodels.sharding import ComputeKernel, ShardingType
from costmodels.system_models import least_sync_s, sync_time_s
from costmodels.workload import Pipeline
from planner import load_system, load_workload
from planner.errors import InfeasibleError, InvalidInputError, NoPlanFoundError
from planner.problem import Constraints, PlanningProblem, TableConstraint
from planner.search.bounds.quick import Floor
from planner.solving.prepare import search_space
from planner.tuning import DesignSpace, Effort, Menu, Pricer, Setup, Study, design_space
from planner.tuning.design import plain
from planner.tuning.effects import told_value, worths
from planner.tuning.goals import GOALS, Facts, behind, front_of, values_of
from planner.tuning.known import Floors, Known
from planner.tuning.page import study_page
from planner.tuning.pricer import Outcome, StopCallback
from planner.tuning.setups import codecs_named, group_sizes

EFFORT = Effort(trials=10_000, trial_limit_s=600.0, trial_evaluations=5, sampler="bounds")


def problem_on(system: str, gpus: int, workload: str = "small_demo") -> PlanningProblem:
    return PlanningProblem(
        workload=load_workload(workload), topology=load_system(system, gpus=gpus)
    )


def on_device(gpus: int) -> PlanningProblem:
    """Tables of 100 GB, which may not lie in host memory."""
    problem = problem_on("a100_40gb_sxm", gpus, "dlrm_dcnv2_mlperf")
    return replace(problem, constraints=Constraints(kernels=(ComputeKernel.FUSED,)))


@pytest.fixture(scope="module")
def space() -> DesignSpace:
    """Two clusters, two batches, two codecs, two widths, groups; tables are cut in two ways."""
    few = (ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE)
    rules = Constraints(sharding_types=few)
    menu = Menu(
        tries_groups=True,
        batch_sizes=(1024, 4096),
        communications=("workload", "fp16/bf16"),
        pipelines=(Pipeline.SPARSE_DIST,),
        min_column_widths=(4, 32),
        reserves_bytes=(2.0**30,),
    )
    problems = (problem_on("a100_80gb_sxm", 2), problem_on("h100_sxm", 4))
    return design_space(*(replace(p, constraints=rules) for p in problems), menu=menu)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembering(Pricer):
    """Searches and proves each setup once."""

    outcomes: dict[Setup, Outcome] = field(default_factory=dict)
    floors: dict[Setup, Floor] = field(default_factory=dict)

    def solve(self, setup: Setup, should_stop: StopCallback | None = None) -> Outcome:
        if setup not in self.outcomes:
            self.outcomes[setup] = Pricer.solve(self, setup, should_stop)
        return self.outcomes[setup]

    def floor(self, setup: Setup, should_stop: StopCallback | None = None) -> Floor:
        loosest = self.space.loosest(setup)
        if loosest not in self.floors:
            self.floors[loosest] = Pricer.floor(self, loosest, should_stop)
        return self.floors[loosest]


@pytest.fixture(scope="module")
def pricer(space: DesignSpace) -> Pricer:
    return Remembering(space=space, max_evaluations=EFFORT.trial_evaluations)


@pytest.fixture(scope="module")
def prices(space: DesignSpace, pricer: Pricer) -> dict[Setup, Facts]:
    """Every setup searched."""
    return {setup: pricer.solve(setup).facts for setup in space.setups}


def test_setups_are_listed_once_and_made_from_their_parameters(space: DesignSpace) -> None:
    assert len(set(space.setups)) == len(space.setups) == (2 + 3) * 8
    for setup in space.setups:
        picks = space.parameters(setup)

        def pick(name: str, values: Sequence[Any], picks: Any = picks) -> Any:
            return next(v for v in values if plain(v) == picks[name])

        assert space.build(pick) == setup


def test_nothing_that_changes_training_varies_unless_it_is_named() -> None:
    problem = problem_on("h100_sxm", 16)
    named = problem.workload
    for setup in design_space(problem).setups:
        assert setup.batch_size == named.local_batch_size
        assert setup.communication == "workload"
        assert (setup.group_size, setup.sync_interval) == (16, 1)
        assert setup.reserved_bytes == named.reserved_bytes


def test_no_plan_is_better_than_its_bound(
    space: DesignSpace, prices: dict[Setup, Facts], pricer: Pricer
) -> None:
    floors = Floors(space)
    assert len(floors.families) < len(space.setups)
    for family in floors.families:
        floors.found[family] = pricer.floor(family)
    for setup in space.setups:
        bound = floors.facts(setup)
        assert bound is not None
        for goal in GOALS.values():
            assert goal.value(bound) <= goal.value(prices[setup]) + 1e-9 * abs(goal.value(bound))


def test_the_loosest_setup_has_the_cache_sizes_that_constraints_name() -> None:
    """Setups without sizes of their own leave tables those of the constraints."""
    sizes = TableConstraint(pattern="*", cache_load_factors=(0.05, 0.37))
    cached = Constraints(kernels=(ComputeKernel.FUSED_UVM_CACHING,), tables=(sizes,))
    problem = replace(problem_on("a100_80gb_sxm", 2), constraints=cached)
    space = design_space(problem, menu=Menu(cache_menus=((), (0.05, 0.2))))
    assert {setup.cache_load_factors for setup in space.setups} == {(), (0.05, 0.2)}
    for setup in space.setups:
        own, loosest = (
            {o for t in search_space(space.restricted(s), CostPipeline).tables for o in t.options}
            for s in (setup, space.loosest(setup))
        )
        assert own <= loosest


@pytest.mark.parametrize("goals", [("throughput",), ("cost",), ("throughput", "cost", "headroom")])
def test_bounds_lose_nothing(
    space: DesignSpace, prices: dict[Setup, Facts], pricer: Pricer, goals: tuple[str, ...]
) -> None:
    """The front of a pruned study is that of every setup searched, and ends before that."""
    study = Study(space, EFFORT, goals=goals, pricer=pricer)
    study.run()
    every = np.array([values_of(goals, facts) for facts in prices.values()])
    found = np.array([values_of(goals, x.facts) for x in study.front if x.facts is not None])
    assert sorted(map(tuple, found.tolist())) == sorted(map(tuple, every[front_of(every)].tolist()))
    assert len(study.looks) + len(study.ruled_out) == len(space.setups)
    if len(goals) == 1:
        assert len(study.looks) < len(space.setups) / 2
    ratio = known_of(study).proof_ratio
    assert ratio is not None
    assert ratio >= float(behind(found, every).max())


def test_what_a_choice_is_worth_is_what_was_found_with_it(
    space: DesignSpace, prices: dict[Setup, Facts], pricer: Pricer
) -> None:
    """And no value promises less than a plan with it gives."""
    study = Study(space, EFFORT, goals=("cost",), pricer=pricer)
    study.run()
    for knob, rows in worths(study, "cost").items():
        for row in rows:
            own = [f for s, f in prices.items() if told_value(knob, getattr(s, knob)) == row.value]
            least = min(GOALS["cost"].value(f) for f in own)
            assert row.bound is not None
            assert row.bound <= least * (1 + 1e-9)
            assert row.best is None or row.best >= least * (1 - 1e-9)
        assert sum(row.searched for row in rows) == len(study.looks)


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_fits_a_telephone_and_a_desk(
    space: DesignSpace, pricer: Pricer, tmp_path: Path, width: int
) -> None:
    browser_path = shutil.which("chromium")
    sync_api = pytest.importorskip("playwright.sync_api")
    if browser_path is None:
        pytest.skip("there is no Chromium")
    study = Study(space, EFFORT, goals=("throughput", "cost"), pricer=pricer)
    study.run()
    page = tmp_path / "tune.html"
    page.write_text(study_page(study, "a_workload_with_a_rather_long_name", ("told",)))
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        shown = browser.new_page(viewport={"width": width, "height": 900})
        errors: list[object] = []
        shown.on("pageerror", lambda error: errors.append(error))
        shown.goto(page.as_uri())
        assert shown.evaluate("document.documentElement.scrollWidth") <= width
        shown.locator("th button").first.click()
        assert errors == []
        browser.close()


def test_bounds_are_proven_as_they_are_wanted(space: DesignSpace, pricer: Pricer) -> None:
    """The best is found before the last bound is proven; without trials enough, none is claimed."""
    few = Study(space, replace(EFFORT, trials=1), pricer=pricer)
    few.run()
    known = few.known
    assert known is not None
    assert known.is_proven, "one trial pays for 20 bounds"
    proven_then: list[int] = []
    study = Study(space, EFFORT, pricer=pricer)
    study.run(progress=lambda p: proven_then.append(len(known_of(study).floors.found)))
    whole = len(known_of(study).floors.families)
    best = [p.facts for p in study.looks].index(study.front[0].facts)
    assert best < len(study.looks)
    assert min(proven_then[1:]) < whole == proven_then[-1]


def known_of(study: Study) -> Known:
    assert study.known is not None
    return study.known


def test_guesses_are_exact_where_effects_only_add_up(space: DesignSpace) -> None:
    """From the usual family and those one step away to all others."""
    floors = Floors(space)
    assert 1 < len(floors.first) < len(floors.families)

    def made(family: Setup) -> Floor:
        slower = (2 if family.gpus == 4 else 1) * (3 if family.communication == "workload" else 1)
        time_s = (1 + family.batch_size / 512) * slower * family.gpus / family.group_size
        return Floor(value=time_s, free_bytes=1e9 + family.batch_size)

    floors.found |= {family: made(family) for family in floors.first}
    for family, guess in zip(floors.families, floors.guesses(), strict=True):
        if family.gpus // family.group_size <= 2:  # four copies are two steps away
            assert guess.value == pytest.approx(made(family).value)
            assert guess.free_bytes == pytest.approx(made(family).free_bytes)


def test_a_share_that_does_not_matter_saves_searches(space: DesignSpace, pricer: Pricer) -> None:
    efforts = (replace(EFFORT, within_ratio=r) for r in (0.0, 0.05))
    exact, near = (Study(space, effort, pricer=pricer) for effort in efforts)
    for study in (exact, near):
        study.run()
    assert len(near.looks) < len(exact.looks)
    assert near.front[0].facts is not None
    assert exact.front[0].facts is not None
    assert near.front[0].facts.samples_per_s >= 0.95 * exact.front[0].facts.samples_per_s


@pytest.mark.parametrize("sampler", ["tpe", "nsga2", "random"])
def test_samplers_of_optuna_look_at_nothing_twice(
    space: DesignSpace, pricer: Pricer, sampler: str
) -> None:
    effort = replace(EFFORT, trials=25, sampler=sampler)
    study = Study(space, effort, goals=("throughput", "cost"), pricer=pricer)
    study.run()
    picks = [*(look.setup for look in study.looks), *study.ruled_out]
    assert len(set(picks)) == len(picks) == 25
    assert study.ruled_out


def test_a_setup_that_cannot_fit_is_told_and_never_searched() -> None:
    """The tables need several devices."""
    problems = [on_device(g) for g in (8, 1)]
    menu = Menu(pipelines=(Pipeline.SPARSE_DIST,), min_column_widths=(128,))
    study = Study(design_space(*problems, menu=menu), replace(EFFORT, trial_evaluations=2))
    study.run()
    known = study.known
    assert known is not None
    assert known.fits.tolist() == [True, False]
    assert [look.setup.gpus for look in study.looks] == [8]


def test_averaging_never_takes_less_than_its_bound(space: DesignSpace, pricer: Pricer) -> None:
    for setup in (s for s in space.setups if s.group_size < s.gpus and s.sync_interval == 1):
        topology = space.problem_of(setup).topology
        found = pricer.solve(setup).tuned
        assert found is not None
        weights = found.result.problem.workload.weight_bytes
        least = least_sync_s(topology, setup.group_size, weights)
        assert 0 < least <= sync_time_s(topology, setup.group_size, found.result.best.memory)
        break


@pytest.mark.parametrize("system", ["h100_sxm", "a100_80gb_sxm", "aws_p4d", "cpu_gloo", "gb200"])
def test_averaging_more_bytes_takes_no_less_time(system: str) -> None:
    """What the bound of the sync rests on."""
    topology = load_system(system, gpus=16)
    for size in group_sizes(topology)[1:]:
        seconds = [least_sync_s(topology, size, b) for b in np.geomspace(1e3, 1e12, 60)]
        assert (np.diff(seconds) >= 0).all()


PRECISIONS = ("workload", "fp32", "fp16", "bf16", "fp8", "int8", "fp16/bf16")
WRONG = [
    (Menu(communications=("fp12",)), "fp12"),
    (Menu(pipelines=(Pipeline.LOOKAHEAD,)), "--lookahead"),
    (Menu(batch_sizes=(1, 10**9)), "1e8"),
    (Menu(batch_sizes=tuple(range(1, 2_002)), communications=tuple(PRECISIONS)), "20,000 setups"),
]


@pytest.mark.parametrize(("menu", "told"), WRONG)
def test_values_that_cannot_be_are_refused_before_any_search(menu: Menu, told: str) -> None:
    with pytest.raises(InvalidInputError, match=told):
        design_space(problem_on("h100_sxm", 2), menu=menu)


@pytest.mark.parametrize(
    ("menu", "told"),
    [
        (Menu(communications=("workload", "fp16")), "codecs fp16: .* contradict communication"),
        (Menu(pipelines=(Pipeline.NONE, Pipeline.HUGECTR)), "hugectr, .* contradict pipeline"),
    ],
)
def test_what_unequal_batches_cannot_have_is_refused_before_any_search(
    menu: Menu, told: str
) -> None:
    """It ended the study when such a setup had its turn."""
    problem = problem_on("h100_sxm", 2)
    unequal = replace(problem.workload, batch_share_ratio=(1.0, 2.0))
    with pytest.raises(InvalidInputError, match=told):
        design_space(replace(problem, workload=unequal), menu=menu)


def test_unknown_goals_and_cost_without_a_price_are_refused(space: DesignSpace) -> None:
    with pytest.raises(InvalidInputError, match="name some of iteration"):
        Study(space, EFFORT, goals=("speed",))
    problem = problem_on("h100_sxm", 2)
    unpriced = replace(problem.topology, price_per_device_usd_per_hour=None)
    with pytest.raises(InvalidInputError, match="no price"):
        Study(design_space(replace(problem, topology=unpriced)), EFFORT, goals=("cost",))


def test_codecs_have_one_name_or_two() -> None:
    both = codecs_named("fp16/bf16").all_to_all
    assert both is not None
    assert (both.forward.precision, both.backward.precision) == ("fp16", "bf16")
    assert codecs_named("fp32").compresses is False


def test_reasons_are_told_where_nothing_fits() -> None:
    menu = Menu(pipelines=(Pipeline.SPARSE_DIST,), min_column_widths=(128,))
    study = Study(design_space(on_device(1), menu=menu), replace(EFFORT, trial_evaluations=2))
    study.run()
    with pytest.raises(NoPlanFoundError, match="the first: "):
        study.best()
    with pytest.raises(InfeasibleError):
        Pricer(space=study.space).floor(study.space.base)
