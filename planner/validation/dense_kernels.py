"""GPU times of dense parts on an H200 and an H100 (``validate published --what dense``).

The measurements are in configs/published: gpu_h200.jsonl has training steps of ten families of
models without tables, TorchRec's DLRM and single products; gpu_h100_interaction.jsonl has dot
interactions, and steps of an MLP as CUDA graphs. A step's GPU time is the sum of its kernels
without copies. That of a DLRM includes its lookups, whose price by the shipped law is added to that
of the dense part. Products and interactions were timed by events, which add ``_EVENT_S`` to each
time.

The constants of :class:`costmodels.dense.kernels.KernelConstants` are fitted to all of these, or
to all but one family.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from costmodels.datatypes import DataType, FloatArray
from costmodels.dense.kernels import KERNELS, PRIOR, KernelConstants
from costmodels.dense.roofline import DenseRoofline, interaction_s, product_s
from costmodels.errors import require
from costmodels.estimates import Z90, Estimate
from costmodels.operators import Product
from costmodels.pipeline import CostPipeline
from costmodels.topology import Topology
from costmodels.uncertainty import DENSE_FAMILIES, group_sigma
from costmodels.workload import Workload
from planner import io
from planner.io.documents import Document
from planner.io.workload.workload_file import workload_file_of
from planner.validation.cases import json_rows
from planner.validation.h200 import Row, load_rows, step_of, whole_tables

if TYPE_CHECKING:
    from pandas import DataFrame

FIXED: Final = frozenset({"chunk_parameters", "join_s", "join_ratio"})
"""Constants that are not fitted: they are known from the source code of the kernels, or measured
kernel by kernel."""
_SPREAD: Final = 0.7
"""Standard deviation of ln(constant) around its start that the penalty of the fit assumes."""
_ERROR: Final = 0.1
"""Standard deviation of ln(predicted / measured) of a point that the fit assumes."""
_LARGEST: Final = float(np.log(4.0))
"""How far, as a logarithm, a constant may move from its start."""
_STEP: Final = 0.05
"""Change of ln(constant) by which a slope is measured."""
_ROUNDS: Final = 4
"""Rounds of the fit, each with slopes of its own. Further ones change constants by under 1 %."""
_RIDGE: Final = 1e-9
"""Added to the diagonal of the equations of a round, so that they can always be solved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPoint:
    """A measured GPU time of a training step, a product or another piece of a dense part.

    Attributes:
        name: of the point.
        family: the model family that it belongs to.
        measured_s: measured seconds of its kernels.
        predicted_s: returns the seconds that the model gives with some constants.
        weight_ratio: how much it counts in the fit.
    """

    name: str
    family: str
    measured_s: float
    predicted_s: Callable[[KernelConstants], float]
    weight_ratio: float = 1.0


def fit_kernels(points: Sequence[KernelPoint], start: KernelConstants = PRIOR) -> KernelConstants:
    """The constants with the least squares of ln(predicted / measured) and of the penalty.

    Every constant stays within a factor of 4 of its start, to which the penalty pulls it. A
    constant that no point depends on keeps its start.

    Args:
        points: what was measured.
        start: the constants that the fit starts from.

    Raises:
        InvalidValueError: there are no points, or a measured time is not positive.
    """
    require(bool(points), "the fit of kernels needs measured points, got none")
    good = all(p.measured_s > 0 for p in points)
    require(good, "the fit of kernels needs measured times above 0")
    names = [f.name for f in fields(start) if f.name not in FIXED]
    moved = np.zeros(len(names))
    for _ in range(_ROUNDS):
        moved = _improved(points, start, names, moved)
    return _moved(start, names, moved)


def _improved(
    points: Sequence[KernelPoint], start: KernelConstants, names: list[str], moved: FloatArray
) -> FloatArray:
    """One Gauss-Newton step of the logarithms ``[constants]`` by which constants are moved."""
    errors = _errors(points, _moved(start, names, moved))
    slopes = np.empty((len(points), len(names)))
    for i in range(len(names)):
        near = moved.copy()
        near[i] += _STEP
        slopes[:, i] = (_errors(points, _moved(start, names, near)) - errors) / _STEP
    weights = np.array([p.weight_ratio for p in points]) / _ERROR**2
    penalty = 1.0 / _SPREAD**2
    left = slopes.T @ (weights[:, None] * slopes) + (penalty + _RIDGE) * np.eye(len(names))
    right = -slopes.T @ (weights * errors) - penalty * moved
    return np.clip(moved + np.linalg.solve(left, right), -_LARGEST, _LARGEST)


def _errors(points: Sequence[KernelPoint], constants: KernelConstants) -> FloatArray:
    """ln(predicted / measured) ``[points]``."""
    return np.array([np.log(p.predicted_s(constants) / p.measured_s) for p in points])


