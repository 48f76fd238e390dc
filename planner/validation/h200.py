"""Steps that were measured on one H200 with TorchRec and PyTorch: their walls and their memory.

Each row of configs/published/gpu_h200.jsonl has the fields of the point that was measured; the
blocks ``dlrm`` and ``dense`` are training steps. In the block ``dlrm`` all tables are whole on the
only rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from costmodels.calibration.device import host_calls_of
from costmodels.estimates import Source
from costmodels.iteration.base import StageTimes
from costmodels.pipeline import CostPipeline
from costmodels.sharding import ComputeKernel, Plan, ShardingOption, ShardingType, place
from costmodels.topology import Topology
from costmodels.validation.metrics import ErrorSummary
from costmodels.workload import Workload
from planner import io
from planner.io.documents import Document
from planner.io.workload.workload_file import workload_file_of
from planner.validation import cases
from planner.validation.cases import AS_SHIPPED, Case, Prediction, exact, json_rows

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


# ------------------------------------------------------------------ walls of steps
#
# The host of the machine is described by two rows of the block ``ceilings``: an eager call and a
# tiny pass. No wall is fitted to. What the device computes is priced by the models as they are, and
# a second time by the kernels that were measured, so that the error of the host stands alone.


_FITTED, _EXTRA = "gpu_h200.jsonl", "gpu_h200_extra.jsonl"
_SYSTEM: Final = "h200_sxm"
_TORCHREC: Final = "torchrec"
_MICROSECOND: Final = 1e-6
HOST_ONLY: Final = "with measured kernels"
"""The name of predictions with the measured kernels in place of what the models say."""
_HOST_BOUND: Final = 1.15
"""How far a wall must exceed the kernels and copies of a step for the host to decide it."""
_DEVICE_TIMES: Final = (
    "bottom_forward_s",
    "top_forward_s",
    "top_backward_s",
    "bottom_backward_s",
    "optimizer_s",
    "lookup_forward_s",
    "lookup_backward_s",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuStep(Case):
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
    calls, topology = host_calls_of(rows), io.load_system(_SYSTEM, gpus=1)
    host = replace(topology.host, eager_call_s=calls.eager_call_s, eager_pass_s=calls.eager_pass_s)
    sources = tuple(
        replace(p, source=Source.MEASURED) if p.name == "host.eager_call" else p
        for p in topology.provenance
    )
    return replace(topology, host=host, provenance=sources)


def summarize(found: tuple[Prediction[GpuStep], ...]) -> dict[str, dict[str, ErrorSummary]]:
    """Errors of each group: as predicted, and with the measured kernels."""
    return {
        name: cases.summarize(steps)
        for name, steps in cases.grouped(found, lambda s: s.case.group).items()
    }


def host_groups(found: tuple[Prediction[GpuStep], ...]) -> dict[str, float]:
    """Root mean square of ln(predicted / measured) of host-bound steps, per family.

    The device's kernels are the measured ones, and models of ``extra`` are left out. These are
    :data:`costmodels.uncertainty.HOST_GROUPS`.
    """
    bound = tuple(s for s in found if s.case.is_host_bound and not s.case.group.startswith("extra"))
    return {
        family: float(
            np.sqrt(
                np.mean(
                    [np.log(s.predicted[HOST_ONLY].time_s / s.case.measured_s) ** 2 for s in steps]
                )
            )
        )
        for family, steps in cases.grouped(bound, lambda s: s.case.family).items()
    }


def _group(row: Row) -> str:
    """The group of a row; empty for rows of other blocks and of other software."""
    block = str(row["block"])
    if block == "dense":
        return block
    is_torchrec = str(row.get("backend", "")).startswith(_TORCHREC)
    return block if block in ("dlrm", "pipe") and is_torchrec else ""


def _priced(row: Row, topology: Topology, prefix: str) -> Prediction[GpuStep]:
    group = _group(row)
    workload = step_of(row)
    pipeline = CostPipeline(workload, topology)
    plan = whole_tables(workload)
    copied_s = float(row["h2d_us"]) * _MICROSECOND
    times = _with_kernels(
        pipeline.stage_times(pipeline.plan_work(plan)),
        float(row["kernel_us"]) * _MICROSECOND,
        copied_s,
    )
    case = GpuStep(
        name=str(row["id"]),
        workload=workload,
        topology=topology,
        measured_s=float(row["wall_us"]) * _MICROSECOND,
        group=prefix + group,
        family=str(row.get("kind", group)),
        kernels_s=float(row["kernel_us"]) * _MICROSECOND + copied_s,
    )
    predicted = {
        AS_SHIPPED: pipeline.estimate(plan).time,
        HOST_ONLY: exact(float(pipeline.scheduled(times, (1, 1))[1].iteration_time_s.squeeze())),
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


if TYPE_CHECKING:
    from pandas import DataFrame


def memory_of_steps() -> DataFrame:
    """The measured steps, each with its ledger on the device.

    Returns:
        A row for each step: its ``name``, the ``group`` that it is counted among, ``tables_bytes``
        (weights and optimizer states of tables), ``measured_bytes`` (the most that was allocated),
        ``reserved_bytes`` (the most that the allocator reserved; 0 if not recorded), and
        ``predicted_bytes`` (the ledger, without the memory reserve).
    """
    from pandas import DataFrame

    topology = io.load_system(_SYSTEM, gpus=1, gpus_per_host=1)
    found = []
    for row in load_rows(_FITTED, "dlrm", "pipe", "dense"):
        workload = step_of(row)
        (rank,) = CostPipeline(workload, topology).memory(whole_tables(workload)).ranks
        kind = row["kind"] if row["block"] == "dense" else row["backend"].split()[0]
        found.append(
            {
                "name": row["id"],
                "group": f"{row['block']} {kind}",
                "tables_bytes": rank.weights_bytes + rank.optimizer_bytes,
                "measured_bytes": 1e9 * row["mem_gb"],
                "reserved_bytes": 1e9 * row.get("reserved_gb", 0.0),
                "predicted_bytes": rank.used_bytes - rank.reserved_bytes,
            }
        )
    return DataFrame(found)


def with_errors(steps: DataFrame) -> DataFrame:
    """The steps with ``rest_ratio``, the relative error beside the tables, and ``sum_ratio``."""
    rest_bytes = steps.measured_bytes - steps.tables_bytes
    return steps.assign(
        rest_ratio=(steps.predicted_bytes - steps.tables_bytes) / rest_bytes - 1.0,
        sum_ratio=steps.predicted_bytes / steps.measured_bytes - 1.0,
    )


def memory_errors(steps: DataFrame) -> dict[str, dict[str, float]]:
    """The errors of each group of steps, and of all steps of the block ``dense``, as ratios.

    ``rest_median_ratio`` is the median error of what is beside the tables, without its sign;
    ``rest_worst_ratio`` the largest of these, with its sign; ``most_short_ratio`` how much the
    ledger is short of the whole sum at most, 0 if never; ``reserved_median_ratio`` the median of
    reserved over allocated bytes, 0 if not recorded.
    """
    known = with_errors(steps)
    groups = {str(name): group for name, group in known.groupby("group", sort=False)}
    dense = known[known.group.str.startswith("dense ")]
    groups |= {"dense all": dense} if len(dense) else {}
    return {
        name: {
            "num_steps": len(group),
            "rest_median_ratio": float(group.rest_ratio.abs().median()),
            "rest_worst_ratio": max(group.rest_ratio.tolist(), key=abs),
            "most_short_ratio": max(0.0, -float(group.sum_ratio.min())),
            "reserved_median_ratio": float((group.reserved_bytes / group.measured_bytes).median()),
        }
        for name, group in groups.items()
    }
