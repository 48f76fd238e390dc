"""Reads constraints: those of a workload file, or a file of their own; one rule per entry."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import Field, model_validator

from costmodels.sharding import ComputeKernel, ShardingType
from planner.errors import refuse, refuse_any
from planner.io.documents import Document, read_yaml
from planner.io.schemas import Bytes, Count, Name, Positive, Ratio, Strict, noun_of, validate
from planner.problem import Constraints, CountLimit, Level, MemoryLimit, TableConstraint, TableGroup
from planner.support.kinds import path_of

Types = list[Annotated[ShardingType, Field(strict=False)]]
Kernels = list[Annotated[ComputeKernel, Field(strict=False)]]
Pair = Annotated[
    tuple[
        Annotated[ShardingType, Field(strict=False)], Annotated[ComputeKernel, Field(strict=False)]
    ],
    Field(strict=False),
]
Group = Annotated[list[Name], Field(min_length=1)]


class TableConstraintSchema(Strict):
    """Limits on how a table may be sharded; empty means no limit."""

    sharding_types: Types = Field(default_factory=list)
    """Only these sharding types; empty for all that TorchRec has."""
    forbid_sharding_types: Types = Field(default_factory=list)
    """All sharding types but these."""
    kernels: Kernels = Field(default_factory=list)
    """Only these compute kernels; empty for all."""
    forbid_kernels: Kernels = Field(default_factory=list)
    """All compute kernels but these."""
    ranks: list[Count] = Field(default_factory=list)
    """Every shard on one of these ranks; for device_memory the ranks it is about."""
    hosts: list[Count] = Field(default_factory=list)
    """Every shard on one of these hosts; for host_memory the hosts it is about."""
    min_column_width: Positive = 4
    """Columns are cut into pieces at least so wide. TorchRec's planner takes 128."""
    cache_load_factors: list[Ratio] = Field(default_factory=list)
    """Shares of a table that fused_uvm_caching may keep on the device."""

    pairs: list[Pair] = Field(default_factory=list)
    """Only these combinations of a sharding type and a kernel, such as [[row_wise,
    fused_uvm_caching], [table_wise, fused]]; empty for all."""

    @model_validator(mode="after")
    def _some_left(self) -> TableConstraintSchema:
        """Refuse to forbid everything: an empty list means no limit."""
        for key, allowed, forbidden in (
            ("sharding_types", self.sharding_types or [*ShardingType], self.forbid_sharding_types),
            ("kernels", self.kernels or [*ComputeKernel], self.forbid_kernels),
        ):
            if forbidden and all(value in forbidden for value in allowed):
                refuse(f"forbid_{key} leaves none of {', '.join(allowed)}; forbid fewer")
        return self


_TABLE_KEYS: Final = tuple(k for k in TableConstraintSchema.model_fields)
_KINDS: Final[dict[str, tuple[str, ...]]] = {
    "together": ("on",),
    "apart": ("on",),
    "max_tables_per_rank": ("tables",),
    "max_tables_per_host": ("tables",),
    "max_shards_per_rank": ("tables",),
    "max_shards_per_host": ("tables",),
    "device_memory": ("ranks",),
    "host_memory": ("hosts",),
}
"""The key that says which rule an entry is, and the keys that go with it."""


