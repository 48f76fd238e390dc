"""The keys of a workload file."""

from __future__ import annotations

import functools
import typing
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field, WithJsonSchema, create_model

import costmodels.layers as kinds
from costmodels import discovery
from costmodels.distribution.base import AbstractIndexDistribution
from costmodels.distribution.empirical import Empirical
from costmodels.distribution.uniform import Uniform
from costmodels.distribution.zipf import Zipf
from costmodels.layers.base import AbstractLayer
from costmodels.operators import Operator
from costmodels.training.communication import Codec, Codecs, Communication, Precision
from costmodels.training.optimizers import RowUpdate
from costmodels.workload import DataType, DenseArch, OperatorList, Optimizer, Pooling, Workload
from planner.errors import InvalidInputError, refuse
from planner.io.constraints import ConstraintSchema, TableConstraintSchema
from planner.io.documents import Document, read_yaml
from planner.io.schemas import (
    Amount,
    Bytes,
    Count,
    Duration,
    Loose,
    Name,
    PoolingFactor,
    Positive,
    Samples,
    Strict,
    Width,
    made,
    noun_of,
    schema_of,
    validate,
)

KINDS: Final = discovery.names(kinds)
_KindField: Any = (Literal[KINDS], ...)
_Kinded: Any = create_model("_Kinded", __base__=Loose, kind=_KindField)


def layers_of(
    entries: list[dict[str, Any]], document: Document, problems: list[str]
) -> tuple[AbstractLayer, ...]:
    """The layers of some entries; broken rules become lines in ``problems``."""
    layers = []
    for index, entry in enumerate(entries):
        part = replace(document, value=entry, above=("dense", "layers", index))
        try:
            kind = validate(_Kinded, part).model_dump()["kind"]
            noun, schema = _layer_schema(kind)
            layers.append(made(part.where(()), partial(noun_of, noun, validate(schema, part))))
        except InvalidInputError as error:
            problems += error.problems
    return tuple(layers)


@functools.cache
def _layer_schema(kind: str) -> tuple[type[AbstractLayer], type[BaseModel]]:
    """A kind of layer, and the schema of its entries."""
    noun = typing.cast("type[AbstractLayer]", discovery.load(kinds, kind, AbstractLayer))
    return noun, schema_of(noun, kind, noun.__doc__ or "", kind=str)


OperatorSchema: Any = schema_of(
    Operator,
    "OperatorSchema",
    "One operator; figures are of one repeat of the forward pass.",
    without=("shared_bytes",),
    shape=Annotated[list[Count], Field(max_length=16)],
    num_repeats=Positive,
    flash_version=Annotated[int, Field(ge=1, le=3)],
    function=Annotated[str, Field(max_length=64)],
)
_Operators: Any = Annotated[list[OperatorSchema], Field(max_length=100_000)]
OperatorListSchema: Any = schema_of(
    OperatorList,
    "OperatorListSchema",
    "Operators before and after the looked-up vectors arrive, for one batch size.",
    batch_size_per_rank=Annotated[Positive, Field(le=10**8)],
    source=str,
    before_tables=_Operators,
    after_tables=_Operators,
)


def read_operators(path: Path) -> OperatorList:
    """The operators of a YAML or JSON file.

    Raises:
        InvalidInputError: lists every broken rule with file, line, key and value.
    """
    schema = validate(OperatorListSchema, read_yaml(path))
    return made(str(path), partial(noun_of, OperatorList, schema))


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
Shares = Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=1)]
Pair = Annotated[list[Amount], Field(min_length=2, max_length=2)]
Curve = Annotated[list[Pair], Field(min_length=1)]


LAWS: Final[dict[str, type[AbstractIndexDistribution]]] = {
    "uniform": Uniform,
    "zipf": Zipf,
    "bins": Empirical,
}
LAW_KEYS: Final = {
    "num_rows_per_bin": "rows",
    "probability_ratio": "probability",
    "num_rows_per_range": "rows_per_range",
    "num_ids_in_ranges": "ids_in_ranges",
    "num_unique_curve": "unique_rows",
    "hot_share_ratio": "hot_share",
}
"""The keys of fields of laws that files call otherwise."""
LAW_FIELDS: Final = {
    kind: {
        LAW_KEYS.get(f.name, f.name): f.name
        for f in fields(law)  # type: ignore[arg-type]
        if f.init and f.name != "num_embeddings"
    }
    for kind, law in LAWS.items()
}
"""For each kind of law the field of each of its keys."""


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
    unique_rows: list[Pair] = Field(default_factory=list)
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
    all_to_all: CodecsSchema | None = None
    """Of pooled vectors, between tables and samples."""
    reduce_scatter: CodecsSchema | None = None
    """Of partial sums where tables are cut by rows; fp32, fp16 or bf16. From forward fp8 and
    mx4 it takes fp16, from backward bf16."""
    sequence: CodecsSchema | None = None
    """Of unpooled vectors."""


TRAINING_KEYS: Final = {
    "between_steps_s": "between_steps",
    "lookahead_batches": "lookahead",
    "batch_share_ratio": "batch_shares",
}
"""The keys of fields of a workload that files call otherwise."""


