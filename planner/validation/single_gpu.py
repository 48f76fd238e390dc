"""Iterations on one GPU, published by Lin et al. 2022 (``validate published --what single-gpu``).

Their time is mostly that of the host: it takes longer to launch kernels than these run, and copies
inputs. The host profile ``eager_2021`` takes the relative cost of its overheads (T1 to T5) from
traces. Two further numbers can only be told from whole iterations: how long a launch takes without
the profiler, and the time between steps. In the shipped profile these two are fitted to all cases,
so that its error on the same cases says little. Each case is therefore also predicted with both
numbers fitted to other cases: those of other models on the same GPU, those of other models on all
GPUs, and those on other GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.estimates import Estimate
from costmodels.iteration.base import StageTimes
from costmodels.pipeline import CostPipeline
from costmodels.topology import with_host_factor
from planner.io.library import configs_folder
from planner.validation.cases import (
    AS_SHIPPED,
    Part,
    Prediction,
    StepCase,
    csv_rows,
    left_out,
    published_workload,
    system,
    whole_tables,
)

_FILE: Final = "lin22_single_gpu.csv"
"""The measured iterations, one case a row."""
_FOLDER: Final = "lin22"
"""The folder of their workloads and systems."""
_LAUNCHES: Final = np.geomspace(0.5, 2.5, 33)
"""Launch latencies that a fit tries, as multiples of the system's; neighbours are 5 % apart."""
_BETWEEN_S: Final = np.linspace(0.0, 3e-3, 31)
"""Times between steps that a fit tries, in seconds; neighbours are 0.1 ms apart."""
_ISSUED: Final = tuple(f.name for f in fields(StageTimes) if f.name.endswith("_host_s"))
"""The stage times that are proportional to the launch latency."""

LEFT_OUT: Final[dict[str, Callable[[SingleGpuCase, SingleGpuCase], bool]]] = {
    "model left out, same GPU": lambda case, other: (
        case.gpu == other.gpu and case.model != other.model
    ),
    "model left out, all GPUs": lambda case, other: case.model != other.model,
    "GPU left out": lambda case, other: case.gpu != other.gpu,
}
"""For each kind of fit: whether a case may be fitted to another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleGpuCase(StepCase):
    """One measured iteration of one rank.

    Attributes:
        gpu: name of the GPU.
        model: name of the model, which several batch sizes share.
    """

    gpu: str
    model: str


def load_cases() -> tuple[SingleGpuCase, ...]:
    """Every shipped case, in file order.

    Raises:
        InvalidInputError: a file cannot be read.
    """
    folder = configs_folder() / "published" / _FOLDER
    return tuple(_case(row, folder) for row in csv_rows(_FILE))


def predictions() -> tuple[Prediction[SingleGpuCase], ...]:
    """Every shipped case with its predictions, in file order."""
    cases = load_cases()
    errors = np.array([np.abs(np.log(_tried_s(c) / c.measured_s)) for c in cases])

    estimated = cache(lambda index, pair: _estimate(cases[index], pair))
    # The pair of both numbers with the least mean error on the cases that may be fitted to.
    pairs = left_out(
        cases, cases, LEFT_OUT, lambda kept: int(errors[list(kept)].mean(axis=0).argmin())
    )
    return tuple(
        Prediction(
            case=case,
            predicted={
                AS_SHIPPED: estimated(i, None),
                **{name: estimated(i, found[i]) for name, found in pairs.items()},
            },
        )
        for i, case in enumerate(cases)
    )


def parts() -> tuple[Part, ...]:
    """Every iteration."""
    return (
        Part(
            "iterations",
            "DLRM on one GPU, iteration time",
            predictions(),
            by={"model": lambda c: c.model, "GPU": lambda c: c.gpu},
            judged="GPU left out",
        ),
    )


def _tried_s(case: SingleGpuCase) -> FloatArray:
    """Seconds ``[pairs]`` of a case with each launch latency and each time between steps."""
    launches, between_s = (
        a.reshape(-1, 1) for a in np.meshgrid(_LAUNCHES, _BETWEEN_S, indexing="ij")
    )
    pipeline = CostPipeline(replace(case.workload, between_steps_s=0.0), case.topology)
    times = pipeline.stage_times(pipeline.plan_work(whole_tables(case.workload)))
    issued = {name: getattr(times, name) * launches for name in _ISSUED}
    issued["copy_host_s"] = issued["copy_host_s"] + between_s
    return pipeline.scheduled(replace(times, **issued), (launches.size, 1))[1].iteration_time_s


def _estimate(case: SingleGpuCase, pair: int | None) -> Estimate:
    """The estimate of a case.

    Args:
        case: the case.
        pair: index in the result of :func:`_tried_s` of the launch latency and time between steps
            to use; None for those of the shipped profile.
    """
    workload, topology = case.workload, case.topology
    if pair is not None:
        launches, between_s = divmod(pair, _BETWEEN_S.size)
        topology = with_host_factor(topology, float(_LAUNCHES[launches]))
        workload = replace(workload, between_steps_s=float(_BETWEEN_S[between_s]))
    return CostPipeline(workload, topology).estimate(whole_tables(workload)).time


def _case(row: dict[str, str], folder: Path) -> SingleGpuCase:
    """The case of a row; its system is a file in ``folder``, or else a shipped one."""
    own = folder / f"{row['system']}.yaml"
    workload = published_workload(f"{_FOLDER}/{row['workload']}")
    return SingleGpuCase(
        name=row["case"],
        gpu=row["gpu"],
        model=row["model"],
        workload=replace(workload, batch_size_per_rank=int(row["batch_size"])),
        topology=system(str(own if own.is_file() else row["system"]), 1, 1),
        measured_s=float(row["measured_ms"]) * 1e-3,
        reference=row["source"],
    )
