"""Workload files: YAML, or a CSV list of tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from costmodels.workload import DenseArch, Feature, Table, Workload
from planner.collector import collector_paused
from planner.errors import InvalidInputError
from planner.io.constraint_file import constraints_of, merged, table_constraint, unmatched
from planner.io.constraint_schema import TableConstraintSchema
from planner.io.documents import Document, read_yaml
from planner.io.library import locate
from planner.io.overrides import override
from planner.io.problems import collect, validate
from planner.io.table_laws import law_of, stats_of
from planner.io.table_list import DEFAULT_BATCH, read_table_list
from planner.io.workload_schema import (
    MAX_TABLES,
    TableSchema,
    TrainingSchema,
    WorkloadSchema,
)
from planner.problem import Constraints, TableConstraint

_NO_LIMITS: Final = TableConstraintSchema()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadFile:
    """A workload, the constraints written beside its tables, and what had to be assumed."""

    workload: Workload
    constraints: Constraints
    warnings: tuple[str, ...] = ()


def load_workload(source: str | Path) -> Workload:
    """The workload of a file or of a shipped name; its constraints are left out.

    Raises:
        InvalidInputError: lists every broken rule with file, line, key and value.
    """
    return load_workload_file(source).workload


def load_workload_file(
    source: str | Path, *, overrides: tuple[tuple[str, str], ...] = ()
) -> WorkloadFile:
    """Workload and constraints of a file or of a shipped name.

    Args:
        source: path of a ``.yaml`` or ``.csv`` file, or a shipped name.
        overrides: ``(key path, YAML text)`` pairs such as ``("tables.3.embedding_dim", "64")``.

    Raises:
        InvalidInputError: lists every broken rule with file, line, key and value.
    """
    path = locate(source, "workloads")
    is_list = path.suffix == ".csv"
    with collector_paused():
        document = read_table_list(path) if is_list else read_yaml(path)
        for key, text in overrides:
            override(document, key, text)
        return _build(validate(WorkloadSchema, document), document, is_list=is_list)


def workload_json_schema() -> dict[str, Any]:
    """JSON Schema of a workload file, for editors."""
    return WorkloadSchema.model_json_schema()


def _build(schema: WorkloadSchema, document: Document, *, is_list: bool) -> WorkloadFile:
    total = sum(entry.count for entry in schema.tables)
    if total > MAX_TABLES:
        msg = (
            f"{document.where(('tables',))}: value {total:,} tables: must be at most {MAX_TABLES:,}"
        )
        raise InvalidInputError(msg)
    problems: list[str] = []
    tables: list[Table] = []
    limits: list[TableConstraint] = []
    for index, entry in enumerate(schema.tables):
        where = document.where(("tables", index))
        for name in _names(entry):
            build = partial(_table, entry, name, schema.training, document.path.parent)
            table = collect(problems, where, build)
            if table is not None:
                tables.append(table)
            if entry.constraints != _NO_LIMITS:
                limits.append(table_constraint(_literal(name), entry.constraints))
    problems += _duplicates(schema, document)
    names = [name for entry in schema.tables for name in _names(entry)]
    problems += unmatched(schema.constraints, document, names)
    workload = None
    if not problems:
        workload = collect(problems, str(document.path), lambda: _workload(schema, tables))
    if workload is None:
        raise InvalidInputError(list(dict.fromkeys(problems)))
    return WorkloadFile(
        workload=workload,
        constraints=merged(Constraints(tables=tuple(limits)), constraints_of(schema.constraints)),
        warnings=_assumptions(schema, is_list=is_list),
    )


# ------------------------------------------------------------------ rules across tables


def _names(entry: TableSchema) -> Iterator[str]:
    """The name, or those of ``count`` tables alike."""
    if entry.count == 1:
        yield entry.name
    else:
        yield from (f"{entry.name}_{number}" for number in range(entry.count))


def _duplicates(schema: WorkloadSchema, document: Document) -> list[str]:
    counts = Counter(name for entry in schema.tables for name in _names(entry))
    return [
        f"{document.where(('tables', index, 'name'))}: value {name!r}: {counts[name]} tables have "
        "this name; give each its own"
        for index, entry in enumerate(schema.tables)
        for name in _names(entry)
        if counts[name] > 1
    ]


def _assumptions(schema: WorkloadSchema, *, is_list: bool) -> tuple[str, ...]:
    warnings = []
    bare = sum(entry.count for entry in schema.tables if entry.distribution is None)
    if bare:
        warnings.append(f"{bare} tables have no distribution: every row is taken as equally likely")
    if schema.memory.reserve == 0:
        warnings.append("no memory.reserve: nothing is kept for framework, allocator and NCCL")
    if is_list and schema.training.batch_size_per_rank == DEFAULT_BATCH:
        warnings.append(f"a CSV list has no batch size: {DEFAULT_BATCH} samples per rank are taken")
    return tuple(warnings)


# ------------------------------------------------------------------ schema to nouns


def _workload(schema: WorkloadSchema, tables: list[Table]) -> Workload:
    training, dense = schema.training, schema.dense
    return Workload(
        name=schema.name,
        tables=tuple(tables),
        local_batch_size=training.batch_size_per_rank,
        dense=DenseArch(
            num_dense_features=dense.num_dense_features,
            bottom_mlp=tuple(dense.bottom_mlp),
            top_mlp=tuple(dense.top_mlp),
            interaction=dense.interaction,
            dcn_num_layers=dense.dcn_num_layers,
            dcn_low_rank_dim=dense.dcn_low_rank_dim,
            dtype=dense.dtype,
        ),
        optimizer=training.optimizer,
        output_dtype=training.output_dtype,
        gradient_dtype=training.gradient_dtype,
        index_bytes=training.index_bytes,
        pipeline=training.pipeline,
        cuda_graph=training.cuda_graph,
        host_profile=training.host_profile,
        between_steps_s=training.between_steps,
        reserved_bytes=schema.memory.reserve,
        input_samples_per_s=training.input_samples_per_s,
    )


def _table(entry: TableSchema, name: str, training: TrainingSchema, folder: Path) -> Table:
    features = _feature_names(entry, name)
    stats = stats_of(entry.distribution, name, features, folder)
    factors = entry.pooling_factor
    if not isinstance(factors, list):
        factors = [factors] * len(features)
    if stats is not None and "pooling_factor" not in entry.model_fields_set:
        factors = [stats.features.get(f, stats.pooling).mean for f in features]
    if len(factors) != len(features):
        msg = (
            f"pooling_factor: value {factors}: {len(factors)} entries for {len(features)} "
            "features; give one for each, or a single number"
        )
        raise InvalidInputError(msg)
    return Table(
        name=name,
        num_embeddings=entry.num_embeddings,
        embedding_dim=entry.embedding_dim,
        features=tuple(
            Feature(name=f, pooling_factor=float(p)) for f, p in zip(features, factors, strict=True)
        ),
        distribution=law_of(entry.distribution, entry.num_embeddings, stats),
        dtype=entry.dtype or training.embedding_dtype,
        pooling=entry.pooling,
        is_weighted=entry.is_weighted,
        module=entry.module,
    )


def _feature_names(entry: TableSchema, name: str) -> tuple[str, ...]:
    """As given; those of one of several alike get its number; without any, the table's name."""
    if entry.features is None:
        return (name,)
    twice = [f for f, count in Counter(entry.features).items() if count > 1]
    if twice:
        msg = f"features: value {twice[0]!r}: is there twice; name each feature once"
        raise InvalidInputError(msg)
    number = name.removeprefix(entry.name)
    return tuple(f"{feature}{number}" for feature in entry.features)


def _literal(name: str) -> str:
    """A pattern that matches exactly this name."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)
