"""The keys of a workload file."""

import functools
import operator
import typing
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Discriminator, Field, Tag, WithJsonSchema

import costmodels.layers as kinds
from costmodels import discovery
from costmodels.distribution.empirical import Empirical
from costmodels.distribution.uniform import Uniform
from costmodels.distribution.zipf import Zipf
from costmodels.layers.base import AbstractLayer
from costmodels.operators import Operator
from costmodels.training.communication import Codec, Codecs, Communication, Precision
from costmodels.training.optimizers import RowUpdate
from costmodels.workload import DataType, DenseArch, OperatorList, Table, Workload
from planner.errors import refuse
from planner.io import schemas
from planner.io.constraints import ConstraintSchema, TableConstraintSchema
from planner.io.documents import Document

KINDS: Final = discovery.names(kinds)
_Kinded: Any = schemas.row_schema(kind=Literal[KINDS])


def layers_of(
    entries: list[dict[str, Any]], document: Document, problems: list[str]
) -> tuple[AbstractLayer, ...]:
    """The layers of some entries; broken rules become lines in ``problems``."""
    parts = [
        replace(document, value=entry, above=("dense", "layers", index))
        for index, entry in enumerate(entries)
    ]
    found = [schemas.collect(problems, p.where(()), partial(_layer, p)) for p in parts]
    return tuple(layer for layer in found if layer is not None)


def _layer(part: Document) -> AbstractLayer:
    noun, schema = _layer_schema(schemas.validate(_Kinded, part).kind)
    return schemas.noun_of(noun, schemas.validate(schema, part))


@functools.cache
def _layer_schema(kind: str) -> tuple[type[AbstractLayer], type[BaseModel]]:
    """A kind of layer, and the schema of its entries."""
    noun = typing.cast("type[AbstractLayer]", discovery.load(kinds, kind, AbstractLayer))
    return noun, schemas.schema_of(noun, kind, kind=str)


OperatorSchema: Any = schemas.schema_of(
    Operator,
    "OperatorSchema",
    without=("shared_bytes",),
    shape=Annotated[list[schemas.Count], Field(max_length=16)],
    function=Annotated[str, Field(max_length=64)],
)
_Operators: Any = Annotated[list[OperatorSchema], Field(max_length=100_000)]
OperatorListSchema: Any = schemas.schema_of(
    OperatorList,
    "OperatorListSchema",
    source=str,
    before_tables=_Operators,
    after_tables=_Operators,
)


MAX_TABLES: Final = 100_000

_LAYER: Final = {"required": ["kind"], "properties": {"kind": {"enum": list(KINDS)}}}
_LAYERS: Final = WithJsonSchema({"type": "array", "items": {"type": "object", **_LAYER}})
Shares = Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=1)]
Pair = Annotated[list[schemas.Amount], Field(min_length=2, max_length=2)]
Curve = Annotated[list[Pair], Field(min_length=1)]


_Law: Final = partial(schemas.schema_of, without=("num_embeddings", "most_draws_ratio"))
LAWS: Final[dict[str, Any]] = {
    "uniform": _Law(Uniform, "UniformSchema", kind=Literal["uniform"]),
    "zipf": _Law(Zipf, "ZipfSchema", kind=Literal["zipf"]),
    "bins": _Law(
        Empirical,
        "BinsSchema",
        keys={
            "num_rows_per_bin": "rows",
            "probability_ratio": "probability",
            "num_rows_per_range": "rows_per_range",
            "num_ids_in_ranges": "ids_in_ranges",
            "num_unique_curve": "unique_rows",
            "hot_share_ratio": "hot_share",
        },
        kind=Literal["bins"],
        unique_rows=list[Pair],
    ),
}


class StatsSchema(schemas.Strict):
    """Statistics in a file that ``shardplan profile`` wrote; its path is relative to this file."""

    stats: schemas.Name


_STATS: Final = "stats of a file"


def _law_kind(law: Any) -> str | None:
    """The kind of a law; one of its own for statistics."""
    keys = law if isinstance(law, dict) else {}
    return _STATS if "stats" in keys else keys.get("kind")


_TAGGED: Any = [Annotated[s, Tag(k)] for k, s in (*LAWS.items(), (_STATS, StatsSchema))]
DistributionSchema: Any = Annotated[
    functools.reduce(operator.or_, _TAGGED), Discriminator(_law_kind)
]
LAW_KINDS: Final[dict[type, str]] = {Uniform: "uniform", Zipf: "zipf", Empirical: "bins"}


Precise = Annotated[Precision, Field(strict=False)]


class CodecsSchema(schemas.Strict):
    """Element types on the wire in one exchange: of vectors forward, of gradients backward."""

    forward: Precise = Precision.FP32
    backward: Precise = Precision.FP32


class CommunicationSchema(CodecsSchema):
    """Quantized communication, as TorchRec's ``QCommsConfig`` and its registry of codecs.

    ``forward`` and ``backward`` are for every exchange of looked-up vectors; an exchange that is
    named has its own instead. Fp32 leaves vectors as they are.

    Attributes:
        all_to_all: Of pooled vectors, between tables and samples.
        reduce_scatter: Of partial sums where tables are cut by rows; fp32, fp16 or bf16. From
            forward fp8 and mx4 it takes fp16, from backward bf16.
        sequence: Of unpooled vectors.
    """

    all_to_all: CodecsSchema | None = None
    reduce_scatter: CodecsSchema | None = None
    sequence: CodecsSchema | None = None


