"""The keys of a constraint: one rule per entry, the same in a workload and in a file of its own."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from costmodels.sharding import ComputeKernel, ShardingType
from planner.io.fields import Bytes, Count, Name, Positive, Ratio
from planner.io.problems import Strict

Types = list[Annotated[ShardingType, Field(strict=False)]]
Kernels = list[Annotated[ComputeKernel, Field(strict=False)]]
Pair = Annotated[
    tuple[
        Annotated[ShardingType, Field(strict=False)],
        Annotated[ComputeKernel, Field(strict=False)],
    ],
    Field(strict=False),
]
Group = Annotated[list[Name], Field(min_length=1)]


class TableConstraintSchema(Strict):
    """Limits on how a table may be sharded; empty means no limit."""

    sharding_types: Types = Field(
        default_factory=list,
        description="Only these sharding types; empty for all that TorchRec has.",
    )
    forbid_sharding_types: Types = Field(
        default_factory=list,
        description="All sharding types but these.",
    )
    kernels: Kernels = Field(
        default_factory=list,
        description="Only these compute kernels; empty for all.",
    )
    forbid_kernels: Kernels = Field(
        default_factory=list,
        description="All compute kernels but these.",
    )
    ranks: list[Count] = Field(
        default_factory=list,
        description="Every shard on one of these ranks; for device_memory the ranks it is about.",
    )
    hosts: list[Count] = Field(
        default_factory=list,
        description="Every shard on one of these hosts; for host_memory the hosts it is about.",
    )
    min_column_width: Positive = Field(
        default=4,
        description="Columns are cut into pieces at least so wide. TorchRec's planner takes 128.",
    )
    cache_load_factors: list[Ratio] = Field(
        default_factory=list,
        description="Shares of a table that fused_uvm_caching may keep on the device.",
    )

    pairs: list[Pair] = Field(
        default_factory=list,
        description="Only these combinations of a sharding type and a kernel, such as "
        "[[row_wise, fused_uvm_caching], [table_wise, fused]]; empty for all.",
    )

    @model_validator(mode="after")
    def _some_left(self) -> TableConstraintSchema:
        """Refuse to forbid everything: an empty list means no limit."""
        for key, allowed, forbidden in (
            ("sharding_types", self.sharding_types or [*ShardingType], self.forbid_sharding_types),
            ("kernels", self.kernels or [*ComputeKernel], self.forbid_kernels),
        ):
            if forbidden and all(value in forbidden for value in allowed):
                msg = f"forbid_{key} leaves none of {', '.join(allowed)}; forbid fewer"
                raise ValueError(msg)
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

    tables: Name | Group | None = Field(
        default=None,
        description="Names or patterns of the tables the entry is about; all of them without.",
    )
    together: Group | None = Field(
        default=None,
        description="Tables that share one rank, or one host with on: host.",
    )
    apart: Group | None = Field(
        default=None,
        description="Tables of which no two share a rank, or a host with on: host.",
    )
    on: Literal["rank", "host"] = Field(
        default="rank",
        description="What together and apart are about.",
    )
    max_tables_per_rank: Positive | None = Field(
        default=None,
        description="Most tables with a shard on one rank.",
    )
    max_tables_per_host: Positive | None = Field(
        default=None,
        description="Most tables with a shard on one host.",
    )
    max_shards_per_rank: Positive | None = Field(
        default=None,
        description="Most shards on one rank.",
    )
    max_shards_per_host: Positive | None = Field(
        default=None,
        description="Most shards on one host.",
    )
    device_memory: Bytes | None = Field(
        default=None,
        description="Most device memory of a rank, such as '12 GiB'.",
    )
    host_memory: Bytes | None = Field(
        default=None,
        description="Most memory of a host, such as '100 GiB'.",
    )

    @model_validator(mode="after")
    def _one_rule(self) -> ConstraintSchema:
        """Refuse entries that mix rules, or say none."""
        given = self.model_fields_set
        kinds = [kind for kind in _KINDS if kind in given]
        if len(kinds) > 1:
            msg = f"holds two rules, {kinds[0]} and {kinds[1]}; write one entry for each"
            raise ValueError(msg)
        if kinds:
            extra = sorted(given - {kinds[0], *_KINDS[kinds[0]]})
            if extra:
                also = ", ".join(_KINDS[kinds[0]])
                msg = f"{extra[0]} does not go with {kinds[0]}, which takes {also}; remove it"
                raise ValueError(msg)
            return self
        if "on" in given:
            msg = "'on' goes with together or apart; remove it, or use ranks or hosts"
            raise ValueError(msg)
        if "tables" not in given or not given & set(_TABLE_KEYS):
            msg = (
                "says no rule: give tables with one of "
                f"{', '.join(_TABLE_KEYS)}; or one of {', '.join(_KINDS)}"
            )
            raise ValueError(msg)
        return self


class ConstraintFileSchema(Strict):
    """A file of constraints."""

    constraints: Annotated[list[ConstraintSchema], Field(min_length=1)]
