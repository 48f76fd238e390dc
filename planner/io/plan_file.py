"""Plan files: TorchRec's serialized shape, with our keys beside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from costmodels.errors import CostModelError
from costmodels.sharding import (
    ComputeKernel,
    Plan,
    Shard,
    ShardingType,
    TablePlacement,
    check_plan,
)
from costmodels.topology import Topology
from costmodels.workload import Table, Workload
from planner.errors import InvalidInputError
from planner.io.documents import Document, read_json
from planner.io.problems import validate

SCHEMA_VERSION = 1
_MOST_LINES = 20

Count = Annotated[int, Field(ge=0)]
Pair = Annotated[list[Count], Field(min_length=2, max_length=2)]


class _Loose(BaseModel):
    """TorchRec may add keys; ours are read strictly."""

    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False, frozen=True)


class ShardSchema(_Loose):
    """One shard of one table."""

    shard_offsets: Pair
    shard_sizes: Pair
    placement: Annotated[str, Field(pattern=r"^rank:\d+/\S+$")]


class ParameterSchema(_Loose):
    """One table."""

    sharding_type: Annotated[ShardingType, Field(strict=False)]
    compute_kernel: Annotated[ComputeKernel, Field(strict=False)]
    ranks: list[Count] | None = None
    shards: list[ShardSchema] | None = None
    cache_load_factor: Annotated[float, Field(gt=0, lt=1)] | None = None


class PlanSchema(_Loose):
    """The whole file."""

    plan: dict[str, dict[str, ParameterSchema]]
    schema_version: int = SCHEMA_VERSION
    system: str | None = None
    world_size: Annotated[int, Field(ge=1)] | None = None
    local_world_size: Annotated[int, Field(ge=1)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPlan:
    """A plan from a file, and what the file says it was made for."""

    plan: Plan
    system: str | None = None
    world_size: int | None = None
    local_world_size: int | None = None


def load_plan(
    path: str | Path, workload: Workload | None = None, topology: Topology | None = None
) -> SavedPlan:
    """A plan in our format or TorchRec's.

    Args:
        path: the file.
        workload: gives shapes where the file has none (replicated tables).
        topology: with it and the workload, the plan is checked to be one of both.

    Raises:
        InvalidInputError: not well formed, or not a plan of this workload on this many ranks, with a
            line for each table that differs.
    """
    path = Path(path)
    schema = validate(PlanSchema, _document(path))
    if schema.schema_version > SCHEMA_VERSION:
        message = (
            f"{path}: schema_version {schema.schema_version} is newer than {SCHEMA_VERSION}; "
            "update shardplan"
        )
        raise InvalidInputError(message)
    shapes = {t.name: t for t in workload.tables} if workload else {}
    plan = Plan(placements=tuple(_placements(schema, shapes, path)))
    if workload is not None and topology is not None:
        _check(path, schema, plan, workload, topology)
    return SavedPlan(
        plan=plan,
        system=schema.system,
        world_size=schema.world_size,
        local_world_size=schema.local_world_size,
    )


def plan_json_schema() -> dict[str, Any]:
    """JSON Schema of a plan file."""
    return PlanSchema.model_json_schema()


def plan_to_json(plan: Plan, workload: Workload, local_world_size: int) -> dict[str, Any]:
    """The plan in TorchRec's ``ShardingPlan._serialize()`` shape, modules and tables in order."""
    modules = {t.name: t.module for t in workload.tables}
    tree: dict[str, dict[str, Any]] = {}
    for placement in plan.placements:
        entry: dict[str, Any] = {
            "sharding_type": placement.sharding_type.value,
            "compute_kernel": placement.kernel.value,
            "ranks": list(placement.ranks),
            "shards": [
                {
                    "shard_offsets": [s.row_offset, s.col_offset],
                    "shard_sizes": [s.num_rows, s.num_cols],
                    "placement": f"rank:{s.rank}/cuda:{s.rank % local_world_size}",
                }
                for s in placement.shards
            ],
        }
        if placement.cache_load_factor_ratio is not None:
            entry["cache_load_factor"] = placement.cache_load_factor_ratio
        tree.setdefault(modules[placement.table], {})[placement.table] = entry
    return tree


