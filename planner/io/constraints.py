"""Reads constraints: those of a workload file, or a file of their own; one rule per entry."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import Field, model_validator

from costmodels.sharding import ComputeKernel, ShardingType
from planner import problem
from planner.errors import refuse, refuse_any
from planner.io.documents import Document, read_yaml
from planner.io.schemas import Bytes, Count, Name, Positive, Ratio, Strict, noun_of, validate
from planner.support.kinds import path_of

Type = Annotated[ShardingType, Field(strict=False)]
Kernel = Annotated[ComputeKernel, Field(strict=False)]
Pair = Annotated[tuple[Type, Kernel], Field(strict=False)]
Group = Annotated[list[Name], Field(min_length=1)]


class TableConstraintSchema(Strict):
    """Limits on how a table may be sharded; empty means no limit.

    Attributes:
        sharding_types: Only these sharding types; empty for all that TorchRec has.
        forbid_sharding_types: All sharding types but these.
        kernels: Only these compute kernels; empty for all.
        forbid_kernels: All compute kernels but these.
        ranks: Every shard on one of these ranks; for device_memory the ranks it is about.
        hosts: Every shard on one of these hosts; for host_memory the hosts it is about.
        min_column_width: Columns are cut into pieces at least so wide. TorchRec's planner takes
            128.
        cache_load_factors: Shares of a table that fused_uvm_caching may keep on the device.
        pairs: Only these combinations of a sharding type and a kernel, such as [[row_wise,
            fused_uvm_caching], [table_wise, fused]]; empty for all.
    """

    sharding_types: list[Type] = Field(default_factory=list)
    forbid_sharding_types: list[Type] = Field(default_factory=list)
    kernels: list[Kernel] = Field(default_factory=list)
    forbid_kernels: list[Kernel] = Field(default_factory=list)
    ranks: list[Count] = Field(default_factory=list)
    hosts: list[Count] = Field(default_factory=list)
    min_column_width: Positive = 4
    cache_load_factors: list[Ratio] = Field(default_factory=list)
    pairs: list[Pair] = Field(default_factory=list)

    @model_validator(mode="after")
    def _some_left(self) -> Self:
        """Refuse to forbid everything: an empty list means no limit."""
        for key, kind in problem.CHOICES.items():
            if getattr(self, f"forbid_{key}") and not self.left(key):
                allowed = ", ".join(getattr(self, key) or kind)
                refuse(f"forbid_{key} leaves none of {allowed}; forbid fewer")
        return self

    def left(self, key: str) -> tuple[Any, ...]:
        """The values of a choice that are allowed and not forbidden; empty for no limit."""
        allowed, forbidden = getattr(self, key), getattr(self, f"forbid_{key}")
        every = allowed or (forbidden and problem.CHOICES[key])
        return tuple(v for v in every if v not in forbidden)


_LIMITS: Final = tuple(TableConstraintSchema.model_fields)
_COUNTED: Final = ("max_tables_per_rank", "max_tables_per_host", "max_shards_per_rank",
                   "max_shards_per_host")  # fmt: skip
_BESIDE: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(("together", "apart"), ("on",)),
    **dict.fromkeys(_COUNTED, ("tables",)),
    "device_memory": ("ranks",),
    "host_memory": ("hosts",),
    "tables": _LIMITS,
}
"""The key that says which rule an entry is, and the keys that go with it."""


class ConstraintSchema(TableConstraintSchema):
    """One rule: limits on the tables of a pattern, a group, a number per place, or a memory.

    Attributes:
        tables: Names or patterns of the tables the entry is about; all of them without.
        together: Tables that share one rank, or one host with on: host.
        apart: Tables of which no two share a rank, or a host with on: host.
        on: What together and apart are about.
        max_tables_per_rank: Most tables with a shard on one rank.
        max_tables_per_host: Most tables with a shard on one host.
        max_shards_per_rank: Most shards on one rank.
        max_shards_per_host: Most shards on one host.
        device_memory: Most device memory of a rank, such as '12 GiB'.
        host_memory: Most memory of a host, such as '100 GiB'.
    """

    tables: Name | Group | None = None
    together: Group | None = None
    apart: Group | None = None
    on: problem.Level = Field(default=problem.Level.RANK, strict=False)
    max_tables_per_rank: Positive | None = None
    max_tables_per_host: Positive | None = None
    max_shards_per_rank: Positive | None = None
    max_shards_per_host: Positive | None = None
    device_memory: Bytes | None = None
    host_memory: Bytes | None = None

    @property
    def rule(self) -> str:
        """The key that says which rule the entry is."""
        return next((key for key in _BESIDE if getattr(self, key) is not None), "")

    @model_validator(mode="after")
    def _one_rule(self) -> Self:
        """Refuse entries that mix rules, or say none."""
        kind = self.rule
        given = {key for key in self.model_fields_set if getattr(self, key) is not None}
        if not kind or given == {"tables"}:
            rules = ", ".join(key for key in _BESIDE if key != "tables")
            refuse(f"says no rule: give tables with one of {', '.join(_LIMITS)}; or one of {rules}")
        if extra := sorted(given - {kind, *_BESIDE[kind]}):
            also = ", ".join(_BESIDE[kind])
            refuse(
                f"{extra[0]} does not go with {kind}, which takes {also}; remove it, or write one "
                "entry for each rule"
            )
        return self


class ConstraintFileSchema(Strict):
    """A file of constraints."""

    constraints: Annotated[list[ConstraintSchema], Field(min_length=1)]


def load_constraints(path: str | Path, names: Sequence[str]) -> problem.Constraints:
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
    refuse_any(unmatched(schema.constraints, document, names))
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


def merged(one: problem.Constraints, other: problem.Constraints) -> problem.Constraints:
    """The rules of both; all tables may have the sharding types and kernels that both allow."""
    both = {f.name: getattr(one, f.name) + getattr(other, f.name) for f in fields(one)}
    for key in problem.CHOICES:
        both[key] = tuple(v for v in getattr(one, key) if v in getattr(other, key))
    return problem.Constraints(**both)


def constraints_of(
    entries: Iterable[ConstraintSchema], limits: Iterable[problem.TableConstraint] = ()
) -> problem.Constraints:
    """The rules of a list of entries, after limits on single tables."""
    found = defaultdict[str, list[Any]](list, tables=[*limits])
    for entry in entries:
        for key, rule in _rules_of(entry):
            found[key].append(rule)
    return problem.Constraints(**{key: tuple(rules) for key, rules in found.items()})


def _rules_of(entry: ConstraintSchema) -> Iterator[tuple[str, Any]]:
    """The rules of one entry, each with the field of :class:`Constraints` that it belongs to."""
    key, patterns = entry.rule, _listed(entry.tables or "*")
    value = getattr(entry, key)
    if key == "tables":
        yield from (("tables", table_constraint(pattern, entry)) for pattern in patterns)
    elif key in ("together", "apart"):
        yield key, problem.TableGroup(patterns=tuple(value), level=entry.on)
    elif key in _COUNTED:
        told: dict[str, Any] = {"level": key[-4:], "counts_shards": "shards" in key}
        yield "counts", problem.CountLimit(most=value, patterns=patterns, **told)
    else:
        level = problem.Level.RANK if key == "device_memory" else problem.Level.HOST
        places = tuple(entry.ranks or entry.hosts)
        yield "memory", problem.MemoryLimit(most_bytes=value.value, level=level, places=places)


def table_constraint(pattern: str, entry: TableConstraintSchema) -> problem.TableConstraint:
    """Limits on the tables of one pattern; a list of forbidden values allows all other ones."""
    left = {key: entry.left(key) for key in problem.CHOICES}
    return noun_of(problem.TableConstraint, entry, pattern=pattern, **left)


def unmatched(
    entries: Sequence[ConstraintSchema], document: Document, names: Sequence[str]
) -> list[str]:
    """Patterns that match no table, with file and line."""
    return [
        f"{document.where(('constraints', index, key))}: value {pattern!r}: matches no table; "
        "check its spelling"
        for index, entry in enumerate(entries)
        for key in ("tables", "together", "apart")
        for pattern in _listed(getattr(entry, key))
        if not any(map(problem.TableConstraint(pattern=pattern).matches, names))
    ]


def _listed(patterns: str | list[str] | None) -> tuple[str, ...]:
    return (patterns,) if isinstance(patterns, str) else tuple(patterns or ())