def _moved(start: KernelConstants, names: list[str], moved: FloatArray) -> KernelConstants:
    """The constants multiplied by the exponentials of ``moved``."""
    changed = {n: getattr(start, n) * float(np.exp(m)) for n, m in zip(names, moved, strict=True)}
    return replace(start, **changed)


_PUBLISHED_MS: Final = (
    ("PyTorch, TF32", "tf32", 22.8),
    ("PyTorch, AMP", "fp16", 16.3),
    ("TensorFlow, TF32", "tf32", 23.1),
    ("TensorFlow, AMP", "fp16", 14.4),
)
"""Framework and precision, type of the dense part, and milliseconds of a step of NVIDIA's DLRM
(NVIDIA/DeepLearningExamples, Recommendation/DLRM, one A100 with 80 GB)."""
_STEPS: Final = "gpu_h200.jsonl"
_DOTS: Final = "gpu_h100_interaction.jsonl"
_EVENT_S: Final = 1.9e-6
"""Seconds that events add: 50 queued additions of 8 elements took 1.88 us each between events, and
1.04 us each in a graph, with kernels of 1.1 us."""
PRODUCTS: Final = "products"
"""Family of single products."""
DOTS: Final = "dot"
"""Family of dot interactions."""
DLRM: Final = "DLRM"
"""How the names of the families of TorchRec's DLRM begin."""
GRAPHS: Final = "MLP graph"
"""Family of steps of an MLP as CUDA graphs, whose inputs lie on the device. PyTorch's Adam is
``capturable`` in them: it has more kernels, over single numbers."""
_WEIGHTS: Final = {PRODUCTS: 0.1, DOTS: 0.5, GRAPHS: 0.0}
"""How much a point of a family counts in the fit; a step counts 1."""
_MLP_INPUT, _MLP_SIZES = 3584, (1024, 1024, 512, 256, 1)
"""Widths of that MLP."""
_DLRM_WEIGHT: Final = 0.5


def points() -> tuple[KernelPoint, ...]:
    """Everything that was measured, in file order."""
    h200, h100 = _system("h200_sxm"), _system("h100_sxm")
    return (*_of_h200(h200), *_of_h100(json_rows(_DOTS), h100))


def predictions() -> DataFrame:
    """Every point but single products, predicted also by constants fitted without its family.

    Returns:
        A row for each point: ``case``, ``family``, ``measured_s``, ``shipped_s`` with the shipped
        constants, ``left_out_s`` without the family, and ``is_inside``: whether the 90 % interval
        of the latter holds the measured time.
    """
    from pandas import DataFrame

    known = points()
    families = dict.fromkeys(p.family for p in known if p.family != PRODUCTS)
    without = {x: fit_kernels([p for p in known if p.family != x]) for x in families}
    found = DataFrame(
        {
            "case": p.name,
            "family": p.family,
            "measured_s": p.measured_s,
            "shipped_s": p.predicted_s(KERNELS),
            "left_out_s": p.predicted_s(without[p.family]),
        }
        for p in known
        if p.family != PRODUCTS
    )
    apart = np.abs(np.log(found.left_out_s / found.measured_s))
    return found.assign(is_inside=apart <= Z90 * group_sigma(DENSE_FAMILIES))


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedStep:
    """A step of NVIDIA's DLRM on one A100 with what is predicted for it.

    Attributes:
        name: framework and precision.
        measured_s: measured seconds of a step.
        predicted: predicted, with a fused interaction.
        eager_s: predicted with PyTorch's own operators in the interaction.
    """

    name: str
    measured_s: float
    predicted: Estimate
    eager_s: float


def published_steps() -> tuple[PublishedStep, ...]:
    """NVIDIA's DLRM with 65,536 samples of Criteo on one A100, to which nothing is fitted."""
    return tuple(
        PublishedStep(
            name=name,
            measured_s=1e-3 * measured_ms,
            predicted=_nvidia(dtype, "fused"),
            eager_s=_nvidia(dtype, "eager").time_s,
        )
        for name, dtype, measured_ms in _PUBLISHED_MS
    )


def _nvidia(dtype: str, kernel: str) -> Estimate:
    """The step of NVIDIA's DLRM, whose tables lie whole in the memory of the only device.

    Its interaction is one kernel that reads the joined vectors (``dlrm/nn/parts.py`` joins them).
    """
    table = {"name": "c", "num_embeddings": 1_000_000, "embedding_dim": 128, "pooling_factor": 1}
    value = {
        "name": f"DLRM {dtype}",
        "training": {
            "batch_size_per_rank": 65_536,
            "optimizer": "sgd",
            "output_dtype": "fp32" if dtype == "tf32" else dtype,
            "pipeline": "none",
            "dense_optimizer": "sgd",
            "cuda_graph": True,
        },
        "dense": {
            "num_dense_features": 13,
            "bottom_mlp": [512, 256, 128],
            "top_mlp": [1024, 1024, 512, 256, 1],
            "interaction_kernel": kernel,
            "dtype": dtype,
        },
        "tables": [{**table, "name": f"c{i}"} for i in range(26)],
    }
    workload = workload_file_of(Document(Path("nvidia"), value, {})).workload
    system = _system("a100_80gb_sxm")
    pipeline = CostPipeline(workload, system)
    return pipeline.estimate(whole_tables(workload)).time


