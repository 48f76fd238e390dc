"""Workload files: YAML, or a CSV list of tables."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from costmodels.distribution.base import AbstractIndexDistribution
from costmodels.distribution.uniform import Uniform
from costmodels.distribution.zipf import Zipf
from costmodels.sharding import ComputeKernel, ShardingType
from costmodels.workload import DenseArch, Feature, Table, Workload
from planner.errors import InvalidInputError
from planner.io.documents import Document, read_text, read_yaml
from planner.io.library import locate
from planner.io.problems import collect, validate
from planner.io.workload_schema import (
    DistributionSchema,
    TableConstraintSchema,
    TableSchema,
    TrainingSchema,
    WorkloadSchema,
)
from planner.problem import Constraints, TableConstraint

_CSV_DEFAULT_BATCH = 4096
_NUMBER = re.compile(r"^[+-]?[0-9][0-9_]*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadFile:
    """A workload and the constraints written beside its tables."""

    workload: Workload
    constraints: Constraints


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
    document = _from_csv(path) if path.suffix == ".csv" else read_yaml(path)
    for key, text in overrides:
        _override(document, key, text)
    return _build(validate(WorkloadSchema, document), document)


def workload_json_schema() -> dict[str, Any]:
    """JSON Schema of a workload file, for editors."""
    return WorkloadSchema.model_json_schema()


def _build(schema: WorkloadSchema, document: Document) -> WorkloadFile:
    problems: list[str] = []
    tables: list[Table] = []
    limits: list[TableConstraint] = []
    for index, entry in enumerate(schema.tables):
        where = document.where(("tables", index))
        for number in range(entry.count):
            name = entry.name if entry.count == 1 else f"{entry.name}_{number}"
            table = collect(
                problems,
                where,
                lambda e=entry, n=name: _table(e, n, schema.training, document.path),  # type: ignore[misc]
            )
            if table is not None:
                tables.append(table)
            if entry.constraints != TableConstraintSchema():
                limits.append(_constraint(_literal(name), entry.constraints))
    limits.extend(_constraint(c.tables, c) for c in schema.constraints)
    for index, limit in enumerate(schema.constraints):
        where = document.where(("constraints", index, "tables"))
        pattern = TableConstraint(pattern=limit.tables)
        if not any(pattern.matches(t.name) for t in tables):
            problems.append(
                f"{where}: value {limit.tables!r}: matches no table; check its spelling"
            )
    workload = (
        None
        if problems
        else collect(problems, str(document.path), lambda: _workload(schema, tables))
    )
    if problems or workload is None:
        raise InvalidInputError(list(dict.fromkeys(problems)))
    return WorkloadFile(workload=workload, constraints=Constraints(tables=tuple(limits)))


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
        reserved_bytes=schema.memory.reserve,
        input_samples_per_s=training.input_samples_per_s,
    )


def _table(entry: TableSchema, name: str, training: TrainingSchema, path: Path) -> Table:
    suffix = name.removeprefix(entry.name)
    features = [f"{f}{suffix}" for f in entry.features] if entry.features else [name]
    factors = entry.pooling_factor
    if not isinstance(factors, list):
        factors = [factors] * len(features)
    if len(factors) != len(features):
        message = (
            f"pooling_factor has {len(factors)} entries for {len(features)} features; "
            "give one for each, or a single number"
        )
        raise InvalidInputError(message)
    return Table(
        name=name,
        num_embeddings=entry.num_embeddings,
        embedding_dim=entry.embedding_dim,
        features=tuple(
            Feature(name=f, pooling_factor=float(p)) for f, p in zip(features, factors, strict=True)
        ),
        distribution=_distribution(entry.distribution, entry.num_embeddings, name, path),
        dtype=entry.dtype or training.embedding_dtype,
        pooling=entry.pooling,
        is_weighted=entry.is_weighted,
        module=entry.module,
    )


def _distribution(
    entry: DistributionSchema, num_embeddings: int, table: str, path: Path
) -> AbstractIndexDistribution:
    if entry.stats is not None:
        message = (
            f"distribution.stats {entry.stats!r} of table {table!r} in {path}: measured statistics "
            "cannot be read yet; give kind and exponent"
        )
        raise InvalidInputError(message)
    if entry.kind is None:
        message = "distribution needs kind (uniform or zipf) or stats"
        raise InvalidInputError(message)
    if entry.kind == "uniform":
        if entry.exponent is not None or entry.ids_per_draw != 1 or entry.shift:
            message = "a uniform distribution has no exponent, shift or ids_per_draw; use kind zipf"
            raise InvalidInputError(message)
        return Uniform(num_embeddings=num_embeddings, scattered=entry.scattered)
    if entry.exponent is None:
        message = "a zipf distribution needs its exponent, such as 1.05"
        raise InvalidInputError(message)
    return Zipf(
        num_embeddings=num_embeddings,
        exponent=entry.exponent,
        shift=entry.shift,
        scattered=entry.scattered,
        ids_per_draw=entry.ids_per_draw,
    )


def _constraint(pattern: str, entry: TableConstraintSchema) -> TableConstraint:
    return TableConstraint(
        pattern=pattern,
        sharding_types=cast("tuple[ShardingType, ...]", tuple(entry.sharding_types)),
        kernels=cast("tuple[ComputeKernel, ...]", tuple(entry.kernels)),
        ranks=tuple(entry.ranks),
        hosts=tuple(entry.hosts),
        min_column_width=entry.min_column_width,
        cache_load_factors=tuple(entry.cache_load_factors),
    )


def _literal(name: str) -> str:
    """A pattern that matches exactly this name."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def _override(document: Document, key: str, text: str) -> None:
    """Set one value before validation; the path must lead through what exists.

    Raises:
        InvalidInputError: the path leads nowhere or the text is not a YAML value.
    """
    import yaml

    where = f"--set {key}={text}"
    parts = [int(p) if p.isdigit() else p for p in key.split(".")]
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        message = f"{where}: {text!r} is not a value"
        raise InvalidInputError(message) from error
    if isinstance(value, str) and _NUMBER.match(value):
        value = int(value.replace("_", ""))
    holder = document.value
    try:
        for part in parts[:-1]:
            holder = holder[part]
        if isinstance(holder, list):
            holder[cast("int", parts[-1])] = value
        elif isinstance(holder, dict) and isinstance(parts[-1], str):
            holder[parts[-1]] = value
        else:
            raise TypeError  # noqa: TRY301 - the same message as a path that leads nowhere
    except (KeyError, IndexError, TypeError) as error:
        message = f"{where}: the file has no such key; give a path such as training.pipeline"
        raise InvalidInputError(message) from error


