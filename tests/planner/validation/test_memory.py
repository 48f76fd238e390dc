"""The ledger against the peaks that PyTorch's allocator reported on one H200."""

from __future__ import annotations

import json
import re

import pytest
from pandas import DataFrame

from planner.cli.run import run
from planner.validation.steps import memory_errors, memory_of_steps


@pytest.fixture(scope="module")
def steps() -> DataFrame:
    return memory_of_steps()


def test_the_peak_of_torchrecs_steps_is_close(steps: DataFrame) -> None:
    for group, count in (("dlrm torchrec", 20), ("pipe torchrec", 10)):
        errors = memory_errors(steps).loc[group]
        assert errors["num_steps"] == count
        assert errors["rest_median_ratio"] < 0.05
        assert errors["most_short_ratio"] < 0.1
        assert 1.05 < errors["reserved_median_ratio"] < 1.15


def test_dense_parts_are_close_in_the_median(steps: DataFrame) -> None:
    errors = memory_errors(steps).loc["dense all"]
    assert errors["num_steps"] == 31
    assert errors["rest_median_ratio"] < 0.1
    assert errors["rest_median_ratio"] <= abs(errors["rest_worst_ratio"]) < 0.35


def test_weights_and_states_are_never_more_than_was_allocated(
    steps: DataFrame,
) -> None:
    for step in steps.to_dict("records"):
        assert 0 <= step["tables_bytes"] < step["measured_bytes"]
        assert step["reserved_bytes"] in (0, pytest.approx(step["measured_bytes"], rel=0.4))


def test_the_command_prints_steps_and_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["validate", "published", "--what", "memory"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"dlrm torchrec +20 +2\.2 %", text)
    assert run(["validate", "published", "--what", "memory", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["steps"]) == 67
    assert found["errors"]["dense all"]["num_steps"] == 31
