"""Imports HugeCTR's JSON configuration, and reads and writes its plan files.

A configuration has tables, a dense part, and the plan that follows from it. A localized slot is
whole on GPU ``slot % gpus``; a distributed embedding spreads its rows over all GPUs by key
(HugeCTR, "Embedding" in its layer documentation). Batches are global.

A plan file has a list with an entry for each GPU, which is a list of groups
``{local_embedding_list, global_embedding_list, sharding_id, num_sharding,
table_placement_strategy: localized|dp}``. Tables are numbers, in the order of the workload.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import AfterValidator, AliasChoices, Field

from costmodels.sharding import ComputeKernel, Plan, ShardingType, TablePlacement
from costmodels.workload import (
    DataType,
    DenseArch,
    DenseOptimizer,
    Interaction,
    InteractionKernel,
    Optimizer,
    Pipeline,
    Pooling,
    Table,
    Workload,
)
from planner.errors import refuse, refuse_any
from planner.io.documents import Document, Keys, read_json
from planner.io.importers.base import (
    MAX_IMPORTED_TABLES,
    MAX_RANKS,
    BatchSize,
    Columns,
    Imported,
    Rows,
    Size,
    TableCount,
    assume,
    imported_of,
    placed,
    plain_table,
)
from planner.io.schemas import Count, Loose, PoolingFactor, each, made, present, validate

_OPTIMIZERS: Final = {
    "SGD": (Optimizer.SGD, DenseOptimizer.SGD, 0),
    "Adam": (Optimizer.ADAM, DenseOptimizer.ADAM, 2),
    "AdaGrad": (Optimizer.ADAGRAD, DenseOptimizer.ADAGRAD, 1),
    "Adagrad": (Optimizer.ADAGRAD, DenseOptimizer.ADAGRAD, 1),
    "MomentumSGD": (Optimizer.ADAGRAD, DenseOptimizer.ADAGRAD, 1),
    "Nesterov": (Optimizer.ADAGRAD, DenseOptimizer.ADAGRAD, 1),
}
"""For each of HugeCTR's names that of the tables, that of the dense part, and states per weight."""
_SAME_STATE: Final = ("MomentumSGD", "Nesterov")
_UNCOUNTED: Final = (
    "Data", "ReLU", "Dropout", "Reshape", "Concat", "Slice", "Interaction", "MultiCross",
    "InnerProduct", "FusedInnerProduct", "MLP", "BinaryCrossEntropyLoss", "CrossEntropyLoss",
    "MultiCrossEntropyLoss", "Sigmoid", "Add",
)  # fmt: skip
"""Layers that are counted elsewhere, or that take almost no time."""
_DENSE_INPUT: Final = "dense"
_LOAD_FACTOR: Final = 0.75


def _as_many_on_each_host(gpus: list[Any]) -> list[Any]:
    sizes = {len(host) for host in gpus if isinstance(host, list)} or {len(gpus)}
    hosts = len(gpus) if isinstance((*gpus, 0)[0], list) else 1
    if len(sizes) != 1 or not 1 <= hosts * max(sizes) <= MAX_RANKS:
        refuse("must name as many GPUs on each host, at least 1")
    return gpus


class _Optimizer(Loose):
    type: Literal["SGD", "Adam", "AdaGrad", "Adagrad", "MomentumSGD", "Nesterov"]
    update_type: Any = None

    @property
    def states(self) -> int:
        """Numbers that HugeCTR keeps for each weight, in the workspace of the table."""
        lazy = self.type == "Adam" and self.update_type == "LazyGlobal"
        return _OPTIMIZERS[self.type][2] + lazy


