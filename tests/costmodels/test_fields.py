"""What Python callers give for the fields of a noun becomes what the field holds, or is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from costmodels.distribution.uniform import Uniform
from costmodels.distribution.zipf import Zipf
from costmodels.errors import InvalidValueError
from costmodels.fields import settle
from costmodels.pipeline import CostModels
from costmodels.sharding import ComputeKernel, ShardingType
from costmodels.workload import (
    DataType,
    DenseArch,
    DenseParallelism,
    Feature,
    Interaction,
    Optimizer,
    Pipeline,
    Pooling,
)
from planner.problem import Constraints, TableConstraint, TableGroup
from tests.strategies import make_table, make_workload


def test_texts_lists_and_numbers_of_numpy_become_what_the_field_holds() -> None:
    """A text in the place of an enumeration would be compared by identity, and never equal it."""
    given: dict[str, Any] = {
        "optimizer": "adam",
        "pipeline": "none",
        "dense_parallelism": "fsdp",
        "batch_size_per_rank": np.int64(64),
        "dense": DenseArch(bottom_mlp=[64, 16], top_mlp=np.array([8, 1]), interaction="cat"),  # type: ignore[arg-type]
    }
    made = make_workload(make_table("t", pooling="none", dtype="fp16"), **given)
    assert made.optimizer is Optimizer.ADAM
    assert made.pipeline is Pipeline.NONE
    assert made.dense_parallelism is DenseParallelism.FSDP
    assert type(made.batch_size_per_rank) is int
    assert (made.dense.bottom_mlp, made.dense.top_mlp) == ((64, 16), (8, 1))
    assert made.dense.interaction is Interaction.CAT
    assert made.tables[0].pooling is Pooling.NONE
    assert made.tables[0].dtype is DataType.FP16
    assert hash(made) == hash(make_workload(*made.tables, **given))


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("pooling", "avg", "table 't': pooling must be one of sum, mean, none, got 'avg'"),
        ("dtype", np.float16, "table 't': dtype must be one of fp32"),
        ("embedding_dim", 10.5, "table 't': embedding_dim must be a whole number, got 10.5"),
        ("embedding_dim", "10", "table 't': embedding_dim must be a whole number, got '10'"),
        ("is_weighted", "no", "table 't': is_weighted must be True or False, got 'no'"),
        ("features", ("f",), "features[0] must be of class Feature, got 'f'"),
        ("features", Feature(name="f", pooling_factor=1.0), "features must be a tuple or a list"),
        ("distribution", "zipf", "distribution must be of class AbstractIndexDistribution"),
        ("module", None, "module must be a text, got None"),
    ],
)
def test_fields_of_a_table_of_another_kind_are_refused_by_name(
    field: str, value: object, words: str
) -> None:
    with pytest.raises(InvalidValueError) as caught:
        make_table("t", **{field: value})
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("optimizer", "adamm", "optimizer must be one of sgd, "),
        ("cuda_graph", "no", "cuda_graph must be True or False, got 'no'"),
        ("batch_size_per_rank", 64.5, "batch_size_per_rank must be a whole number, got 64.5"),
        ("reserved_bytes", "1 GiB", "reserved_bytes must be a number, got '1 GiB'"),
        ("between_steps_s", True, "between_steps_s must be a number, got True"),
        ("dense", None, "dense must be of class DenseArch, got None"),
        ("batch_share_ratio", "even", "batch_share_ratio must be one share for each rank"),
        ("batch_share_ratio", {0: 1.0}, "batch_share_ratio must be a tuple or a list"),
        ("batch_share_ratio", ["half"], "batch_share_ratio[0] must be a number, got 'half'"),
    ],
)
def test_fields_of_a_workload_of_another_kind_are_refused_by_name(
    field: str, value: Any, words: str
) -> None:
    with pytest.raises(InvalidValueError) as caught:
        make_workload(**{field: value})
    assert words in str(caught.value)


def test_a_name_that_is_an_array_is_refused() -> None:
    with pytest.raises(InvalidValueError, match=r"name must be a text, got array\(\[1, 2\]\)"):
        make_table(np.array([1, 2]))  # type: ignore[arg-type]


def test_laws_of_other_numbers_are_refused() -> None:
    for rows in ("10", 10.5, None):
        with pytest.raises(InvalidValueError, match="must be a whole number"):
            Uniform(num_embeddings=rows)  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="zipf exponent must be a number, got '1'"):
        Zipf(num_embeddings=10, exponent="1")  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="uniform scattered must be True or False, got 1"):
        Uniform(num_embeddings=10, scattered=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sharding_types": "row_wise"}, "sharding_types must be a tuple or a list"),
        ({"sharding_types": ("rowwise",)}, "sharding_types[0] must be one of data_parallel"),
        ({"ranks": 0}, "ranks must be a tuple or a list, got 0"),
        ({"min_column_width": -1}, "min_column_width must be at least 1 and finite, got -1"),
        ({"cache_load_factors": ("0.1",)}, "cache_load_factors[0] must be a number"),
        ({"pairs": 3}, "pairs must be a tuple or a list, got 3"),
        ({"pairs": ("row_wise", "fused")}, "pairs[0] must be a tuple or a list, got 'row_wise'"),
        ({"pairs": (("row_wise",),)}, "pairs[0] must be a tuple of 2, got ('row_wise',)"),
        ({"pairs": (("row_wise", "fast"),)}, "pairs[0][1] must be one of dense"),
    ],
)
def test_constraints_of_another_kind_are_refused_by_name(
    changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidValueError) as caught:
        TableConstraint(pattern="user_*", **changes)
    assert "constraint 'user_*': " in str(caught.value)
    assert words in str(caught.value)


def test_rules_in_lists_are_rules_in_tuples() -> None:
    """A group that is a bare text would be taken letter by letter."""
    rule = TableConstraint(pattern="*", ranks=np.array([0, 1]))  # type: ignore[arg-type]
    assert Constraints(tables=[rule]).tables == (rule,)  # type: ignore[arg-type]
    assert rule.ranks == (0, 1)
    pairs = TableConstraint(pattern="*", pairs=[["row_wise", "fused"]])  # type: ignore[list-item]
    assert pairs.allows_pair(ShardingType.ROW_WISE, ComputeKernel.FUSED)
    assert make_workload(batch_share_ratio=np.array([0.5, 1.5])).batch_share_ratio == (0.5, 1.5)
    with pytest.raises(InvalidValueError, match="patterns must be a tuple or a list, got 'user'"):
        TableGroup(patterns="user")  # type: ignore[arg-type]


@pytest.mark.parametrize("family", ["lookup", "collective", "dense"])
def test_a_name_in_the_place_of_a_cost_model_is_refused(family: str) -> None:
    with pytest.raises(InvalidValueError, match=f"^models: {family} must be of class Abstract"):
        CostModels(**{family: "roofline"})  # type: ignore[arg-type]


@dataclass(frozen=True)
class OfAUser:
    """A layer's fields may have annotations that are not settled."""

    width: int | float
    label: int | str | None
    sizes: tuple[int | str, ...]


def test_fields_of_several_kinds_are_left_alone() -> None:
    made = OfAUser(2.5, None, (1, "a"))
    settle(made)
    assert made == OfAUser(2.5, None, (1, "a"))