def _document(path: Path) -> Document:
    value = read_json(path)
    if not isinstance(value, dict) or not value:
        message = f"{path}: a plan is an object with the key 'plan'"
        raise InvalidInputError(message)
    if "plan" not in value and all(isinstance(v, dict) for v in value.values()):
        value = {"plan": value}
    return Document(path, value, {})


def _placements(schema: PlanSchema, shapes: dict[str, Table], path: Path) -> list[TablePlacement]:
    placements: list[TablePlacement] = []
    problems: list[str] = []
    for module, tables in schema.plan.items():
        for name, entry in tables.items():
            where = f"{path}: plan.{module}.{name}"
            if any(p.table == name for p in placements):
                problems.append(f"{where}: table {name!r} is planned in two modules")
                continue
            shards = _shards(entry, shapes.get(name), schema.world_size)
            if shards is None:
                problems.append(
                    f"{where}: has no shards; its shape is only known with the workload"
                )
                continue
            if entry.ranks is not None and [s.rank for s in shards] != entry.ranks:
                problems.append(
                    f"{where}: ranks {entry.ranks} disagree with the shards' placements"
                )
                continue
            placements.append(
                TablePlacement(
                    table=name,
                    sharding_type=entry.sharding_type,
                    kernel=entry.compute_kernel,
                    shards=shards,
                    cache_load_factor_ratio=_load_factor(entry),
                )
            )
    if problems:
        raise InvalidInputError(problems)
    return placements


def _load_factor(entry: ParameterSchema) -> float | None:
    """TorchRec's file drops the load factor; its default is 0.2 (``constants.py``)."""
    if entry.compute_kernel is not ComputeKernel.FUSED_UVM_CACHING:
        return None
    return 0.2 if entry.cache_load_factor is None else entry.cache_load_factor


def _shards(
    entry: ParameterSchema, table: Table | None, world_size: int | None
) -> tuple[Shard, ...] | None:
    """The shards; TorchRec writes none for replicated tables, only their ranks."""
    if entry.shards:
        return tuple(
            Shard(
                rank=int(s.placement[len("rank:") :].split("/")[0]),
                row_offset=s.shard_offsets[0],
                num_rows=s.shard_sizes[0],
                col_offset=s.shard_offsets[1],
                num_cols=s.shard_sizes[1],
            )
            for s in entry.shards
        )
    ranks = entry.ranks if entry.ranks is not None else list(range(world_size or 0))
    if table is None or not ranks or entry.sharding_type is not ShardingType.DATA_PARALLEL:
        return None
    rows, columns = table.num_embeddings, table.embedding_dim
    return tuple(
        Shard(rank=r, row_offset=0, num_rows=rows, col_offset=0, num_cols=columns) for r in ranks
    )


def _check(
    path: Path, schema: PlanSchema, plan: Plan, workload: Workload, topology: Topology
) -> None:
    made_for, world = schema.world_size, topology.world_size
    if made_for is not None and made_for != world:
        message = f"{path}: made for {made_for} ranks, not for {world}; plan again or use --gpus"
        raise InvalidInputError(message)
    planned = {p.table for p in plan.placements}
    expected = {t.name for t in workload.tables}
    lines = [f"{path}: table {n!r} is not in the workload" for n in sorted(planned - expected)]
    lines += [f"{path}: table {n!r} is not in the plan" for n in sorted(expected - planned)]
    if lines:
        rest = len(lines) - _MOST_LINES
        more = [f"{path}: ... and {rest} more"] if rest > 0 else []
        raise InvalidInputError(lines[:_MOST_LINES] + more)
    try:
        check_plan(plan, workload, world)
    except CostModelError as error:
        message = f"{path}: {error}"
        raise InvalidInputError(message) from error