class TableSchema(Strict):
    """One table, or ``count`` alike.

    ``distinct_per_batch`` says how often ids repeat in the batch of one rank, beside how popular
    they are (``distribution``): the share of its indices that are distinct, or measured pairs of
    indices and distinct rows.
    """

    name: Name
    num_embeddings: Annotated[Positive, Field(le=2**48)]
    embedding_dim: Annotated[Positive, Field(le=16_384)]
    features: Annotated[list[Name], Field(min_length=1)] | None = None
    pooling_factor: PoolingFactor | list[PoolingFactor] = 1.0
    distribution: DistributionSchema | None = None
    distinct_per_batch: Annotated[float, Field(gt=0, le=1)] | Curve | None = None
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


_Type: Any = Annotated[DataType, Field(strict=False)]
TrainingSchema: Any = schema_of(
    Workload,
    "TrainingSchema",
    "How a step is run.",
    without=("name", "tables", "dense", "reserved_bytes", *TRAINING_KEYS),
    batch_size_per_rank=Annotated[
        Samples,
        Field(
            description="A whole number, or one when it is multiplied by tensor_parallel: 0.5 for "
            "one sample on two ranks."
        ),
    ],
    embedding_dtype=(_Type, DataType.FP32),
    communication=(CommunicationSchema | None, None),
    row_update=(Annotated[RowUpdate, Field(strict=False)], RowUpdate.DEDUPLICATED),
    deduplicate_indices=(bool, False),
    index_bytes=Literal[4, 8],
    between_steps=(Duration | None, None),
    gradient_accumulation=Annotated[Positive, Field(le=10**6)],
    tensor_parallel=Annotated[Positive, Field(le=1024)],
    input_samples_per_s=Annotated[float, Field(gt=0)] | None,
    lookahead=(
        Annotated[Positive, Field(le=10_000)] | None,
        Field(default=None, description="Batches that pipeline lookahead fills its caches from."),
    ),
    batch_shares=(
        Shares | Literal["proportional"] | None,
        Field(
            default=None,
            description="Each rank's share of the global batch in any unit, one per rank, or "
            "proportional to how fast the ranks are. batch_size_per_rank is then their mean.",
        ),
    ),
)


DenseSchema: Any = schema_of(
    DenseArch,
    "DenseSchema",
    """The dense part of the model: the keys of a DLRM, or layers, or operators.

    ``ops`` names a file that holds what ``operators`` holds; it lies beside the workload file.
    """,
    num_dense_features=Annotated[Count, Field(le=10**8)],
    bottom_mlp=list[Width],
    top_mlp=list[Width],
    layers=Annotated[list[dict[str, Any]], Field(max_length=10_000), _LAYERS],
    ops=(Name | None, None),
)


class MemorySchema(Strict):
    """Device memory that the planner must leave free."""

    reserve: Bytes = 0.0


AssumableKey = Literal[
    "training.batch_size_per_rank", "training.optimizer", "training.output_dtype",
    "training.gradient_dtype", "training.pipeline", "training.index_bytes", "dense",
    "memory.reserve",
]  # fmt: skip


class WorkloadSchema(Strict):
    """A model and how it is trained."""

    name: Name
    assumed: list[AssumableKey] = Field(default_factory=list)
    """Keys of this file whose values are assumed. A key counts until its value is another than
    the one that 'shardplan import tables' writes."""
    training: TrainingSchema
    dense: DenseSchema = Field(default_factory=lambda: DenseSchema())
    memory: MemorySchema = MemorySchema()
    tables: list[TableSchema] = Field(default_factory=list)
    constraints: list[ConstraintSchema] = Field(default_factory=list)


_EXCHANGES: Final = ("all_to_all", "reduce_scatter", "sequence")


def communication_of(entry: CommunicationSchema) -> Communication:
    """The codecs of an entry."""
    named = {
        key: Codecs(forward=Codec(precision=own.forward), backward=Codec(precision=own.backward))
        for key in _EXCHANGES
        if (own := getattr(entry, key)) is not None
    }
    return replace(Communication.of(entry.forward, entry.backward), **named)


def communication_entry(communication: Communication) -> dict[str, Any]:
    """The keys of an entry that reads back as these codecs, in the short form if it is enough.

    Raises:
        InvalidInputError: a codec has its own size of rows, for which files have no key.
    """
    named = {}
    for key in _EXCHANGES:
        both: Codecs | None = getattr(communication, key)
        if both is not None:
            if both.forward.row_dim or both.backward.row_dim:
                refuse("a workload file has no key for the rows of a codec (row_dim); leave it 0")
            named[key] = {"forward": both.forward.precision, "backward": both.backward.precision}
    first = named.get("all_to_all")
    return first if first and Communication.of(**first) == communication else named


def unsummed_remark(communication: Communication) -> str | None:
    """A remark on the sharding types that pooled tables lose because codecs cannot add up."""
    if communication.sums_rows:
        return None
    return (
        "communication: fp8, int8 and mx4 cannot be summed, so pooled tables are "
        "not cut by rows; give reduce_scatter fp16 or bf16 to allow it"
    )