class _Solver(Loose):
    """How the model is trained; defaults are HugeCTR's."""

    gpu: Annotated[list[list[int]] | list[int], AfterValidator(_as_many_on_each_host)] | None = None
    batchsize: BatchSize
    mixed_precision: Any = None
    input_key_type: Any = None
    cuda_graph: bool = True
    holistic_cuda_graph: bool = False
    enable_overlap: bool = False
    enable_tf32_compute: bool = False

    @property
    def hosts(self) -> list[list[int]]:
        gpus = self.gpu or [0]
        return [host for host in gpus if isinstance(host, list)] or [[0] * len(gpus)]

    @property
    def world_size(self) -> int:
        return len(self.hosts) * len(self.hosts[0])

    @property
    def precision(self) -> DataType:
        plain = DataType.TF32 if self.enable_tf32_compute else DataType.FP32
        return DataType.FP16 if self.mixed_precision else plain

    @property
    def index_bytes(self) -> int:
        return 8 if self.input_key_type == "I64" else 4


class _DenseInput(Loose):
    dense_dim: Annotated[int, Field(ge=0, le=10**6)]
    top: Any = None


class _SparseInput(Loose):
    top: Any = None
    type: Any = None
    slot_num: TableCount
    nnz_per_slot: PoolingFactor | list[PoolingFactor] | None = None
    max_nnz: PoolingFactor | list[PoolingFactor] | None = None
    max_feature_num_per_sample: PoolingFactor | None = None


class _Connected(Loose):
    num_output: Annotated[
        Size | list[Size], Field(validation_alias=AliasChoices("num_output", "num_outputs"))
    ]


class _Cross(Loose):
    num_layers: Annotated[int, Field(ge=1, le=1000)]
    projection_dim: Annotated[int, Field(ge=0, le=10**6)] | None = None


class _Hyperparameters(Loose):
    embedding_vec_size: Columns
    combiner: Annotated[int, Field(ge=0, le=1)] | Literal["sum", "mean"] = 0
    slot_size_array: list[Rows] | None = None
    max_vocabulary_size_global: Annotated[int, Field(ge=0, le=2**40)] | None = None
    max_vocabulary_size_per_gpu: Annotated[int, Field(ge=0, le=2**40)] | None = None
    workspace_size_per_gpu_in_mb: Annotated[int, Field(ge=1, le=2**24)] | None = None


class _Layer(Loose):
    type: Any = None
    name: Any = None
    top: Any = None
    bottom: Any = None
    dense: _DenseInput | None = None
    sparse: list[_SparseInput] | None = None
    slot_size_array: list[Rows] | None = None
    fc_param: _Connected | None = None
    mlp_param: _Connected | None = None
    mc_param: _Cross | None = None
    sparse_embedding_hparam: _Hyperparameters | None = None
    optimizer: _Optimizer | None = None

    @property
    def is_embedding(self) -> bool:
        return "SparseEmbedding" in str(self.type)

    @property
    def title(self) -> str:
        return str(self.name or self.top)


class _Config(Loose):
    solver: _Solver
    optimizer: _Optimizer | None = None
    layers: list[_Layer]


def import_hugectr(path: Path, value: object = None) -> Imported:
    """The model of a configuration, and where HugeCTR puts its tables.

    Args:
        path: the file.
        value: its content, if it has been read already.

    Raises:
        InvalidInputError: names the key path of what is missing, out of range or unknown.
    """
    return _Model(Document(path, read_json(path) if value is None else value, {})).imported()


