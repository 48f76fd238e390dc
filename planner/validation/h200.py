"""Steps that were measured on one H200 with TorchRec and PyTorch: their walls and their memory.

Each row of configs/published/gpu_h200.jsonl has the fields of the point that was measured; the
blocks ``dlrm`` and ``dense`` are training steps. In the block ``dlrm`` all tables are whole on the
only rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from costmodels.calibration.device import host_calls_of
from costmodels.estimates import Source
from costmodels.iteration.base import StageTimes
from costmodels.pipeline import CostPipeline
from costmodels.topology import Topology
from costmodels.workload import Workload
from planner.validation.cases import (
    UNSEEN,
    Part,
    Prediction,
    StepCase,
    json_rows,
    system,
    whole_tables,
    within,
    workload_of,
)

if TYPE_CHECKING:
    from pandas import DataFrame

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
    return workload_of(row["id"], document_of(row))


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


# ------------------------------------------------------------------ walls of steps
#
# The host of the machine is described by two rows of the block ``ceilings``: an eager call and a
# tiny pass. No wall is fitted to. What the device computes is priced by the models as they are, and
# a second time by the kernels that were measured, so that the error of the host stands alone.


_FITTED, _EXTRA = "gpu_h200.jsonl", "gpu_h200_extra.jsonl"
_SYSTEM: Final = "h200_sxm"
_TORCHREC: Final = "torchrec"
HOST_ONLY: Final = "with measured kernels"
"""The name of predictions with the measured kernels in place of what the models say."""
_HOST_BOUND: Final = 1.15
"""How far a wall must exceed the kernels and copies of a step for the host to decide it."""
_DEVICE_TIMES: Final = (
    *(f"{part}_{way}_s" for part in ("bottom", "top", "lookup") for way in ("forward", "backward")),
    "optimizer_s",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuStep(StepCase):
    """A measured step, by its wall.

    Attributes:
        group: dense, dlrm (TorchRec without a pipeline), pipe (with ``TrainPipelineSparseDist``);
            ``extra`` in front of models that no constant was fitted to.
        family: kind of the dense part, or the group of a DLRM.
        kernels_s: kernels and copies of a step, one after the other.
    """

    group: str
    family: str
    kernels_s: float

    @property
    def is_host_bound(self) -> bool:
        """Whether the host decides the step."""
        return self.measured_s > _HOST_BOUND * self.kernels_s


def steps() -> tuple[Prediction[GpuStep], ...]:
    """Every measured step with its predictions, in file order."""
    rows = {name: load_rows(name, "dense", "dlrm", "pipe") for name in (_FITTED, _EXTRA)}
    topology = measured_host(load_rows(_FITTED, "ceilings"))
    return tuple(
        _priced(row, topology, "extra " if name == _EXTRA else "")
        for name, found in rows.items()
        for row in found
        if "wall_us" in row and _group(row)
    )


def measured_host(rows: list[Row]) -> Topology:
    """The system with one device, and the host of the machine that the rows are from."""
    calls, topology = host_calls_of(rows), system(_SYSTEM)
    host = replace(topology.host, eager_call_s=calls.eager_call_s, eager_pass_s=calls.eager_pass_s)
    sources = tuple(
        replace(p, source=Source.MEASURED) if p.name == "host.eager_call" else p
        for p in topology.provenance
    )
    return replace(topology, host=host, provenance=sources)


def parts() -> tuple[Part, ...]:
    """All steps by group, and the host-bound ones by what decides them.

    The errors of the latter, with measured kernels, are :data:`costmodels.uncertainty.HOST_GROUPS`;
    models of ``extra`` are not among them.
    """
    found = steps()
    bound = [s for s in found if s.case.is_host_bound and not s.case.group.startswith("extra")]
    return (
        Part("steps", "Steps on one H200, wall", found, by={"group": lambda c: c.group}),
        Part(
            "host_bound",
            "Steps that the host decides",
            bound,
            by={"family": lambda c: c.family},
            judged=HOST_ONLY,
        ),
    )


def _group(row: Row) -> str:
    """The group of a row; empty for rows of other blocks and of other software."""
    block = str(row["block"])
    is_torchrec = str(row.get("backend", "")).startswith(_TORCHREC)
    return block if block == "dense" or (block in ("dlrm", "pipe") and is_torchrec) else ""


def _priced(row: Row, topology: Topology, prefix: str) -> Prediction[GpuStep]:
    workload, group = step_of(row), _group(row)
    plan, pipeline = whole_tables(workload), CostPipeline(workload, topology)
    kernels_s, copied_s = (float(row[key]) * 1e-6 for key in ("kernel_us", "h2d_us"))
    times = pipeline.stage_times(pipeline.plan_work(plan))
    times = _with_kernels(times, kernels_s, copied_s)
    case = GpuStep(
        name=str(row["id"]),
        workload=workload,
        topology=topology,
        measured_s=float(row["wall_us"]) * 1e-6,
        group=prefix + group,
        family=str(row.get("kind", group)),
        kernels_s=kernels_s + copied_s,
    )
    predicted = {
        UNSEEN: pipeline.estimate(plan).time,
        HOST_ONLY: within(float(pipeline.scheduled(times, (1, 1))[1].iteration_time_s.squeeze())),
    }
    return Prediction(case=case, predicted=predicted)


def _with_kernels(times: StageTimes, kernels_s: float, copied_s: float) -> StageTimes:
    """The stages with as many seconds on the device as were measured, shared out as predicted."""
    ratio = kernels_s / sum(float(np.max(getattr(times, name))) for name in _DEVICE_TIMES)
    scaled = {name: getattr(times, name) * ratio for name in _DEVICE_TIMES}
    return replace(times, **scaled, input_copy_s=np.array([copied_s]))


# ------------------------------------------------------------------ device memory
#
# What was measured is the most that PyTorch's allocator had given out, and the most that it had
# reserved. Weights of tables and their optimizer states are known exactly; the errors are those of
# the rest: the dense part, activations, indices, and what lookups need for a moment.


def memory_of_steps() -> DataFrame:
    """The measured steps, each with its ledger on the device.

    Returns:
        A row for each step: its ``name``, the ``group`` that it is counted among, ``tables_bytes``
        (weights and optimizer states of tables), ``measured_bytes`` (the most that was allocated),
        ``reserved_bytes`` (the most that the allocator reserved; 0 if not recorded),
        ``predicted_bytes`` (the ledger, without the memory reserve), ``rest_ratio``, the relative
        error beside the tables, and ``sum_ratio``, that of the whole.
    """
    from pandas import DataFrame

    topology = system(_SYSTEM, 1, 1)
    found = []
    for row in load_rows(_FITTED, "dlrm", "pipe", "dense"):
        workload = step_of(row)
        (rank,) = CostPipeline(workload, topology).memory(whole_tables(workload)).ranks
        kind = row["kind"] if row["block"] == "dense" else row["backend"].split()[0]
        tables_bytes = rank.weights_bytes + rank.optimizer_bytes
        measured_bytes = 1e9 * row["mem_gb"]
        predicted_bytes = rank.used_bytes - rank.reserved_bytes
        found.append(
            {
                "name": row["id"],
                "group": f"{row['block']} {kind}",
                "tables_bytes": tables_bytes,
                "measured_bytes": measured_bytes,
                "reserved_bytes": 1e9 * row.get("reserved_gb", 0.0),
                "predicted_bytes": predicted_bytes,
                "rest_ratio": (predicted_bytes - tables_bytes) / (measured_bytes - tables_bytes)
                - 1.0,
                "sum_ratio": predicted_bytes / measured_bytes - 1.0,
            }
        )
    return DataFrame(found)


def memory_errors(steps: DataFrame) -> DataFrame:
    """The errors of each group of steps, and of all steps of the block ``dense``, as ratios.

    ``rest_median_ratio`` is the median error of what is beside the tables, without its sign;
    ``rest_worst_ratio`` the largest of these, with its sign; ``most_short_ratio`` how much the
    ledger is short of the whole sum at most, 0 if never; ``reserved_median_ratio`` the median of
    reserved over allocated bytes, 0 if not recorded.
    """
    from pandas import concat

    dense = steps[steps.group.str.startswith("dense ")].assign(group="dense all")
    known = concat([steps, dense])
    known["reserved_ratio"] = known.reserved_bytes / known.measured_bytes
    return known.groupby("group", sort=False).agg(
        num_steps=("name", "size"),
        rest_median_ratio=("rest_ratio", lambda errors: errors.abs().median()),
        rest_worst_ratio=("rest_ratio", lambda errors: max(errors, key=abs)),
        most_short_ratio=("sum_ratio", lambda errors: max(0.0, -errors.min())),
        reserved_median_ratio=("reserved_ratio", "median"),
    )
