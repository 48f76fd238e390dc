"""Settings that are none: each is refused by its own name, or warned of."""

from __future__ import annotations

import math
from typing import Any

import pytest

pytest.importorskip("torchrec")

from torchrec.distributed.planner import Topology
from torchrec.distributed.planner.types import ParameterConstraints

from costmodels.distribution.uniform import Uniform
from planner.errors import InvalidInputError
from planner.integrations.torchrec_planner import ShardPlanner
from planner.integrations.torchrec_workload import WorkloadHints, describe_model
from tests.integration.models import bags

pytestmark = pytest.mark.torchrec


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        (
            "pooling_factors",
            [-1.0],
            "pooling_factors must be finite numbers of 0 or more",
        ),
        ("pooling_factors", [math.nan], "pooling_factors must be finite numbers"),
        ("num_poolings", ["2"], "num_poolings must be finite numbers of 0 or more, got '2'"),
        ("batch_sizes", [-5], "batch_sizes must be finite numbers of 0 or more, got -5"),
        ("batch_sizes", [10**12], "come to"),
        ("min_partition", -8, "min_partition must be a whole number of columns, 1 or more, got -8"),
        ("min_partition", "32", "min_partition must be a whole number of columns"),
    ],
)
def test_numbers_of_a_constraint_are_refused_by_their_own_name(
    setting: str, value: Any, words: str
) -> None:
    given = {"a": ParameterConstraints(**{setting: value})}
    with pytest.raises(InvalidInputError) as caught:
        describe_model(bags([("a", 10, 8)]), batch_size=32, constraints=given)
    assert words in str(caught.value)
    assert "table 'a'" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("memory_headroom", "0.1"), ("hints", {"pipeline": "none"}), ("constraints", ["a"])],
)
def test_arguments_of_another_kind_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(InvalidInputError, match=f"^{name} must be "):
        ShardPlanner(Topology(world_size=2, compute_device="cuda"), **{name: value})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pipeline": "none"}, "pipeline must be a Pipeline"),
        ({"output_dtype": "fp16"}, "output_dtype must be a DataType"),
        ({"dense": [512, 64]}, "dense must be a DenseArch"),
        ({"distributions": ["zipf"]}, "distributions must be a dictionary"),
        ({"distributions": {"a": "zipf"}}, "the law of 'a' must be an index distribution"),
        ({"default_distribution": "zipf"}, "default_distribution must be a function"),
        ({"reserved_bytes": "1 GiB"}, "reserved_bytes must be a number of bytes"),
        ({"reserved_bytes": -1.0}, "reserved_bytes must be 0 or more, got -1.0"),
    ],
)
def test_hints_of_another_kind_are_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInputError, match=f"^hints: {words}"):
        WorkloadHints(**changes)


def test_hints_for_a_table_that_is_not_there_are_warned_of() -> None:
    laws = {n: Uniform(num_embeddings=10) for n in ("a", "typo")}
    described = describe_model(
        bags([("a", 10, 8)]), batch_size=32, hints=WorkloadHints(distributions=laws)
    )
    assert described is not None
    assert "hints name tables that the model does not have: ['typo']" in described.warnings
