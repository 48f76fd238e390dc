from __future__ import annotations

from dataclasses import replace

import pytest

from costmodels.estimates import CriticalStep, HostMemory
from costmodels.units import GIB
from planner.problem import MoveLimit
from planner.report.base import Section
from planner.report.figures import notable_ranks
from planner.report.sections.base import build_sections, parts
from planner.result import (
    Assumed,
    MovePoint,
    PlanningResult,
    Reshard,
    ScenarioTime,
)
from planner.support.status import Status
from tests.planner.report.report_samples import (
    blocks_of,
    make_memory,
    make_result,
    make_topology,
    make_workload,
    with_memory,
)

PARTS = {part.name: part for part in parts()}


def build(result: PlanningResult, name: str) -> Section:
    (section,) = build_sections(result, (name,))
    return section


def fact(section: Section, label: str) -> str:
    return "   ".join(next(f.parts for f in section.facts if f.label == label))


def column(section: Section, title: str) -> list[object]:
    index = [c.title for c in section.columns].index(title)
    return [row[index] for row in section.rows]


def with_a_curve(result: PlanningResult) -> PlanningResult:
    """As after ``plan --from --curve``."""
    move = Reshard(
        moved_tables=1,
        recut_tables=0,
        moved_bytes=1e9,
        most_received_bytes=1e9,
        time_s=0.1,
        before_s=4e-3,
        saved_s=9e-4,
        payback_iterations=112,
    )
    curve = (MovePoint(most_tables=1, iteration_s=3.1e-3, move=move),)
    rows = {"value": "1", "num_tables": 2, "other": "10", "time_s": 4e-3}
    assumed = (Assumed(key="tables.pooling_factor", what="pooling factor", **rows),)
    return replace(result, curve=curve, assumed=assumed)


@pytest.mark.parametrize("name", PARTS)
def test_conformance(name: str, result: PlanningResult, large_result: PlanningResult) -> None:
    builder = PARTS[name]
    for one in (with_a_curve(r) for r in (result, large_result)):
        section, block = builder.build(one), builder.draw(one)
        assert section is not None or block is not None
        assert block == builder.draw(one), "same result, same block"
        if section is None:
            continue
        assert section.title
        assert all(len(row) == len(section.columns) for row in section.rows)
        assert all(f.parts for f in section.facts)
        assert section == builder.build(one), "same result, same section"


def test_orders_differ_and_summary_leads(result: PlanningResult) -> None:
    orders = [part.order for part in PARTS.values()]
    assert len(set(orders)) == len(orders)
    assert build_sections(result)[0].title == "Summary"


def test_summary_tells_the_five_things(result: PlanningResult) -> None:
    section = build(result, "summary")
    assert fact(section, "shardplan 0.1").startswith("4 tables, 2.44 MiB fp32   4 x test_box")
    predicted = fact(section, "Predicted")
    assert "3.10 ms/iter [2.79 .. 3.41]" in predicted
    assert "5.29 M samples/s" in predicted
    verdict_line = fact(section, "Verdict")
    assert verdict_line.startswith("1.34x as fast as TorchRec's own plan")
    assert "proven optimal, gap 0 %: no plan in the search space is better" in verdict_line
    assert fact(section, "Speed-up") == "2.00x over size_greedy   random: found no plan that fits"
    bottleneck = fact(section, "Bottleneck")
    assert bottleneck.startswith("critical path, mostly on rank 3: lookup_forward 33 %")
    assert "rank 3 computes longest, 1.06x the mean of ranks" in bottleneck
    memory = fact(section, "Memory")
    assert memory == "fullest rank 0: 41.0 of 80.0 GiB, 6.0 GiB of it in reserve"
    assert fact(section, "Solver").startswith("auto: proven optimal, gap 0 %, 2.4 s")
    assert fact(section, "Sharding").startswith("4 tables whole on one rank (TW)   kernels: ")
    assert fact(section, "Inputs").startswith("1 measured   1 datasheet")
    assert section.notes == (
        "warning: statistics were assumed",
        "warning: the input rate is unknown",
    )