class _Model:
    """A configuration as it becomes a workload."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.config = validate(_Config, document)
        self.solver, self.layers = self.config.solver, self.config.layers
        self.default = self.config.optimizer or _Optimizer(type="SGD")
        self.assumed = {"tables": "uniform indices; the file does not say how they fall on rows"}
        self.unsaid: list[str] = []
        kinds = [layer.type for layer in self.layers]
        if "Data" not in kinds:
            document.refuse(("layers",), kinds, "has no layer of type Data")
        self.data = kinds.index("Data")

    def imported(self) -> Imported:
        solver, world = self.solver, self.solver.world_size
        self._assume_training()
        tables, plan = self._embeddings()
        dense = self._dense()
        wire = DataType.FP16 if solver.precision is DataType.FP16 else DataType.FP32
        return imported_of(
            self.document.path,
            "HugeCTR configuration",
            {
                "tables": tables,
                "batch_size_per_rank": math.ceil(solver.batchsize / world),
                "dense": dense,
                "optimizer": self._optimizer(),
                "dense_optimizer": _OPTIMIZERS[self.default.type][1],
                "output_dtype": wire,
                "gradient_dtype": wire,
                "index_bytes": solver.index_bytes,
                "pipeline": Pipeline.HUGECTR if solver.enable_overlap else Pipeline.NONE,
                "cuda_graph": solver.cuda_graph or solver.holistic_cuda_graph,
                "reserved_bytes": self._hash_bytes(tables),
            },
            assumed=self.assumed,
            unsaid=tuple(self.unsaid),
            law_is_known=False,
            plan=plan,
            world_size=world if plan else None,
            local_world_size=len(solver.hosts[0]) if plan else None,
        )

    def _assume_training(self) -> None:
        solver, world = self.solver, self.solver.world_size
        if solver.gpu is None:
            self.assumed["gpus"] = "1; the solver names none"
        if solver.batchsize % world:
            self.assumed["training.batch_size_per_rank"] = (
                f"{solver.batchsize} samples are no multiple of {world} ranks: rounded up"
            )
        if solver.cuda_graph and not solver.holistic_cuda_graph:
            self.assumed["training.cuda_graph"] = (
                "true, as HugeCTR does unless cuda_graph is false; that it issues lookups and "
                "exchanges outside the graph is not counted"
            )
        if not solver.enable_overlap:
            self.assumed["training.pipeline"] = "none, since the solver has no enable_overlap"

    def _optimizer(self) -> Optimizer:
        """The optimizer of all tables, of which a workload has only one: that with most states."""
        embeddings = [layer for layer in self.layers if layer.is_embedding]
        found = {layer.title: layer.optimizer or self.default for layer in embeddings}
        name, most = max(found.items(), key=lambda item: item[1].states)
        if self.config.optimizer is None and not all(x.optimizer for x in embeddings):
            self.assumed["training.optimizer"] = "the file does not name it"
        elif most.type in _SAME_STATE:
            self.assumed["training.optimizer"] = (
                f"adagrad in place of {most.type}: both keep one state per value"
            )
        others = {n: o.type for n, o in found.items() if o.type != most.type}
        if others:
            listed = ", ".join(f"{n} has {kind}" for n, kind in others.items())
            self.assumed["training.optimizer"] = (
                f"that of {name}, {most.type}, for all tables; {listed}"
            )
        return _OPTIMIZERS[most.type][0]

    def _hash_bytes(self, tables: Sequence[Table]) -> float:
        """Bytes per GPU of the hash tables that lead from keys to rows.

        Each row has a key and the number of the row in 8 bytes, in a table that is filled to 75 %
        (HugeCTR ``nv_hashtable.cuh``, LOAD_FACTOR); localized embeddings keep the slot in 8 more.
        """
        kinds = {layer.title: str(layer.type) for layer in self.layers if layer.is_embedding}
        total = 0.0
        for table in tables:
            kind = kinds.get(table.module, "")
            if kind.endswith("Hash"):
                slot_bytes = 8 if kind.startswith("Localized") else 0
                entry_bytes = (self.solver.index_bytes + 8) / _LOAD_FACTOR + slot_bytes
                total += table.num_embeddings / self.solver.world_size * entry_bytes
        if total:
            what = "HugeCTR's hash tables of keys alone, spread evenly; no framework"
            self.assumed["memory"] = what
        return total

    # -------------------------------------------------------------- the dense part

    def _dense(self) -> DenseArch:
        """The dense part; layers that it leaves out are told.

        Fully connected layers that depend only on the dense input are the bottom MLP; the others
        are the top MLP.
        """
        given = self.layers[self.data].dense
        seen: dict[str, set[str]] = {key: {_DENSE_INPUT} for key in _names(given and given.top)}
        bottom_mlp: list[int] = []
        top_mlp: list[int] = []
        cross: _Cross | None = None
        has_dot = False
        skipped: set[str] = set()
        for number, layer in enumerate(self.layers):
            kind, keys = str(layer.type), ("layers", number)
            sources: set[str] = set().union(*(seen.get(n, ()) for n in _names(layer.bottom)))
            if layer.is_embedding:
                sources = {str(layer.top)}
            if kind != "Data":
                seen |= dict.fromkeys(_names(layer.top), sources)
            if kind in ("InnerProduct", "FusedInnerProduct", "MLP"):
                (bottom_mlp if sources == {_DENSE_INPUT} else top_mlp).extend(
                    self._outputs(layer, kind, keys)
                )
            elif kind == "MultiCross":
                cross = present(layer.mc_param, self.document, (*keys, "mc_param"))
            elif kind == "Interaction":
                has_dot = True
            elif kind not in _UNCOUNTED and not layer.is_embedding:
                skipped.add(kind)
        if cross and not top_mlp:
            skipped.add("MultiCross")
            cross = None
        if skipped:
            names = ", ".join(sorted(skipped))
            self.unsaid.append(f"layers of type {names}: counted as taking no time")
        plain = Interaction.DOT if has_dot or not top_mlp else Interaction.CAT
        is_fused = has_dot and top_mlp and not cross
        return DenseArch(
            num_dense_features=given.dense_dim if given else 0,
            bottom_mlp=tuple(bottom_mlp),
            top_mlp=tuple(top_mlp),
            interaction=Interaction.DCN if cross else plain,
            interaction_kernel=InteractionKernel.FUSED if is_fused else None,
            dcn_num_layers=cross.num_layers if cross else 0,
            # A vector per layer (DCN version 1) has rank 1.
            dcn_low_rank_dim=(cross.projection_dim or 1) if cross else 0,
            dtype=self.solver.precision,
        )

    def _outputs(self, layer: _Layer, kind: str, keys: Keys) -> list[int]:
        """Outputs of a fully connected layer, or of each of a stack of them."""
        section = "mlp_param" if kind == "MLP" else "fc_param"
        found: _Connected | None = getattr(layer, section)
        sizes = present(found, self.document, (*keys, section)).num_output
        return sizes if isinstance(sizes, list) else [sizes]

    # -------------------------------------------------------------- embeddings

    def _embeddings(self) -> tuple[tuple[Table, ...], Plan | None]:
        tables: list[Table] = []
        placements: list[TablePlacement] = []
        gpus = range(self.solver.world_size)
        for number, layer in enumerate(self.layers):
            if not layer.is_embedding:
                continue
            keys: Keys = ("layers", number)
            sparse, where = self._input(layer, keys)
            kind = str(sparse.type if layer.type == "SparseEmbeddingHash" else layer.type)
            found = self._tables(layer, keys, sparse, where, kind)
            if len(tables) + len(found) > MAX_IMPORTED_TABLES:
                self.document.refuse(keys, len(found), f"more than {MAX_IMPORTED_TABLES:,} slots")
            tables += found
            if kind.startswith("Localized"):
                ranks = [[slot % len(gpus)] for slot in range(len(found))]
                placements += map(placed, found, repeat(ShardingType.TABLE_WISE), ranks)
            elif kind.startswith("Distributed"):
                placements += [placed(table, ShardingType.ROW_WISE, gpus) for table in found]
            else:
                self.unsaid.append(f"where {layer.title} of type {layer.type} lies, so no plan")
        if not tables:
            kinds = [layer.type for layer in self.layers]
            self.document.refuse(("layers",), kinds, "has no layer of a type ...SparseEmbedding...")
        if len(placements) < len(tables):
            return tuple(tables), None
        if any(p.sharding_type is ShardingType.ROW_WISE for p in placements):
            self.unsaid.append(
                "rows go to GPUs by key % gpus; the plan cuts them into blocks instead"
            )
        return tuple(tables), Plan(placements=tuple(placements))

    def _input(self, layer: _Layer, keys: Keys) -> tuple[_SparseInput, Keys]:
        """The sparse input that an embedding reads, and its place."""
        where: Keys = ("layers", self.data, "sparse")
        inputs = present(self.layers[self.data].sparse, self.document, where)
        found = next((i for i, x in enumerate(inputs) if layer.bottom in _names(x.top)), None)
        if found is None:
            rule = "is not the top of a sparse input of layer Data"
            self.document.refuse((*keys, "bottom"), layer.bottom, rule)
        return inputs[found], (*where, found)

    def _tables(
        self, layer: _Layer, keys: Keys, sparse: _SparseInput, where: Keys, kind: str
    ) -> list[Table]:
        keys = (*keys, "sparse_embedding_hparam")
        hparam = present(layer.sparse_embedding_hparam, self.document, keys)
        slots, name = sparse.slot_num, layer.title
        names = [f"{name}_slot{i}" for i in range(slots)]
        features = list(zip(names, self._factors(sparse, where), strict=True))
        if hparam.slot_size_array:
            sizes = each(hparam.slot_size_array, slots, self.document, (*keys, "slot_size_array"))
        elif given := self.layers[self.data].slot_size_array:
            sizes = each(given, slots, self.document, (*where[:2], "slot_size_array"))
        else:
            sizes = [self._hash_rows(layer, hparam, keys)]
            assume(self.assumed, "tables", f"as many rows of {name} as its hash table has room for")
            if kind.startswith("Localized"):
                share = max(sizes[0] // slots, 1)
                sizes = [share] * slots
                assume(self.assumed, "tables", f"equal slots of {name}, {share:,} rows each")
            else:
                names = [name]
        owned = [features] if len(sizes) < len(features) else [[f] for f in features]
        pooling = Pooling.MEAN if hparam.combiner in (1, "mean") else Pooling.SUM
        return made(
            self.document.where(keys[:-1]),
            lambda: [
                plain_table(
                    title, rows, hparam.embedding_vec_size, mine, pooling=pooling, module=name
                )
                for title, rows, mine in zip(names, sizes, owned, strict=True)
            ],
        )

    def _hash_rows(self, layer: _Layer, hparam: _Hyperparameters, keys: Keys) -> int:
        """Rows of a hash table over all GPUs: its vocabulary, or those its workspaces can hold.

        A workspace of W bytes per GPU has room for W / (4 columns (1 + states)) rows in fp32, where
        ``states`` are the numbers that the optimizer keeps for each weight (HugeCTR
        ``initialize_max_vocabulary_size_per_gpu``).
        """
        world = self.solver.world_size
        if hparam.max_vocabulary_size_global:
            return hparam.max_vocabulary_size_global
        if hparam.max_vocabulary_size_per_gpu:
            return hparam.max_vocabulary_size_per_gpu * world
        if hparam.workspace_size_per_gpu_in_mb is None:
            refuse(
                f"{self.document.where(keys)}: needs slot_size_array, max_vocabulary_size_per_gpu, "
                "max_vocabulary_size_global or workspace_size_per_gpu_in_mb"
            )
        states = (layer.optimizer or self.default).states
        row_bytes = 4 * hparam.embedding_vec_size * (1 + states)
        return max(hparam.workspace_size_per_gpu_in_mb * 2**20 // row_bytes, 1) * world

    def _factors(self, sparse: _SparseInput, keys: Keys) -> list[float]:
        """Indices per sample and slot: the largest number that the input layer allows."""
        slots = sparse.slot_num
        for key in ("nnz_per_slot", "max_nnz"):
            given = getattr(sparse, key)
            if given is not None:
                if given != 1:
                    told = f"{key} indices per sample, the most there may be"
                    assume(self.assumed, "tables", told)
                return each(given, slots, self.document, (*keys, key))
        key = "max_feature_num_per_sample"
        total = present(sparse.max_feature_num_per_sample, self.document, (*keys, key))
        assume(self.assumed, "tables", f"{key} / slot_num indices per sample and slot")
        return [total / slots] * slots


def _names(value: object) -> list[str]:
    """Names of tops or bottoms: one, or a list."""
    listed = value if isinstance(value, list) else [value]
    return [name for name in listed if isinstance(name, str)]


# ------------------------------------------------------------------ plan files


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
