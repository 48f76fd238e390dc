"""The recommendation on top of the page, what would help, the busiest ranks, folded tables."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from planner import api
from planner.models import pipeline_of
from planner.problem import MoveLimit, PlanningProblem
from planner.report.sections.summary import IN_USE, advice, rival_of
from planner.result import Candidate, PlanningResult
from planner.settings import SearchSettings
from tests.planner import cases
from tests.planner.report.report_samples import blocks_of


@pytest.fixture(scope="module")
def replanned() -> PlanningResult:
    """A plan in use that looks at sizes alone, and a better one, on four hosts of eight ranks."""
    model = cases.synthetic(34, seed=3, batch=16384)
    system = cases.topology(4, 8)
    search = SearchSettings(max_evaluations=20, with_baselines=False)
    problem = PlanningProblem(workload=model, topology=system, constraints=cases.DEVICE_ONLY)
    start = api.solve(problem, search=replace(search, strategy="size_greedy")).plan
    return api.solve(replace(problem, move_limit=MoveLimit(start=start)), search=search)


def quicker(result: PlanningResult, name: str) -> Candidate:
    """The plan under another name, in half the time."""
    best = result.best
    time_s = 0.5 * best.estimate.time.time_s
    time = replace(best.estimate.time, time_s=time_s, low_s=time_s, high_s=time_s)
    return replace(best, name=name, estimate=replace(best.estimate, time=time))


def test_the_sentence_has_a_reason_and_a_confidence(replanned: PlanningResult) -> None:
    pipeline = pipeline_of(replanned.problem)
    rival = rival_of(replanned, pipeline)
    assert rival is not None
    sure = pipeline.confidence_faster(replanned.plan, rival.plan)
    words = advice(replanned, rival, sure)
    assert "as fast as the plan in use" in words
    assert "probability of" in words
    assert "paid back after" in words
    assert advice(replanned, rival, 0.7).startswith("This plan is probably")
    assert advice(replanned, rival, 0.5).startswith("This plan may be")
    assert advice(replanned, None, 0.0) == ""
    best = replanned.best
    same = replace(best, name="size_greedy")
    assert advice(replanned, same, sure).startswith("Either plan will do")
    assert "keep the plan in use" in advice(replanned, quicker(replanned, IN_USE), sure)
    other = advice(replanned, quicker(replanned, "torchrec_greedy"), sure)
    assert "take TorchRec's own plan instead" in other
    assert "not held to them" in other  # the question has rules
    full = replace(best.memory.ranks[0], weights_bytes=1e15)
    memory = replace(best.memory, ranks=(full, *best.memory.ranks[1:]))
    unfit = replace(replanned, best=replace(best, memory=memory))
    assert "does not fit" in advice(unfit, rival, sure)


def test_a_plan_that_was_not_searched_for_time_is_not_called_slow(
    replanned: PlanningResult,
) -> None:
    least = replace(replanned, solver=replace(replanned.solver, objective="memory"))
    words = advice(least, quicker(replanned, "torchrec_greedy"), 0.5)
    assert words.startswith("This plan was searched for objective memory")
    assert "Recommended" not in words


def test_names_keep_their_capitals_at_the_start_of_a_sentence(replanned: PlanningResult) -> None:
    best = replanned.best
    full = replace(best.memory.ranks[0], weights_bytes=1e15)
    memory = replace(best.memory, ranks=(full, *best.memory.ranks[1:]))
    unfit = replace(best, name="torchrec_greedy", memory=memory)
    assert "TorchRec's own plan does not fit" in advice(replanned, unfit, 0.5)


def test_of_many_ranks_the_busiest_and_their_mean_are_shown(large_result: PlanningResult) -> None:
    stages = blocks_of(large_result)["stages"].body
    assert len(set(re.findall(r"<title>rank (\d+): ", stages))) == 8
    assert "mean of ranks" in stages


def test_every_table_is_listed_once(replanned: PlanningResult) -> None:
    tables = blocks_of(replanned)["tables"].body
    assert "34 of 34" in tables
    listed = tables[tables.index("tablelist") :]
    assert all(listed.count(f">{t.name}</th>") == 1 for t in replanned.problem.workload.tables)
