"""The keys of a workload file."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, WithJsonSchema

import costmodels.layers as kinds
from costmodels import discovery
from costmodels.layers.base import AbstractLayer
from costmodels.operators import Operator, OperatorKind
from costmodels.training.communication import Codec, Codecs, Communication, Precision
from costmodels.training.optimizers import RowUpdate
from costmodels.workload import (
    DataType,
    DenseOptimizer,
    DenseParallelism,
    Framework,
    HostProfile,
    Interaction,
    InteractionKernel,
    OperatorList,
    Optimizer,
    Pipeline,
    Pooling,
)
from planner.errors import InvalidInputError
from planner.io.constraints import ConstraintSchema, TableConstraintSchema
from planner.io.documents import Document, Keys, read_yaml
from planner.io.schemas import (
    Bytes,
    Count,
    Duration,
    Name,
    PoolingFactor,
    Positive,
    Samples,
    Strict,
    Width,
    collect,
    nearest,
    show,
    validate,
)

KINDS: Final = discovery.names(kinds)
_LONGEST_NAME: Final = 500


def layers_of(
    entries: list[dict[str, Any]], document: Document, problems: list[str]
) -> tuple[AbstractLayer, ...]:
    """The layers of some entries; broken rules become lines in ``problems``."""
    found = [
        _layer(entry, document, ("dense", "layers", index), problems)
        for index, entry in enumerate(entries)
    ]
    return tuple(layer for layer in found if layer is not None)


def layer_entry(layer: AbstractLayer) -> dict[str, Any]:
    """The entry that :func:`layers_of` reads back as ``layer``, without keys at their default."""
    values: dict[str, Any] = {"kind": type(layer).__module__.rpartition(".")[2]}
    for field in dataclasses.fields(layer):
        value = getattr(layer, field.name)
        if value != field.default:
            values[field.name] = list(value) if isinstance(value, tuple) else value
    return values


def _layer(
    entry: dict[str, Any], document: Document, keys: Keys, problems: list[str]
) -> AbstractLayer | None:
    kind = entry.get("kind")
    if kind is None:
        problems.append(f"{document.where(keys)}: key 'kind' is missing; add it")
        return None
    if not isinstance(kind, str) or kind not in KINDS:
        hint = nearest(str(kind), list(KINDS))
        where = document.where((*keys, "kind"))
        problems.append(f"{where}: value {show(kind)}: {hint}must be one of {', '.join(KINDS)}")
        return None
    made = discovery.load(kinds, kind, AbstractLayer)
    cls = typing.cast("type[AbstractLayer]", made)
    before = len(problems)
    values = _values(cls, entry, document, keys, problems)
    if len(problems) > before:
        return None
    return collect(problems, document.where(keys), partial(cls, **values))


def _values(
    cls: type[AbstractLayer],
    entry: Mapping[str, Any],
    document: Document,
    keys: Keys,
    problems: list[str],
) -> dict[str, Any]:
    fields = {field.name: field for field in dataclasses.fields(cls)}
    hints = typing.get_type_hints(cls)
    known = ["kind", *fields]
    values: dict[str, Any] = {}
    for key, value in entry.items():
        if key == "kind":
            continue
        where = document.where((*keys, key))
        if key not in fields:
            problems.append(
                f"{where}: value {show(value)}: unknown key; {nearest(str(key), known)}known here: "
                f"{', '.join(known)}"
            )
            continue
        rule = _broken(hints[key], value)
        if rule:
            problems.append(f"{where}: value {show(value)}: {rule}")
        else:
            values[key] = tuple(value) if isinstance(value, list) else value
    for name, field in fields.items():
        if name not in entry and field.default is dataclasses.MISSING:
            problems.append(f"{document.where(keys)}: key {name!r} is missing; add it")
    return values


def _broken(hint: Any, value: object) -> str:
    """The rule of a field's type that a value breaks; empty if it breaks none."""
    choices = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        return "" if value in choices else f"must be one of {', '.join(map(str, choices))}"
    if typing.get_origin(hint) is tuple:
        good = isinstance(value, list) and all(_is_whole(item) for item in value)
        return "" if good else "must be a list of whole numbers, such as [256, 64]"
    if hint in (bool, bool | None):
        return "" if isinstance(value, bool) else "must be true or false"
    if hint is str:
        good = isinstance(value, str) and 0 < len(value.strip()) <= _LONGEST_NAME
        return "" if good else f"must be text of 1 to {_LONGEST_NAME} characters"
    return "" if _is_whole(value) else "must be a whole number"


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_Amount = Annotated[float, Field(ge=0, le=2**53)]


class OperatorSchema(Strict):
    """One operator; figures are of one repeat of the forward pass."""

    name: Name
    kind: Annotated[OperatorKind, Field(strict=False)]
    shape: Annotated[list[Count], Field(max_length=16)]
    dtype: Annotated[DataType, Field(strict=False)] = DataType.FP32
    read_bytes: _Amount = 0.0
    written_bytes: _Amount = 0.0
    num_parameters: Count = 0
    parameter_bytes: _Amount = 0.0
    saved_bytes: _Amount = 0.0
    num_kernels: Count = 1
    num_calls: Count = 1
    num_repeats: Positive = 1
    left_gradient: bool = True
    right_gradient: bool = True
    is_causal: bool = False
    num_sorted: Count = 0
    num_joined: Count = 0
    backward_bytes: _Amount | None = None
    is_recomputed: bool = False
    flash_version: Annotated[int, Field(ge=1, le=3)] = 2
    is_pointwise: bool = False
    is_vectorized: bool = False
    deviation_ratio: _Amount = 0.0
    most_ratio: _Amount = 0.0
    is_cast: bool = False
    function: Annotated[str, Field(max_length=64)] = ""


