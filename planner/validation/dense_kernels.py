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
from functools import partial
from typing import Final

import numpy as np

from costmodels.datatypes import DataType, FloatArray
from costmodels.dense.kernels import KERNELS, PRIOR, KernelConstants
from costmodels.dense.roofline import DenseRoofline, interaction_s, product_s
from costmodels.errors import require
from costmodels.estimates import Estimate
from costmodels.operators import Product
from costmodels.pipeline import CostPipeline
from costmodels.topology import Topology
from costmodels.uncertainty import DENSE_FAMILIES, group_sigma
from costmodels.workload import Workload
from planner.validation.cases import (
    AS_SHIPPED,
    UNSEEN,
    Case,
    Part,
    Prediction,
    json_rows,
    left_out,
    published_workload,
    system,
    whole_tables,
    within,
)
from planner.validation.h200 import load_rows, step_of

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
class KernelPoint(Case):
    """A measured GPU time of a training step, a product or another piece of a dense part.

    Attributes:
        family: the model family that it belongs to.
        predicted_s: returns the seconds that the model gives with some constants.
    """

    family: str
    predicted_s: Callable[[KernelConstants], float]

    @property
    def weight_ratio(self) -> float:
        """How much it counts in the fit."""
        return next((w for start, w in _WEIGHTS.items() if self.family.startswith(start)), 1.0)


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
    nears = moved + _STEP * np.eye(len(names))
    slopes = np.stack([_errors(points, _moved(start, names, near)) for near in nears], axis=1)
    slopes = (slopes - errors[:, None]) / _STEP
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
FAMILY_OUT: Final = "family left out"
EAGER: Final = "eager interaction"
"""Names of predictions: fitted without the family, and with PyTorch's operators."""
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
_WEIGHTS: Final = {PRODUCTS: 0.1, DOTS: 0.5, GRAPHS: 0.0, DLRM: 0.5}
"""How much a point of a family counts in the fit; a step counts 1."""


def points() -> tuple[KernelPoint, ...]:
    """Everything that was measured, in file order."""
    return (*_of_h200(system("h200_sxm")), *_of_h100(system("h100_sxm")))


def predictions() -> tuple[Prediction[KernelPoint], ...]:
    """Every point but single products, predicted also by constants fitted without its family."""
    known = points()
    cases = [p for p in known if p.family != PRODUCTS]
    fits = left_out(
        cases,
        known,
        {FAMILY_OUT: lambda case, other: case.family != other.family},
        lambda kept: fit_kernels([known[i] for i in kept]),
    )[FAMILY_OUT]
    sigma = group_sigma(DENSE_FAMILIES)
    return tuple(
        Prediction(
            case=p,
            predicted={
                AS_SHIPPED: within(p.predicted_s(KERNELS)),
                FAMILY_OUT: within(p.predicted_s(found), sigma),
            },
        )
        for p, found in zip(cases, fits, strict=True)
    )


def parts() -> tuple[Part, ...]:
    """All points by their families, the same by what they are, and NVIDIA's steps."""
    found = predictions()
    by_family = Part(
        "families",
        "GPU times on H200 and H100",
        found,
        by={"family": lambda c: c.family},
        judged=FAMILY_OUT,
        unit="us",
    )
    return (
        by_family,
        replace(by_family, name="groups", by={"measurements": lambda c: _group(c.family)}),
        Part(
            "published",
            "NVIDIA's DLRM, 65,536 samples on one A100, nothing fitted",
            published_steps(),
        ),
    )


def _group(family: str) -> str:
    """How a family of measurements is counted: most are dense steps."""
    if family.startswith(DLRM):
        return "DLRM, all kernels"
    return {DOTS: "dot interactions", GRAPHS: "steps as CUDA graphs"}.get(family, "dense steps")


def published_steps() -> tuple[Prediction[Case], ...]:
    """NVIDIA's DLRM with 65,536 samples of Criteo on one A100, to which nothing is fitted.

    It is predicted with a fused interaction, and with PyTorch's own operators in its place.
    """
    return tuple(
        Prediction(
            case=Case(name=name, topology=system("a100_80gb_sxm"), measured_s=1e-3 * measured_ms),
            predicted={UNSEEN: _nvidia(dtype, "fused"), EAGER: _nvidia(dtype, "eager")},
        )
        for name, dtype, measured_ms in _PUBLISHED_MS
    )


