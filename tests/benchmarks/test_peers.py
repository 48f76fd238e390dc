"""Peers' searches on a tiny task: legal plans, and one price for all."""

from __future__ import annotations

import contextlib
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.search import peers
from benchmarks.search.instances import drawn
from benchmarks.search.peer_searches import restated
from benchmarks.search.peer_searches.case import OURS, run
from benchmarks.search.peer_searches.neuroshard import Pricing
from benchmarks.search.peer_searches.tasks import (
    Best,
    SpaceName,
    Task,
    TimeIsUp,
    is_halved,
    price,
    space_of,
    task,
)
from costmodels.sharding import ShardingType
from planner import load_system
from planner.objectives import objective_named
from planner.search.base import Record
from planner.search.size_lookup_greedy import SizeLookupGreedy
from planner.space.evaluation import Budget, Evaluator, SearchSpace

SECONDS = 0.2


@pytest.fixture(scope="module", params=SpaceName)
def space(request: pytest.FixtureRequest) -> SearchSpace:
    tiny = Task(workload=drawn(6), topology=load_system("h100_sxm", gpus=4))
    return space_of(tiny, request.param)


@pytest.mark.parametrize("search", ["recshard", "embark"])
def test_restated_peers_make_legal_plans_at_the_price_of_the_benchmark(
    space: SearchSpace, search: str
) -> None:
    best = Best(SECONDS)
    with contextlib.suppress(TimeIsUp):
        getattr(restated, search)(space, best, seed=0)
    plan = best.plan
    assert plan is not None
    value, fits = price(space, plan)  # refuses what is no plan of the task
    assert fits
    assert value == pytest.approx(best.value, rel=1e-9)
    assert space.keeps_rules(space.assignment(plan)), "the plan is a point of the space"


def test_ours_has_a_row_like_the_others(space: SearchSpace) -> None:
    """In so few seconds it need not be better, but it is no worse than a simple plan."""
    row = run(space, OURS, seconds=SECONDS, seed=0)
    evaluate = Evaluator(space, objective_named("iteration", space), Budget())
    whole = SizeLookupGreedy().search(Record(evaluate), seed=0)
    assert row["fits"] == 1
    assert float(row["iteration_ms"]) <= 1e3 * whole.values[0] * (1 + 1e-9)


def test_the_halving_space_has_nothing_but_halves() -> None:
    given = task(7, 0)
    options = space_of(given, SpaceName.HALVING).options
    assert all(is_halved(option) for option in options)
    kinds = {ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE}
    assert {option.sharding_type for option in options} <= kinds
    assert given == task(7, 0)


def test_pieces_halved_unequally_are_priced_like_the_plan_they_make(space: SearchSpace) -> None:
    """NeuroShard halves one piece of a table again and leaves the other."""
    best = Best(60.0)
    pricing = Pricing(space, best)
    rng = np.random.default_rng(0)
    shards: list[list[tuple[int, int]]] = [[] for _ in range(space.world_size)]
    for t, table in enumerate(space.problem.workload.tables):
        half = table.embedding_dim // 2
        for width in (half, half // 2, half // 2):
            shards[rng.integers(space.world_size)].append((t, width))
    found = pricing.plan_ms(shards)
    assert best.plan is not None
    assert price(space, best.plan)[0] * 1e3 == pytest.approx(found, rel=1e-9)


def _rows(**values: str) -> list[dict[str, str]]:
    shared = {"task": "0", "tables": "6", "ranks": "4", "space": "halving"}
    return [
        {**shared, "search": search, "iteration_ms": ms, "fits": "1" if ms else ""}
        for search, ms in values.items()
    ]


def test_the_table_says_who_won_tied_lost_and_found_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = _rows(ours="2.0", neuroshard="3.0", dreamshard="2.0", recshard="", embark="1.0")
    peers.print_table(rows)
    lines = capsys.readouterr().out.splitlines()
    ends = {line.split(",")[0].split()[0]: line.split()[-1] for line in lines[-4:]}
    assert ends == {
        "NeuroShard": "1/0/0/0",
        "DreamShard": "0/1/0/0",
        "RecShard's": "0/0/0/1",
        "a": "0/0/1/0",
    }


def test_peers_without_a_checkout_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "neuroshard").mkdir()
    (tmp_path / "neuroshard" / "__init__.py").touch()
    missing = peers.missing_checkouts(Namespace(neuroshard=tmp_path, dreamshard=None))
    assert missing == ["dreamshard"]
    assert "git clone https://github.com/daochenzha/dreamshard" in capsys.readouterr().out
