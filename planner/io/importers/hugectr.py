"""Imports HugeCTR's JSON configuration, and reads and writes its plan files.

A configuration has tables, a dense part, and the plan that follows from it. A localized slot is
whole on GPU ``slot % gpus``; a distributed embedding spreads its rows over all GPUs by key
(HugeCTR, "Embedding" in its layer documentation). Batches are global.

A plan file has a list with an entry for each GPU, which is a list of groups
``{local_embedding_list, global_embedding_list, sharding_id, num_sharding,
table_placement_strategy: localized|dp}``. Tables are numbers, in the order of the workload.
"""

import json
import math
from collections.abc import Sequence
from itertools import repeat
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator

from costmodels.sharding import ComputeKernel, Plan, ShardingType, TablePlacement
from costmodels.workload import Table, Workload
from planner.errors import refuse, refuse_any
from planner.io.documents import Document, Keys, read_json, read_words
from planner.io.importers import base
from planner.io.schemas import each, made, present, schemas_of, validate

_WORDS: Final = read_words("hugectr")
_OPTIMIZERS: Final = _WORDS["optimizers"]
_LOAD_FACTOR: Final = 0.75
_BY_KEY: Final = "rows go to GPUs by key % gpus; the plan cuts them into blocks instead"


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _names(value: Any) -> list[Any]:
    """The names of tops or bottoms: one, or a list."""
    return [name for name in _listed(value) if isinstance(name, str)]


def _hosts(gpus: list[Any]) -> tuple[int, int]:
    """The number of hosts, and of GPUs on each, of a list of GPUs or of one list for each host."""
    hosts = gpus if all(isinstance(host, list) for host in gpus) else [gpus]
    sizes = {len(host) for host in hosts}
    if len(sizes) != 1 or not 1 <= len(hosts) * max(sizes) <= base.MAX_RANKS:
        refuse("must name as many GPUs on each host, at least 1")
    return len(hosts), max(sizes)


_KEYS: Final = schemas_of(
    _WORDS,
    **base.KINDS,
    optimizer_type=Literal[tuple(_OPTIMIZERS)],
    gpus=Annotated[list[list[int]] | list[int], AfterValidator(_hosts)],
    names=Annotated[list[str], BeforeValidator(_names)],
    word=Annotated[str, BeforeValidator(str)],
    outputs=Annotated[list[base.Size], BeforeValidator(_listed)],
    whole=int,
)


def _states(optimizer: Any) -> int:
    """Numbers that HugeCTR keeps for each weight, in the workspace of the table."""
    lazy = optimizer.type == "Adam" and optimizer.update_type == "LazyGlobal"
    return int(_OPTIMIZERS[optimizer.type]["states"] + lazy)


def _title(layer: Any) -> str:
    return str(layer.name or ", ".join(layer.top))


def import_hugectr(path: Path, value: object = None) -> base.Imported:
    """The model of a configuration, and where HugeCTR puts its tables.

    Args:
        path: the file.
        value: its content, if it has been read already.

    Raises:
        InvalidInputError: names the key path of what is missing, out of range or unknown.
    """
    return _Model(Document(path, read_json(path) if value is None else value, {})).result()


