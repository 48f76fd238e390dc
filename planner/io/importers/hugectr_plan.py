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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from costmodels.sharding import ComputeKernel, Plan, Shard, ShardingType, TablePlacement, row_blocks
from costmodels.workload import Table, Workload
from planner.errors import InvalidInputError
from planner.io.documents import Document, Keys, read_json
from planner.io.importers.base import Imported, Reader

_MOST_RANKS: Final = 65_536
_GPUS_PER_HOST: Final = 8
_STRATEGIES: Final = ("localized", "dp")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """What one GPU holds of a table: part number ``part`` of ``parts``, or a copy."""

    gpu: int
    part: int
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
    reader = Reader(Document(path, read_json(path) if value is None else value, {}))
    content = reader.document.value
    if isinstance(content, dict):
        world, placements = _from_matrix(reader, content, workload)
    else:
        world, placements = _from_groups(reader, content, workload)
    assumed = {}
    if local_world_size is None:
        local_world_size = world if world % _GPUS_PER_HOST else _GPUS_PER_HOST
        assumed["gpus_per_host"] = f"{local_world_size}; a plan does not say it"
    if world % local_world_size:
        message = f"{path}: {world} GPUs are no multiple of {local_world_size} per host"
        raise InvalidInputError(message)
    placements = tuple(_on_one_host(p, world, local_world_size) for p in placements)
    by_key = any(p.sharding_type is ShardingType.ROW_WISE for p in placements)
    return Imported(
        workload=workload,
        source=f"the HugeCTR plan {path.name}",
        assumed=assumed,
        unsaid=("rows go to GPUs by key; the plan cuts them into blocks",) if by_key else (),
        plan=Plan(placements=placements),
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


def _from_groups(
    reader: Reader, content: object, workload: Workload
) -> tuple[int, tuple[TablePlacement, ...]]:
    gpus = _gpus(reader, content, ())
    pieces: dict[int, list[_Piece]] = {}
    for gpu, entries in enumerate(gpus):
        groups = reader.sequence(entries, (gpu,))
        for number, group in enumerate(groups):
            keys: Keys = (gpu, number)
            for table, piece in _group(reader, group, keys, gpu, len(gpus), workload):
                pieces.setdefault(table, []).append(piece)
    return len(gpus), tuple(
        _placement(reader, table, pieces.get(number, []), len(gpus))
        for number, table in enumerate(workload.tables)
    )


def _gpus(reader: Reader, content: object, keys: Keys) -> list[Any]:
    gpus = reader.sequence(content, keys)
    if not 1 <= len(gpus) <= _MOST_RANKS:
        raise reader.fail(keys, gpus, f"must have an entry per GPU, 1 to {_MOST_RANKS:,}")
    return gpus


def _group(
    reader: Reader, value: object, keys: Keys, gpu: int, num_gpus: int, workload: Workload
) -> list[tuple[int, _Piece]]:
    group = reader.mapping(value, keys)
    most = len(workload.tables) - 1
    where = (*keys, "local_embedding_list")
    local = reader.sequence(reader.required(group, "local_embedding_list", keys), where)
    tables = [reader.whole(t, (*where, i), 0, most) for i, t in enumerate(local)]
    strategy = reader.required(group, "table_placement_strategy", keys)
    if strategy not in _STRATEGIES:
        rule = f"must be one of {', '.join(_STRATEGIES)}"
        raise reader.fail((*keys, "table_placement_strategy"), strategy, rule)
    everywhere = group.get("global_embedding_list")
    if everywhere is not None:
        where = (*keys, "global_embedding_list")
        listed = reader.sequence(everywhere, where, length=num_gpus)
        if listed[gpu] != local:
            raise reader.fail((*where, gpu), listed[gpu], f"must be this GPU's own list, {local}")
    parts_key = "shards_count" if "shards_count" in group else "num_sharding"
    part_key = "shard_id" if "shard_id" in group else "sharding_id"
    parts = reader.whole(group.get(parts_key, 1), (*keys, parts_key), high=num_gpus)
    part = reader.whole(group.get(part_key, 0), (*keys, part_key), 0, parts - 1)
    is_copy = strategy == "dp"
    if is_copy and parts > 1:
        raise reader.fail((*keys, parts_key), parts, "a dp table is not cut; must be 1")
    return [(t, _Piece(gpu=gpu, part=part, parts=parts, is_copy=is_copy)) for t in tables]


def _placement(reader: Reader, table: Table, pieces: list[_Piece], num_gpus: int) -> TablePlacement:
    where = f"{reader.document.path}: table {table.name!r}"
    if not pieces:
        msg = f"{where}: is on no GPU; the plan has to place every table"
        raise InvalidInputError(msg)
    copies = {p.is_copy for p in pieces}
    parts = {p.parts for p in pieces}
    gpus = sorted(p.gpu for p in pieces)
    if len(copies) > 1 or len(parts) > 1 or len(set(gpus)) < len(gpus):
        msg = f"{where}: is placed twice, in ways that do not agree"
        raise InvalidInputError(msg)
    if copies == {True}:
        if gpus != list(range(num_gpus)):
            msg = f"{where}: dp needs a copy on each of {num_gpus} GPUs"
            raise InvalidInputError(msg)
        return _placed(table, ShardingType.DATA_PARALLEL, gpus, 1)
    count = parts.pop()
    ordered = sorted(pieces, key=lambda p: p.part)
    if [p.part for p in ordered] != list(range(count)):
        found = [p.part for p in ordered][:8]
        message = f"{where}: parts {found} are there, must be each of 0..{count - 1} once"
        raise InvalidInputError(message)
    kind = ShardingType.TABLE_WISE if count == 1 else ShardingType.ROW_WISE
    return _placed(table, kind, [p.gpu for p in ordered], 1)


def _placed(
    table: Table, kind: ShardingType, gpus: Sequence[int], num_columns: int
) -> TablePlacement:
    """A placement with one shard on each GPU: a copy, a block of rows, or a piece of columns."""
    rows, width = table.num_embeddings, table.embedding_dim
    kernel = ComputeKernel.FUSED
    if kind is ShardingType.DATA_PARALLEL:
        kernel = ComputeKernel.DENSE
        cells = [(0, rows, 0, width)] * len(gpus)
    elif num_columns > 1:
        piece = width // num_columns
        cells = [(0, rows, i * piece, piece) for i in range(num_columns)]
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


def _from_matrix(
    reader: Reader, content: dict[str, Any], workload: Workload
) -> tuple[int, tuple[TablePlacement, ...]]:
    gpus = _gpus(reader, content["shard_matrix"], ("shard_matrix",))
    numbers = {t.name: i for i, t in enumerate(workload.tables)}
    homes: dict[int, list[int]] = {}
    for gpu, entries in enumerate(gpus):
        for i, entry in enumerate(reader.sequence(entries, ("shard_matrix", gpu))):
            known = _number(reader, entry, ("shard_matrix", gpu, i), numbers)
            if gpu in homes.setdefault(known, []):
                raise reader.fail(("shard_matrix", gpu, i), entry, "is there twice; keep one")
            homes[known].append(gpu)
    strategies = _strategies(reader, content, numbers)
    placements = []
    for number, table in enumerate(workload.tables):
        where = f"{reader.document.path}: table {table.name!r}"
        if number not in homes or number not in strategies:
            msg = f"{where}: must be in shard_matrix and in shard_strategy"
            raise InvalidInputError(msg)
        placements.append(_by_strategy(where, table, homes[number], strategies[number], len(gpus)))
    return len(gpus), tuple(placements)


def _by_strategy(
    where: str, table: Table, gpus: list[int], strategy: tuple[str, int], num_gpus: int
) -> TablePlacement:
    kind, columns = strategy
    if kind == "dp":
        if len(gpus) != num_gpus:
            msg = f"{where}: dp needs a copy on each of {num_gpus} GPUs"
            raise InvalidInputError(msg)
        return _placed(table, ShardingType.DATA_PARALLEL, gpus, 1)
    if columns > 1:
        if columns != len(gpus) or table.embedding_dim % columns:
            message = (
                f"{where}: {columns} pieces of {table.embedding_dim} columns on {len(gpus)} GPUs; "
                "only equal column pieces, one per GPU, can be read"
            )
            raise InvalidInputError(message)
        return _placed(table, ShardingType.COLUMN_WISE, gpus, columns)
    one = len(gpus) == 1
    return _placed(table, ShardingType.TABLE_WISE if one else ShardingType.ROW_WISE, gpus, 1)


def _strategies(
    reader: Reader, content: dict[str, Any], numbers: Mapping[str, int]
) -> dict[int, tuple[str, int]]:
    """``mp`` or ``dp`` of each table, and its column pieces."""
    where: Keys = ("shard_strategy",)
    found: dict[int, tuple[str, int]] = {}
    for i, pair in enumerate(
        reader.sequence(reader.required(content, "shard_strategy", ()), where)
    ):
        kind, tables = reader.sequence(pair, (*where, i), length=2)
        if kind not in ("mp", "dp"):
            raise reader.fail((*where, i, 0), kind, "must be mp or dp")
        for j, entry in enumerate(reader.sequence(tables, (*where, i, 1))):
            keys = (*where, i, 1, j)
            columns = 1
            if isinstance(entry, list):
                entry, columns = reader.sequence(entry, keys, length=2)
                columns = reader.whole(columns, (*keys, 1), high=_MOST_RANKS)
            table = _number(reader, entry, keys, numbers)
            if table in found:
                raise reader.fail(keys, entry, "is there twice; keep one")
            found[table] = (str(kind), columns)
    return found


def _number(reader: Reader, entry: object, keys: Keys, numbers: Mapping[str, int]) -> int:
    """A table's number, from its number or its name."""
    if isinstance(entry, str):
        if entry not in numbers:
            raise reader.fail(keys, entry, "the workload has no such table")
        return numbers[entry]
    return reader.whole(entry, keys, 0, len(numbers) - 1)


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
