"""Reads workload files: YAML, or a CSV list of tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final

from costmodels.dense.base import dense_layers
from costmodels.distribution.base import AbstractIndexDistribution
from costmodels.distribution.empirical import Empirical
from costmodels.distribution.uniform import Uniform
from costmodels.topology import refuse_contradictions
from costmodels.workload import DenseArch, Feature, OperatorList, Pipeline, Pooling, Table, Workload
from planner.errors import InvalidInputError, refuse
from planner.io.constraints import (
    TableConstraintSchema,
    constraints_of,
    merged,
    table_constraint,
    unmatched,
)
from planner.io.documents import Document, override, read_yaml, show
from planner.io.library import locate
from planner.io.schemas import as_noun, collect, made, noun_of, validate
from planner.io.system.system_file import load_system
from planner.io.workload.table_list import (
    ASSUMED,
    LIST_ENDINGS,
    NEEDED,
    document_of,
    read_table_list,
)
from planner.io.workload.workload_schema import (
    LAW_FIELDS,
    LAWS,
    MAX_TABLES,
    DenseSchema,
    DistributionSchema,
    TableSchema,
    TrainingSchema,
    WorkloadSchema,
    communication_of,
    layers_of,
    read_operators,
    unsummed_remark,
)
from planner.problem import Constraints, PlanningProblem, TableConstraint
from planner.profiling.stats import TableStats, load_stats, undersampled_remark
from planner.support.kinds import require_list
from planner.support.processes import collector_paused
from planner.support.text import counted

_WORTH_SAYING: Final = ("optimizer", "output_dtype", "pipeline")
"""Keys of ``training`` that are assumed where a file leaves them out; those of the others are
defaults of the format that hardly change a step."""
_NEEDED_KEYS: Final = {
    "uniform": ((), ""),
    "zipf": (("exponent",), "its exponent, such as exponent: 1.05"),
    "bins": (("rows", "probability"), "rows and probability, one entry per bin"),
}
"""Keys that a kind of law needs, and how messages say so."""


def law_of(
    entry: DistributionSchema | None, num_embeddings: int, stats: TableStats | None
) -> AbstractIndexDistribution:
    """The law of a table with ``num_embeddings`` rows; uniform without an entry.

    Raises:
        InvalidInputError: keys contradict each other.
        InvalidValueError: a value is outside its range.
    """
    if entry is None:
        return Uniform(num_embeddings=num_embeddings)
    if stats is not None:
        return stats.distribution(num_embeddings)
    if entry.kind is None:
        refuse("distribution: value None of kind: must be uniform or zipf (or bins), or give stats")
    known = LAW_FIELDS[entry.kind]
    given = {key: getattr(entry, key) for key in sorted(entry.model_fields_set - {"kind"})}
    for key, value in given.items():
        if key not in known:
            others = [other for other, keys in LAW_FIELDS.items() if key in keys]
            refuse(
                f"distribution.{key}: value {show(value)}: a {entry.kind} law has none; remove it "
                f"or use kind: {' or '.join(others)}"
            )
    needed, told = _NEEDED_KEYS[entry.kind]
    if any(given.get(key) is None for key in needed):
        refuse(f"distribution.kind: value {entry.kind!r}: needs {told}")
    values: dict[str, Any] = {known[key]: as_noun(value) for key, value in given.items()}
    law: Any = LAWS[entry.kind]
    found: AbstractIndexDistribution = law(num_embeddings=num_embeddings, **values)
    return found


@lru_cache(maxsize=1024)
def _repeating(
    law: AbstractIndexDistribution, curve: tuple[tuple[float, float], ...]
) -> AbstractIndexDistribution:
    """A law whose batches have the distinct rows of ``distinct_per_batch``.

    Args:
        law: how popular rows are.
        curve: pairs of indices and distinct rows of a batch.

    Raises:
        InvalidInputError: the law has an order of its ids or a repetition of its own, or its rows
            are so popular, or so few, that no batch has as many distinct ones.
        InvalidValueError: the curve does not ascend.
    """
    own = {"num_unique_curve": "unique_rows", "ids_per_draw": "ids_per_draw above 1"}
    said = [key for field, key in own.items() if getattr(law, field, ()) not in ((), 1)]
    said += ["scattered: false"] * law.is_ordered
    if said:
        refuse(f"distinct_per_batch goes with no distribution that has {said[0]}; keep one of them")
    if isinstance(law, Empirical):
        found = replace(law, num_unique_curve=curve)
    else:
        bins = law.frequency_bins()
        found = Empirical.from_bins(*bins, law.num_embeddings, num_unique_curve=curve)
    for indices, distinct in curve:
        given = found.expected_unique_rows(indices)
        if abs(given - distinct) > _DISTINCT_RATIO * distinct:
            refuse(
                f"distinct_per_batch: {distinct:,.6g} distinct rows in {indices:,.6g} indices: by "
                f"the distribution there are {given:,.6g} at most; correct one of the two"
            )
    return found


def stats_of(
    entry: DistributionSchema | None, table: str, features: tuple[str, ...], folder: Path
) -> TableStats | None:
    """Measured statistics of a table, if its file names any; paths are relative to ``folder``.

    Raises:
        InvalidInputError: there are other keys beside ``stats``, the file cannot be read, or it has
            no statistics of the table.
    """
    if entry is None or entry.stats is None:
        return None
    if entry.model_fields_set != {"stats"}:
        refuse(
            f"distribution.stats: value {entry.stats!r}: distribution takes either stats, or kind "
            "and exponent, not both"
        )
    path = folder / entry.stats
    try:
        path.stat()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        refuse(f"distribution.stats: value {entry.stats!r}: {path}: cannot be read: {reason}")
    return load_stats(path).table(table, features)


_DISTINCT_RATIO: Final = 0.01
"""How far a law may be from the distinct rows that a file gives."""
_NO_LIMITS: Final = TableConstraintSchema()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadFile:
    """The contents of a workload file.

    Attributes:
        workload: tables, dense part and how a step is run.
        constraints: the rules of the file.
        warnings: what the file leaves open, one sentence each.
        assumed: keys whose values are assumed, such as ``training.pipeline``, ``dense`` and
            ``tables.pooling_factor``; for those of tables the names of the tables.
    """

    workload: Workload
    constraints: Constraints
    warnings: tuple[str, ...] = ()
    assumed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def load_workload(source: str | Path) -> Workload:
    """Read the workload of a file without constraints.

    A workload cannot hold constraints, so a file with some is refused; ``load_problem`` and
    :func:`load_workload_file` return them too.

    Args:
        source: path of a ``.yaml`` or ``.csv`` file, or the name of a shipped workload.

    Raises:
        InvalidInputError: lists every broken rule with file, line, key and value; or the file has
            constraints.

    Example:
        >>> load_workload("small_demo").name
        'small_demo'
    """
    file = load_workload_file(source)
    if file.constraints != Constraints():
        refuse(
            f"{source}: key 'constraints': load_workload returns the workload alone, and these "
            "constraints would be lost; call load_problem(workload, system, gpus=N) and solve that "
            "problem, or load_workload_file(workload) and pass its constraints on"
        )
    return file.workload


def load_workload_file(
    source: str | Path, *, overrides: tuple[tuple[str, str], ...] = ()
) -> WorkloadFile:
    """Read a workload file: the workload, its constraints, and warnings.

    Args:
        source: path of a ``.yaml`` or ``.csv`` file, or the name of a shipped workload.
        overrides: changes of single values, as pairs of a key path and a YAML text, such as
            ``("tables.3.embedding_dim", "64")``.

    Raises:
        InvalidInputError: lists every broken rule with file, line, key and value.

    Example:
        >>> change = ("training.batch_size_per_rank", "4096")
        >>> load_workload_file("small_demo", overrides=(change,)).workload.batch_size_per_rank
        4096
    """
    path = locate(source, "workloads")
    require_list("overrides", overrides, "give pairs of a key path and a value")
    with collector_paused():
        is_list = path.suffix.lower() in LIST_ENDINGS
        document = read_table_list(path) if is_list else read_yaml(path)
        for pair in overrides:
            if not (isinstance(pair, tuple | list) and [type(part) for part in pair] == [str, str]):
                refuse(
                    f"overrides: {pair!r:.60} is no pair of texts; give pairs of a key path and a "
                    "value, such as ('tables.3.embedding_dim', '64')"
                )
            override(document, *pair)
        return workload_file_of(_without_assumed(document, [key for key, _ in overrides]))


def _without_assumed(document: Document, given: Sequence[str]) -> Document:
    """The document whose list of assumed keys lacks those that a user gave."""
    listed = document.value.get("assumed")
    if isinstance(listed, list):
        document.value["assumed"] = [
            key
            for key in listed
            if not any(f"{g}.".startswith(f"{key}.") or key.startswith(f"{g}.") for g in given)
        ]
    return document


def workload_file_of(document: Document) -> WorkloadFile:
    """The workload, constraints and warnings of a document in the form of a workload file.

    Raises:
        InvalidInputError: lists every broken rule with place, key and value.
    """
    return _build(validate(WorkloadSchema, document), document)


def workload_json_schema() -> dict[str, Any]:
    """JSON Schema of a workload file, for editors."""
    return WorkloadSchema.model_json_schema()


def _build(schema: WorkloadSchema, document: Document) -> WorkloadFile:
    total = sum(entry.count for entry in schema.tables)
    if total > MAX_TABLES:
        refuse(
            f"{document.where(('tables',))}: value {total:,} tables: must be at most {MAX_TABLES:,}"
        )
    problems: list[str] = []
    tables: list[Table] = []
    measured: dict[str, TableStats] = {}
    limits: list[TableConstraint] = []
    counts = Counter(name for entry in schema.tables for name in _names(entry))
    twice: list[str] = []
    for index, entry in enumerate(schema.tables):
        where = document.where(("tables", index))
        for name in _names(entry):
            build = partial(_table, entry, name, schema.training, document.path.parent, measured)
            table = collect(problems, where, build)
            tables += [table] if table is not None else []
            if entry.constraints != _NO_LIMITS:
                limits.append(table_constraint(_literal(name), entry.constraints))
            if counts[name] > 1:
                place = document.where(("tables", index, "name"))
                told = f"{counts[name]} tables have this name; give each its own"
                twice.append(f"{place}: value {name!r}: {told}")
    problems += [*twice, *unmatched(schema.constraints, document, list(counts))]
    layers = layers_of(schema.dense.layers, document, problems)
    place = document.where(("dense",))
    operators = collect(problems, place, lambda: _operators(schema.dense, document))
    if problems:
        raise InvalidInputError(list(dict.fromkeys(problems)))
    both, where = {"layers": layers, "operators": operators}, str(document.path)
    dense = made(place, lambda: noun_of(DenseArch, schema.dense, **both))
    workload = made(where, lambda: _workload(schema, tables, dense))
    made(where, partial(refuse_contradictions, workload))
    made(place, partial(dense_layers, workload))
    return WorkloadFile(
        workload=workload,
        constraints=merged(Constraints(tables=tuple(limits)), constraints_of(schema.constraints)),
        warnings=_left_open(schema, measured),
        assumed=_assumed(schema, measured),
    )


# ------------------------------------------------------------------ rules across tables


def _names(entry: TableSchema) -> Iterator[str]:
    """The name of the table, or the names of ``count`` equal tables."""
    if entry.count == 1:
        yield entry.name
    else:
        yield from (f"{entry.name}_{number}" for number in range(entry.count))


def _assumed(
    schema: WorkloadSchema, measured: Mapping[str, TableStats]
) -> dict[str, tuple[str, ...]]:
    """The assumed keys: those that the file lists and did not change, and those it leaves out.

    A section ``dense`` that is missing means that there is no dense part.
    """
    bare = {**dict.fromkeys(NEEDED, 1), "name": "any"}
    listed = validate(WorkloadSchema, document_of(Path("list"), [bare], {}))
    says_type = {"output_dtype"} if schema.training.communication else set()
    found: dict[str, tuple[str, ...]] = {}
    for key in ASSUMED:
        section, _, name = key.partition(".")
        ours, usual = getattr(schema, section), getattr(listed, section)
        is_same = getattr(ours, name) == getattr(usual, name) if name else ours == usual
        said = ours.model_fields_set | says_type
        if (key in schema.assumed and is_same) or (name in _WORTH_SAYING and name not in said):
            found[key] = ()
    for key in ("pooling_factor", "distribution"):
        names = tuple(
            name
            for entry in schema.tables
            if key not in entry.model_fields_set
            for name in _names(entry)
            if name not in measured
        )
        if names:
            found[f"tables.{key}"] = names
    return found


def _left_open(schema: WorkloadSchema, measured: Mapping[str, TableStats]) -> tuple[str, ...]:
    undersampled = undersampled_remark(measured)
    warnings = [] if undersampled is None else [undersampled]
    bare = sum(entry.count for entry in schema.tables if entry.distribution is None)
    if bare:
        have = "has" if bare == 1 else "have"
        warnings.append(
            f"{counted(bare, 'table')} {have} no distribution: every row is taken as equally likely"
        )
    if schema.memory.reserve == 0:
        warnings.append("no memory.reserve: nothing is kept for framework, allocator and NCCL")
    every = [schema.training.communication, *(t.communication for t in schema.tables)]
    unsummed = {unsummed_remark(communication_of(c)) for c in every if c is not None} - {None}
    warnings += [remark for remark in unsummed if remark]
    pooled = sum(entry.count for entry in schema.tables if entry.pooling is not Pooling.NONE)
    if schema.training.deduplicate_indices and pooled:
        warnings.append(
            f"deduplicate_indices is for unpooled tables, as in TorchRec: {pooled} pooled tables "
            "exchange all of their indices"
        )
    return tuple(warnings)


# ------------------------------------------------------------------ schema to nouns


def _operators(schema: DenseSchema, document: Document) -> OperatorList | None:
    if schema.ops is None:
        return None if schema.operators is None else noun_of(OperatorList, schema.operators)
    if schema.operators is not None:
        refuse("operators and ops both list the operators; keep one of them")
    return read_operators(document.path.parent / schema.ops)


def _workload(schema: WorkloadSchema, tables: list[Table], dense: DenseArch) -> Workload:
    training, shares = schema.training, schema.training.batch_shares
    if training.pipeline is Pipeline.LOOKAHEAD and training.lookahead is None:
        refuse("pipeline lookahead needs lookahead, the number of batches; add lookahead: 8")
    return noun_of(
        Workload,
        training,
        name=schema.name,
        tables=tuple(tables),
        dense=dense,
        between_steps_s=training.between_steps,
        reserved_bytes=schema.memory.reserve,
        lookahead_batches=training.lookahead or 0,
        batch_share_ratio=shares if isinstance(shares, str) else tuple(shares or ()),
    )


def _table(
    entry: TableSchema,
    name: str,
    training: TrainingSchema,
    folder: Path,
    measured: dict[str, TableStats],
) -> Table:
    """Make the table; its statistics, if it has any, are added to ``measured``."""
    features = _feature_names(entry, name)
    stats = stats_of(entry.distribution, name, features, folder)
    if stats is not None:
        measured[name] = stats
    factors = entry.pooling_factor
    if not isinstance(factors, list):
        factors = [factors] * len(features)
    if stats is not None and "pooling_factor" not in entry.model_fields_set:
        factors = [stats.features.get(f, stats.pooling).mean for f in features]
    if len(factors) != len(features):
        refuse(
            f"pooling_factor: value {factors}: {len(factors)} entries for {len(features)} "
            "features; give one for each, or a single number"
        )
    law = law_of(entry.distribution, entry.num_embeddings, stats)
    if (given := entry.distinct_per_batch) is not None:
        if not isinstance(given, list):
            indices = training.batch_size_per_rank * float(sum(factors))
            given = [[indices, max(given * indices, 1.0)]]
        law = _repeating(law, tuple((float(n), float(distinct)) for n, distinct in given))
    codecs = entry.communication or training.communication
    return noun_of(
        Table,
        entry,
        name=name,
        features=tuple(
            Feature(name=f, pooling_factor=float(p)) for f, p in zip(features, factors, strict=True)
        ),
        distribution=law,
        dtype=entry.dtype or training.embedding_dtype,
        communication=codecs and communication_of(codecs),
        row_update=entry.row_update or training.row_update,
        deduplicates_indices=training.deduplicate_indices and entry.pooling is Pooling.NONE
        if entry.deduplicate_indices is None
        else entry.deduplicate_indices,
    )


def _feature_names(entry: TableSchema, name: str) -> tuple[str, ...]:
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


def _literal(name: str) -> str:
    """A pattern that matches exactly this name."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def load_problem(
    workload: str | Path,
    system: str | Path,
    *,
    gpus: int | None = None,
    gpus_per_host: int | None = None,
) -> PlanningProblem:
    """Read a workload with its constraints, and the system to plan it for.

    ``planner.solve`` plans the problem.

    Args:
        workload: path of a ``.yaml`` or ``.csv`` file, or the name of a shipped workload.
        system: path of a ``.yaml`` file, or the name of a shipped system.
        gpus: number of ranks; None for one host.
        gpus_per_host: ranks per host; None for those of the system.

    Raises:
        InvalidInputError: lists every broken rule with file, line, key and value.

    Example:
        >>> problem = load_problem("small_demo", "h100_sxm", gpus=16)
        >>> problem.topology.num_hosts
        2
    """
    file = load_workload_file(workload)
    return PlanningProblem(
        workload=file.workload,
        topology=load_system(system, gpus=gpus, gpus_per_host=gpus_per_host),
        constraints=file.constraints,
    )
