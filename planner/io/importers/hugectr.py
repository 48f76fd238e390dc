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
from costmodels.workload import (
    DataType,
    DenseArch,
    DenseOptimizer,
    Feature,
    Interaction,
    InteractionKernel,
    Optimizer,
    Pipeline,
    Pooling,
    Table,
)
from planner.errors import InvalidInputError
from planner.io.documents import Document, Keys, read_json
from planner.io.importers.base import (
    MAX_COLUMNS,
    MAX_IMPORTED_TABLES,
    Imported,
    Reader,
    assume,
    make_workload,
)
from planner.io.schemas import collect

_OPTIMIZERS: Final = {
    "SGD": Optimizer.SGD,
    "Adam": Optimizer.ADAM,
    "AdaGrad": Optimizer.ADAGRAD,
    "Adagrad": Optimizer.ADAGRAD,
    "MomentumSGD": Optimizer.ADAGRAD,
    "Nesterov": Optimizer.ADAGRAD,
}
_SAME_STATE: Final = ("MomentumSGD", "Nesterov")
_OF_DENSE: Final = {
    Optimizer.SGD: DenseOptimizer.SGD,
    Optimizer.ADAGRAD: DenseOptimizer.ADAGRAD,
    Optimizer.ADAM: DenseOptimizer.ADAM,
}
_STATES: Final = {Optimizer.SGD: 0, Optimizer.ADAGRAD: 1, Optimizer.ADAM: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedOptimizer:
    """An optimizer as the file names it.

    Attributes:
        kind: HugeCTR's name.
        optimizer: the optimizer in a workload.
        states: numbers that HugeCTR keeps for each weight, in the workspace of the table.
    """

    kind: str
    optimizer: Optimizer
    states: int

    @property
    def of_dense(self) -> DenseOptimizer:
        """The optimizer of the dense part, which HugeCTR updates in one kernel."""
        return _OF_DENSE[self.optimizer]


NO_OPTIMIZER: Final = NamedOptimizer(kind="SGD", optimizer=Optimizer.SGD, states=0)


def read_optimizer(
    reader: Reader, holder: dict[str, Any], keys: Keys, default: NamedOptimizer
) -> NamedOptimizer:
    """The optimizer under the key ``optimizer``, or the default if there is no such key.

    Raises:
        InvalidInputError: the type of the optimizer is unknown.
    """
    if "optimizer" not in holder:
        return default
    where = (*keys, "optimizer")
    section = reader.mapping(holder["optimizer"], where)
    kind = reader.required(section, "type", where)
    if not isinstance(kind, str) or kind not in _OPTIMIZERS:
        raise reader.fail((*where, "type"), kind, f"must be one of {', '.join(_OPTIMIZERS)}")
    optimizer = _OPTIMIZERS[kind]
    lazy = optimizer is Optimizer.ADAM and section.get("update_type") == "LazyGlobal"
    return NamedOptimizer(kind=kind, optimizer=optimizer, states=_STATES[optimizer] + lazy)


def optimizer_of_tables(
    found: dict[str, NamedOptimizer], assumed: dict[str, str], *, is_named: bool
) -> Optimizer:
    """The optimizer for all tables, of which a workload has only one: that with the most states.

    Args:
        found: the optimizer of each embedding, by its name.
        assumed: gets a line if the file names no optimizer, or if tables have different ones.
        is_named: whether the file names an optimizer.
    """
    name, most = max(found.items(), key=lambda item: item[1].states)
    if not is_named:
        assumed["training.optimizer"] = "the file does not name it"
    elif most.kind in _SAME_STATE:
        assumed["training.optimizer"] = (
            f"adagrad in place of {most.kind}: both keep one state per value"
        )
    others = {n: o.kind for n, o in found.items() if o.kind != most.kind}
    if others:
        listed = ", ".join(f"{n} has {kind}" for n, kind in others.items())
        assumed["training.optimizer"] = f"that of {name}, {most.kind}, for all tables; {listed}"
    return most.optimizer


_MOST_RANKS: Final = 65_536
_SWITCHES: Final = (
    ("cuda_graph", True),
    ("holistic_cuda_graph", False),
    ("enable_overlap", False),
    ("enable_tf32_compute", False),
)
"""Switches of the solver, with HugeCTR's defaults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solver:
    """How the model is trained.

    Attributes:
        num_hosts: number of hosts.
        local_world_size: ranks per host.
        global_batch_size: samples of all ranks.
        precision: type of matrix products.
        index_bytes: bytes of one key.
        has_graph: whether the dense part, or all of a step, is captured as a CUDA graph.
        has_overlap: whether exchanges overlap the dense part.
        optimizer: the optimizer of layers that name none of their own.
    """

    num_hosts: int
    local_world_size: int
    global_batch_size: int
    precision: DataType
    index_bytes: int
    has_graph: bool
    has_overlap: bool
    optimizer: NamedOptimizer

    @property
    def world_size(self) -> int:
        """Ranks of all hosts."""
        return self.num_hosts * self.local_world_size


def read_solver(reader: Reader, config: dict[str, Any], assumed: dict[str, str]) -> Solver:
    """Read the section ``solver``, and the optimizer of all layers.

    Args:
        reader: reads the values of the file.
        config: the content of the file.
        assumed: gets a line for each key that the file leaves open.

    Raises:
        InvalidInputError: names the key path of what is missing or out of range.
    """
    keys: Keys = ("solver",)
    solver = reader.mapping(reader.required(config, "solver", ()), keys)
    gpus = solver.get("gpu")
    if gpus is None:
        assumed["gpus"] = "1; the solver names none"
        gpus = [0]
    listed = reader.sequence(gpus, (*keys, "gpu"))
    hosts = listed if listed and isinstance(listed[0], list) else [listed]
    sizes = {len(reader.sequence(h, (*keys, "gpu", i))) for i, h in enumerate(hosts)}
    if len(sizes) != 1 or not 1 <= max(sizes) * len(hosts) <= _MOST_RANKS:
        raise reader.fail((*keys, "gpu"), gpus, "must name as many GPUs on each host, at least 1")
    batch = reader.required(solver, "batchsize", keys)
    world = max(sizes) * len(hosts)
    batch = reader.whole(batch, (*keys, "batchsize"), high=10**8)
    if batch % world:
        assumed["training.batch_size_per_rank"] = (
            f"{batch} samples are no multiple of {world} ranks: rounded up"
        )
    part, whole, has_overlap, is_tf32 = (
        reader.flag(solver.get(key, default), (*keys, key)) for key, default in _SWITCHES
    )
    if part and not whole:
        assumed["training.cuda_graph"] = (
            "true, as HugeCTR does unless cuda_graph is false; that it issues lookups and "
            "exchanges outside the graph is not counted"
        )
    if not has_overlap:
        assumed["training.pipeline"] = "none, since the solver has no enable_overlap"
    plain = DataType.TF32 if is_tf32 else DataType.FP32
    return Solver(
        num_hosts=len(hosts),
        local_world_size=max(sizes),
        global_batch_size=batch,
        precision=DataType.FP16 if solver.get("mixed_precision") else plain,
        has_graph=part or whole,
        has_overlap=has_overlap,
        index_bytes=8 if solver.get("input_key_type") == "I64" else 4,
        optimizer=read_optimizer(reader, config, (), NO_OPTIMIZER),
    )


_UNCOUNTED: Final = frozenset(
    [
        "Data",
        "ReLU",
        "Dropout",
        "Reshape",
        "Concat",
        "Slice",
        "Interaction",
        "MultiCross",
        "InnerProduct",
        "FusedInnerProduct",
        "MLP",
        "BinaryCrossEntropyLoss",
        "CrossEntropyLoss",
        "MultiCrossEntropyLoss",
        "Sigmoid",
        "Add",
    ]
)
"""Layers that are counted elsewhere, or that take almost no time."""

_DENSE_INPUT: Final = "dense"


def dense_of(
    reader: Reader, layers: list[dict[str, Any]], data: int, dtype: DataType
) -> tuple[DenseArch, list[str]]:
    """The dense part, and the layers that it leaves out.

    Fully connected layers that depend only on the dense input are the bottom MLP; the others are
    the top MLP.

    Raises:
        InvalidInputError: a layer without its sizes, or with sizes out of range.
    """
    width, top = _dense_input(reader, layers[data], ("layers", data))
    seen: dict[str, set[str]] = {key: {_DENSE_INPUT} for key in top}
    bottom_mlp: list[int] = []
    top_mlp: list[int] = []
    cross: tuple[int, int] | None = None
    has_dot = False
    skipped: list[str] = []
    for number, layer in enumerate(layers):
        kind, keys = str(layer.get("type")), ("layers", number)
        sources: set[str] = set()
        for name in names_of(layer.get("bottom")):
            sources |= seen.get(name, set())
        if "SparseEmbedding" in kind:
            sources = {str(layer.get("top"))}
        if kind != "Data":
            seen |= dict.fromkeys(names_of(layer.get("top")), sources)
        if kind in ("InnerProduct", "FusedInnerProduct", "MLP"):
            sizes = _sizes(reader, layer, kind, keys)
            (bottom_mlp if sources == {_DENSE_INPUT} else top_mlp).extend(sizes)
        elif kind == "MultiCross":
            cross = _cross(reader, layer, keys)
        elif kind == "Interaction":
            has_dot = True
        elif kind not in _UNCOUNTED and "SparseEmbedding" not in kind:
            skipped.append(kind)
    if cross and not top_mlp:
        skipped.append("MultiCross")
        cross = None
    dense = DenseArch(
        num_dense_features=width,
        bottom_mlp=tuple(bottom_mlp),
        top_mlp=tuple(top_mlp),
        interaction=_interaction(has_dot=has_dot or not top_mlp, has_cross=cross is not None),
        interaction_kernel=InteractionKernel.FUSED if has_dot and top_mlp and not cross else None,
        dcn_num_layers=cross[0] if cross else 0,
        dcn_low_rank_dim=cross[1] if cross else 0,
        dtype=dtype,
    )
    names = ", ".join(sorted(set(skipped)))
    return dense, [f"layers of type {names}: counted as taking no time"] if skipped else []


def names_of(value: object) -> list[str]:
    """Names of tops or bottoms: one, or a list."""
    listed = value if isinstance(value, list) else [value]
    return [name for name in listed if isinstance(name, str)]


def _interaction(*, has_dot: bool, has_cross: bool) -> Interaction:
    if has_cross:
        return Interaction.DCN
    return Interaction.DOT if has_dot else Interaction.CAT


def _dense_input(reader: Reader, data: dict[str, Any], keys: Keys) -> tuple[int, list[str]]:
    if "dense" not in data:
        return 0, []
    keys = (*keys, "dense")
    dense = reader.mapping(data["dense"], keys)
    width = reader.whole(
        reader.required(dense, "dense_dim", keys), (*keys, "dense_dim"), low=0, high=10**6
    )
    return width, names_of(dense.get("top"))


def _sizes(reader: Reader, layer: dict[str, Any], kind: str, keys: Keys) -> list[int]:
    """Outputs of a fully connected layer, or of each of a stack of them."""
    section = "mlp_param" if kind == "MLP" else "fc_param"
    keys = (*keys, section)
    params = reader.mapping(reader.required(layer, section, keys[:-1]), keys)
    key = "num_outputs" if "num_outputs" in params else "num_output"
    value = reader.required(params, key, keys)
    sizes = value if isinstance(value, list) else [value]
    return [reader.whole(n, (*keys, key), high=10**6) for n in sizes]


def _cross(reader: Reader, layer: dict[str, Any], keys: Keys) -> tuple[int, int]:
    """Layers and rank of a cross network; a vector per layer (DCN version 1) has rank 1."""
    keys = (*keys, "mc_param")
    params = reader.mapping(reader.required(layer, "mc_param", keys[:-1]), keys)
    count = reader.whole(
        reader.required(params, "num_layers", keys), (*keys, "num_layers"), high=1000
    )
    rank = reader.whole(params.get("projection_dim") or 1, (*keys, "projection_dim"), high=10**6)
    return count, rank


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
        batch_size_per_rank=math.ceil(solver.global_batch_size / solver.world_size),
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
