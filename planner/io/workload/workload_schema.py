"""The keys of a workload file, and how they are written.

What is written reads back as equal; a note for a key becomes a comment behind it.
"""

from __future__ import annotations

import functools
import re
import textwrap
import typing
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field, WithJsonSchema, create_model

import costmodels.layers as kinds
from costmodels import discovery, units
from costmodels.distribution.base import AbstractIndexDistribution
from costmodels.distribution.empirical import Empirical
from costmodels.distribution.uniform import Uniform
from costmodels.distribution.zipf import Zipf
from costmodels.layers.base import AbstractLayer
from costmodels.operators import Operator
from costmodels.sharding import ComputeKernel, ShardingType
from costmodels.training.communication import Codec, Codecs, Communication, Precision
from costmodels.training.optimizers import RowUpdate
from costmodels.workload import (
    DataType,
    DenseArch,
    OperatorList,
    Optimizer,
    Pipeline,
    Pooling,
    Table,
    Workload,
)
from planner.errors import InvalidInputError, refuse, refuse_any
from planner.io.constraints import ConstraintSchema, TableConstraintSchema
from planner.io.documents import Document, read_yaml, yaml_text
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
    entry_of,
    made,
    noun_of,
    schema_of,
    validate,
)
from planner.problem import NO_CONSTRAINTS, Constraints, Level, TableConstraint, TableGroup

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


# ------------------------------------------------------------------ writing


_WIDTH: Final = 100
_SHARED_LAW: Final = re.compile(r'distribution:\s+"\\0"')
"""Stands for a law that several tables have, until it is written by its name."""

Notes = Mapping[str, str]
"""Comments by key, such as ``training.batch_size_per_rank``, ``dense``, ``tables``, or ``tables.``
with the name of a table."""


def section_lines(section: str, values: Mapping[str, Any], notes: Notes) -> list[str]:
    """The lines of a section: its keys with their values and comments."""
    lines = [f"{section}:{note_text(notes.get(section))}"]
    for key, value in values.items():
        note = note_text(notes.get(f"{section}.{key}"))
        lines += block_lines(key, value, "  ", note)
    return lines


def block_lines(key: str, value: object, indent: str, note: str = "") -> list[str]:
    """The lines of a key with its value; lists of mappings take several lines."""
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        items = [f"{indent}  - {yaml_text(item, f'{indent}    ')}" for item in value]
        return [f"{indent}{key}:{note}", *items]
    if isinstance(value, dict) and any(isinstance(v, list | dict) for v in value.values()):
        inner = [line for k, v in value.items() for line in block_lines(k, v, f"{indent}  ")]
        return [f"{indent}{key}:{note}", *inner]
    return [f"{indent}{key}: {yaml_text(value, f'{indent}  ')}{note}"]


def bytes_text(value: float) -> str:
    """Bytes as text, in the largest unit in which they are a whole number."""
    for unit, size in (("GiB", units.GIB), ("MiB", units.MIB)):
        if value and value % size == 0:
            return f"{value / size:.0f} {unit}"
    return f"{yaml_text(float(value))} B"


def note_text(text: str | None) -> str:
    """A comment to write behind a value; empty for no text."""
    return f" # {on_one_line(text)}" if text else ""


def comment_lines(lines: Iterable[str]) -> list[str]:
    """Wrapped lines of a comment."""
    wrapped = []
    for line in lines:
        wrapped += textwrap.wrap(on_one_line(line), _WIDTH - 2, subsequent_indent="  ") or [""]
    return [f"# {line}".rstrip() for line in wrapped]


