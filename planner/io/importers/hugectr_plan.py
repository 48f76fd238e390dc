"""Reads and writes HugeCTR's plan files.

A plan file has a list with an entry for each GPU, which is a list of groups
``{local_embedding_list, global_embedding_list, sharding_id, num_sharding,
table_placement_strategy: localized|dp}``. Tables are numbers, in the order of the workload. A JSON
object with ``shard_matrix`` (tables of each GPU) and ``shard_strategy`` (``mp`` or ``dp``, and
columns per table), as in HugeCTR's Python interface, is read too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import AliasChoices, Field

from costmodels.sharding import ComputeKernel, Plan, Shard, ShardingType, TablePlacement, row_blocks
from costmodels.workload import Table, Workload
from planner.errors import InvalidInputError
from planner.io.documents import Document, Keys, read_json
from planner.io.importers.base import MAX_RANKS, Imported
from planner.io.schemas import Count, Loose, each, refusal, validate

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


_Gpus = Field(min_length=1, max_length=MAX_RANKS)
_Named = int | str
_Cut = Annotated[tuple[_Named, Annotated[int, Field(ge=1, le=MAX_RANKS)]], Field(strict=False)]


class _Groups(Loose):
    gpus: Annotated[list[list[_Group]], _Gpus]


class _Matrix(Loose):
    shard_matrix: Annotated[list[list[_Named]], _Gpus]
    shard_strategy: list[
        Annotated[tuple[Literal["mp", "dp"], list[_Named | _Cut]], Field(strict=False)]
    ]


class _Piece(NamedTuple):
    """What one GPU holds of a table: part number ``part`` of ``parts``, or a copy."""

    part: int
    gpu: int
    parts: int
    is_copy: bool


def is_plan(value: object) -> bool:
    """Whether the content of a file is a plan rather than a configuration."""
    return isinstance(value, list) or (isinstance(value, dict) and "shard_matrix" in value)


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
    is_matrix = isinstance(content, dict)
    document = Document(path, content if is_matrix else {"gpus": content}, {})
    world, placements = (_from_matrix if is_matrix else _from_groups)(document, workload)
    assumed = {}
    if local_world_size is None:
        local_world_size = world if world % _GPUS_PER_HOST else _GPUS_PER_HOST
        assumed["gpus_per_host"] = f"{local_world_size}; a plan does not say it"
    if world % local_world_size:
        message = f"{path}: {world} GPUs are no multiple of {local_world_size} per host"
        raise InvalidInputError(message)
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


# ------------------------------------------------------------------ a list over GPUs


def _from_groups(document: Document, workload: Workload) -> tuple[int, list[TablePlacement]]:
    gpus = validate(_Groups, document).gpus
    pieces: list[list[_Piece]] = [[] for _ in workload.tables]
    for gpu, groups in enumerate(gpus):
        for number, group in enumerate(groups):
            keys: Keys = ("gpus", gpu, number)
            for i, table in enumerate(group.local_embedding_list):
                _check_number(document, table, (*keys, "local_embedding_list", i), len(pieces))
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
            raise refusal(document, (*where, gpu), listed, rule)
    most = 1 if group.table_placement_strategy == "dp" else num_gpus
    if group.num_sharding > most:
        rule = f"must be at most {most}; a dp table is not cut"
        raise refusal(document, (*keys, "num_sharding"), group.num_sharding, rule)
    if group.sharding_id >= group.num_sharding:
        rule = f"must be below {group.num_sharding}"
        raise refusal(document, (*keys, "sharding_id"), group.sharding_id, rule)


def _placement(where: str, table: Table, pieces: Sequence[_Piece], num_gpus: int) -> TablePlacement:
    """The placement of a table from its pieces, in the order of their parts."""
    if not pieces:
        msg = f"{where}: is on no GPU; the plan has to place every table"
        raise InvalidInputError(msg)
    gpus = [p.gpu for p in pieces]
    if len({(p.is_copy, p.parts) for p in pieces}) > 1 or len(set(gpus)) < len(gpus):
        msg = f"{where}: is placed twice, in ways that do not agree"
        raise InvalidInputError(msg)
    if pieces[0].is_copy:
        return _copied(where, table, gpus, num_gpus)
    count = pieces[0].parts
    if [p.part for p in pieces] != list(range(count)):
        found = [p.part for p in pieces][:8]
        message = f"{where}: parts {found} are there, must be each of 0..{count - 1} once"
        raise InvalidInputError(message)
    return _placed(table, ShardingType.TABLE_WISE if count == 1 else ShardingType.ROW_WISE, gpus)


def _copied(where: str, table: Table, gpus: Sequence[int], num_gpus: int) -> TablePlacement:
    if len(gpus) != num_gpus:
        msg = f"{where}: dp needs a copy on each of {num_gpus} GPUs"
        raise InvalidInputError(msg)
    return _placed(table, ShardingType.DATA_PARALLEL, sorted(gpus))


def _placed(table: Table, kind: ShardingType, gpus: Sequence[int]) -> TablePlacement:
    """A placement with one shard on each GPU: a copy, a block of rows, or a piece of columns."""
    rows, width = table.num_embeddings, table.embedding_dim
    kernel = ComputeKernel.FUSED
    if kind is ShardingType.DATA_PARALLEL:
        kernel = ComputeKernel.DENSE
        cells = [(0, rows, 0, width)] * len(gpus)
    elif kind is ShardingType.COLUMN_WISE:
        piece = width // len(gpus)
        cells = [(0, rows, i * piece, piece) for i in range(len(gpus))]
    else:
        cells = [(start, count, 0, width) for start, count in row_blocks(rows, len(gpus))]
    return TablePlacement(
        table=table.name,
        sharding_type=kind,
        kernel=kernel,
        shards=tuple(
            Shard(rank=g, row_offset=r, num_rows=n, col_offset=c, num_cols=m)
            for g, (r, n, c, m) in zip(gpus, cells, strict=True)
        ),
    )


# ------------------------------------------------------------------ shard_matrix


def _from_matrix(document: Document, workload: Workload) -> tuple[int, list[TablePlacement]]:
    matrix = validate(_Matrix, document)
    numbers = {t.name: i for i, t in enumerate(workload.tables)}
    homes: dict[int, list[int]] = {}
    for gpu, entries in enumerate(matrix.shard_matrix):
        for i, entry in enumerate(entries):
            keys: Keys = ("shard_matrix", gpu, i)
            ranks = homes.setdefault(_number(document, entry, keys, numbers), [])
            if gpu in ranks:
                raise refusal(document, keys, entry, "is there twice; keep one")
            ranks.append(gpu)
    strategies: dict[int, tuple[str, int]] = {}
    for i, (kind, tables) in enumerate(matrix.shard_strategy):
        for j, given in enumerate(tables):
            keys = ("shard_strategy", i, 1, j)
            entry, columns = given if isinstance(given, tuple) else (given, 1)
            table = _number(document, entry, keys, numbers)
            if table in strategies:
                raise refusal(document, keys, entry, "is there twice; keep one")
            strategies[table] = kind, columns
    placements = []
    num_gpus = len(matrix.shard_matrix)
    for number, one in enumerate(workload.tables):
        where = f"{document.path}: table {one.name!r}"
        if number not in homes or number not in strategies:
            msg = f"{where}: must be in shard_matrix and in shard_strategy"
            raise InvalidInputError(msg)
        placements.append(_by_strategy(where, one, homes[number], *strategies[number], num_gpus))
    return num_gpus, placements


def _by_strategy(
    where: str, table: Table, gpus: list[int], kind: str, columns: int, num_gpus: int
) -> TablePlacement:
    if kind == "dp":
        return _copied(where, table, gpus, num_gpus)
    if columns > 1:
        if columns != len(gpus) or table.embedding_dim % columns:
            message = (
                f"{where}: {columns} pieces of {table.embedding_dim} columns on {len(gpus)} GPUs; "
                "only equal column pieces, one per GPU, can be read"
            )
            raise InvalidInputError(message)
        return _placed(table, ShardingType.COLUMN_WISE, gpus)
    one = len(gpus) == 1
    return _placed(table, ShardingType.TABLE_WISE if one else ShardingType.ROW_WISE, gpus)


def _number(document: Document, entry: _Named, keys: Keys, numbers: Mapping[str, int]) -> int:
    """A table's number, from its number or its name."""
    if isinstance(entry, str):
        if entry not in numbers:
            raise refusal(document, keys, entry, "the workload has no such table")
        return numbers[entry]
    _check_number(document, entry, keys, len(numbers))
    return entry


def _check_number(document: Document, number: int, keys: Keys, num_tables: int) -> None:
    if not 0 <= number < num_tables:
        raise refusal(document, keys, number, f"must be 0 to {num_tables - 1}")


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
    if problems:
        raise InvalidInputError(problems)
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