class ConstraintSchema(TableConstraintSchema):
    """One rule: limits on the tables of a pattern, a group, a number per place, or a memory."""

    tables: Name | Group | None = None
    """Names or patterns of the tables the entry is about; all of them without."""
    together: Group | None = None
    """Tables that share one rank, or one host with on: host."""
    apart: Group | None = None
    """Tables of which no two share a rank, or a host with on: host."""
    on: Literal["rank", "host"] = "rank"
    """What together and apart are about."""
    max_tables_per_rank: Positive | None = None
    """Most tables with a shard on one rank."""
    max_tables_per_host: Positive | None = None
    """Most tables with a shard on one host."""
    max_shards_per_rank: Positive | None = None
    """Most shards on one rank."""
    max_shards_per_host: Positive | None = None
    """Most shards on one host."""
    device_memory: Bytes | None = None
    """Most device memory of a rank, such as '12 GiB'."""
    host_memory: Bytes | None = None
    """Most memory of a host, such as '100 GiB'."""

    @model_validator(mode="after")
    def _one_rule(self) -> ConstraintSchema:
        """Refuse entries that mix rules, or say none."""
        given = self.model_fields_set
        kinds = [kind for kind in _KINDS if kind in given]
        if len(kinds) > 1:
            refuse(f"holds two rules, {kinds[0]} and {kinds[1]}; write one entry for each")
        if kinds:
            extra = sorted(given - {kinds[0], *_KINDS[kinds[0]]})
            if extra:
                also = ", ".join(_KINDS[kinds[0]])
                refuse(f"{extra[0]} does not go with {kinds[0]}, which takes {also}; remove it")
            return self
        if "on" in given:
            refuse("'on' goes with together or apart; remove it, or use ranks or hosts")
        if "tables" not in given or not given & set(_TABLE_KEYS):
            refuse(
                "says no rule: give tables with one of "
                f"{', '.join(_TABLE_KEYS)}; or one of {', '.join(_KINDS)}"
            )
        return self


class ConstraintFileSchema(Strict):
    """A file of constraints."""

    constraints: Annotated[list[ConstraintSchema], Field(min_length=1)]


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
    refuse_any(problems)
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
    joined = {f.name: getattr(one, f.name) + getattr(other, f.name) for f in fields(Constraints)}
    return Constraints(
        **joined
        | {
            "sharding_types": tuple(t for t in one.sharding_types if t in other.sharding_types),
            "kernels": tuple(k for k in one.kernels if k in other.kernels),
        }
    )


def constraints_of(entries: Iterable[ConstraintSchema]) -> Constraints:
    """The rules of a list of entries."""
    found = defaultdict[str, list[Any]](list)
    for entry in entries:
        for key, rule in _rules_of(entry):
            found[key].append(rule)
    return Constraints(**{key: tuple(rules) for key, rules in found.items()})


def _rules_of(entry: ConstraintSchema) -> Iterator[tuple[str, Any]]:
    """The rules of one entry, each with the field of :class:`Constraints` that it belongs to."""
    tables = entry.tables or ["*"]
    patterns = (tables,) if isinstance(tables, str) else tuple(tables)
    key = next((key for key in _KINDS if key in entry.model_fields_set), None)
    if key is None:
        for pattern in patterns:
            yield "tables", table_constraint(pattern, entry)
        return
    value = getattr(entry, key)
    if value is None:
        return
    if key in ("together", "apart"):
        yield key, TableGroup(patterns=tuple(value), level=Level(entry.on))
    elif key == "device_memory":
        yield "memory", MemoryLimit(most_bytes=value, level=Level.RANK, places=tuple(entry.ranks))
    elif key == "host_memory":
        yield "memory", MemoryLimit(most_bytes=value, level=Level.HOST, places=tuple(entry.hosts))
    else:
        _, what, _, place = key.split("_")
        level, counts_shards = Level(place), what == "shards"
        yield (
            "counts",
            CountLimit(most=value, level=level, counts_shards=counts_shards, patterns=patterns),
        )


def table_constraint(pattern: str, entry: TableConstraintSchema) -> TableConstraint:
    """Limits on the tables of one pattern; a list of forbidden values allows all other ones."""
    return noun_of(
        TableConstraint,
        entry,
        pattern=pattern,
        sharding_types=_left(ShardingType, entry.sharding_types, entry.forbid_sharding_types),
        kernels=_left(ComputeKernel, entry.kernels, entry.forbid_kernels),
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
    every = allowed if allowed or not forbidden else list(kind)
    return tuple(v for v in every if v not in forbidden)