def _from_csv(path: Path) -> Document:
    """A list of tables as a workload without dense part; the batch comes from --batch-size.

    Columns: name, num_embeddings (or rows), embedding_dim (or dim), and optionally pooling_factor,
    zipf_exponent, pooling, dtype.
    """
    rows = list(csv.DictReader(io.StringIO(read_text(path))))
    if not rows:
        message = f"{path}: no tables; the first line must name the columns"
        raise InvalidInputError(message)
    renamed = {"rows": "num_embeddings", "dim": "embedding_dim"}
    lines: dict[tuple[str | int, ...], int] = {}
    tables = []
    for index, row in enumerate(rows):
        lines["tables", index] = index + 2
        entry: dict[str, Any] = {}
        for column, text in row.items():
            if column is None or text is None:
                message = (
                    f"{path}:{index + 2}: has not as many values as the first line has columns"
                )
                raise InvalidInputError(message)
            _csv_value(entry, renamed.get(column.strip(), column.strip()), text.strip())
        tables.append(entry)
    value = {
        "name": path.stem,
        "training": {"batch_size_per_rank": _CSV_DEFAULT_BATCH},
        "tables": tables,
    }
    return Document(path, value, lines)


def _csv_value(entry: dict[str, Any], column: str, text: str) -> None:
    if not text:
        return
    if column == "zipf_exponent":
        entry["distribution"] = {"kind": "zipf", "exponent": _number(text)}
    else:
        entry[column] = text if column in ("name", "pooling", "dtype", "module") else _number(text)


def _number(text: str) -> int | float | str:
    if _NUMBER.match(text):
        return int(text.replace("_", ""))
    try:
        return float(text)
    except ValueError:
        return text
