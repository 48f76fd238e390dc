"""Workloads of the steps that were measured on one GPU with TorchRec and PyTorch.

Each row of configs/published/gpu_h200.jsonl has the fields of the point that was measured; the
blocks ``dlrm`` and ``dense`` are training steps. In the block ``dlrm`` all tables are whole on the
only rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from costmodels.sharding import ComputeKernel, Plan, ShardingOption, ShardingType, place
from costmodels.workload import Workload
from planner.io.documents import Document
from planner.io.workload.workload_file import workload_file_of
from planner.validation.cases import json_rows

Row = Mapping[str, Any]
"""A measured row, as it is written."""

_TRANSFORMER: Final = ("layers", "hidden", "heads", "ffn", "seq")
_LANGUAGE: Final[dict[str, dict[str, Any]]] = {
    "bert": {"joint_qkv": False, "head_transform": True},
    "gpt": {"causal": True},
    "llama": {
        "causal": True,
        "gated": True,
        "bias": False,
        "rotary": True,
        "tied": False,
        "joint_qkv": False,
    },
}


def load_rows(name: str, *blocks: str) -> list[Row]:
    """The rows of these blocks in a file of configs/published that have no error."""
    return [row for row in json_rows(name) if row["block"] in blocks and "error" not in row]


def step_of(row: Row) -> Workload:
    """The workload of a row of the blocks ``dense``, ``dlrm`` and ``pipe``."""
    return workload_file_of(Document(Path(row["id"]), document_of(row), {})).workload


def document_of(row: Row) -> dict[str, Any]:
    """The same workload as the values of a workload file."""
    return _dense_only(row) if row["block"] == "dense" else _with_tables(row)


def _dense_only(row: Row) -> dict[str, Any]:
    kind = row["kind"]
    width = 0 if kind in _LANGUAGE else row.get("feat") or row["seq"] * row["hidden"]
    training = {
        "batch_size_per_rank": row["B"],
        "pipeline": "none",
        "dense_optimizer": row["opt"],
    }
    dense = {
        "dtype": row["prec"],
        "framework": "measured",
        "num_dense_features": width,
        "layers": _layers(row),
    }
    return {"name": row["id"], "training": training, "dense": dense}


def _layers(row: Row) -> list[dict[str, Any]]:
    kind = row["kind"]
    if kind in _LANGUAGE or kind == "sasrec":
        sizes = {key: row[key] for key in _TRANSFORMER}
        keys = _LANGUAGE.get(kind, {"causal": row.get("causal", False)})
        keys = {**keys, **({"vocabulary": row["vocab"]} if kind in _LANGUAGE else {})}
        keys = {**keys, **({"kv_heads": row["kv"]} if "kv" in row else {})}
        return [{"kind": "transformer", "autocast": row["prec"] == "bf16", **sizes, **keys}]
    if kind == "hstu":
        sizes = {key: row[key] for key in _TRANSFORMER if key != "ffn"}
        return [{"kind": "hstu", "causal": True, **sizes}]
    if kind == "dcn":
        cross = {"kind": "dcn", "num_layers": row["cross"], "low_rank": row["rank"]}
        return [cross, {"kind": "mlp", "sizes": row["sizes"]}]
    keys = {
        "mlp": {"sizes": "sizes"},
        "two_tower": {"sizes": "sizes"},
        "moe": {"experts": "experts", "top": "top", "ffn": "ffn"},
        "mmoe": {"experts": "experts", "tasks": "tasks", "expert_sizes": "es", "tower_sizes": "ts"},
    }[kind]
    return [{"kind": kind, **{ours: row[theirs] for ours, theirs in keys.items()}}]


def _with_tables(row: Row) -> dict[str, Any]:
    dense = {
        "num_dense_features": row["dense"],
        "bottom_mlp": row["bottom"],
        "top_mlp": row["top"],
        "interaction": row["inter"],
        "dtype": row["prec"],
    }
    if row["inter"] == "dcn":
        dense |= {"dcn_num_layers": row["cross"], "dcn_low_rank_dim": row["rank"]}
    training = {
        "batch_size_per_rank": row["B"],
        "optimizer": row["opt"],
        "pipeline": row["pipeline"],
        "dense_optimizer": row["dense_opt"],
    }
    tables = [
        {
            "name": f"t{i}",
            "num_embeddings": table["rows"],
            "embedding_dim": row["D"],
            "pooling_factor": table["L"],
            "distribution": {"kind": "zipf", "exponent": table["s"]}
            if table["s"]
            else {"kind": "uniform"},
        }
        for i, table in enumerate(row["tables"])
    ]
    return {"name": row["id"], "training": training, "dense": dense, "tables": tables}


def whole_tables(workload: Workload) -> Plan:
    """The plan with every table whole on the only rank."""
    return Plan(
        placements=tuple(
            place(
                ShardingOption(
                    table=table.name,
                    sharding_type=ShardingType.TABLE_WISE,
                    kernel=ComputeKernel.FUSED,
                    column_widths=(table.embedding_dim,),
                ),
                table.num_embeddings,
                (0,),
                world_size=1,
                local_world_size=1,
            )
            for table in workload.tables
        )
    )