def _nvidia(dtype: str, kernel: str) -> Estimate:
    """The step of NVIDIA's DLRM, whose tables lie whole in the memory of the only device."""
    output = "fp32" if dtype == "tf32" else dtype
    keys = {"dense__dtype": dtype, "dense__interaction_kernel": kernel}
    workload = published_workload("nvidia_dlrm", training__output_dtype=output, **keys)
    pipeline = CostPipeline(workload, system("a100_80gb_sxm"))
    return pipeline.estimate(whole_tables(workload)).time


def _of_h200(h200: Topology) -> Iterator[KernelPoint]:
    point = partial(KernelPoint, topology=h200)
    for row in load_rows(_STEPS, "dense", "dlrm"):
        is_dlrm = row["block"] == "dlrm"
        if "kernel_us" not in row or (is_dlrm and "torchrec" not in row["backend"]):
            continue
        workload = step_of(row)
        yield point(
            name=row["id"],
            family=f"{DLRM} {row['inter']}" if is_dlrm else row["kind"],
            measured_s=1e-6 * row["kernel_us"],
            predicted_s=partial(
                _step_s, workload, h200, _lookup_s(workload, h200) if is_dlrm else 0.0
            ),
        )
    for row in load_rows(_STEPS, "ceilings"):
        if row.get("what") in ("gemm", "gemm_shape"):
            m, k, n = (row[key] for key in "MKN") if "M" in row else (row["n"],) * 3
            dtype = DataType(row.get("dtype") or row["prec"])
            yield point(
                name=f"{m} x {k} x {n} {dtype}",
                family=PRODUCTS,
                measured_s=1e-6 * row["us"] - _EVENT_S,
                predicted_s=partial(product_s, Product(m=m, k=k, n=n), dtype, h200.device),
            )


def _of_h100(h100: Topology) -> Iterator[KernelPoint]:
    point = partial(KernelPoint, topology=h100)
    for row in json_rows(_DOTS):
        if "graph_us" in row:
            mlp = published_workload("mlp_graph", training__batch_size_per_rank=row["B"])
            yield point(
                name=f"{GRAPHS} {row['B']}",
                family=GRAPHS,
                measured_s=1e-6 * row["graph_us"],
                predicted_s=partial(_step_s, mlp, h100, 0.0),
            )
        if not row["what"].startswith("dot"):
            continue
        dtype = DataType.BF16 if "bfloat16" in row["dtype"] else DataType.TF32
        sizes, kernel = (row["B"], 27, row["dim"]), row["what"].split()[1]
        for is_backward, key in ((False, "fwd_us"), (True, "bwd_us")):
            yield point(
                name=f"{row['what']} {row['B']} x {row['dim']} {dtype} {key[:3]}",
                family=DOTS,
                measured_s=1e-6 * row[key] - _EVENT_S,
                predicted_s=partial(
                    interaction_s, sizes, dtype, kernel, h100.device, is_backward=is_backward
                ),
            )


def _step_s(
    workload: Workload, topology: Topology, lookup_s: float, constants: KernelConstants
) -> float:
    """GPU seconds of the dense part and its optimizer in one step, and of lookups beside them."""
    times = DenseRoofline(constants=constants).times(workload, topology)
    forward_s = times.bottom_forward_s + times.top_forward_s
    backward_s = times.top_backward_s + times.bottom_backward_s
    return float(forward_s + backward_s + times.optimizer_s) + lookup_s


def _lookup_s(workload: Workload, topology: Topology) -> float:
    """GPU seconds of the lookups of one step, forward and backward."""
    pipeline = CostPipeline(workload, topology)
    times = pipeline.stage_times(pipeline.plan_work(whole_tables(workload)))
    return float(np.max(times.lookup_forward_s) + np.max(times.lookup_backward_s))