class _Model(base.Reading):
    """A configuration as it becomes a workload."""

    def __init__(self, document: Document) -> None:
        super().__init__(document)
        self.config = validate(_KEYS["configuration"], document)
        self.solver, self.layers = self.config.solver, self.config.layers
        self.default = self.config.optimizer or _KEYS["optimizer"](type="SGD")
        gpus: Any = self.solver.gpu or (1, 1)
        self.world, self.local = int(math.prod(gpus)), gpus[1]
        self.index_bytes = 8 if self.solver.input_key_type == "I64" else 4
        self.assume("tables", "uniform indices; the file does not say how they fall on rows")
        self.hash_bytes = 0.0
        kinds = [layer.type for layer in self.layers]
        if "Data" not in kinds:
            document.refuse(("layers",), kinds, "has no layer of type Data")
        self.at = kinds.index("Data")
        self.data = self.layers[self.at]
        self.embeddings = [
            (i, layer) for i, layer in enumerate(self.layers) if "SparseEmbedding" in layer.type
        ]
        if not self.embeddings:
            document.refuse(("layers",), kinds, "has no layer of a type ...SparseEmbedding...")

    def _need(self, value: Any, *keys: str | int) -> Any:
        return present(value, self.document, keys)

    def result(self) -> base.Imported:
        solver, path = self.solver, self.document.path
        is_half = bool(solver.mixed_precision)
        if solver.gpu is None:
            self.assume("gpus", "1; the solver names none")
        if solver.batchsize % self.world:
            told = f"{solver.batchsize} samples are no multiple of {self.world} ranks: rounded up"
            self.assume("training.batch_size_per_rank", told)
        if solver.cuda_graph and not solver.holistic_cuda_graph:
            self.assume("training.cuda_graph", _WORDS["cuda_graph"])
        if not solver.enable_overlap:
            self.assume("training.pipeline", "none, since the solver has no enable_overlap")
        tables, plan = self._embeddings()
        values = {
            "name": path.stem,
            "tables": tables,
            "batch_size_per_rank": math.ceil(solver.batchsize / self.world),
            "dense": self._dense(),
            "optimizer": self._optimizer(),
            "dense_optimizer": _OPTIMIZERS[self.default.type]["name"],
            **dict.fromkeys(("output_dtype", "gradient_dtype"), "fp16" if is_half else "fp32"),
            "index_bytes": self.index_bytes,
            "pipeline": "hugectr" if solver.enable_overlap else "none",
            "cuda_graph": solver.cuda_graph or solver.holistic_cuda_graph,
            "reserved_bytes": self.hash_bytes,
        }
        return self.imported(
            f"the HugeCTR configuration {path.name}",
            values,
            law_is_known=False,
            plan=plan,
            world_size=self.world,
            local_world_size=self.local,
        )

    def _optimizer(self) -> str:
        """The optimizer of all tables, of which a workload has only one: that with most states."""
        own = [layer.optimizer for _, layer in self.embeddings]
        found = {_title(layer): layer.optimizer or self.default for _, layer in self.embeddings}
        name, most = max(found.items(), key=lambda item: _states(item[1]))
        others = [f"{n} has {o.type}" for n, o in found.items() if o.type != most.type]
        if others:
            told = f"that of {name}, {most.type}, for all tables; {', '.join(others)}"
            self.assume("training.optimizer", told)
        elif self.config.optimizer is None and not all(own):
            self.assume("training.optimizer", "the file does not name it")
        elif most.type in _WORDS["same_state"]:
            told = f"adagrad in place of {most.type}: both keep one state per value"
            self.assume("training.optimizer", told)
        return str(_OPTIMIZERS[most.type]["name"])

    def _dense(self) -> dict[str, Any]:
        """The dense part; layers that it leaves out are told.

        Fully connected layers that depend only on the dense input are the bottom MLP; the others
        are the top MLP.
        """
        solver, width = self.solver, 0
        if self.data.dense is not None:
            width = self._need(self.data.dense_dim, "layers", self.at, "dense", "dense_dim")
        after_dense = set(self.data.dense_top)
        bottom_mlp: list[int] = []
        top_mlp: list[int] = []
        cross: Any = None
        skipped: set[str] = set()
        for number, layer in enumerate(self.layers):
            kind, tops = layer.type, layer.top
            is_bottom = bool(layer.bottom) and after_dense.issuperset(layer.bottom)
            after_dense = after_dense.union(tops) if is_bottom else after_dense.difference(tops)
            if kind in _WORDS["connected"]:
                place = ("layers", number, _WORDS["connected"][kind], "num_output")
                (bottom_mlp if is_bottom else top_mlp).extend(self._need(layer.outputs, *place))
            elif kind == "MultiCross":
                self._need(layer.num_layers, "layers", number, "mc_param", "num_layers")
                cross = layer
            elif kind not in _WORDS["uncounted"] and "SparseEmbedding" not in kind:
                skipped.add(kind)
        if cross and not top_mlp:
            skipped.add("MultiCross")
            cross = None
        if skipped:
            names = ", ".join(sorted(skipped))
            self.unsaid.append(f"layers of type {names}: counted as taking no time")
        has_dot = any(layer.type == "Interaction" for layer in self.layers)
        plain = "dot" if has_dot or not top_mlp else "cat"
        plain_dtype = "tf32" if solver.enable_tf32_compute else "fp32"
        return {
            "num_dense_features": width,
            "bottom_mlp": bottom_mlp,
            "top_mlp": top_mlp,
            "interaction": "dcn" if cross else plain,
            "interaction_kernel": "fused" if has_dot and top_mlp and not cross else None,
            "dcn_num_layers": cross.num_layers if cross else 0,
            # A vector per layer (DCN version 1) has rank 1.
            "dcn_low_rank_dim": (cross.projection_dim or 1) if cross else 0,
            "dtype": "fp16" if solver.mixed_precision else plain_dtype,
        }

    def _embeddings(self) -> tuple[list[Table], Plan | None]:
        """The tables, and where HugeCTR puts them; adds up the hash tables from keys to rows.

        Each row has a key and the number of the row in 8 bytes, in a table that is filled to 75 %
        (HugeCTR ``nv_hashtable.cuh``, LOAD_FACTOR); localized embeddings keep the slot in 8 more.
        """
        tables: list[Table] = []
        placements: list[TablePlacement] = []
        gpus, place = range(self.world), ("layers", self.at, "sparse")
        inputs = {
            name: (sparse, (*place, i))
            for i, sparse in enumerate(self._need(self.data.sparse, *place))
            for name in sparse.top
        }
        for number, layer in self.embeddings:
            bottom = next((name for name in layer.bottom if name in inputs), None)
            if bottom is None:
                rule = "is not the top of a sparse input of layer Data"
                self.document.refuse(("layers", number, "bottom"), layer.bottom, rule)
            sparse, where = inputs[bottom]
            kind = str(sparse.type) if layer.type == "SparseEmbeddingHash" else layer.type
            found = self._tables(layer, number, sparse, where, is_cut=kind.startswith("Localized"))
            tables += found
            if len(tables) > base.MAX_IMPORTED_TABLES:
                rule = f"more than {base.MAX_IMPORTED_TABLES:,} slots"
                self.document.refuse(("layers", number), len(tables), rule)
            if layer.type.endswith("Hash"):
                slot_bytes = 8 if layer.type.startswith("Localized") else 0
                entry_bytes = (self.index_bytes + 8) / _LOAD_FACTOR + slot_bytes
                num_rows = sum(table.num_embeddings for table in found)
                self.hash_bytes += num_rows / self.world * entry_bytes
                self.assumed["memory"] = _WORDS["memory"]
            if kind.startswith("Localized"):
                ranks = [[slot % len(gpus)] for slot in range(len(found))]
                placements += map(base.placed, found, repeat(ShardingType.TABLE_WISE), ranks)
            elif kind.startswith("Distributed"):
                placements += [base.placed(table, ShardingType.ROW_WISE, gpus) for table in found]
            else:
                self.unsaid.append(f"where {_title(layer)} of type {layer.type} lies, so no plan")
        if len(placements) < len(tables):
            return tables, None
        if any(p.sharding_type is ShardingType.ROW_WISE for p in placements):
            self.unsaid.append(_BY_KEY)
        return tables, Plan(placements=tuple(placements))

    def _tables(
        self, layer: Any, number: int, sparse: Any, where: Keys, *, is_cut: bool
    ) -> list[Table]:
        """One table for each slot, or one for all where slots are neither cut nor have sizes."""
        keys: Keys = ("layers", number, "sparse_embedding_hparam")
        hparam = self._need(layer.sparse_embedding_hparam, *keys)
        slots, name = sparse.slot_num, _title(layer)
        names = [f"{name}_slot{i}" for i in range(slots)]
        features = list(zip(names, self._factors(sparse, where), strict=True))
        owned = [[feature] for feature in features]
        sizes = hparam.slot_size_array or self.data.slot_size_array
        if sizes:
            place = keys if hparam.slot_size_array else ("layers", self.at)
            sizes = each(sizes, slots, self.document, (*place, "slot_size_array"))
        else:
            rows = self._hash_rows(layer, hparam, keys)
            self.assume("tables", f"as many rows of {name} as its hash table has room for")
            if is_cut:
                sizes = [max(rows // slots, 1)] * slots
                self.assume("tables", f"equal slots of {name}, {sizes[0]:,} rows each")
            else:
                names, sizes, owned = [name], [rows], [features]
        more = {"pooling": "mean" if hparam.combiner in (1, "mean") else "sum", "module": name}
        return made(
            self.document.where(keys[:-1]),
            lambda: [
                base.plain_table(title, rows, hparam.embedding_vec_size, mine, **more)
                for title, rows, mine in zip(names, sizes, owned, strict=True)
            ],
        )

    def _hash_rows(self, layer: Any, hparam: Any, keys: Keys) -> int:
        """Rows of a hash table over all GPUs: its vocabulary, or those its workspaces can hold.

        A workspace of W bytes per GPU has room for W / (4 columns (1 + states)) rows in fp32, where
        ``states`` are the numbers that the optimizer keeps for each weight (HugeCTR
        ``initialize_max_vocabulary_size_per_gpu``).
        """
        total, per_gpu = hparam.max_vocabulary_size_global, hparam.max_vocabulary_size_per_gpu
        if not total and not per_gpu:
            if hparam.workspace_size_per_gpu_in_mb is None:
                refuse(
                    f"{self.document.where(keys)}: needs slot_size_array, "
                    "max_vocabulary_size_per_gpu, max_vocabulary_size_global or "
                    "workspace_size_per_gpu_in_mb"
                )
            states = _states(layer.optimizer or self.default)
            row_bytes = 4 * hparam.embedding_vec_size * (1 + states)
            per_gpu = max(hparam.workspace_size_per_gpu_in_mb * 2**20 // row_bytes, 1)
        return int(total or per_gpu * self.world)

    def _factors(self, sparse: Any, keys: Keys) -> list[float]:
        """Indices per sample and slot: the largest number that the input layer allows."""
        slots = sparse.slot_num
        for key in ("nnz_per_slot", "max_nnz"):
            given = getattr(sparse, key)
            if given is not None:
                if given != 1:
                    self.assume("tables", f"{key} indices per sample, the most there may be")
                return each(given, slots, self.document, (*keys, key))
        key = "max_feature_num_per_sample"
        total = self._need(sparse.max_feature_num_per_sample, *keys, key)
        self.assume("tables", f"{key} / slot_num indices per sample and slot")
        return [total / slots] * slots


# ------------------------------------------------------------------ plan files


_GPUS_PER_HOST: Final = 8


_Piece = tuple[int, int, int, bool]
"""A part of a table: its number, its GPU, the number of parts, and whether it is a whole copy."""


def import_hugectr_plan(
    path: Path, workload: Workload, value: object = None, *, local_world_size: int | None = None
) -> base.Imported:
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
    document = Document(path, {"gpus": read_json(path) if value is None else value}, {})
    gpus, assumed = validate(_KEYS["plan"], document).gpus, {}
    world, local = len(gpus), local_world_size
    if local is None:
        local = world if world % _GPUS_PER_HOST else _GPUS_PER_HOST
        assumed["gpus_per_host"] = f"{local}; a plan does not say it"
    if world % local:
        refuse(f"{path}: {world} GPUs are no multiple of {local} per host")
    pieces: list[list[_Piece]] = [[] for _ in workload.tables]
    for gpu, groups in enumerate(gpus):
        for number, group in enumerate(groups):
            _check_group(document, group, ("gpus", gpu, number), len(pieces), world)
            is_copy = group.table_placement_strategy == "dp"
            for table in group.local_embedding_list:
                pieces[table].append((group.sharding_id, gpu, group.num_sharding, is_copy))
    placements = [
        _placement(f"{path}: table {table.name!r}", table, sorted(found), world, local)
        for table, found in zip(workload.tables, pieces, strict=True)
    ]
    by_key = any(p.sharding_type.value.endswith("row_wise") for p in placements)
    return base.Imported(
        workload=workload,
        source=f"the HugeCTR plan {path.name}",
        assumed=assumed,
        unsaid=(_BY_KEY,) if by_key else (),
        plan=Plan(placements=tuple(placements)),
        world_size=world,
        local_world_size=local,
    )


def _check_group(
    document: Document, group: Any, keys: Keys, num_tables: int, num_gpus: int
) -> None:
    for i, table in enumerate(group.local_embedding_list):
        if table >= num_tables:
            where = (*keys, "local_embedding_list", i)
            document.refuse(where, table, f"must be 0 to {num_tables - 1}")
    if group.global_embedding_list is not None:
        _, gpu, _ = keys
        where = (*keys, "global_embedding_list")
        listed = each(group.global_embedding_list, num_gpus, document, where)[int(gpu)]
        if listed != group.local_embedding_list:
            rule = f"must be this GPU's own list, {group.local_embedding_list}"
            document.refuse((*where, gpu), listed, rule)
    most = 1 if group.table_placement_strategy == "dp" else num_gpus
    if group.num_sharding > most:
        rule = f"must be at most {most}; a dp table is not cut"
        document.refuse((*keys, "num_sharding"), group.num_sharding, rule)


def _placement(
    where: str, table: Table, pieces: Sequence[_Piece], world: int, local: int
) -> TablePlacement:
    """The placement of a table from its pieces, in the order of their parts.

    A table whose rows lie on all GPUs of one host, in order, has a name of its own in TorchRec.
    """
    if not pieces:
        refuse(f"{where}: is on no GPU; the plan has to place every table")
    parts, gpus = [p[0] for p in pieces], [p[1] for p in pieces]
    if len({p[2:] for p in pieces}) > 1 or len(set(gpus)) < len(gpus):
        refuse(f"{where}: is placed twice, in ways that do not agree")
    *_, count, is_copy = pieces[0]
    if is_copy:
        if len(gpus) != world or any(parts):
            refuse(f"{where}: dp needs a copy on each of {world} GPUs, each with sharding_id 0")
        return base.placed(table, ShardingType.DATA_PARALLEL, sorted(gpus))
    if parts != list(range(count)):
        refuse(f"{where}: parts {parts[:8]} are there, must be each of 0..{count - 1} once")
    first = gpus[0] - gpus[0] % local
    is_host = gpus == list(range(first, first + local)) and local < world
    cut = ShardingType.TABLE_ROW_WISE if is_host else ShardingType.ROW_WISE
    return base.placed(table, ShardingType.TABLE_WISE if count == 1 else cut, gpus)


# ------------------------------------------------------------------ writing


def hugectr_plan_text(plan: Plan, workload: Workload, world_size: int) -> str:
    """The plan as a list of groups of tables for each GPU.

    HugeCTR's files have no column pieces, no host memory and no caches; rows go to GPUs by key.

    Raises:
        InvalidInputError: names each table that such a file cannot place.
    """
    numbers = {t.name: i for i, t in enumerate(workload.tables)}
    # Whole tables of all GPUs are one group, the first; those cut or copied alike are one, too.
    groups: dict[tuple[bool, tuple[int, ...]], list[list[int]]] = {}
    groups[False, ()] = [[] for _ in range(world_size)]
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
        alike = (is_copy, held if is_copy or len(held) > 1 else ())
        everywhere = groups.setdefault(alike, [[] for _ in range(world_size)])
        for gpu in held:
            everywhere[gpu].append(number)
    refuse_any(problems)
    listed = [
        [
            {
                "local_embedding_list": sorted(tables),
                "global_embedding_list": [sorted(every) for every in everywhere],
                "sharding_id": 0 if is_copy or not parts else parts.index(gpu),
                "num_sharding": 1 if is_copy or not parts else len(parts),
                "table_placement_strategy": "dp" if is_copy else "localized",
            }
            for (is_copy, parts), everywhere in groups.items()
            if (tables := everywhere[gpu])
        ]
        for gpu in range(world_size)
    ]
    return json.dumps(listed, indent=1) + "\n"