def test_summary_without_baselines_and_bound() -> None:
    bare = replace(
        make_result(status=Status.TIME_LIMIT, bound=None), baselines=(), unfit_baselines=()
    )
    section = build(bare, "summary")
    assert fact(section, "Verdict") == ("cut by the time limit, no bound: a better plan may exist")
    assert "Speed-up" not in {f.label for f in section.facts}
    assert "time limit, no bound" in fact(section, "Solver")


def test_summary_shows_a_small_gap() -> None:
    section = build(make_result(status=Status.GAP, bound=3.0e-3), "summary")
    assert "search complete, gap 3.2 %" in fact(section, "Solver")


def test_summary_says_what_a_gap_is_made_of() -> None:
    """Launches and overlap, then uneven ranks, then dearer options: together the whole gap."""
    result = make_result(status=Status.GAP, bound=2.79e-3)
    parts = replace(result.solver, separable_value=3.0380e-3, balanced_value=2.9915e-3)
    shown = fact(build(replace(result, solver=parts), "summary"), "Solver")
    assert (
        "gap 10 % (2 % kernel launches and overlap, which the bound does not count; "
        "1.5 % work spread unevenly over ranks; "
    ) in shown
    assert "; 6.5 % tables cut in ways that cost more than those of the bound)" in shown
    even = replace(parts, balanced_value=2.70e-3)
    shown = fact(build(replace(result, solver=even), "summary"), "Solver")
    assert "8 % work spread unevenly over ranks)" in shown  # no more than the gap has left
    assert "cost more" not in shown


def test_the_verdict_is_about_what_was_searched_for() -> None:
    """A gap of the memory says nothing about how long other plans take."""
    result = make_result(status=Status.GAP, bound=2.79e-3)
    told = "gap 10 %: no plan in the search space is better by more"
    assert fact(build(result, "summary"), "Verdict").endswith(told)
    memory = replace(result, solver=replace(result.solver, objective="memory"))
    assert fact(build(memory, "summary"), "Verdict").endswith(f"{told} by objective memory")
    proven = replace(memory, solver=replace(memory.solver, bound=memory.solver.value))
    assert "is better by objective memory" in fact(build(proven, "summary"), "Verdict")
    assert f"{told} by objective memory.</p>" in blocks_of(memory)["summary"].body


def test_a_small_gap_is_not_written_as_none() -> None:
    """A gap of 0.05 % on the page as on the terminal, and no bound at 100 % of the plan."""
    result = make_result(status=Status.GAP, bound=3.1e-3 * (1 - 5e-4))
    assert "gap 0.05 %" in fact(build(result, "summary"), "Solver")
    assert "gap 0.05 %" in fact(build(result, "summary"), "Verdict")
    assert "0.05 %" in blocks_of(result)["summary"].body


def test_a_plan_in_use_without_limits_is_no_rule_for_torchrec(result: PlanningResult) -> None:
    free = MoveLimit(start=result.plan)
    for limit, is_rule in ((None, False), (free, False), (replace(free, max_tables=0), True)):
        asked = replace(result, problem=replace(result.problem, move_limit=limit))
        told = fact(build(asked, "summary"), "Speed-up")
        assert ("constraint" in told) is is_rule


def test_the_summary_says_which_scenario_its_other_lines_are_about(
    result: PlanningResult,
) -> None:
    times = [
        ScenarioTime(name=n, time_s=t, low_s=t, high_s=t, samples_per_s=1e6)
        for n, t in (("weekday", 3.1e-3), ("weekend", 4e-3))
    ]
    told = fact(build(replace(result, scenarios=tuple(times)), "summary"), "Scenarios")
    assert told.startswith("weekend 4 ms   weekday 3.1 ms")
    assert "speed-up, bottleneck and cost are about weekday" in told


