"""Settings that are none: each is refused by its own name, or warned of."""

from __future__ import annotations

import math
from typing import Any

import pytest

pytest.importorskip("torchrec")

import torch
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import Topology
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import ShardingType
from torchrec.modules.embedding_configs import DataType

from costmodels.distribution.uniform import Uniform
from planner.errors import InvalidInputError
from planner.integrations.torchrec_planner import ShardPlanner
from planner.integrations.torchrec_workload import WorkloadHints, describe_model
from planner.integrations.translate.settings import ShardPlannerError
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
    [
        ("memory_headroom", "0.1"),
        ("hints", {"pipeline": "none"}),
        ("constraints", ["a"]),
        ("batch_size", 0),
        ("timeout_seconds", 0),
        ("stats", "loud"),
        ("callbacks", [None]),
        ("enumerator", "greedy"),
        ("storage_reservation", 0.15),
        ("constraints of table 'a'", {"a": {"sharding_types": ["row_wise"]}}),
        ("constraints: the name of a table", {3: ParameterConstraints()}),
    ],
)
def test_arguments_of_another_kind_are_refused_by_name(name: str, value: object) -> None:
    given = {name.split(" ")[0].strip(":"): value}
    with pytest.raises(InvalidInputError, match=f"^{name} must be "):
        ShardPlanner(Topology(world_size=2, compute_device="cuda"), **given)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("sharding_types", "row_wise"),
        ("sharding_types", [ShardingType.ROW_WISE]),
        ("compute_kernels", "fused"),
        ("pooling_factors", 4.0),
        ("batch_sizes", 64),
        ("cache_params", 0.5),
        ("output_dtype", torch.float16),
        ("output_dtype", DataType.INT4),
        ("device_group", "gpu"),
    ],
)
def test_fields_of_a_constraint_of_another_kind_are_refused_by_name(
    setting: str, value: Any
) -> None:
    given = {"a": ParameterConstraints(**{setting: value})}
    with pytest.raises(InvalidInputError, match=f"^constraints of table 'a': {setting} must be "):
        describe_model(bags([("a", 10, 8)]), batch_size=32, constraints=given)


@pytest.mark.parametrize("setting", ["optimizer", "cache_load_factor", "output_dtype"])
def test_a_text_among_fused_parameters_is_refused_by_name(setting: str) -> None:
    sharders = [EmbeddingBagCollectionSharder(fused_params={setting: "fp16"})]
    with pytest.raises(InvalidInputError, match=rf"fused_params\['{setting}'\] must be "):
        describe_model(bags([("a", 10, 8)]), sharders, batch_size=32)


def test_one_pooling_factor_beside_two_numbers_of_poolings_is_refused() -> None:
    given = {"a": ParameterConstraints(num_poolings=[1.0, 2.0])}
    with pytest.raises(InvalidInputError, match="pooling_factors has 1 values for 2 inputs"):
        describe_model(bags([("a", 10, 8)]), batch_size=32, constraints=given)


@pytest.mark.parametrize("sizes", [{"world_size": 0}, {"world_size": 2, "pod_size": 0}])
def test_a_topology_without_ranks_is_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(InvalidInputError, match=r"^topology: \w+ must be a whole number of ranks"):
        ShardPlanner(Topology(compute_device="cuda", **sizes))


@pytest.mark.parametrize(
    ("module", "sharders", "words"),
    [
        ("a model", [], "^module: 'a model' is no Module"),
        (bags([("a", 10, 8)]), [EmbeddingBagCollectionSharder], "^sharders: .* is no Module"),
        (bags([("a", 10, 8)]), 3, "^sharders: 3 is no list"),
    ],
)
def test_models_and_sharders_of_another_kind_are_refused(
    module: Any, sharders: Any, words: str
) -> None:
    with pytest.raises(ShardPlannerError, match=words):
        ShardPlanner(Topology(world_size=2, compute_device="cuda")).plan(module, sharders)


def _on_rank_99(options: list[Any]) -> list[Any]:
    for option in options:
        option.shards[0].rank = 99
    return options


@pytest.mark.parametrize(
    ("callback", "words"), [(_on_rank_99, "ranks 0 to 1 .* got 99"), (print, "got None")]
)
def test_what_a_callback_returns_is_checked(callback: Any, words: str) -> None:
    planned = ShardPlanner(
        Topology(world_size=2, compute_device="cuda"), max_evaluations=5, callbacks=[callback]
    )
    with pytest.raises(ShardPlannerError, match=f"^what a callback returns must be .*{words}"):
        planned.plan(bags([("a", 10, 8)]), [EmbeddingBagCollectionSharder()])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pipeline": "some"}, "pipeline must be one of none, "),
        ({"output_dtype": "fp12"}, "output_dtype must be one of fp32, "),
        ({"dense": [512, 64]}, "dense must be of class DenseArch"),
        ({"distributions": ["zipf"]}, "distributions must be a dictionary"),
        ({"distributions": {"a": "zipf"}}, "distributions must be a dictionary of index distrib"),
        ({"default_distribution": "zipf"}, "default_distribution must be a function"),
        ({"reserved_bytes": "1 GiB"}, "reserved_bytes must be a number, got"),
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
