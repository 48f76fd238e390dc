"""Documents that use every key of workload and system files, and plans that use all they say."""

from __future__ import annotations

from itertools import cycle
from typing import Any

from costmodels.sharding import ComputeKernel, Plan, ShardingOption, ShardingType, Spread, place
from costmodels.topology import Topology
from costmodels.workload import Workload
from planner.io.documents import configs_folder
from tests.planner.io.schema_leaves import Json, with_value

CALIBRATION = str(configs_folder() / "calibrations" / "cpu_gloo.calibration.json")

LINKS: Json = {
    "host": {"latency": "10 us", "bandwidth": "200 GB/s"},
    "domain": {"latency": "12 us", "bandwidth": "150 GB/s"},
    "network": {
        "latency": "25 us",
        "bandwidth": "12 GB/s",
        "pods": {"hosts": 2, "oversubscription": 2.0},
    },
}
SYSTEM: Json = {
    "name": "box",
    "device": {
        "name": "gpu",
        "hbm_capacity": "40 GiB",
        "hbm_bandwidth": "1.3 TB/s",
        "l2_capacity": "1 MiB",
        "l2_bandwidth": "4 TB/s",
        "flops": {"fp32": "19.5 TFLOP/s", "fp16": "312 TFLOP/s"},
        "flops_efficiency": 0.2,
        "kernel_latency": "2 us",
        "row_half": "32 B",
        "update_efficiency": 0.2,
        "sort_rate": "5e9",
        "overlap_slowdown": 0.1,
        "num_multiprocessors": 108,
    },
    "host": {
        "ddr_capacity": "1000 GiB",
        "ddr_bandwidth": "200 GB/s",
        "device_link_bandwidth": "20 GB/s",
        "eager_call": "5 us",
        "eager_pass": "75 us",
    },
    "links": LINKS,
    "layout": {"gpus_per_host": 2, "domain_size": 4},
    "price": "3 USD/h",
    "different_ranks": [{"ranks": [1], "hbm_capacity": "16 GiB", "speed": 0.5}],
    "different_hosts": [{"hosts": [1], "ddr_capacity": "500 GiB"}],
}
KIND: Json = {
    "fabric": "roce",
    "nic": "50 GB/s",
    "nics_per_host": 4,
    "pods": {"hosts": 2, "oversubscription": 2.0},
}
FITTED: Json = {"lookup": 1.1, "collective": 0.9, "dense": 1.2, "host": 1.05}

ZIPF: Json = {"kind": "zipf", "exponent": 1.05, "shift": 2.0}
BINS: Json = {
    "kind": "bins",
    "rows": [10.0, 100.0, 890.0],
    "probability": [0.05, 0.004, 0.1 / 890.0],
    "rows_per_range": [[8.0, 50.0, 442.0], [2.0, 50.0, 448.0]],
    "ids_in_ranges": 1000,
}
FLAT: Json = {"kind": "bins", "rows": [500.0, 500.0], "probability": [0.0015, 0.0005]}


def _table(name: str, **keys: Any) -> Json:
    told = {"num_embeddings": 200_000, "embedding_dim": 64, "pooling_factor": 6.0}
    return {"name": name, **told, "distribution": ZIPF, **keys}


TABLES: list[Json] = [
    _table("whole"),
    _table("rows", num_embeddings=1000, distribution=BINS),
    _table("columns", distribution={"kind": "uniform"}, pooling="mean"),
    _table("host_rows", is_weighted=True, dtype="fp16"),
    _table("copies", num_embeddings=1000, distribution=FLAT),
    _table("cached", num_embeddings=10**6),
    _table("sequence", pooling="none"),
]
CUTS = (
    (ShardingType.TABLE_WISE, ComputeKernel.FUSED),
    (ShardingType.ROW_WISE, ComputeKernel.FUSED),
    (ShardingType.COLUMN_WISE, ComputeKernel.FUSED),
    (ShardingType.TABLE_ROW_WISE, ComputeKernel.FUSED),
    (ShardingType.DATA_PARALLEL, ComputeKernel.DENSE),
    (ShardingType.TABLE_WISE, ComputeKernel.FUSED_UVM_CACHING),
    (ShardingType.TABLE_WISE, ComputeKernel.FUSED),
)
"""How the plans cut the tables, in their order."""