def test_summary_says_that_a_plan_does_not_fit(result: PlanningResult) -> None:
    memory = make_memory(4, step_bytes=20.0 * GIB, host_bytes=8.0 * GIB)
    text = fact(build(with_memory(result, memory), "summary"), "Memory")
    assert "fullest rank 3: 101.0 of 80.0 GiB" in text
    assert "host 0: 8.0 of 1024.0 GiB" in text
    assert "DOES NOT FIT" in text


def test_critical_path_shares_sum_over_stages(result: PlanningResult) -> None:
    section = build(result, "timeline")
    assert column(section, "stage") == ["lookup_forward", "output_dist"]
    assert column(section, "share") == pytest.approx([1.03 / 3.1, 0.8 / 3.1])


def test_balance_orders_stages_by_start_and_drops_empty_ones(result: PlanningResult) -> None:
    section = build(result, "stages")
    assert column(section, "stage") == ["lookup_forward", "output_dist"]
    assert column(section, "rank") == [3, None]
    assert column(section, "slowest") == pytest.approx([1.03e-3, 0.8e-3])
    assert column(section, "median") == pytest.approx([1.015e-3, 0.8e-3])
    assert column(section, "fastest") == pytest.approx([1.0e-3, 0.8e-3])


def test_the_bottleneck_is_the_rank_that_holds_most_of_the_critical_path(
    result: PlanningResult,
) -> None:
    """Whatever rank computes longest."""
    step = CriticalStep(rank=1, stage="all-to-all", start_s=0.0, duration_s=3e-3)
    estimate = replace(result.estimate, critical_path=(*result.estimate.critical_path, step))
    assert estimate.slowest_rank != 1
    found = build(replace(result, best=replace(result.best, estimate=estimate)), "summary")
    assert fact(found, "Bottleneck").startswith("critical path, mostly on rank 1: all-to-all")
    assert notable_ranks(estimate)[0] == ("critical", 1)


def test_memory_groups_equal_ranks_and_drops_empty_purposes(result: PlanningResult) -> None:
    section = build(result, "memory")
    assert column(section, "ranks") == ["0-3"]
    titles = [c.title for c in section.columns]
    assert "cache" not in titles
    assert "weights" in titles
    assert column(section, "share") == pytest.approx([41 / 80])


def test_memory_is_condensed_when_many_ranks_differ() -> None:
    topology = make_topology(16, 8)
    large = make_result(make_workload(), topology)
    section = build(with_memory(large, make_memory(128, step_bytes=0.1 * GIB)), "memory")
    assert len(section.rows) == 12
    assert column(section, "ranks")[0] == "127"
    assert column(section, "ranks")[-1] == "0"
    assert "116 groups" in section.notes[0]


def test_memory_lists_hosts_in_use(result: PlanningResult) -> None:
    memory = replace(
        make_memory(4),
        hosts=(HostMemory(host=0, used_bytes=12.0 * GIB, capacity_bytes=512.0 * GIB),),
    )
    section = build(with_memory(result, memory), "memory")
    assert fact(section, "Hosts") == "host 0: 12.0 of 512.0 GiB"


def test_tables_are_ordered_by_cost_and_cut_off(large_result: PlanningResult) -> None:
    section = build(large_result, "tables")
    shares = column(section, "cost")
    assert shares == sorted(shares, reverse=True)
    assert len(section.rows) == 40
    assert section.notes[-1].startswith("20 cheaper tables left out")
    assert set(column(section, "type")) == {"TW", "RW", "DP"}
    assert column(section, "ranks")[0] == "0-127"


def test_alternatives_are_ranked(result: PlanningResult) -> None:
    section = build(result, "alternatives")
    assert column(section, "plan") == ["best", "second", "torchrec_greedy", "size_greedy"]
    assert column(section, "role") == ["chosen", "runner-up", "baseline", "baseline"]
    assert column(section, "ratio") == pytest.approx([1.0, 3.2 / 3.1, 1.34, 2.0])
    assert section.notes == (
        "Column sharding: TW: whole on one rank.",
        "random: found no plan that fits",
    )


def test_provenance_lists_the_weakest_first(result: PlanningResult) -> None:
    section = build(result, "provenance")
    assert column(section, "source") == ["datasheet", "measured"]
