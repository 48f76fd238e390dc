"""What every importer returns: a workload, perhaps a plan, and what had to be assumed.

Also imports the tables of a TorchRec plan, which has the form of our own plans: shards give the
shapes, everything else is assumed.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
from pydantic import Field

from costmodels import sharding
from costmodels.distribution.uniform import Uniform
from costmodels.workload import DenseArch, Feature, Table, Workload
from planner.errors import refuse, refuse_any
from planner.io.documents import Document, read_words
from planner.io.plan import plan_file
from planner.io.schemas import Count, PoolingFactor, collect, made
from planner.io.workload.workload_file import workload_text
from planner.problem import NO_CONSTRAINTS, Constraints

MAX_IMPORTED_TABLES: Final = 100_000
MAX_RANKS: Final = 65_536
DEFAULT_BATCH: Final = 4096
"""Samples per rank if a file names none; the same as for a CSV list of tables."""

Rows = Annotated[int, Field(ge=1, le=2**48)]
Columns = Annotated[int, Field(ge=1, le=16_384)]
Size = Annotated[int, Field(ge=1, le=10**6)]
KINDS: Final[dict[str, Any]] = {
    "rows": Rows,
    "columns": Columns,
    "tables": Annotated[int, Field(ge=1, le=MAX_IMPORTED_TABLES)],
    "batch": Annotated[int, Field(ge=1, le=10**8)],
    "size": Size,
    "factor": PoolingFactor,
    "count": Count,
}
"""Kinds of values that several importers read."""


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
    plan: sharding.Plan | None = None
    world_size: int | None = None
    local_world_size: int | None = None


def assume(assumed: dict[str, str], key: str, text: str) -> None:
    """Add an assumption about a key; several about one key are joined."""
    known = assumed.get(key)
    assumed[key] = text if known in (None, text) else f"{known}; {text}"


@dataclass
class Reading:
    """A file of another tool while it is read; ``assumed`` and ``unsaid`` as in the result."""

    document: Document
    assumed: dict[str, str] = field(default_factory=dict)
    unsaid: list[str] = field(default_factory=list)

    def assume(self, key: str, text: str) -> None:
        """Add an assumption about a key; several about one key are joined."""
        assume(self.assumed, key, text)

    def imported(self, source: str, values: Mapping[str, Any], **told: Any) -> Imported:
        """What was read, with the workload that has the values.

        Args:
            source: what was read, in words.
            values: fields of the workload; ``tables`` is any iterable, and ``dense`` has the fields
                of the dense part.
            told: other fields of :class:`Imported`.

        Raises:
            InvalidInputError: the values contradict each other.
        """

        def build() -> Workload:
            dense = DenseArch(**values.get("dense", {}))
            return Workload(**{**values, "tables": tuple(values["tables"]), "dense": dense})

        both: dict[str, Any] = {"assumed": self.assumed, "unsaid": tuple(self.unsaid)}
        workload = made(str(self.document.path), build)
        return Imported(workload=workload, source=source, **both, **told)


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


def placed(
    table: Table, kind: sharding.ShardingType, gpus: Sequence[int]
) -> sharding.TablePlacement:
    """A placement with one shard on each GPU: a copy, or a block of rows."""
    rows, is_copy = table.num_embeddings, kind is sharding.ShardingType.DATA_PARALLEL
    first, count = (0, rows) if is_copy else sharding.row_block_columns(rows, len(gpus))
    return sharding.TablePlacement(
        table=table.name,
        sharding_type=kind,
        kernel=sharding.ComputeKernel.DENSE if is_copy else sharding.ComputeKernel.FUSED,
        shards=sharding.Shards(np.array(gpus), first, count, 0, table.embedding_dim),
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
        "plan": plan_file.plan_to_json(imported.plan, imported.workload, local),
        "workload": imported.workload.name,
        "world_size": imported.world_size,
        "local_world_size": local,
        "batch_size_per_rank": imported.workload.batch_size_per_rank,
    }
    return json.dumps(values, indent=1) + "\n"


# ------------------------------------------------------------------ TorchRec plans


Shape = tuple[int, int]


def import_torchrec_plan(path: Path, shapes: Mapping[str, Shape] | None = None) -> Imported:
    """The workload that a TorchRec plan was made for, as far as the plan says it.

    Args:
        path: the plan, in TorchRec's form or as ``plan.json``.
        shapes: rows and columns of tables without shards in the plan, by name. TorchRec writes no
            shards for replicated tables.

    Raises:
        InvalidInputError: the file is not a plan, a table has neither shards nor a shape, shards do
            not cover their table, or there are shapes for tables that are not in the plan.
    """
    given = dict(shapes or {})
    schema = plan_file.read_plan_schema(path)
    problems: list[str] = []
    tables: list[Table | None] = []
    for (module, _), name, entry, _ in plan_file.entries_of(schema):
        build = partial(_table, name, module, entry, given.pop(name, None))
        tables.append(collect(problems, f"{path}: table {name!r}", build))
    problems += [f"--shape {name}: the plan has no such table" for name in given]
    if not tables and not problems:
        problems = [f"{path}: plan: holds no tables"]
    refuse_any(problems)
    assumed = dict(read_words("torchrec_plan")["assumed"])
    batch, read = schema.batch_size_per_rank, Reading(Document(path, None, {}), assumed)
    if batch is None:
        read.assume("training.batch_size_per_rank", f"{DEFAULT_BATCH}; a plan does not say it")
    values = {
        "name": schema.workload or path.stem,
        "tables": tables,
        "batch_size_per_rank": batch or DEFAULT_BATCH,
    }
    return read.imported(f"the TorchRec plan {path.name}", values, law_is_known=False)


def _table(name: str, module: str, entry: plan_file.ParameterSchema, given: Shape | None) -> Table:
    """One table; shards with holes are refused, because the shape read from them would be wrong."""
    shape, placement = given, None
    if entry.shards:
        is_copy = entry.sharding_type is sharding.ShardingType.DATA_PARALLEL
        placement = sharding.TablePlacement(
            table=name,
            sharding_type=entry.sharding_type,
            kernel=sharding.ComputeKernel.DENSE if is_copy else sharding.ComputeKernel.FUSED,
            shards=plan_file.shards_of(entry),
        )
        cells = placement.cells
        ends = cells.row_offset + cells.num_rows, cells.col_offset + cells.num_cols
        shape = int(ends[0].max()), int(ends[1].max())
        if given not in (None, shape):
            refuse(f"shape {given} was given, its shards cover {shape}")
    if shape is None:
        told = "has no shards, so that its shape is not known; give it with"
        refuse(f"{told} --shape {name}=ROWSxCOLUMNS")
    if placement is not None:
        sharding.check_tiling(placement, *shape)
    return plain_table(name, *shape, [(name, 1.0)], module=module)
