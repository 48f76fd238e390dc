"""Reads constraints: those of a workload file, or a file of their own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

from costmodels.sharding import ComputeKernel, ShardingType
from planner.errors import InvalidInputError
from planner.io.constraint_schema import (
    ConstraintFileSchema,
    ConstraintSchema,
    TableConstraintSchema,
)
from planner.io.documents import Document, read_yaml
from planner.io.problems import validate
from planner.problem import (
    Constraints,
    CountLimit,
    Level,
    MemoryLimit,
    TableConstraint,
    TableGroup,
)
from planner.support.kinds import path_of

T = TypeVar("T", ShardingType, ComputeKernel)


def load_constraints(path: str | Path, names: Sequence[str]) -> Constraints:
    """Read the constraints of a YAML file with the key ``constraints``.

    Args:
        path: the file.
        names: the names of the workload's tables; every pattern must match one of them.

    Raises:
        InvalidInputError: lists every broken rule with file, line, key and value.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> text = "constraints: [{tables: 'user_*', sharding_types: [row_wise]}]"
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder) / "limits.yaml"
        ...     _ = path.write_text(text)
        ...     rules = load_constraints(path, ["user_id", "item"])
        >>> rules.tables[0].pattern
        'user_*'
    """
    document = read_yaml(path_of(path, "constraints"))
    schema = validate(ConstraintFileSchema, document)
    problems = unmatched(schema.constraints, document, names)
    if problems:
        raise InvalidInputError(problems)
    return constraints_of(schema.constraints)


def check_constraints(path: str | Path) -> int:
    """The number of rules in a file of constraints, which is checked without its workload.

    Raises:
        InvalidInputError: lists every broken rule with file, line, key and value.
    """
    schema = validate(ConstraintFileSchema, read_yaml(Path(path)))
    constraints_of(schema.constraints)
    return len(schema.constraints)


def constraints_json_schema() -> dict[str, Any]:
    """JSON Schema of a file of constraints, for editors."""
    return ConstraintFileSchema.model_json_schema()


def merged(one: Constraints, other: Constraints) -> Constraints:
    """The rules of both; all tables may have the sharding types and kernels that both allow."""
    return replace(
        one,
        tables=one.tables + other.tables,
        sharding_types=tuple(t for t in one.sharding_types if t in other.sharding_types),
        kernels=tuple(k for k in one.kernels if k in other.kernels),
        together=one.together + other.together,
        apart=one.apart + other.apart,
        counts=one.counts + other.counts,
        memory=one.memory + other.memory,
    )


def constraints_of(entries: Iterable[ConstraintSchema]) -> Constraints:
    """The rules of a list of entries."""
    tables: list[TableConstraint] = []
    together: list[TableGroup] = []
    apart: list[TableGroup] = []
    counts: list[CountLimit] = []
    memory: list[MemoryLimit] = []
    for entry in entries:
        if entry.together is not None:
            together.append(TableGroup(patterns=tuple(entry.together), level=Level(entry.on)))
        elif entry.apart is not None:
            apart.append(TableGroup(patterns=tuple(entry.apart), level=Level(entry.on)))
        elif entry.device_memory is not None:
            memory.append(_memory(entry.device_memory, Level.RANK, entry.ranks))
        elif entry.host_memory is not None:
            memory.append(_memory(entry.host_memory, Level.HOST, entry.hosts))
        elif (limit := _count(entry)) is not None:
            counts.append(limit)
        else:
            tables += [table_constraint(pattern, entry) for pattern in _patterns(entry)]
    return Constraints(
        tables=tuple(tables),
        together=tuple(together),
        apart=tuple(apart),
        counts=tuple(counts),
        memory=tuple(memory),
    )


def table_constraint(pattern: str, entry: TableConstraintSchema) -> TableConstraint:
    """Limits on the tables of one pattern; a list of forbidden values allows all other ones."""
    types = _left(ShardingType, entry.sharding_types, entry.forbid_sharding_types)
    kernels = _left(ComputeKernel, entry.kernels, entry.forbid_kernels)
    return TableConstraint(
        pattern=pattern,
        sharding_types=types,
        kernels=kernels,
        ranks=tuple(entry.ranks),
        hosts=tuple(entry.hosts),
        min_column_width=entry.min_column_width,
        cache_load_factors=tuple(entry.cache_load_factors),
        pairs=tuple(entry.pairs),
    )


def unmatched(
    entries: Sequence[ConstraintSchema], document: Document, names: Sequence[str]
) -> list[str]:
    """Patterns that match no table, with file and line."""
    problems = []
    for index, entry in enumerate(entries):
        for key in ("tables", "together", "apart"):
            given = getattr(entry, key)
            for pattern in [given] if isinstance(given, str) else given or ():
                if not any(map(TableConstraint(pattern=pattern).matches, names)):
                    where = document.where(("constraints", index, key))
                    problems.append(
                        f"{where}: value {pattern!r}: matches no table; check its spelling"
                    )
    return problems


def _left(kind: type[T], allowed: Sequence[T], forbidden: Sequence[T]) -> tuple[T, ...]:
    if not forbidden:
        return tuple(allowed)
    every: Iterable[T] = allowed or cast("Iterable[T]", list(kind))
    return tuple(v for v in every if v not in forbidden)


def _patterns(entry: ConstraintSchema) -> tuple[str, ...]:
    if entry.tables is None:
        return ("*",)
    return (entry.tables,) if isinstance(entry.tables, str) else tuple(entry.tables)


def _count(entry: ConstraintSchema) -> CountLimit | None:
    for what in ("tables", "shards"):
        for level in Level:
            most = getattr(entry, f"max_{what}_per_{level}")
            if most is not None:
                return CountLimit(
                    most=most,
                    level=level,
                    counts_shards=what == "shards",
                    patterns=_patterns(entry),
                )
    return None


def _memory(most_bytes: float, level: Level, places: Sequence[int]) -> MemoryLimit:
    return MemoryLimit(most_bytes=most_bytes, level=level, places=tuple(places))
