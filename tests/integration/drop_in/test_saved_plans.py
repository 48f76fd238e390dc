"""A plan from a file is used as it is; where settings ask for something else, a warning says so."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

pytest.importorskip("torchrec")

from torchrec.distributed.planner import Topology
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.sharding_plan import get_default_sharders

from planner.integrations.torchrec_planner import ShardPlanner
from tests.integration.models import bags

pytestmark = pytest.mark.torchrec

SHARDERS = get_default_sharders()
WHOLE = {n: ParameterConstraints(sharding_types=["table_wise"]) for n in ("a", "b")}


def topology(hbm_cap: int) -> Topology:
    return Topology(world_size=2, compute_device="cuda", hbm_cap=hbm_cap)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = bags([("a", 100, 16), ("b", 50, 32)])
    planned = ShardPlanner(topology(2**30), 8, constraints=WHOLE, max_evaluations=5)
    file = tmp_path_factory.mktemp("saved") / "plan.json"
    file.write_text(json.dumps(planned.plan(model, SHARDERS)._serialize()))
    return file


def warnings_of(
    path: Path, caplog: pytest.LogCaptureFixture, hbm_cap: int, **asked: ParameterConstraints
) -> list[str]:
    """The warnings about a saved plan that is used."""
    again = ShardPlanner.from_plan(
        path, batch_size=8, topology=topology(hbm_cap), constraints=asked
    )
    plan = again.plan(bags([("a", 100, 16), ("b", 50, 32)]), SHARDERS)
    assert [plan.plan[""][t].sharding_type for t in ("a", "b")] == ["table_wise"] * 2
    return [line for line in caplog.messages if line.startswith(f"the plan {path} is used")]


def test_constraints_that_a_saved_plan_breaks_are_warned_of(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = ParameterConstraints(sharding_types=["row_wise"])
    (line,) = warnings_of(path, caplog, 2**30, a=rows, b=WHOLE["b"])
    assert line.endswith("although table 'a' is table_wise, against its constraint")


def test_a_saved_plan_that_does_not_fit_is_warned_of(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (line,) = warnings_of(path, caplog, 10_000)
    assert "more device memory by our count than the storage reservation and" in line


def test_a_saved_plan_that_keeps_all_settings_is_used_without_a_warning(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert not warnings_of(path, caplog, 2**30, **WHOLE)


@pytest.mark.parametrize(
    ("name", "value"), [("strategy", "random"), ("seed", 3), ("max_evaluations", 5)]
)
def test_what_only_a_search_uses_is_warned_of_beside_a_saved_plan(
    path: Path, name: str, value: object
) -> None:
    with pytest.warns(UserWarning, match=rf"does not use {name}: plan_file gives the plan"):
        ShardPlanner.from_plan(path, topology=topology(2**30), **{name: value})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ShardPlanner.from_plan(path, topology=topology(2**30))
        ShardPlanner(topology(2**30), **{name: value})  # type: ignore[arg-type]
