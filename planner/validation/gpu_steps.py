"""Steps measured on one H200, by their walls (``validate published --what steps``).

The host of that machine is described by two rows of the block ``ceilings``: an eager call and a
tiny pass. No wall is fitted to. What the device computes is priced by the models as they are, and a
second time by the kernels that were measured, so that the error of the host stands alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from costmodels.calibration.host_calls import host_calls_of
from costmodels.estimates import Estimate, Source
from costmodels.iteration.base import StageTimes
from costmodels.pipeline import CostPipeline
from costmodels.topology import Topology
from costmodels.validation.metrics import ErrorSummary, summarize_errors
from costmodels.workload import Pipeline, Workload
from planner import io
from planner.io.documents import Document
from planner.io.library import configs_folder
from planner.io.workload.workload_file import workload_file_of
from planner.models import default_models
from planner.validation.single_gpu import whole_tables

_FITTED, _EXTRA = "gpu_h200.jsonl", "gpu_h200_extra.jsonl"
_SYSTEM: Final = "h200_sxm"
_TORCHREC: Final = "torchrec"
_MICROSECOND: Final = 1e-6
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
_TRANSFORMER: Final = ("layers", "hidden", "heads", "ffn", "seq")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuStep:
    """A measured step and what is predicted for it.

    Attributes:
        name: of the point.
        group: dense, dlrm (TorchRec without a pipeline), pipe (with ``TrainPipelineSparseDist``);
            ``extra`` in front of models that no constant was fitted to.
        family: kind of the dense part, or the group of a DLRM.
        measured_s: wall of a step.
        kernels_s: kernels and copies of a step, one after the other.
        predicted: with what the models say of the device.
        host_only_s: predicted, with the measured kernels in place of what the models say.
    """

    name: str
    group: str
    family: str
    measured_s: float
    kernels_s: float
    predicted: Estimate
    host_only_s: float

    @property
    def is_host_bound(self) -> bool:
        """Whether the host decides the step."""
        return self.measured_s > _HOST_BOUND * self.kernels_s


def steps() -> tuple[GpuStep, ...]:
    """Every measured step with its predictions, in file order."""
    folder = configs_folder() / "published"
    rows = {name: _rows(folder / name) for name in (_FITTED, _EXTRA)}
    topology = measured_host(rows[_FITTED])
    return tuple(
        _step(row, topology, "extra " if name == _EXTRA else "")
        for name, found in rows.items()
        for row in found
        if "wall_us" in row and _group(row)
    )


def measured_host(rows: list[dict[str, Any]]) -> Topology:
    """The system with one device, and the host of the machine that the rows are from."""
    calls, topology = host_calls_of(rows), io.load_system(_SYSTEM, gpus=1)
    host = replace(topology.host, eager_call_s=calls.eager_call_s, eager_pass_s=calls.eager_pass_s)
    sources = tuple(
        replace(p, source=Source.MEASURED) if p.name == "host.eager_call" else p
        for p in topology.provenance
    )
    return replace(topology, host=host, provenance=sources)


def summarize(found: tuple[GpuStep, ...]) -> dict[str, tuple[ErrorSummary, ErrorSummary]]:
    """Errors of each group: as predicted, and with the measured kernels."""
    return {name: _errors(steps) for name, steps in _by(found, "group").items()}


def host_groups(found: tuple[GpuStep, ...]) -> dict[str, float]:
    """Root mean square of ln(predicted / measured) of host-bound steps, per family.

    The device's kernels are the measured ones, and models of ``extra`` are left out. These are
    :data:`costmodels.uncertainty.HOST_GROUPS`.
    """
    bound = tuple(s for s in found if s.is_host_bound and not s.group.startswith("extra"))
    return {
        family: float(np.sqrt(np.mean([np.log(s.host_only_s / s.measured_s) ** 2 for s in steps])))
        for family, steps in _by(bound, "family").items()
    }


def _by(found: tuple[GpuStep, ...], key: str) -> dict[str, list[GpuStep]]:
    groups: dict[str, list[GpuStep]] = {}
    for step in found:
        groups.setdefault(getattr(step, key), []).append(step)
    return groups


def _errors(found: list[GpuStep]) -> tuple[ErrorSummary, ErrorSummary]:
    measured = [s.measured_s for s in found]
    whole = summarize_errors(
        [s.predicted.time_s for s in found],
        measured,
        low=[s.predicted.low_s for s in found],
        high=[s.predicted.high_s for s in found],
    )
    return whole, summarize_errors([s.host_only_s for s in found], measured)


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _group(row: Mapping[str, Any]) -> str:
    """The group of a row; empty for rows of other blocks and of other software."""
    block = str(row["block"])
    if block == "dense":
        return block
    is_torchrec = str(row.get("backend", "")).startswith(_TORCHREC)
    return block if block in ("dlrm", "pipe") and is_torchrec else ""


def _step(row: Mapping[str, Any], topology: Topology, prefix: str) -> GpuStep:
    group = _group(row)
    workload = workload_of(row)
    pipeline = CostPipeline(workload, topology, default_models(topology))
    plan = whole_tables(workload)
    copied_s = float(row["h2d_us"]) * _MICROSECOND
    times = _with_kernels(
        pipeline.stage_times(pipeline.plan_work(plan)),
        float(row["kernel_us"]) * _MICROSECOND,
        copied_s,
    )
    return GpuStep(
        name=str(row["id"]),
        group=prefix + group,
        family=str(row.get("kind", group)),
        measured_s=float(row["wall_us"]) * _MICROSECOND,
        kernels_s=float(row["kernel_us"]) * _MICROSECOND + copied_s,
        predicted=pipeline.estimate(plan).time,
        host_only_s=float(pipeline.times_of_stages(times, (1, 1)).squeeze()),
    )


def _with_kernels(times: StageTimes, kernels_s: float, copied_s: float) -> StageTimes:
    """The stages with as many seconds on the device as were measured, shared out as predicted."""
    ratio = kernels_s / sum(float(np.max(getattr(times, name))) for name in _DEVICE_TIMES)
    scaled = {name: getattr(times, name) * ratio for name in _DEVICE_TIMES}
    return replace(times, **scaled, input_copy_s=np.array([copied_s]))


def workload_of(row: Mapping[str, Any]) -> Workload:
    """The workload that a row has measured."""
    training: dict[str, Any] = {"batch_size_per_rank": row["B"], "pipeline": Pipeline.NONE.value}
    if row["block"] == "dense":
        training["dense_optimizer"] = row["opt"]
        document: dict[str, Any] = {"dense": _dense(row)}
    else:
        training |= {
            "optimizer": row["opt"],
            "embedding_dtype": "fp32",
            "output_dtype": "fp32",
            "gradient_dtype": "fp32",
            "pipeline": row["pipeline"],
            "index_bytes": 8,
            "dense_optimizer": row["dense_opt"],
        }
        document = {"dense": _dlrm(row), "tables": list(_tables(row))}
    whole = {"name": row["id"], "training": training, "memory": {"reserve": "2 GiB"}, **document}
    return workload_file_of(Document(Path(_FITTED), whole, {})).workload


def _tables(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for index, table in enumerate(row["tables"]):
        law = {"kind": "zipf", "exponent": table["s"]} if table["s"] else {"kind": "uniform"}
        yield {
            "name": f"t{index}",
            "num_embeddings": table["rows"],
            "embedding_dim": row["D"],
            "pooling_factor": table["L"],
            "distribution": law,
        }


def _dlrm(row: Mapping[str, Any]) -> dict[str, Any]:
    found = {
        "num_dense_features": row["dense"],
        "bottom_mlp": row["bottom"],
        "top_mlp": row["top"],
        "interaction": row["inter"],
        "dtype": row["prec"],
    }
    if row["inter"] == "dcn":
        found |= {"dcn_num_layers": row["cross"], "dcn_low_rank_dim": row["rank"]}
    return found


def _dense(row: Mapping[str, Any]) -> dict[str, Any]:
    features = 0 if "vocab" in row else row.get("feat") or row["seq"] * row["hidden"]
    layers = _layers(row)
    return {"dtype": row["prec"], "num_dense_features": features, "layers": layers}


def _layers(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The layers of a dense part in the words of a workload file."""
    kind = row["kind"]
    sized = {"mlp": "mlp", "two_tower": "two_tower"}
    if kind in sized:
        return [{"kind": kind, "sizes": row["sizes"]}]
    if kind == "dcn":
        cross = {"kind": "dcn", "num_layers": row["cross"], "low_rank": row["rank"]}
        return [cross, {"kind": "mlp", "sizes": row["sizes"]}]
    if kind == "mmoe":
        counts = {"experts": row["experts"], "tasks": row["tasks"]}
        return [{"kind": kind, **counts, "expert_sizes": row["es"], "tower_sizes": row["ts"]}]
    if kind == "moe":
        return [{"kind": kind, "experts": row["experts"], "top": row["top"], "ffn": row["ffn"]}]
    if kind == "hstu":
        sizes = {key: row[key] for key in ("layers", "hidden", "heads", "seq")}
        return [{"kind": kind, "causal": True, **sizes}]
    return [_transformer(row)]


def _transformer(row: Mapping[str, Any]) -> dict[str, Any]:
    found = {"kind": "transformer", **{key: row[key] for key in _TRANSFORMER}}
    if row["prec"] == "bf16":
        found["autocast"] = True
    own: dict[str, dict[str, Any]] = {
        "sasrec": {"causal": row.get("causal")},
        "bert": {"joint_qkv": False, "head_transform": True},
        "gpt": {"causal": True},
        "llama": {
            "causal": True,
            "gated": True,
            "bias": False,
            "rotary": True,
            "tied": False,
            "kv_heads": row.get("kv"),
            "joint_qkv": False,
        },
    }
    if "vocab" in row:
        found["vocabulary"] = row["vocab"]
    return found | own[row["kind"]]