class OperatorListSchema(Strict):
    """Operators before and after the looked-up vectors arrive, for one batch size."""

    batch_size_per_rank: Annotated[Positive, Field(le=10**8)]
    source: str = ""
    before_tables: Annotated[list[OperatorSchema], Field(max_length=100_000)] = Field(
        default_factory=list
    )
    after_tables: Annotated[list[OperatorSchema], Field(max_length=100_000)] = Field(
        default_factory=list
    )


def operators_of(schema: OperatorListSchema) -> OperatorList:
    """The operators of a list that was read from a file.

    Raises:
        InvalidValueError: a shape does not suit the kind of its operator.
    """
    return OperatorList(
        batch_size_per_rank=schema.batch_size_per_rank,
        source=schema.source,
        before_tables=tuple(map(_operator, schema.before_tables)),
        after_tables=tuple(map(_operator, schema.after_tables)),
    )


def read_operators(path: Path) -> OperatorList:
    """The operators of a YAML or JSON file.

    Raises:
        InvalidInputError: lists every broken rule with file, line, key and value.
    """
    from planner.errors import InvalidInputError

    schema = validate(OperatorListSchema, read_yaml(path))
    problems: list[str] = []
    found = collect(problems, str(path), lambda: operators_of(schema))
    if found is None:
        raise InvalidInputError(problems)
    return found


def operators_entry(operators: OperatorList) -> dict[str, Any]:
    """The mapping that reads back as ``operators``, without keys at their default."""
    values: dict[str, Any] = {"batch_size_per_rank": operators.batch_size_per_rank}
    if operators.source:
        values["source"] = operators.source
    for key in ("before_tables", "after_tables"):
        listed = getattr(operators, key)
        if listed:
            values[key] = [_operator_entry(operator) for operator in listed]
    return values


def _operator(schema: OperatorSchema) -> Operator:
    values = {name: getattr(schema, name) for name in OperatorSchema.model_fields}
    return Operator(**values | {"shape": tuple(schema.shape)})


def _operator_entry(operator: Operator) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for field in fields(operator):
        value = getattr(operator, field.name)
        if value != field.default:
            plain = value.value if isinstance(value, OperatorKind | DataType) else value
            values[field.name] = list(plain) if isinstance(plain, tuple) else plain
    return values


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
Pair = Annotated[list[Amount], Field(min_length=2, max_length=2)]
Curve = Annotated[list[Pair], Field(min_length=1)]


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


AssumableKey = Literal[
    "training.batch_size_per_rank", "training.optimizer", "training.output_dtype",
    "training.gradient_dtype", "training.pipeline", "training.index_bytes", "dense",
    "memory.reserve",
]  # fmt: skip


class WorkloadSchema(Strict):
    """A model and how it is trained."""

    name: Name
    assumed: list[AssumableKey] = Field(
        default_factory=list,
        description="Keys of this file whose values are assumed. A key counts until its value is "
        "another than the one that 'shardplan import tables' writes.",
    )
    training: TrainingSchema
    dense: DenseSchema = DenseSchema()
    memory: MemorySchema = MemorySchema()
    tables: list[TableSchema] = Field(default_factory=list)
    constraints: list[ConstraintSchema] = Field(default_factory=list)


_EXCHANGES: Final = ("all_to_all", "reduce_scatter", "sequence")


def communication_of(entry: CommunicationSchema) -> Communication:
    """The codecs of an entry."""
    found = Communication.of(entry.forward, entry.backward)
    named = {
        key: Codecs(forward=Codec(precision=own.forward), backward=Codec(precision=own.backward))
        for key in _EXCHANGES
        if (own := getattr(entry, key)) is not None
    }
    return replace(found, **named)


def communication_entry(communication: Communication) -> dict[str, Any]:
    """The keys of an entry that reads back as these codecs, in the short form if it is enough.

    Raises:
        InvalidInputError: a codec has its own size of rows, for which files have no key.
    """
    exchanges = {key: getattr(communication, key) for key in _EXCHANGES}
    codecs = [c for both in exchanges.values() if both for c in (both.forward, both.backward)]
    if any(c.row_dim for c in codecs):
        message = "a workload file has no key for the rows of a codec (row_dim); leave it at 0"
        raise InvalidInputError(message)
    first = communication.all_to_all
    if first is not None:
        ways = first.forward.precision, first.backward.precision
        if Communication.of(*ways) == communication:
            return _ways(first)
    return {key: _ways(both) for key, both in exchanges.items() if both is not None}


def unsummed_remark(communication: Communication) -> str | None:
    """A remark on the sharding types that pooled tables lose because codecs cannot add up."""
    if communication.sums_rows:
        return None
    return (
        "communication: fp8, int8 and mx4 cannot be summed, so pooled tables are "
        "not cut by rows; give reduce_scatter fp16 or bf16 to allow it"
    )


def _ways(codecs: Codecs) -> dict[str, str]:
    return {
        "forward": codecs.forward.precision.value,
        "backward": codecs.backward.precision.value,
    }
