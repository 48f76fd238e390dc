"""Profiles of two TorchRec steps on one NVIDIA H200, and the models that were trained.

``h200/dlrm07.json.gz`` and ``dlrm11.json.gz`` are traces of the PyTorch profiler (torch 2.11, CUDA
13.0, FBGEMM 1.6.0, TorchRec 1.6.1), three steps each; only their ``traceName`` was shortened. The
models are the rows of the same names in ``configs/published/gpu_h200.jsonl``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from planner.io.library import configs_folder

NAMES: Final = ("dlrm07", "dlrm11")


def trace_of(name: str) -> Path:
    """The trace of a step."""
    return Path(__file__).parent / "h200" / f"{name}.json.gz"


def row_of(name: str) -> dict[str, Any]:
    """The model, and what was measured without the profiler."""
    lines = (configs_folder() / "published" / "gpu_h200.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row.get("id") == name]
    (found,) = (r for r in rows if r["backend"][:8] == "torchrec" and r["pipeline"] == "none")
    return dict(found)


def workload_text(name: str) -> str:
    """The model as a workload file; JSON is YAML."""
    row = row_of(name)
    dense = {"num_dense_features": row["dense"], "bottom_mlp": row["bottom"]}
    dense |= {"top_mlp": row["top"], "interaction": row["inter"], "dtype": row["prec"]}
    if row["inter"] == "dcn":
        dense |= {"dcn_num_layers": row["cross"], "dcn_low_rank_dim": row["rank"]}
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
    training = {"batch_size_per_rank": row["B"], "pipeline": "none", "optimizer": row["opt"]}
    training |= {"embedding_dtype": "fp32", "dense_optimizer": row["dense_opt"]}
    return json.dumps({"name": name, "training": training, "dense": dense, "tables": tables})
