"""Imports HugeCTR's JSON configuration: tables, dense part, and the plan that follows from it.

A localized slot is whole on GPU ``slot % gpus``; a distributed embedding spreads its rows over all
GPUs by key (HugeCTR, "Embedding" in its layer documentation). Batches are global.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from costmodels.distribution.uniform import Uniform
from costmodels.sharding import ComputeKernel, Plan, ShardingOption, ShardingType, place
from costmodels.workload import DataType, Feature, Optimizer, Pipeline, Pooling, Table
from planner.errors import InvalidInputError
from planner.io.documents import Document, read_json
from planner.io.importers.base import (
    MAX_COLUMNS,
    MAX_IMPORTED_TABLES,
    Imported,
    Reader,
    assume,
    make_workload,
)
from planner.io.importers.hugectr_dense import dense_of, names_of
from planner.io.importers.hugectr_optimizer import (
    NamedOptimizer,
    optimizer_of_tables,
    read_optimizer,
)
from planner.io.importers.hugectr_solver import Solver, read_solver
from planner.io.problems import collect
from planner.io.yaml_reader import Keys

_LOAD_FACTOR: Final = 0.75
_ASSUMED: Final = {
    "tables": "uniform indices; the file does not say how they fall on rows",
}
_POOLING: Final = {0: Pooling.SUM, "sum": Pooling.SUM, 1: Pooling.MEAN, "mean": Pooling.MEAN}


def import_hugectr(path: Path, value: object = None) -> Imported:
    """The model of a configuration, and where HugeCTR puts its tables.

    Args:
        path: the file.
        value: its content, if it has been read already.

    Raises:
        InvalidInputError: names the key path of what is missing, out of range or unknown.
    """
    reader = Reader(Document(path, read_json(path) if value is None else value, {}))
    config = reader.mapping(reader.document.value, ())
    assumed = dict(_ASSUMED)
    solver = read_solver(reader, config, assumed)
    layers = [
        reader.mapping(layer, ("layers", i))
        for i, layer in enumerate(
            reader.sequence(reader.required(config, "layers", ()), ("layers",))
        )
    ]
    data = next((i for i, layer in enumerate(layers) if layer.get("type") == "Data"), None)
    if data is None:
        raise reader.fail(("layers",), [x.get("type") for x in layers], "has no layer of type Data")
    tables, plan, unsaid = _embeddings(reader, layers, data, solver, assumed)
    dense, more = dense_of(reader, layers, data, solver.precision)
    wire = DataType.FP16 if solver.precision is DataType.FP16 else DataType.FP32
    workload = make_workload(
        str(path),
        name=path.stem,
        tables=tables,
        local_batch_size=math.ceil(solver.global_batch_size / solver.world_size),
        dense=dense,
        optimizer=_optimizer(reader, config, layers, solver, assumed),
        dense_optimizer=solver.optimizer.of_dense,
        output_dtype=wire,
        gradient_dtype=wire,
        index_bytes=solver.index_bytes,
        pipeline=Pipeline.HUGECTR if solver.has_overlap else Pipeline.NONE,
        cuda_graph=solver.has_graph,
        reserved_bytes=_hash_bytes(layers, tables, solver, assumed),
    )
    return Imported(
        workload=workload,
        source=f"the HugeCTR configuration {path.name}",
        assumed=assumed,
        unsaid=(*unsaid, *more),
        law_is_known=False,
        plan=plan,
        world_size=solver.world_size if plan else None,
        local_world_size=solver.local_world_size if plan else None,
    )


def _optimizer(
    reader: Reader,
    config: dict[str, Any],
    layers: list[dict[str, Any]],
    solver: Solver,
    assumed: dict[str, str],
) -> Optimizer:
    """The optimizer of the tables: that of the embedding layers, or else that of all layers."""
    found = {
        _name(layer): read_optimizer(reader, layer, ("layers", i), solver.optimizer)
        for i, layer in enumerate(layers)
        if _is_embedding(layer)
    }
    is_named = "optimizer" in config or all(
        "optimizer" in layer for layer in layers if _is_embedding(layer)
    )
    return optimizer_of_tables(found, assumed, is_named=is_named)


def _hash_bytes(
    layers: list[dict[str, Any]], tables: tuple[Table, ...], solver: Solver, assumed: dict[str, str]
) -> float:
    """Bytes per GPU of the hash tables that lead from keys to rows.

    Each row has a key and the number of the row in 8 bytes, in a table that is filled to 75 %
    (HugeCTR ``nv_hashtable.cuh``, LOAD_FACTOR); localized embeddings keep the slot in 8 more.
    """
    kinds = {_name(x): str(x.get("type")) for x in layers if _is_embedding(x)}
    entry_bytes = (solver.index_bytes + 8) / _LOAD_FACTOR
    total = 0.0
    for table in tables:
        if kinds.get(table.module, "").endswith("Hash"):
            slot_bytes = 8 if kinds[table.module].startswith("Localized") else 0
            total += table.num_embeddings / solver.world_size * (entry_bytes + slot_bytes)
    if total:
        assumed["memory"] = "HugeCTR's hash tables of keys alone, spread evenly; no framework"
    return total


# ------------------------------------------------------------------ embeddings


def _is_embedding(layer: dict[str, Any]) -> bool:
    return "SparseEmbedding" in str(layer.get("type"))


def _name(layer: dict[str, Any]) -> str:
    return str(layer.get("name") or layer.get("top"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Embedding:
    """One embedding layer and the sparse input that it reads."""

    layer: dict[str, Any]
    keys: Keys
    hparam: dict[str, Any]
    data: dict[str, Any]
    sparse: dict[str, Any]
    sparse_keys: Keys
    num_slots: int
    optimizer: NamedOptimizer

    @property
    def name(self) -> str:
        return _name(self.layer)

    @property
    def kind(self) -> str:
        kind = str(self.layer["type"])
        if kind == "SparseEmbeddingHash":
            kind = str(self.sparse.get("type"))
        return "".join(k for k in ("Localized", "Distributed", "Hybrid") if kind.startswith(k))


def _embeddings(
    reader: Reader,
    layers: list[dict[str, Any]],
    data: int,
    solver: Solver,
    assumed: dict[str, str],
) -> tuple[tuple[Table, ...], Plan | None, list[str]]:
    tables: list[Table] = []
    options: list[tuple[ShardingOption, tuple[int, ...]]] = []
    unsaid: list[str] = []
    for number, layer in enumerate(layers):
        if not _is_embedding(layer):
            continue
        embedding = _embedding(reader, layers, data, number, solver)
        made = _tables(reader, embedding, solver, assumed)
        if len(tables) + len(made) > MAX_IMPORTED_TABLES:
            raise reader.fail(embedding.keys, len(made), f"more than {MAX_IMPORTED_TABLES:,} slots")
        tables += made
        if embedding.kind in ("Localized", "Distributed"):
            options += _options(made, embedding.kind, solver.world_size)
        else:
            unsaid.append(f"where {embedding.name} of type {layer['type']} lies, so no plan")
    if not tables:
        kinds = [layer.get("type") for layer in layers]
        raise reader.fail(("layers",), kinds, "has no layer of a type ...SparseEmbedding...")
    if len(options) < len(tables):
        return tuple(tables), None, unsaid
    if any(option.sharding_type is ShardingType.ROW_WISE for option, _ in options):
        unsaid.append("rows go to GPUs by key % gpus; the plan cuts them into blocks instead")
    rows = {t.name: t.num_embeddings for t in tables}
    world, local = solver.world_size, solver.local_world_size
    placements = tuple(
        place(option, rows[option.table], where, world_size=world, local_world_size=local)
        for option, where in options
    )
    return tuple(tables), Plan(placements=placements), unsaid


def _embedding(
    reader: Reader, layers: list[dict[str, Any]], data: int, number: int, solver: Solver
) -> _Embedding:
    layer, keys = layers[number], ("layers", number)
    key = "sparse_embedding_hparam"
    hparam = reader.mapping(reader.required(layer, key, keys), (*keys, key))
    bottom = reader.text(reader.required(layer, "bottom", keys), (*keys, "bottom"))
    where: Keys = ("layers", data, "sparse")
    inputs = reader.sequence(reader.required(layers[data], "sparse", where[:-1]), where)
    for index, entry in enumerate(inputs):
        sparse = reader.mapping(entry, (*where, index))
        if bottom in names_of(sparse.get("top")):
            place_of = (*where, index)
            count = reader.required(sparse, "slot_num", place_of)
            return _Embedding(
                layer=layer,
                keys=keys,
                hparam=hparam,
                data=layers[data],
                sparse=sparse,
                sparse_keys=place_of,
                num_slots=reader.whole(count, (*place_of, "slot_num"), high=MAX_IMPORTED_TABLES),
                optimizer=read_optimizer(reader, layer, keys, solver.optimizer),
            )
    raise reader.fail((*keys, "bottom"), bottom, "is not the top of a sparse input of layer Data")


def _tables(
    reader: Reader, embedding: _Embedding, solver: Solver, assumed: dict[str, str]
) -> list[Table]:
    keys = (*embedding.keys, "sparse_embedding_hparam")
    columns = reader.whole(
        reader.required(embedding.hparam, "embedding_vec_size", keys),
        (*keys, "embedding_vec_size"),
        high=MAX_COLUMNS,
    )
    combiner = embedding.hparam.get("combiner", 0)
    if isinstance(combiner, bool) or combiner not in (0, 1, "sum", "mean"):
        raise reader.fail((*keys, "combiner"), combiner, "must be 0, 1, sum or mean")
    factors = _factors(reader, embedding, assumed)
    names = [f"{embedding.name}_slot{i}" for i in range(embedding.num_slots)]
    features = [Feature(name=n, pooling_factor=p) for n, p in zip(names, factors, strict=True)]
    sizes = _slot_sizes(reader, embedding)
    if sizes is None:
        total = _hash_rows(reader, embedding, keys, columns, solver.world_size)
        assume(
            assumed, "tables", f"as many rows of {embedding.name} as its hash table has room for"
        )
        if embedding.kind == "Localized":
            share = max(total // embedding.num_slots, 1)
            sizes = [share] * embedding.num_slots
            assume(assumed, "tables", f"equal slots of {embedding.name}, {share:,} rows each")
        else:
            sizes, names = [total], [embedding.name]
    owned = [tuple(features)] if len(sizes) < len(features) else [(f,) for f in features]
    problems: list[str] = []
    tables: list[Table] = []
    for name, rows, mine in zip(names, sizes, owned, strict=True):
        build = partial(
            Table,
            name=name,
            num_embeddings=rows,
            embedding_dim=columns,
            features=mine,
            distribution=Uniform(num_embeddings=rows),
            pooling=_POOLING[combiner],
            module=embedding.name,
        )
        table = collect(problems, reader.document.where(embedding.keys), build)
        tables += [table] if table is not None else []
    if problems:
        raise InvalidInputError(problems)
    return tables


def _slot_sizes(reader: Reader, embedding: _Embedding) -> list[int] | None:
    """Rows of each slot, from the embedding or from the data layer; None if neither says."""
    data_keys = embedding.sparse_keys[:2]
    for holder, keys in (
        (embedding.hparam, (*embedding.keys, "sparse_embedding_hparam")),
        (embedding.data, data_keys),
    ):
        given = holder.get("slot_size_array")
        if given:
            where = (*keys, "slot_size_array")
            listed = reader.sequence(given, where, length=embedding.num_slots)
            return [reader.whole(n, (*where, i)) for i, n in enumerate(listed)]
    return None


def _hash_rows(
    reader: Reader, embedding: _Embedding, keys: Keys, columns: int, world_size: int
) -> int:
    """Rows of a hash table over all GPUs: its vocabulary, or the rows that its workspaces can hold.

    A workspace of W bytes per GPU has room for W / (4 columns (1 + states)) rows in fp32, where
    ``states`` are the numbers that the optimizer keeps for each weight (HugeCTR
    ``initialize_max_vocabulary_size_per_gpu``).
    """
    hparam = embedding.hparam
    for key, num_gpus in (
        ("max_vocabulary_size_global", 1),
        ("max_vocabulary_size_per_gpu", world_size),
    ):
        if hparam.get(key):
            return reader.whole(hparam[key], (*keys, key), high=2**40) * num_gpus
    key = "workspace_size_per_gpu_in_mb"
    if key not in hparam:
        message = (
            f"{reader.document.where(keys)}: needs slot_size_array, max_vocabulary_size_per_gpu, "
            f"max_vocabulary_size_global or {key}"
        )
        raise InvalidInputError(message)
    megabytes = reader.whole(hparam[key], (*keys, key), high=2**24)
    row_bytes = 4 * columns * (1 + embedding.optimizer.states)
    return max(megabytes * 2**20 // row_bytes, 1) * world_size


def _factors(reader: Reader, embedding: _Embedding, assumed: dict[str, str]) -> list[float]:
    """Indices per sample and slot: the largest number that the input layer allows."""
    sparse, keys, slots = embedding.sparse, embedding.sparse_keys, embedding.num_slots
    for key in ("nnz_per_slot", "max_nnz"):
        given = sparse.get(key)
        if given is None:
            continue
        if given != 1:
            assume(assumed, "tables", f"{key} indices per sample, the most there may be")
        if isinstance(given, list):
            listed = reader.sequence(given, (*keys, key), length=slots)
            return [reader.number(n, (*keys, key, i)) for i, n in enumerate(listed)]
        return [reader.number(given, (*keys, key))] * slots
    key = "max_feature_num_per_sample"
    total = reader.number(reader.required(sparse, key, keys), (*keys, key))
    assume(assumed, "tables", f"{key} / slot_num indices per sample and slot")
    return [total / slots] * slots


def _options(
    tables: list[Table], kind: str, world_size: int
) -> list[tuple[ShardingOption, tuple[int, ...]]]:
    localized = kind == "Localized"
    return [
        (
            ShardingOption(
                table=table.name,
                sharding_type=ShardingType.TABLE_WISE if localized else ShardingType.ROW_WISE,
                kernel=ComputeKernel.FUSED,
                column_widths=(table.embedding_dim,),
            ),
            (slot % world_size,) if localized else (),
        )
        for slot, table in enumerate(tables)
    ]