DLRM: Json = {
    "num_dense_features": 13,
    "bottom_mlp": [64, 64],
    "top_mlp": [128, 1],
    "interaction": "dcn",
    "dcn_num_layers": 2,
    "dcn_low_rank_dim": 32,
    "dtype": "fp16",
}
DOT: Json = {key: value for key, value in DLRM.items() if key[:3] not in ("dcn", "int")}
_MOVED: Json = {"read_bytes": 4e8, "written_bytes": 4e8, "saved_bytes": 4e6}
_TABLE: Json = {"num_parameters": 10**6, "parameter_bytes": 4e6}
OPERATORS: list[Json] = [
    {
        "name": "product",
        "kind": "matmul",
        "shape": [1, 1024, 512, 512],
        "num_parameters": 262_144,
        "parameter_bytes": 1_048_576.0,
        "deviation_ratio": 0.1,
    },
    {
        "name": "gelu",
        "kind": "elementwise",
        "shape": [1024, 512],
        "function": "gelu",
        "dtype": "fp16",
        **_MOVED,
    },
    {"name": "heads", "kind": "attention", "shape": [256, 512, 512, 64, 64], "dtype": "fp16"},
    {
        "name": "rows",
        "kind": "gather",
        "shape": [1024, 512],
        "num_sorted": 1024,
        **_MOVED,
        **_TABLE,
    },
]
LISTED: Json = {
    "operators": {
        "batch_size_per_rank": 1024,
        "before_tables": OPERATORS,
        "after_tables": OPERATORS,
    }
}
TRANSFORMER: Json = {
    "kind": "transformer",
    **{"layers": 4, "hidden": 512, "heads": 8, "ffn": 2048, "seq": 256, "vocabulary": 1000},
}


def _workload(dense: Json, **training: Any) -> Json:
    told = {"batch_size_per_rank": 1024, **training}
    return {
        "name": "model",
        "training": told,
        "dense": dense,
        "memory": {"reserve": "2 GiB"},
        "tables": TABLES,
    }


def _document(workload: Json, system: Json, gpus: int = 8) -> Json:
    return {"workload": workload, "system": system, "gpus": gpus}


ALIKE = {key: value for key, value in SYSTEM.items() if not key.startswith("different")}
CORES = {**ALIKE, "links": {k: v for k, v in LINKS.items() if k != "domain"}}
CORES = {**CORES, "layout": {"gpus_per_host": 2}, "calibration": CALIBRATION}
CORES = with_value(CORES, ("device", "overlap_slowdown"), 0)
_SPLIT = {"batch_size_per_rank": 4, "gradient_accumulation": 2, "tensor_parallel": 2}
_LANGUAGE: Json = {
    **{"name": "language", "training": _SPLIT},
    "dense": {"dtype": "fp16", "layers": [TRANSFORMER]},
}

DOCUMENTS: dict[str, Json] = {
    "dlrm": _document(_workload(DLRM), SYSTEM),
    "one domain": _document(_workload(DOT), ALIKE, gpus=4),
    "kind of network": _document(
        _workload(DLRM, pipeline="lookahead", lookahead=8),
        {**with_value(ALIKE, ("links", "network"), KIND), "fitted": FITTED},
    ),
    "prioritized": _document(_workload(DOT, pipeline="prioritized"), ALIKE),
    "operators": _document(_workload(LISTED), ALIKE),
    "layers": _document(_workload({"layers": [{"kind": "mlp", "sizes": [64, 1]}]}), ALIKE),
    "kernels of 2021": _document(_workload(DOT, host_profile="eager_2021"), ALIKE),
    "language model": _document(_LANGUAGE, ALIKE),
    "cores": _document({**_workload(LISTED), "tables": []}, CORES, gpus=2),
}
"""By what they are for: a workload, a system and its number of ranks."""


def fixed_plan(workload: Workload, topology: Topology) -> Plan:
    """Every table cut in its own way of ``CUTS``, on ranks in turn."""
    world, local = topology.world_size, topology.local_world_size
    placements = []
    for number, (table, (kind, kernel)) in enumerate(
        zip(workload.tables, cycle(CUTS), strict=False)
    ):
        is_cut = kind is ShardingType.COLUMN_WISE
        width = table.embedding_dim
        option = ShardingOption(
            table=table.name,
            sharding_type=kind,
            kernel=kernel,
            column_widths=(width // 2, width - width // 2) if is_cut else (width,),
            cache_load_factor_ratio=0.2 if kernel is ComputeKernel.FUSED_UVM_CACHING else None,
        )
        count = topology.num_hosts if option.spread is Spread.HOSTS else world
        where = tuple((number + piece) % count for piece in range(option.num_pieces))
        placements.append(
            place(option, table.num_embeddings, where, world_size=world, local_world_size=local)
        )
    return Plan(placements=tuple(placements))