_Type: Any = Annotated[DataType, Field(strict=False)]
_Update: Any = Annotated[RowUpdate, Field(strict=False)]


class _TableKeys(schemas.Strict):
    """One table, or ``count`` alike.

    Attributes:
        pooling_factor: Mean indices of a sample, for all features or for each.
        distinct_per_batch: How often ids repeat in the batch of one rank, beside how popular they
            are (``distribution``): the share of its indices that are distinct, or measured pairs of
            indices and distinct rows.
        count: How many tables are like this one.
    """

    name: schemas.Name
    features: Annotated[list[schemas.Name], Field(min_length=1)] | None = None
    pooling_factor: schemas.PoolingFactor | list[schemas.PoolingFactor] = 1.0
    distribution: DistributionSchema | None = None
    distinct_per_batch: Annotated[float, Field(gt=0, le=1)] | Curve | None = None
    dtype: _Type | None = None
    module: str = "embedding_bag_collection"
    communication: CommunicationSchema | None = None
    row_update: _Update | None = None
    deduplicate_indices: bool | None = None
    count: Annotated[int, Field(ge=1, le=MAX_TABLES)] = 1
    constraints: TableConstraintSchema = Field(default_factory=TableConstraintSchema)


_RENAMED: Final = {"deduplicates_indices": "deduplicate_indices"}
TableSchema: Any = schemas.schema_of(Table, "TableSchema", base=_TableKeys, keys=_RENAMED)


def names_of(entry: Any) -> Iterator[str]:
    """The name of the table, or the names of ``count`` equal tables."""
    if entry.count == 1:
        yield entry.name
    else:
        yield from (f"{entry.name}_{number}" for number in range(entry.count))


def features_of(entry: Any, name: str) -> tuple[str, ...]:
    """The features of a table as given; without any, one with the table's name.

    The features of one of several equal tables get the number of the table.
    """
    if entry.features is None:
        return (name,)
    twice = [f for f, count in Counter(entry.features).items() if count > 1]
    if twice:
        refuse(f"features: value {twice[0]!r}: is there twice; name each feature once")
    number = name.removeprefix(entry.name)
    return tuple(f"{feature}{number}" for feature in entry.features)


class _TrainingKeys(schemas.Strict):
    """How a step is run.

    Attributes:
        lookahead: Batches that pipeline lookahead fills its caches from.
        batch_shares: Each rank's share of the global batch in any unit, one per rank, or
            proportional to how fast the ranks are. batch_size_per_rank is then their mean.
        embedding_dtype: Of tables that give none, as the three keys below.
    """

    batch_size_per_rank: schemas.Samples
    embedding_dtype: _Type = DataType.FP32
    communication: CommunicationSchema | None = None
    row_update: _Update = RowUpdate.DEDUPLICATED
    deduplicate_indices: bool = False
    index_bytes: Literal[4, 8] = 8
    between_steps: schemas.Duration | None = None
    lookahead: Annotated[schemas.Positive, Field(le=10_000)] | None = None
    batch_shares: Shares | Literal["proportional"] | None = None


TrainingSchema: Any = schemas.schema_of(
    Workload,
    "TrainingSchema",
    base=_TrainingKeys,
    without=("name", "tables", "dense", "reserved_bytes"),
    keys={
        "between_steps_s": "between_steps",
        "lookahead_batches": "lookahead",
        "batch_share_ratio": "batch_shares",
    },
)


class _DenseKeys(schemas.Strict):
    """The dense part of the model: the keys of a DLRM, or layers, or operators.

    ``ops`` names a file that holds what ``operators`` holds; it lies beside the workload file.
    """

    layers: Annotated[list[dict[str, Any]], Field(max_length=10_000), _LAYERS] = Field(
        default_factory=list
    )
    ops: schemas.Name | None = None


DenseSchema: Any = schemas.schema_of(DenseArch, "DenseSchema", base=_DenseKeys)


class MemorySchema(schemas.Strict):
    """Device memory that the planner must leave free."""

    reserve: schemas.Bytes = None


ASSUMED: Final = (
    "training.batch_size_per_rank", "training.optimizer", "training.output_dtype",
    "training.gradient_dtype", "training.pipeline", "training.index_bytes", "dense",
    "memory.reserve",
)  # fmt: skip
"""What a list of tables does not say."""
_Assumable: Any = Literal[ASSUMED]


class WorkloadSchema(schemas.Strict):
    """A model and how it is trained.

    Attributes:
        assumed: Keys of this file whose values are assumed. A key counts until its value is another
            than the one that 'shardplan import tables' writes.
    """

    name: schemas.Name
    assumed: list[_Assumable] = Field(default_factory=list)
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
    """The keys of an entry that reads back as these codecs, in the short form if it is enough."""
    named: dict[str, Any] = {
        key: {"forward": both.forward.precision.value, "backward": both.backward.precision.value}
        for key in _EXCHANGES
        if (both := getattr(communication, key)) is not None
    }
    first = named.get("all_to_all", {})
    is_for_all = Communication.of(*map(Precision, first.values())) == communication
    return first if is_for_all and first else named