@cache
def _system(name: str) -> Topology:
    return io.load_system(name, gpus=1)


def _of_h200(system: Topology) -> Iterator[KernelPoint]:
    for row in load_rows(_STEPS, "dense", "dlrm"):
        is_dlrm = row["block"] == "dlrm"
        if "kernel_us" not in row or (is_dlrm and "torchrec" not in row["backend"]):
            continue
        workload = step_of(row)
        family, weight, lookup_s = row.get("kind", ""), 1.0, 0.0
        if is_dlrm:
            family, weight = f"{DLRM} {row['inter']}", _DLRM_WEIGHT
            lookup_s = _lookup_s(workload, system)
        step = partial(_step_s, workload, system, lookup_s)
        yield _point(row["id"], family, 1e-6 * row["kernel_us"], step, weight)
    for row in load_rows(_STEPS, "ceilings"):
        if row.get("what") in ("gemm", "gemm_shape"):
            yield _product(row, system)


def _of_h100(rows: list[dict[str, Any]], system: Topology) -> Iterator[KernelPoint]:
    for row in rows:
        if "graph_us" in row:
            step = partial(_step_s, _mlp(row["B"]), system, 0.0)
            yield _point(f"{GRAPHS} {row['B']}", GRAPHS, 1e-6 * row["graph_us"], step)
        if not row["what"].startswith("dot"):
            continue
        dtype = DataType.BF16 if "bfloat16" in row["dtype"] else DataType.TF32
        kernel = row["what"].split()[1]
        for is_backward, key in ((False, "fwd_us"), (True, "bwd_us")):

            def seconds(
                constants: KernelConstants,
                sizes: tuple[int, int, int] = (row["B"], 27, row["dim"]),
                dtype: DataType = dtype,
                kernel: str = kernel,
                *,
                is_backward: bool = is_backward,
            ) -> float:
                device = system.device
                return interaction_s(
                    sizes, dtype, kernel, device, constants, is_backward=is_backward
                )

            name = f"{row['what']} {row['B']} x {row['dim']} {dtype} {key[:3]}"
            yield _point(name, DOTS, 1e-6 * row[key] - _EVENT_S, seconds)


def _mlp(batch_size: int) -> Workload:
    """The MLP that was captured as a CUDA graph."""
    value = {
        "name": GRAPHS,
        "training": {
            "batch_size_per_rank": batch_size,
            "pipeline": "none",
            "dense_optimizer": "adam_foreach",
            "cuda_graph": True,
        },
        "dense": {
            "dtype": "tf32",
            "num_dense_features": _MLP_INPUT,
            "layers": [{"kind": "mlp", "sizes": list(_MLP_SIZES)}],
        },
    }
    return workload_file_of(Document(Path(GRAPHS), value, {})).workload


def _product(row: Row, system: Topology) -> KernelPoint:
    m, k, n = (row[key] for key in "MKN") if "M" in row else (row["n"],) * 3
    product, dtype = Product(m=m, k=k, n=n), DataType(row.get("dtype") or row["prec"])

    def seconds(constants: KernelConstants) -> float:
        return product_s(product, dtype, system.device, constants)

    return _point(f"{m} x {k} x {n} {dtype}", PRODUCTS, 1e-6 * row["us"] - _EVENT_S, seconds)


def _point(
    name: str,
    family: str,
    measured_s: float,
    predicted: Callable[[KernelConstants], float],
    weight: float | None = None,
) -> KernelPoint:
    known = _WEIGHTS.get(family, 1.0) if weight is None else weight
    return KernelPoint(
        name=name, family=family, measured_s=measured_s, predicted_s=predicted, weight_ratio=known
    )


def _step_s(
    workload: Workload, system: Topology, lookup_s: float, constants: KernelConstants
) -> float:
    """GPU seconds of the dense part and its optimizer in one step, and of lookups beside them."""
    times = DenseRoofline(constants=constants).times(workload, system)
    forward_s = times.bottom_forward_s + times.top_forward_s
    backward_s = times.top_backward_s + times.bottom_backward_s
    return float(forward_s + backward_s + times.optimizer_s) + lookup_s


def _lookup_s(workload: Workload, system: Topology) -> float:
    """GPU seconds of the lookups of one step, forward and backward."""
    pipeline = CostPipeline(workload, system)
    times = pipeline.stage_times(pipeline.plan_work(whole_tables(workload)))
    return float(np.max(times.lookup_forward_s) + np.max(times.lookup_backward_s))