def on_one_line(text: str) -> str:
    """The text on one line, so that it cannot end a comment early."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


_NAME: Final = re.compile(r"\S(.*\S)?", re.DOTALL)
_LONGEST_NAME: Final = 500


def workload_text(
    workload: Workload,
    constraints: Constraints = NO_CONSTRAINTS,
    *,
    header: Sequence[str] = (),
    notes: Notes | None = None,
    law_is_known: bool = True,
    assumed: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """A workload as YAML; :func:`planner.io.load_workload` reads an equal workload from it.

    Args:
        workload: the workload to write.
        constraints: rules to write below it. Types and kernels that no table may have become a rule
            for all tables.
        header: lines of comment at the top.
        notes: comments for keys.
        law_is_known: False to leave plain uniform laws out, so that a reader of the file is warned
            that they are assumed.
        assumed: the assumed keys, as in :class:`planner.io.WorkloadFile`: sections are listed under
            ``assumed``, and pooling factors are left out.

    Raises:
        InvalidInputError: a file cannot hold some value, such as a name that begins with a space,
            or the pipeline ``lookahead`` with 0 batches.
    """
    _check_names(workload)
    if workload.pipeline is Pipeline.LOOKAHEAD and not workload.lookahead_batches:
        refuse("a workload file takes pipeline lookahead with 1 batch or more; give their number")
    beside = dict(notes or {})
    lines = [
        *comment_lines(header),
        f"name: {yaml_text(workload.name)}",
        *_assumed_lines(assumed or {}),
        *section_lines("training", _training(workload), beside),
    ]
    if workload.dense != DenseArch():
        lines += section_lines("dense", _dense(workload.dense), beside)
    elif "dense" in beside:
        lines += comment_lines([f"dense: {beside['dense']}"])
    if workload.reserved_bytes:
        note = note_text(beside.get("memory"))
        lines.append(f"memory: {{reserve: {bytes_text(workload.reserved_bytes)}}}{note}")
    bare = set((assumed or {}).get("tables.pooling_factor", ()))
    lines += _table_lines(workload, beside, bare, law_is_known=law_is_known)
    if rules := _rules(constraints):
        lines += block_lines("constraints", rules, "", note_text(beside.get("constraints")))
    return "\n".join(lines) + "\n"


# ------------------------------------------------------------------ the parts


def _table_lines(
    workload: Workload, notes: Notes, bare: Collection[str], *, law_is_known: bool
) -> list[str]:
    """The entries of the tables; those named in ``bare`` have no pooling factor.

    Bins that several tables have in common are written once, with a name (YAML's anchors).
    """
    lines = [f"tables:{note_text(notes.get('tables'))}"] if workload.tables else []
    shared = _shared(workload)
    entries = [_table(table, law_is_known=law_is_known) for table in workload.tables]
    laws = [e.get("distribution", {}) for e in entries]
    texts = [yaml_text(law, "      ") if law.get("kind") == "bins" else "" for law in laws]
    counts, names = Counter(texts), dict[str, str]()
    for table, entry, law in zip(workload.tables, entries, texts, strict=True):
        if table.name in bare:
            del entry["pooling_factor"]
        if table.communication is not None and table.communication != shared:
            entry["communication"] = communication_entry(table.communication)
        called = f"distribution: *{names.get(law)}"
        if law and counts[law] > 1:
            entry["distribution"] = "\0"
            if law not in names:
                names[law] = f"law{len(names)}"
                called = f"distribution: &{names[law]} {law}"
        text = _SHARED_LAW.sub(called.replace("\\", r"\\"), yaml_text(entry, "    "))
        lines.append(f"  - {text}{note_text(notes.get(f'tables.{table.name}'))}")
    return lines


def _assumed_lines(assumed: Mapping[str, Sequence[str]]) -> list[str]:
    keys = [key for key in assumed if not key.startswith("tables.")]
    note = "until you put other values there"
    return [f"assumed: # {note}", *(f"  - {key}" for key in keys)] if keys else []


def _training(workload: Workload) -> dict[str, Any]:
    always = ("batch_size_per_rank", "optimizer", "output_dtype", "gradient_dtype", "pipeline")
    found = entry_of(workload, TRAINING_KEYS, always=(*always, "index_bytes"))
    if (shared := _shared(workload)) is not None:
        found["communication"] = communication_entry(shared)
    if "between_steps" in found:
        found["between_steps"] = f"{workload.between_steps_s!r} s"
    return {key: found[key] for key in TrainingSchema.model_fields if key in found}


def _shared(workload: Workload) -> Communication | None:
    """The codecs that all tables have; None if they have different ones."""
    found = {table.communication for table in workload.tables}
    return found.pop() if len(found) == 1 else None


def _dense(dense: DenseArch) -> dict[str, Any]:
    is_listed = bool(dense.layers) or dense.operators is not None
    dlrm = ("num_dense_features", "bottom_mlp", "top_mlp", "interaction")
    return entry_of(dense, always=("dtype", *(() if is_listed else dlrm)))


def _table(table: Table, *, law_is_known: bool) -> dict[str, Any]:
    names = [f.name for f in table.features]
    factors = [f.pooling_factor for f in table.features]
    found = entry_of(table, {"deduplicates_indices": "deduplicate_indices"}, always=("dtype",))
    found["pooling_factor"] = factors[0] if len(set(factors)) == 1 else factors
    found["features"] = None if names == [table.name] else names
    is_plain = table.distribution == Uniform(num_embeddings=table.num_embeddings)
    found["distribution"] = None if is_plain and not law_is_known else _law(table.distribution)
    found.pop("communication", None)
    return {k: found[k] for k in TableSchema.model_fields if found.get(k) is not None}


def _law(law: AbstractIndexDistribution) -> dict[str, Any]:
    """The keys under ``distribution``.

    Raises:
        InvalidInputError: files do not have this kind of law.
    """
    kind = next((kind for kind, known in LAWS.items() if type(law) is known), None)
    if kind is None:
        refuse(f"a law of kind {type(law).__name__} cannot be written to a workload file")
    found = entry_of(law, LAW_KEYS)
    del found["num_embeddings"]
    return {"kind": kind, **found}


def _rules(constraints: Constraints) -> list[dict[str, Any]]:
    """Constraints as entries of a list, in the order in which they are read back."""
    every = {"sharding_types": ShardingType, "kernels": ComputeKernel}
    listed = entry_of(constraints, always=every)
    everywhere = {k: listed[k] for k, kind in every.items() if {*listed[k]} != {*kind}}
    rules: list[dict[str, Any]] = [{"tables": "*", **everywhere}] if everywhere else []
    for rule in constraints.tables:
        always = ("min_column_width",) if rule == TableConstraint(pattern=rule.pattern) else ()
        rules.append(entry_of(rule, {"pattern": "tables"}, always=always))
    for key in ("together", "apart"):
        groups: Iterable[TableGroup] = getattr(constraints, key)
        rules += [{key: list(g.patterns), "on": g.level.value} for g in groups]
    for count in constraints.counts:
        what = "shards" if count.counts_shards else "tables"
        rules.append({"tables": list(count.patterns), f"max_{what}_per_{count.level}": count.most})
    for limit in constraints.memory:
        is_rank = limit.level is Level.RANK
        amount = bytes_text(limit.most_bytes)
        places = {"ranks" if is_rank else "hosts": list(limit.places)} if limit.places else {}
        rules.append({"device_memory" if is_rank else "host_memory": amount, **places})
    return rules


# ------------------------------------------------------------------ YAML


def _check_names(workload: Workload) -> None:
    """Refuse names that reading the file would refuse or change."""
    named = [("workload", workload.name)]
    for table in workload.tables:
        named += [("table", table.name), *(("feature", f.name) for f in table.features)]
    problems = [
        f"{what} name {name!r}: a workload file takes 1 to {_LONGEST_NAME} characters on one line, "
        "without spaces at either end; rename it"
        for what, name in named
        if len(name) > _LONGEST_NAME or "\n" in name or not _NAME.fullmatch(name)
    ]
    problems += [
        f"name {text!r} holds half of a surrogate pair, which no file can hold; rename it"
        for text in [name for _, name in named] + [t.module for t in workload.tables]
        if any("\ud800" <= c <= "\udfff" for c in text)
    ]
    problems += [
        f"table {table.name!r}: feature {name!r} is there twice; name each feature once"
        for table in workload.tables
        for name, count in Counter(f.name for f in table.features).items()
        if count > 1
    ]
    refuse_any(list(dict.fromkeys(problems)))
