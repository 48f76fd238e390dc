"""The keys of a workload file."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints, WithJsonSchema

from costmodels.sharding import ComputeKernel, ShardingType
from costmodels.workload import DataType, Interaction, Optimizer, Pipeline, Pooling
from planner.io.numbers import Unit
from planner.io.problems import Strict

MAX_TABLES: Final = 100_000

_DIGITS: Final = {"type": "string", "pattern": "^[0-9][0-9_]*$"}
"""Editors that follow YAML 1.2 take ``40_000_000`` for text."""

Name = Annotated[str, StringConstraints(min_length=1, max_length=500, pattern=r"^\S(.*\S)?$")]
Positive = Annotated[
    int,
    Field(ge=1, le=2**53),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, _DIGITS]}),
]
Count = Annotated[
    int,
    Field(ge=0, le=2**53),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, _DIGITS]}),
]
Width = Annotated[Positive, Field(le=10**6)]
PoolingFactor = Annotated[float, Field(ge=0, le=1e6)]
Ratio = Annotated[float, Field(gt=0, lt=1)]
Bytes = Annotated[float, Unit(dimension="bytes", example="6 GiB")]


class DistributionSchema(Strict):
    """How indices fall on rows: a law, or statistics measured by ``shardplan profile``."""

    kind: Literal["uniform", "zipf"] | None = None
    exponent: Annotated[float, Field(ge=0, le=10)] | None = None
    shift: Annotated[float, Field(ge=0, lt=1e12)] = 0.0
    scattered: bool = True
    ids_per_draw: Positive = 1
    stats: Name | None = None


class TableConstraintSchema(Strict):
    """Limits on how a table may be sharded; empty means no limit."""

    sharding_types: list[Annotated[ShardingType, Field(strict=False)]] = Field(default_factory=list)
    kernels: list[Annotated[ComputeKernel, Field(strict=False)]] = Field(default_factory=list)
    ranks: list[Count] = Field(default_factory=list)
    hosts: list[Count] = Field(default_factory=list)
    min_column_width: Positive = 4
    cache_load_factors: list[Ratio] = Field(default_factory=list)


class PatternConstraintSchema(TableConstraintSchema):
    """The same for all tables whose name matches a shell-style pattern."""

    tables: Name


class TableSchema(Strict):
    """One table, or ``count`` alike."""

    name: Name
    num_embeddings: Annotated[Positive, Field(le=2**48)]
    embedding_dim: Annotated[Positive, Field(le=16_384)]
    features: Annotated[list[Name], Field(min_length=1)] | None = None
    pooling_factor: PoolingFactor | list[PoolingFactor] = 1.0
    distribution: DistributionSchema | None = None
    dtype: Annotated[DataType, Field(strict=False)] | None = None
    pooling: Annotated[Pooling, Field(strict=False)] = Pooling.SUM
    is_weighted: bool = False
    module: str = "embedding_bag_collection"
    count: Annotated[int, Field(ge=1, le=MAX_TABLES)] = 1
    constraints: TableConstraintSchema = TableConstraintSchema()


class TrainingSchema(Strict):
    """How a step is run."""

    batch_size_per_rank: Annotated[Positive, Field(le=10**8)]
    optimizer: Annotated[Optimizer, Field(strict=False)] = Optimizer.ROWWISE_ADAGRAD
    embedding_dtype: Annotated[DataType, Field(strict=False)] = DataType.FP32
    output_dtype: Annotated[DataType, Field(strict=False)] = DataType.FP32
    gradient_dtype: Annotated[DataType, Field(strict=False)] = DataType.FP32
    pipeline: Annotated[Pipeline, Field(strict=False)] = Pipeline.SPARSE_DIST
    index_bytes: Literal[4, 8] = 8
    cuda_graph: bool = False
    input_samples_per_s: Annotated[float, Field(gt=0)] | None = None


class DenseSchema(Strict):
    """The dense part of the model."""

    num_dense_features: Annotated[Count, Field(le=10**6)] = 0
    bottom_mlp: list[Width] = Field(default_factory=list)
    top_mlp: list[Width] = Field(default_factory=list)
    interaction: Annotated[Interaction, Field(strict=False)] = Interaction.DOT
    dcn_num_layers: Count = 0
    dcn_low_rank_dim: Count = 0
    dtype: Annotated[DataType, Field(strict=False)] = DataType.FP32


class MemorySchema(Strict):
    """Device memory that the planner must leave free."""

    reserve: Bytes = 0.0


class WorkloadSchema(Strict):
    """A model and how it is trained."""

    name: Name
    training: TrainingSchema
    dense: DenseSchema = DenseSchema()
    memory: MemorySchema = MemorySchema()
    tables: Annotated[list[TableSchema], Field(min_length=1)]
    constraints: list[PatternConstraintSchema] = Field(default_factory=list)
