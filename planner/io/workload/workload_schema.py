"""The keys of a workload file."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field, WithJsonSchema

from costmodels.training.communication import Precision
from costmodels.training.optimizers import RowUpdate
from costmodels.workload import (
    DataType,
    DenseOptimizer,
    DenseParallelism,
    Framework,
    HostProfile,
    Interaction,
    InteractionKernel,
    Optimizer,
    Pipeline,
    Pooling,
)
from planner.io.constraint_schema import ConstraintSchema, TableConstraintSchema
from planner.io.fields import Bytes, Count, Duration, Name, PoolingFactor, Positive, Samples, Width
from planner.io.problems import Strict
from planner.io.workload.layer_entries import KINDS
from planner.io.workload.operator_schema import OperatorListSchema

MAX_TABLES: Final = 100_000
MAX_BINS: Final = 10_000

_LAYERS: Final = WithJsonSchema(
    {
        "type": "array",
        "items": {
            "type": "object",
            "required": ["kind"],
            "properties": {"kind": {"enum": list(KINDS)}},
        },
    }
)
Amount = Annotated[float, Field(ge=0, le=2**53)]
Shares = Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=1)]


class DistributionSchema(Strict):
    """How indices fall on rows: a law, or statistics measured by ``shardplan profile``.

    Kind ``bins`` lists frequency bins, hottest first: ``rows`` of each and the ``probability`` of
    one of its rows. ``rows_per_range`` says how many rows of each bin lie in each of several equal
    ranges of the first ``ids_in_ranges`` ids; ``unique_rows`` are measured pairs of indices and
    distinct rows of a batch; ``hot_share`` is the least and the most that the hottest 1 % of rows
    may hold of the accesses, where a sample was too small to tell.
    """

    kind: Literal["uniform", "zipf", "bins"] | None = None
    exponent: Annotated[float, Field(ge=0, le=10)] | None = None
    shift: Annotated[float, Field(ge=0, lt=1e12)] = 0.0
    scattered: bool = True
    ids_per_draw: Positive = 1
    rows: Annotated[list[Amount], Field(min_length=1, max_length=MAX_BINS)] | None = None
    probability: Annotated[list[Amount], Field(min_length=1, max_length=MAX_BINS)] | None = None
    rows_per_range: list[list[Amount]] = Field(default_factory=list)
    ids_in_ranges: Count = 0
    unique_rows: list[Annotated[list[Amount], Field(min_length=2, max_length=2)]] = Field(
        default_factory=list
    )
    hot_share: Annotated[list[float], Field(max_length=2)] = Field(default_factory=list)
    stats: Name | None = None


Precise = Annotated[Precision, Field(strict=False)]


class CodecsSchema(Strict):
    """Element types on the wire in one exchange: of vectors forward, of gradients backward."""

    forward: Precise = Precision.FP32
    backward: Precise = Precision.FP32


class CommunicationSchema(Strict):
    """Quantized communication, as TorchRec's ``QCommsConfig`` and its registry of codecs.

    ``forward`` and ``backward`` are for every exchange of looked-up vectors; an exchange that is
    named has its own instead. Fp32 leaves vectors as they are.
    """

    forward: Precise = Precision.FP32
    backward: Precise = Precision.FP32
    all_to_all: CodecsSchema | None = Field(
        default=None, description="Of pooled vectors, between tables and samples."
    )
    reduce_scatter: CodecsSchema | None = Field(
        default=None,
        description="Of partial sums where tables are cut by rows; fp32, fp16 or bf16. From "
        "forward fp8 and mx4 it takes fp16, from backward bf16.",
    )
    sequence: CodecsSchema | None = Field(default=None, description="Of unpooled vectors.")


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
    communication: CommunicationSchema | None = None
    row_update: Annotated[RowUpdate, Field(strict=False)] | None = None
    deduplicate_indices: bool | None = None
    optimizer: Annotated[Optimizer, Field(strict=False)] | None = None
    count: Annotated[int, Field(ge=1, le=MAX_TABLES)] = 1
    constraints: TableConstraintSchema = TableConstraintSchema()


class TrainingSchema(Strict):
    """How a step is run."""

    batch_size_per_rank: Samples = Field(
        description="A whole number, or one when it is multiplied by tensor_parallel: 0.5 for one "
        "sample on two ranks.",
    )
    optimizer: Annotated[Optimizer, Field(strict=False)] = Optimizer.ROWWISE_ADAGRAD
    embedding_dtype: Annotated[DataType, Field(strict=False)] = DataType.FP32
    output_dtype: Annotated[DataType, Field(strict=False)] = DataType.FP32
    gradient_dtype: Annotated[DataType, Field(strict=False)] = DataType.FP32
    communication: CommunicationSchema | None = None
    row_update: Annotated[RowUpdate, Field(strict=False)] = RowUpdate.DEDUPLICATED
    deduplicate_indices: bool = False
    pipeline: Annotated[Pipeline, Field(strict=False)] = Pipeline.SPARSE_DIST
    index_bytes: Literal[4, 8] = 8
    cuda_graph: bool = False
    host_profile: Annotated[HostProfile, Field(strict=False)] = HostProfile.EAGER
    between_steps: Duration | None = None
    dense_optimizer: Annotated[DenseOptimizer, Field(strict=False)] = DenseOptimizer.ADAGRAD
    dense_parallelism: Annotated[DenseParallelism, Field(strict=False)] = DenseParallelism.DDP
    gradient_accumulation: Annotated[Positive, Field(le=10**6)] = 1
    tensor_parallel: Annotated[Positive, Field(le=1024)] = 1
    input_samples_per_s: Annotated[float, Field(gt=0)] | None = None
    lookahead: Annotated[Positive, Field(le=10_000)] | None = Field(
        default=None, description="Batches that pipeline lookahead fills its caches from."
    )
    batch_shares: Shares | Literal["proportional"] | None = Field(
        default=None,
        description="Each rank's share of the global batch in any unit, one per rank, or "
        "proportional to how fast the ranks are. batch_size_per_rank is then their mean.",
    )


class DenseSchema(Strict):
    """The dense part of the model: the keys of a DLRM, or layers, or operators.

    ``ops`` names a file that holds what ``operators`` holds; it lies beside the workload file.
    """

    num_dense_features: Annotated[Count, Field(le=10**8)] = 0
    bottom_mlp: list[Width] = Field(default_factory=list)
    top_mlp: list[Width] = Field(default_factory=list)
    interaction: Annotated[Interaction, Field(strict=False)] = Interaction.DOT
    interaction_kernel: Annotated[InteractionKernel, Field(strict=False)] | None = None
    compiled: bool = False
    framework: Annotated[Framework, Field(strict=False)] | None = None
    dcn_num_layers: Count = 0
    dcn_low_rank_dim: Count = 0
    dtype: Annotated[DataType, Field(strict=False)] = DataType.FP32
    layers: Annotated[list[dict[str, Any]], Field(max_length=10_000), _LAYERS] = Field(
        default_factory=list
    )
    operators: OperatorListSchema | None = None
    ops: Name | None = None


class MemorySchema(Strict):
    """Device memory that the planner must leave free."""

    reserve: Bytes = 0.0


class WorkloadSchema(Strict):
    """A model and how it is trained."""

    name: Name
    training: TrainingSchema
    dense: DenseSchema = DenseSchema()
    memory: MemorySchema = MemorySchema()
    tables: list[TableSchema] = Field(default_factory=list)
    constraints: list[ConstraintSchema] = Field(default_factory=list)
