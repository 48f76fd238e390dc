"""Steps measured on one H200, by their walls (``validate published --what steps``).

The host of that machine is described by two rows of the block ``ceilings``: an eager call and a
tiny pass. No wall is fitted to. What the device computes is priced by the models as they are, and a
second time by the kernels that were measured, so that the error of the host stands alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodels.calibration.fit_device import host_calls_of
from costmodels.estimates import Source
from costmodels.iteration.base import StageTimes
from costmodels.pipeline import CostPipeline
from costmodels.topology import Topology
from costmodels.validation.metrics import ErrorSummary
from planner import io
from planner.validation import cases
from planner.validation.cases import AS_SHIPPED, Case, Prediction, exact
from planner.validation.measured_steps import Row, load_rows, step_of, whole_tables

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
        _step(row, topology, "extra " if name == _EXTRA else "")
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
    return {name: cases.summarize(steps) for name, steps in _by(found, "group").items()}


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
        for family, steps in _by(bound, "family").items()
    }


def _by(found: tuple[Prediction[GpuStep], ...], key: str) -> dict[str, list[Prediction[GpuStep]]]:
    groups: dict[str, list[Prediction[GpuStep]]] = {}
    for step in found:
        groups.setdefault(getattr(step.case, key), []).append(step)
    return groups


def _group(row: Row) -> str:
    """The group of a row; empty for rows of other blocks and of other software."""
    block = str(row["block"])
    if block == "dense":
        return block
    is_torchrec = str(row.get("backend", "")).startswith(_TORCHREC)
    return block if block in ("dlrm", "pipe") and is_torchrec else ""


def _step(row: Row, topology: Topology, prefix: str) -> Prediction[GpuStep]:
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
        HOST_ONLY: exact(float(pipeline.times_of_stages(times, (1, 1)).squeeze())),
    }
    return Prediction(case=case, predicted=predicted)


def _with_kernels(times: StageTimes, kernels_s: float, copied_s: float) -> StageTimes:
    """The stages with as many seconds on the device as were measured, shared out as predicted."""
    ratio = kernels_s / sum(float(np.max(getattr(times, name))) for name in _DEVICE_TIMES)
    scaled = {name: getattr(times, name) * ratio for name in _DEVICE_TIMES}
    return replace(times, **scaled, input_copy_s=np.array([copied_s]))
