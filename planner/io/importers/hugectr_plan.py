"""Reads and writes HugeCTR's plan files.

A plan file has a list with an entry for each GPU, which is a list of groups
``{local_embedding_list, global_embedding_list, sharding_id, num_sharding,
table_placement_strategy: localized|dp}``. Tables are numbers, in the order of the workload.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import AliasChoices, Field

from costmodels.sharding import ComputeKernel, Plan, ShardingType, TablePlacement
from costmodels.workload import Table, Workload
from planner.errors import refuse, refuse_any
from planner.io.documents import Document, Keys, read_json
from planner.io.importers.base import MAX_RANKS, Imported, placed
from planner.io.schemas import Count, Loose, each, validate

_GPUS_PER_HOST: Final = 8


class _Group(Loose):
    local_embedding_list: list[Count]
    global_embedding_list: list[list[int]] | None = None
    table_placement_strategy: Literal["localized", "dp"]
    num_sharding: Annotated[
        int,
        Field(ge=1, le=MAX_RANKS, validation_alias=AliasChoices("num_sharding", "shards_count")),
    ] = 1
    sharding_id: Annotated[
        Count, Field(validation_alias=AliasChoices("sharding_id", "shard_id"))
    ] = 0


class _Groups(Loose):
    gpus: Annotated[list[list[_Group]], Field(min_length=1, max_length=MAX_RANKS)]


class _Piece(NamedTuple):
    """What one GPU holds of a table: part number ``part`` of ``parts``, or a copy."""

    part: int
    gpu: int
    parts: int
    is_copy: bool


def is_plan(value: object) -> bool:
    """Whether the content of a file is a plan rather than a configuration."""
    return isinstance(value, list)


def import_hugectr_plan(
    path: Path, workload: Workload, value: object = None, *, local_world_size: int | None = None
) -> Imported:
    """The plan of a file for the tables of a workload.

    Args:
        path: the file.
        workload: the tables, in the order in which HugeCTR numbers them.
        value: the content of the file, if it has been read already.
        local_world_size: GPUs per host; if not given, 8 if the file has a multiple of 8 GPUs, and
            otherwise all of them.

    Raises:
        InvalidInputError: names the key path of what is missing, unknown or contradictory.
    """
    content = read_json(path) if value is None else value
    world, placements = _placements(Document(path, {"gpus": content}, {}), workload)
    assumed = {}
    if local_world_size is None:
        local_world_size = world if world % _GPUS_PER_HOST else _GPUS_PER_HOST
        assumed["gpus_per_host"] = f"{local_world_size}; a plan does not say it"
    if world % local_world_size:
        refuse(f"{path}: {world} GPUs are no multiple of {local_world_size} per host")
    placements = [_on_one_host(p, world, local_world_size) for p in placements]
    by_key = any(p.sharding_type is ShardingType.ROW_WISE for p in placements)
    return Imported(
        workload=workload,
        source=f"the HugeCTR plan {path.name}",
        assumed=assumed,
        unsaid=("rows go to GPUs by key; the plan cuts them into blocks",) if by_key else (),
        plan=Plan(placements=tuple(placements)),
        world_size=world,
        local_world_size=local_world_size,
    )


def _on_one_host(placement: TablePlacement, world: int, local: int) -> TablePlacement:
    """A table whose rows lie on all GPUs of one host, in order, as TorchRec calls it."""
    ranks = list(placement.ranks)
    first = ranks[0] - ranks[0] % local
    is_host = ranks == list(range(first, first + local)) and local < world
    if placement.sharding_type is ShardingType.ROW_WISE and is_host:
        return replace(placement, sharding_type=ShardingType.TABLE_ROW_WISE)
    return placement


def _placements(document: Document, workload: Workload) -> tuple[int, list[TablePlacement]]:
    gpus = validate(_Groups, document).gpus
    pieces: list[list[_Piece]] = [[] for _ in workload.tables]
    for gpu, groups in enumerate(gpus):
        for number, group in enumerate(groups):
            keys: Keys = ("gpus", gpu, number)
            for i, table in enumerate(group.local_embedding_list):
                if table >= len(pieces):
                    where = (*keys, "local_embedding_list", i)
                    document.refuse(where, table, f"must be 0 to {len(pieces) - 1}")
            _check_group(document, group, keys, gpu, len(gpus))
            is_copy = group.table_placement_strategy == "dp"
            for table in group.local_embedding_list:
                pieces[table].append(_Piece(group.sharding_id, gpu, group.num_sharding, is_copy))
    return len(gpus), [
        _placement(f"{document.path}: table {table.name!r}", table, sorted(pieces[i]), len(gpus))
        for i, table in enumerate(workload.tables)
    ]


def _check_group(document: Document, group: _Group, keys: Keys, gpu: int, num_gpus: int) -> None:
    if group.global_embedding_list is not None:
        where = (*keys, "global_embedding_list")
        listed = each(group.global_embedding_list, num_gpus, document, where)[gpu]
        if listed != group.local_embedding_list:
            rule = f"must be this GPU's own list, {group.local_embedding_list}"
            document.refuse((*where, gpu), listed, rule)
    most = 1 if group.table_placement_strategy == "dp" else num_gpus
    if group.num_sharding > most:
        rule = f"must be at most {most}; a dp table is not cut"
        document.refuse((*keys, "num_sharding"), group.num_sharding, rule)
    if group.sharding_id >= group.num_sharding:
        rule = f"must be below {group.num_sharding}"
        document.refuse((*keys, "sharding_id"), group.sharding_id, rule)


def _placement(where: str, table: Table, pieces: Sequence[_Piece], num_gpus: int) -> TablePlacement:
    """The placement of a table from its pieces, in the order of their parts."""
    if not pieces:
        refuse(f"{where}: is on no GPU; the plan has to place every table")
    gpus = [p.gpu for p in pieces]
    if len({(p.is_copy, p.parts) for p in pieces}) > 1 or len(set(gpus)) < len(gpus):
        refuse(f"{where}: is placed twice, in ways that do not agree")
    if pieces[0].is_copy:
        if len(gpus) != num_gpus:
            refuse(f"{where}: dp needs a copy on each of {num_gpus} GPUs")
        return placed(table, ShardingType.DATA_PARALLEL, sorted(gpus))
    count = pieces[0].parts
    if [p.part for p in pieces] != list(range(count)):
        found = [p.part for p in pieces][:8]
        refuse(f"{where}: parts {found} are there, must be each of 0..{count - 1} once")
    return placed(table, ShardingType.TABLE_WISE if count == 1 else ShardingType.ROW_WISE, gpus)


# ------------------------------------------------------------------ writing


def hugectr_plan_text(plan: Plan, workload: Workload, world_size: int) -> str:
    """The plan as a list of groups of tables for each GPU.

    HugeCTR's files have no column pieces, no host memory and no caches; rows go to GPUs by key.

    Raises:
        InvalidInputError: names each table that such a file cannot place.
    """
    numbers = {t.name: i for i, t in enumerate(workload.tables)}
    groups: dict[tuple[bool, tuple[int, ...]], list[int]] = {}
    whole: dict[int, list[int]] = {}
    problems = []
    for placement in plan.placements:
        number, is_copy = numbers[placement.table], placement.kernel is ComputeKernel.DENSE
        held = tuple(s.rank for s in placement.shards if s.num_rows)
        cut = any(s.num_cols != workload.tables[number].embedding_dim for s in placement.shards)
        if cut or placement.kernel not in (ComputeKernel.FUSED, ComputeKernel.DENSE):
            what = "column pieces" if cut else f"kernel {placement.kernel}"
            problems.append(
                f"table {placement.table!r}: HugeCTR's plan file cannot say {what}; plan with "
                "sharding types table_wise, row_wise, table_row_wise, data_parallel and kernels "
                "fused, dense"
            )
        elif is_copy or len(held) > 1:
            groups.setdefault((is_copy, held), []).append(number)
        else:
            whole.setdefault(held[0], []).append(number)
    refuse_any(problems)
    listed: list[list[dict[str, Any]]] = [[] for _ in range(world_size)]
    _append(listed, {g: sorted(t) for g, t in whole.items()}, {}, 1, "localized")
    for (is_copy, held), tables in groups.items():
        parts = {} if is_copy else {gpu: part for part, gpu in enumerate(held)}
        local = {gpu: sorted(tables) for gpu in held}
        _append(listed, local, parts, len(parts) or 1, "dp" if is_copy else "localized")
    return json.dumps(listed, indent=1) + "\n"


def _append(
    listed: list[list[dict[str, Any]]],
    local: Mapping[int, list[int]],
    parts: Mapping[int, int],
    num_parts: int,
    strategy: str,
) -> None:
    """Add one group to every GPU that has a part in it."""
    everywhere = [local.get(gpu, []) for gpu in range(len(listed))]
    for gpu in sorted(local):
        listed[gpu].append(
            {
                "local_embedding_list": local[gpu],
                "global_embedding_list": everywhere,
                "sharding_id": parts.get(gpu, 0),
                "num_sharding": num_parts,
                "table_placement_strategy": strategy,
            }
        )
