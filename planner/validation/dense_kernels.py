"""GPU times of dense parts on an H200 and an H100 (``validate published --what dense``).

The measurements are in configs/published: gpu_h200.jsonl has training steps of ten families of
models without tables, TorchRec's DLRM and single products; gpu_h100_interaction.jsonl has dot
interactions. A step's GPU time is the sum of its kernels without copies. Of a DLRM, the kernels of
lookups that are among the 15 longest are left out; shorter ones cannot be told and remain, which
matters for small batches. Products and interactions were timed by events, which add
``_EVENT_S`` to each time.

The constants of :class:`costmodels.dense.constants.KernelConstants` are fitted to all of these, or
to all but one family.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from costmodels.calibration.fit_kernels import KernelPoint, fit_kernels
from costmodels.datatypes import DataType
from costmodels.dense.constants import KERNELS, KernelConstants
from costmodels.dense.roofline import Roofline, interaction_s, product_s
from costmodels.estimates import Z90, Estimate
from costmodels.operators import Product
from costmodels.pipeline import CostPipeline
from costmodels.topology import Topology
from costmodels.uncertainty import dense_step_sigma
from costmodels.workload import Workload
from planner import io
from planner.io.documents import Document
from planner.io.library import configs_folder
from planner.io.workload.workload_file import workload_file_of
from planner.models import default_models
from planner.validation.measured_steps import whole_tables

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
_WEIGHTS: Final = {PRODUCTS: 0.1, DOTS: 0.5}
"""How much a point of a family counts in the fit; a step counts 1."""
_DLRM_WEIGHT: Final = 0.5
_LEAST_BATCH: Final = 8192
"""Samples from which the DLRMs are fitted to; in smaller steps lookups that are not told matter."""
_SMALL_WEIGHT: Final = 0.01
_LOOKUPS: Final = (
    "split_embedding",
    "bounds_check",
    "linearize",
    "CUB_300001",
    "permute",
    "cumsum",
)
"""Parts of names of kernels of lookups. FBGEMM's sorts have a namespace of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DensePrediction:
    """A measured GPU time with what is predicted for it.

    Attributes:
        point: the measurement.
        shipped_s: predicted with the shipped constants.
        left_out_s: predicted with constants that were fitted without its family.
    """

    point: KernelPoint
    shipped_s: float
    left_out_s: float

    def is_inside(self) -> bool:
        """Whether the measured time is inside the 90 % interval of the left-out prediction."""
        apart = abs(math.log(self.left_out_s / self.point.measured_s))
        return apart <= Z90 * dense_step_sigma()


def points() -> tuple[KernelPoint, ...]:
    """Everything that was measured, in file order."""
    folder = configs_folder() / "published"
    h200, h100 = _system("h200_sxm"), _system("h100_sxm")
    return (*_of_h200(_rows(folder / _STEPS), h200), *_of_h100(_rows(folder / _DOTS), h100))


def fitted() -> KernelConstants:
    """The constants, fitted to all points from those that ship."""
    return fit_kernels(points())


def predictions() -> tuple[DensePrediction, ...]:
    """Every point but single products, with constants that were fitted without its family."""
    known = points()

    @cache
    def without(family: str) -> KernelConstants:
        return fit_kernels([p for p in known if p.family != family])

    return tuple(
        DensePrediction(
            point=p,
            shipped_s=p.predicted_s(KERNELS),
            left_out_s=p.predicted_s(without(p.family)),
        )
        for p in known
        if p.family != PRODUCTS
    )


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
    """The step of NVIDIA's DLRM, whose tables lie whole in the memory of the only device."""
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
    pipeline = CostPipeline(workload, system, default_models(system))
    return pipeline.estimate(whole_tables(workload)).time


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@cache
def _system(name: str) -> Topology:
    return io.load_system(name, gpus=1)


def _of_h200(rows: list[dict[str, Any]], system: Topology) -> Iterator[KernelPoint]:
    for row in rows:
        if row["block"] == "dense" and "kernel_us" in row:
            step = partial(_step_s, _workload(row, _layers(row)), system)
            yield _point(row["id"], row["kind"], 1e-6 * row["kernel_us"], step)
        elif row["block"] == "dlrm" and "kernels" in row and "torchrec" in row["backend"]:
            lookups_us = sum(k[2] for k in row["kernels"] if any(x in k[0] for x in _LOOKUPS))
            measured_s = 1e-6 * (row["kernel_us"] - lookups_us)
            weight = _DLRM_WEIGHT if row["B"] >= _LEAST_BATCH else _SMALL_WEIGHT
            step = partial(_step_s, _workload(row, _dlrm(row)), system)
            yield _point(row["id"], f"{DLRM} {row['inter']}", measured_s, step, weight)
        elif row.get("what") in ("gemm", "gemm_shape"):
            yield _product(row, system)


