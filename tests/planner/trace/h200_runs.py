"""Profiles of two TorchRec steps on one NVIDIA H200, and the models that were trained.

``h200/dlrm07.json.gz`` and ``dlrm11.json.gz`` are traces of the PyTorch profiler (torch 2.11, CUDA
13.0, FBGEMM 1.6.0, TorchRec 1.6.1), three steps each; only their ``traceName`` was shortened. The
models are the rows of the same names in ``configs/published/gpu_h200.jsonl``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from planner.validation.cases import json_rows
from planner.validation.steps import Row, document_of

NAMES: Final = ("dlrm07", "dlrm11")


def trace_of(name: str) -> Path:
    """The trace of a step."""
    return Path(__file__).parent / "h200" / f"{name}.json.gz"


def row_of(name: str) -> Row:
    """The model, and what was measured without the profiler."""
    rows = (row for row in json_rows("gpu_h200.jsonl", "dlrm") if row["id"] == name)
    (found,) = (r for r in rows if r["backend"][:8] == "torchrec" and r["pipeline"] == "none")
    return found


def workload_text(name: str) -> str:
    """The model as a workload file; JSON is YAML."""
    return json.dumps(document_of(row_of(name)))
