"""What every importer returns: a workload, perhaps a plan, and what had to be assumed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from costmodels.distribution.uniform import Uniform
from costmodels.sharding import (
    ComputeKernel,
    Plan,
    Shard,
    ShardingType,
    TablePlacement,
    row_blocks,
)
from costmodels.workload import Feature, Table, Workload
from planner.errors import refuse
from planner.io.plan.plan_file import plan_to_json
from planner.io.schemas import made
from planner.io.workload.workload_file import workload_text
from planner.problem import NO_CONSTRAINTS, Constraints

MAX_ROWS: Final = 2**48
MAX_COLUMNS: Final = 16_384
MAX_IMPORTED_TABLES: Final = 100_000
MAX_RANKS: Final = 65_536
DEFAULT_BATCH: Final = 4096
"""Samples per rank if a file names none; the same as for a CSV list of tables."""

Rows = Annotated[int, Field(ge=1, le=MAX_ROWS)]
Columns = Annotated[int, Field(ge=1, le=MAX_COLUMNS)]
TableCount = Annotated[int, Field(ge=1, le=MAX_IMPORTED_TABLES)]
BatchSize = Annotated[int, Field(ge=1, le=10**8)]
Size = Annotated[int, Field(ge=1, le=10**6)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A file of another tool, as a workload and perhaps a plan.

    Attributes:
        workload: tables, dense part and training.
        source: what was read; it becomes the first line of the workload file.
        constraints: limits that the file has.
        assumed: for keys of the workload file, what was assumed for them and why.
        unsaid: what the file says, but a workload cannot express.
        law_is_known: whether the index laws come from the file.
        plan: the placement of the tables, if the file has one.
        world_size: number of ranks of the plan.
        local_world_size: ranks per host of the plan.
    """

    workload: Workload
    source: str
    constraints: Constraints = NO_CONSTRAINTS
    assumed: dict[str, str] = field(default_factory=dict)
    unsaid: tuple[str, ...] = ()
    law_is_known: bool = True
    plan: Plan | None = None
    world_size: int | None = None
    local_world_size: int | None = None


def assume(assumed: dict[str, str], key: str, text: str) -> None:
    """Add an assumption about a key; several about one key are joined."""
    known = assumed.get(key)
    assumed[key] = text if known in (None, text) else f"{known}; {text}"


def imported_of(path: Path, what: str, values: Mapping[str, Any], **told: Any) -> Imported:
    """What is in a file, with a workload that has the file's name and the values.

    Args:
        path: the file.
        what: its kind in words.
        values: fields of the workload.
        told: other fields of :class:`Imported`.

    Raises:
        InvalidInputError: the values contradict each other.
    """
    workload = made(str(path), lambda: Workload(**{"name": path.stem, **values}))
    return Imported(workload=workload, source=f"the {what} {path.name}", **told)


def plain_table(
    name: str, rows: int, columns: int, features: Iterable[tuple[str, float]], **more: Any
) -> Table:
    """A table with pairs of a feature and its indices per sample; uniform indices unless given.

    Raises:
        InvalidValueError: no table can be so.
    """
    return Table(
        name=name,
        num_embeddings=rows,
        embedding_dim=columns,
        features=tuple(Feature(name=n, pooling_factor=float(p)) for n, p in features),
        **{"distribution": Uniform(num_embeddings=rows), **more},
    )


def placed(table: Table, kind: ShardingType, gpus: Sequence[int]) -> TablePlacement:
    """A placement with one shard on each GPU: a copy, or a block of rows."""
    rows, width = table.num_embeddings, table.embedding_dim
    is_copy = kind is ShardingType.DATA_PARALLEL
    blocks = [(0, rows)] * len(gpus) if is_copy else row_blocks(rows, len(gpus))
    return TablePlacement(
        table=table.name,
        sharding_type=kind,
        kernel=ComputeKernel.DENSE if is_copy else ComputeKernel.FUSED,
        shards=tuple(
            Shard(rank=gpu, row_offset=first, num_rows=count, col_offset=0, num_cols=width)
            for gpu, (first, count) in zip(gpus, blocks, strict=True)
        ),
    )


def imported_text(imported: Imported) -> str:
    """The text of the workload file, with comments for all assumptions at the top and at the keys.

    Raises:
        InvalidInputError: a file cannot hold some name.
    """
    header = [f"From {imported.source}."]
    header += [f"Assumed: {key}: {text}" for key, text in imported.assumed.items()]
    header += [f"Not in this file: {text}" for text in imported.unsaid]
    notes = {key: f"assumed: {text}" for key, text in imported.assumed.items()}
    return workload_text(
        imported.workload,
        imported.constraints,
        header=header,
        notes=notes,
        law_is_known=imported.law_is_known,
    )


def imported_plan_text(imported: Imported) -> str:
    """The plan as the text of ``plan.json``, for ``shardplan estimate``.

    Raises:
        InvalidInputError: the imported file has no plan.
    """
    if imported.plan is None:
        refuse(f"{imported.source} says nothing of where tables are; leave --plan out")
    local = imported.local_world_size or imported.world_size or 1
    values: dict[str, Any] = {
        "plan": plan_to_json(imported.plan, imported.workload, local),
        "workload": imported.workload.name,
        "world_size": imported.world_size,
        "local_world_size": local,
        "batch_size_per_rank": imported.workload.batch_size_per_rank,
    }
    return json.dumps(values, indent=1) + "\n"
