"""The plan does not change the maths: two ranks train to the same losses under every plan."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchrec")

from tests.integration.on_ranks.ranks import run_ranks

pytestmark = pytest.mark.torchrec

PATIENCE_S = 300
"""Far below the half hour after which a collective of gloo gives up."""
HAND_BUILT = ("table_wise", "row_wise", "column_wise", "data_parallel")


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """One launch answers all tests of this file."""
    folder = tmp_path_factory.mktemp("gloo")
    worker = Path(__file__).with_name("gloo_worker.py")
    printed = run_ranks(worker, [str(folder)], folder, codes=[3, 0])
    found = [json.loads((folder / f"rank-{r}.json").read_text()) for r in range(2)]
    return [{**answer, "printed": text} for answer, text in zip(found, printed, strict=True)]


def test_hand_built_plans_use_what_they_say(answers: list[dict[str, Any]]) -> None:
    for name in HAND_BUILT:
        assert answers[0]["types"][name] == [name]


@pytest.mark.parametrize("name", ["searched", "mixed", "from file"])
def test_planned_training_equals_hand_built_training(
    answers: list[dict[str, Any]], name: str
) -> None:
    for answer in answers:
        losses = answer["losses"]
        assert len(losses[name]) == 12
        for other in HAND_BUILT:
            assert losses[name] == pytest.approx(losses[other], rel=0, abs=1e-5)
    first, last = answers[0]["losses"][name][2], answers[0]["losses"][name][6]
    assert last < first, "the tables do not learn"


def test_unpooled_tables_train_alike_under_every_type(answers: list[dict[str, Any]]) -> None:
    losses = answers[0]["sequences"]
    assert losses == answers[1]["sequences"]
    assert losses["table_wise"][-1] < losses["table_wise"][0]
    for name in ("row_wise", "column_wise"):
        assert losses[name] == pytest.approx(losses["table_wise"], rel=0, abs=1e-5)


def test_forced_types_are_obeyed(answers: list[dict[str, Any]]) -> None:
    assert answers[0]["types"]["mixed"] == sorted(HAND_BUILT)


def test_the_saved_plan_is_the_searched_one(answers: list[dict[str, Any]]) -> None:
    assert answers[0]["plans"]["from file"] == answers[0]["plans"]["searched"]
    assert answers[1]["plans"] == answers[0]["plans"]


@pytest.mark.parametrize(
    ("case", "reason", "message"),
    [
        ("constraints", "strict_constraints", "table 't0': no sharding option is left"),
        ("file", "plan_loading_failed", "plan.json"),
        ("bug", "other", "RuntimeError: broken model"),
    ],
)
def test_an_error_on_rank_0_reaches_every_rank(
    answers: list[dict[str, Any]], case: str, reason: str, message: str
) -> None:
    seen = [answer["failing"][case] for answer in answers]
    assert seen[0]["message"] == seen[1]["message"]
    for error in seen:
        assert message in error["message"]
        assert error["type"] == "ShardPlannerError"
        assert error["reason"] == reason


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("dp fused", "AssertionError"),
        ("rw short", "IndexError: list index out of range"),
        ("twrw short", "IndexError: list index out of range"),
        ("grid short", "ValueError"),
        ("width of 6", "AssertionError"),
        ("unequal", "RuntimeError: shape"),
    ],
)
def test_torchrec_fails_where_the_rules_warn(
    answers: list[dict[str, Any]], case: str, message: str
) -> None:
    for answer in answers:
        assert answer["traps"][case]["torchrec"].startswith(message)
        assert answer["traps"][case]["rules"]


def test_the_example_plans_and_trains(answers: list[dict[str, Any]]) -> None:
    """What each rank of it does; as a whole it runs in ``test_examples``, which is slow."""
    printed = answers[0]["printed"]
    assert "predicted iteration time" in printed
    losses = [float(loss) for loss in re.findall(r"^step \d: loss (\S+)$", printed, re.MULTILINE)]
    assert len(losses) == 3
    assert all(0 < loss < 2 for loss in losses)
    assert "step" not in answers[1]["printed"]


def test_a_planning_rank_that_dies_does_not_hang_the_others(answers: list[dict[str, Any]]) -> None:
    lost = answers[1]["lost"]
    assert lost["type"] == "ShardPlannerError"
    assert "the first rank of the group sent no plan" in lost["message"]
    assert lost["seconds"] < PATIENCE_S