def _of_h100(rows: list[dict[str, Any]], system: Topology) -> Iterator[KernelPoint]:
    for row in rows:
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


def _product(row: dict[str, Any], system: Topology) -> KernelPoint:
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


def _step_s(workload: Workload, system: Topology, constants: KernelConstants) -> float:
    """GPU seconds of the dense part and its optimizer in one step."""
    times = Roofline(constants=constants).times(workload, system)
    forward_s = times.bottom_forward_s + times.top_forward_s
    backward_s = times.top_backward_s + times.bottom_backward_s
    return float(forward_s + backward_s + times.optimizer_s)


def _workload(row: dict[str, Any], parts: dict[str, Any]) -> Workload:
    optimizer = row.get("dense_opt") or row["opt"]
    training = {
        "batch_size_per_rank": row["B"],
        "pipeline": "none",
        "dense_optimizer": optimizer,
    }
    value = {"name": row["id"], "training": training, **parts}
    return workload_file_of(Document(Path(row["id"]), value, {})).workload


def _dlrm(row: dict[str, Any]) -> dict[str, Any]:
    dense = {
        "num_dense_features": row["dense"],
        "bottom_mlp": row["bottom"],
        "top_mlp": row["top"],
        "interaction": row["inter"],
        "dtype": row["prec"],
    }
    if row["inter"] == "dcn":
        dense |= {"dcn_num_layers": row["cross"], "dcn_low_rank_dim": row["rank"]}
    table = {"name": "t", "num_embeddings": 1000, "embedding_dim": row["D"], "pooling_factor": 1}
    tables = [{**table, "name": f"t{i}"} for i in range(row["ntables"])]
    return {"dense": dense, "tables": tables}


def _layers(row: dict[str, Any]) -> dict[str, Any]:
    width = row.get("feat") or (0 if "vocab" in row else row["seq"] * row["hidden"])
    return {
        "dense": {
            "dtype": row["prec"],
            "num_dense_features": width,
            "layers": _LAYERS[row["kind"]](row),
        }
    }


def _transformer(row: dict[str, Any], **keys: object) -> list[dict[str, Any]]:
    sizes = {key: row[key] for key in ("layers", "hidden", "heads", "ffn", "seq")}
    autocast = {"autocast": True} if row["prec"] == "bf16" else {}
    return [{"kind": "transformer", **sizes, **autocast, **keys}]


def _llama(row: dict[str, Any]) -> list[dict[str, Any]]:
    keys = {"vocabulary": row["vocab"], "kv_heads": row["kv"], "causal": True, "gated": True}
    plain = {"bias": False, "rotary": True, "tied": False, "joint_qkv": False}
    return _transformer(row, **keys, **plain)


def _hstu(row: dict[str, Any]) -> list[dict[str, Any]]:
    sizes = {key: row[key] for key in ("layers", "hidden", "heads", "seq")}
    return [{"kind": "hstu", **sizes, "causal": True}]


def _mmoe(row: dict[str, Any]) -> list[dict[str, Any]]:
    sizes = {"expert_sizes": row["es"], "tower_sizes": row["ts"]}
    return [{"kind": "mmoe", "experts": row["experts"], "tasks": row["tasks"], **sizes}]


def _moe(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"kind": "moe", **{key: row[key] for key in ("experts", "top", "ffn")}}]


def _mlp(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"kind": "mlp", "sizes": row["sizes"]}]


def _dcn(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"kind": "dcn", "num_layers": row["cross"], "low_rank": row["rank"]}, *_mlp(row)]


_LAYERS: Final[dict[str, Callable[[dict[str, Any]], list[dict[str, Any]]]]] = {
    "mlp": _mlp,
    "dcn": _dcn,
    "mmoe": _mmoe,
    "moe": _moe,
    "two_tower": lambda row: [{"kind": "two_tower", "sizes": row["sizes"]}],
    "sasrec": lambda row: _transformer(row, causal=row["causal"]),
    "hstu": _hstu,
    "bert": lambda row: _transformer(
        row, vocabulary=row["vocab"], joint_qkv=False, head_transform=True
    ),
    "gpt": lambda row: _transformer(row, vocabulary=row["vocab"], causal=True),
    "llama": _llama,
}
"""The layers of a workload file for each family of steps."""
