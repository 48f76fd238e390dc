"""Kernels that were measured: attention of HSTU, dense parts, and FBGEMM's lookups.

**Attention** (``validate published --what attention``). configs/published/hstu_attention.csv has
the times of NVIDIA's kernels of HSTU on an H100 and a GB200, read from figures of
NVIDIA/recsys-examples. All runs are causal, in bf16, with sequences of one length; a time is the
tenth percentile of 50 runs. ``costmodels.sustained.POINTWISE`` is fitted to them: four numbers for
each generation and pass, pulled to their means over the generations. How good predictions are is
shown by fits that leave out a width of heads, on both devices, and by using the numbers of the
other device. Nothing is fitted to the whole layers in hstu_layers.csv, whose times follow from
printed FLOP per second.

**Dense parts** (``--what dense``). gpu_h200.jsonl has training steps of ten families of models
without tables, TorchRec's DLRM and single products; gpu_h100_interaction.jsonl has dot
interactions, and steps of an MLP as CUDA graphs. A step's GPU time is the sum of its kernels
without copies. That of a DLRM includes its lookups, whose price by the shipped law is added to that
of the dense part. Products and interactions were timed by events, which add ``_EVENT_S`` to each
time. The constants of :class:`costmodels.dense.kernels.KernelConstants` are fitted to all of these,
or to all but one family.

**Lookups** (``--what lookups``). The constants of the law of FBGEMM's lookups on an H200 are fitted
anew without a tenth of the points, or to one half of the widths of rows or of the pooling factors,
and predict what was left out. NVIDIA's rows of an H100 are predicted with the shipped constants,
which know nothing of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np

from costmodels.calibration import fit_fbgemm
from costmodels.calibration.device import LOOKUP_BLOCKS
from costmodels.calibration.fit_fbgemm import LOCATIONS, PASSES, LookupRow
from costmodels.datatypes import DataType, FloatArray, IntArray
from costmodels.dense.kernels import KERNELS, Gpu, KernelConstants, kernel_time
from costmodels.dense.roofline import DenseRoofline, interaction_s, product_s
from costmodels.estimates import Estimate, Source
from costmodels.layers.base import Flow
from costmodels.layers.hstu import Hstu
from costmodels.lookup.fbgemm import call_sigma
from costmodels.operators import OperatorKind, Product
from costmodels.pipeline import CostPipeline
from costmodels.sustained import BURSTS, POINTWISE, Works, generation_of
from costmodels.topology import Topology
from costmodels.uncertainty import DENSE_FAMILIES, group_sigma, rate_sigma
from costmodels.workload import Workload
from planner.io.documents import configs_folder
from planner.io.system.system_file import load_system
from planner.predict.operations import LOOKUP_COLUMNS, Predicted, predict_lookups, read_table
from planner.validation import cases
from planner.validation.steps import STEPS, document_of, is_torchrec, unfitted

_SHORT: Final = 1024
"""Positions up to which a sequence is listed as short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCase(cases.Case):
    """A measured GPU time of a kernel, a product, a dense part, or a pass of attention.

    Attributes:
        seconds: returns the seconds that the model gives with some constants.
    """

    seconds: Callable[..., float]


def attention_cases(name: str = "hstu_attention.csv") -> tuple[KernelCase, ...]:
    """The measured passes of every row of a shipped file, in file order."""
    found = []
    for row in cases.csv_rows(name):
        topology = cases.system(row["system"])
        batch, heads, positions, width = (
            int(row[key]) for key in ("batch", "heads", "positions", "width")
        )
        wide = heads * width
        layer = Hstu(
            layers=1, hidden=wide, heads=heads, seq=positions, causal=True, fused_attention=True
        )
        flow = Flow(batch_size=batch, dtype=DataType.BF16, width=wide, length=positions)
        operator = next(o for o in layer.build(flow).after if o.kind is OperatorKind.ATTENTION)
        groups = {"device": topology.device.name, "head": str(width)}
        groups["positions"] = f"{'to' if positions <= _SHORT else 'above'} {_SHORT}"
        gpu = Gpu.plain(topology.device)
        found += [
            KernelCase(
                name=f"{batch} x {positions}, {heads} x {width} {way}",
                topology=topology,
                measured_s=float(row[f"{way}_ms"]) * 1e-3,
                reference=row["source"],
                groups=groups | {"pass": way},
                seconds=partial(kernel_time, operator, gpu, is_backward=way == "backward"),
            )
            for way in PASSES
            if row[f"{way}_ms"]
        ]
    return tuple(found)


def attention() -> tuple[cases.Part, ...]:
    """The kernels, and the whole layers.

    The layers ran alone for a short time, so that the device did not lower its clock.
    """
    found = cases.with_left_out("attention", attention_cases(), _with_works)
    by = ("device", "head", "pass", "positions")
    title = "Layers of HSTU, forward and backward; nothing is fitted to them"
    return (
        cases.Part("kernels", "Kernels of pointwise attention", found, by=by, unit="us"),
        cases.Part("layers", title, unfitted("hstu_layers.csv", BURSTS)),
    )


def _with_works(case: KernelCase, values: Sequence[dict[str, Any]] | None) -> Estimate:
    """The time with the fitted numbers of both passes, in the blocks of the case's own device."""
    works: Works = POINTWISE[generation_of(case.topology.device)]
    if values is not None:
        forward, backward = (replace(w, **v) for w, v in zip(works, values, strict=True))
        works = forward, backward
    return cases.within(case.seconds(works))


# ------------------------------------------------------------------ dense parts


_NVIDIA: Final = "NVIDIA's DLRM, 65,536 samples on one A100, nothing fitted"
FAMILY_OUT: Final = "family left out"
EAGER: Final = "eager interaction"
"""Names of predictions: fitted without the family, and with PyTorch's operators."""
_EVENT_S: Final = 1.9e-6
"""Seconds that events add: 50 queued additions of 8 elements took 1.88 us each between events, and
1.04 us each in a graph, with kernels of 1.1 us."""
PRODUCTS: Final = "products"
_STEPS: Final = "dense steps"
DOTS: Final = "dot"
DLRM: Final = "DLRM"
"""How the names of the families of TorchRec's DLRM begin."""
GRAPHS: Final = "MLP graph"
"""Family of steps of an MLP as CUDA graphs, whose inputs lie on the device. PyTorch's Adam is
``capturable`` in them: it has more kernels, over single numbers."""


def dense() -> tuple[cases.Part, ...]:
    """All points but single products by their families, by what they are, and NVIDIA's steps."""
    kept = (case for case in dense_cases() if case.groups["family"] != PRODUCTS)
    found = cases.with_left_out("dense", kept, _with_constants)
    title = "GPU times on H200 and H100"
    return (
        cases.Part("families", title, found, by=("family",), judged=FAMILY_OUT, unit="us"),
        cases.Part("groups", title, found, by=("measurements",), judged=FAMILY_OUT, unit="us"),
        cases.Part("published", _NVIDIA, published_steps()),
    )


def _with_constants(case: KernelCase, values: dict[str, Any] | None) -> Estimate:
    if values is None:
        return cases.within(case.seconds(KERNELS))
    return cases.within(case.seconds(KernelConstants(**values)), group_sigma(DENSE_FAMILIES))


def published_steps() -> tuple[cases.Prediction, ...]:
    """NVIDIA's DLRM with 65,536 samples of Criteo on one A100, to which nothing is fitted.

    It is predicted with a fused interaction, and with PyTorch's own operators in its place.
    """
    a100, found = cases.system("a100_80gb_sxm"), []
    for row in cases.csv_rows("nvidia_dlrm.csv"):
        dtypes = {"dense__dtype": row["dtype"], "training__output_dtype": row["output_dtype"]}
        measured_s, times = 1e-3 * float(row["measured_ms"]), {}
        for name, kernel in ((cases.UNSEEN, "fused"), (EAGER, "eager")):
            keys = {**dtypes, "dense__interaction_kernel": kernel}
            workload = cases.published_workload("nvidia_dlrm", **keys)
            plan = cases.whole_tables(workload)
            times[name] = CostPipeline(workload, a100).estimate(plan).time
        case = cases.Case(name=row["case"], topology=a100, measured_s=measured_s)
        found.append(cases.Prediction(case=case, predicted=times))
    return tuple(found)


def _point(
    name: str, groups: tuple[str, str], topology: Topology, measured_s: float, seconds: Any
) -> KernelCase:
    """The case of a point, whose groups are its family and what it is counted among."""
    return KernelCase(
        name=name,
        topology=topology,
        measured_s=measured_s,
        groups=dict(zip(("family", "measurements"), groups, strict=True)),
        seconds=seconds,
    )


def dense_cases() -> Iterator[KernelCase]:
    """Everything that was measured, in file order."""
    h200, h100 = cases.system("h200_sxm"), cases.system("h100_sxm")
    for row in cases.json_rows(STEPS, "dense", "dlrm"):
        is_dlrm = row["block"] == "dlrm"
        if "kernel_us" in row and (not is_dlrm or is_torchrec(row)):
            workload = cases.workload_of(row["id"], document_of(row))
            lookup_s, groups = 0.0, (row.get("kind", ""), _STEPS)
            if is_dlrm:
                lookup_s = _lookup_s(workload, h200)
                groups = f"{DLRM} {row['inter']}", "DLRM, all kernels"
            seconds = partial(_step_s, workload, h200, lookup_s)
            yield _point(row["id"], groups, h200, 1e-6 * row["kernel_us"], seconds)
    for row in cases.json_rows(STEPS, "ceilings"):
        if row.get("what") in ("gemm", "gemm_shape"):
            m, k, n = (row[key] for key in "MKN") if "M" in row else (row["n"],) * 3
            dtype = DataType(row.get("dtype") or row["prec"])
            seconds = partial(product_s, Product(m=m, k=k, n=n), dtype, h200.device)
            name, measured_s = f"{m} x {k} x {n} {dtype}", 1e-6 * row["us"] - _EVENT_S
            yield _point(name, (PRODUCTS, _STEPS), h200, measured_s, seconds)
    for row in cases.json_rows("gpu_h100_interaction.jsonl"):
        if "graph_us" in row:
            mlp = cases.published_workload("mlp_graph", training__batch_size_per_rank=row["B"])
            seconds = partial(_step_s, mlp, h100, 0.0)
            groups = (GRAPHS, "steps as CUDA graphs")
            yield _point(f"{GRAPHS} {row['B']}", groups, h100, 1e-6 * row["graph_us"], seconds)
        if not row["what"].startswith("dot"):
            continue
        dtype = DataType.BF16 if "bfloat16" in row["dtype"] else DataType.TF32
        vectors: dict[str, Any] = {"num_vectors": 27, "num_elements": 27 * row["dim"]}
        vectors["interaction_kernel"] = row["what"].split()[1]
        flow = Flow(batch_size=row["B"], dtype=dtype, **vectors)
        for is_backward, key in ((False, "fwd_us"), (True, "bwd_us")):
            name = f"{row['what']} {row['B']} x {row['dim']} {dtype} {key[:3]}"
            seconds = partial(interaction_s, flow, h100.device, is_backward=is_backward)
            measured_s = 1e-6 * row[key] - _EVENT_S
            yield _point(name, (DOTS, "dot interactions"), h100, measured_s, seconds)


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
    times = pipeline.stage_times(pipeline.plan_work(cases.whole_tables(workload)))
    return float(np.max(times.lookup_forward_s) + np.max(times.lookup_backward_s))


# ------------------------------------------------------------------ lookups


_OTHERS: Final = "NVIDIA's rows of an H100, nothing fitted"


def lookup_rows() -> tuple[LookupRow, ...]:
    """The measured calls of FBGEMM on an H200."""
    return tuple(map(LookupRow.of, cases.json_rows(STEPS, *LOOKUP_BLOCKS)))


def lookups() -> tuple[cases.Part, ...]:
    """A part for every way of fitting, and one of the calls to which nothing is fitted."""
    rows, topology, by = lookup_rows(), cases.system("h200_sxm"), ("calls", "direction")
    parts = fit_fbgemm.row_parts(rows, topology)
    found = {
        way: _lookups(way, rows, fit_fbgemm.left_out(rows, topology, groups, parts), topology)
        for way, groups in ways(rows).items()
    }
    known = {*LOCATIONS, *PASSES}
    found[_OTHERS] = [p for p in other_lookups() if known >= {p.case.groups[name] for name in by}]
    return tuple(
        cases.Part(way, f"FBGEMM's lookups: {way}", predictions, by=by, unit="us")
        for way, predictions in found.items()
    )


def ways(rows: Sequence[LookupRow]) -> dict[str, IntArray]:
    """For each way of leaving rows out, the group of each row."""
    columns = np.array([row.shards.num_cols[0] for row in rows])
    bags = np.array([row.shards.tables.pooling_factor[0] for row in rows])
    return {
        "a tenth of the points left out": fit_fbgemm.folds_of(rows),
        "wider or narrower rows left out": (columns > np.median(columns)).astype(np.int64),
        "longer or shorter bags left out": (bags > np.median(bags)).astype(np.int64),
    }


def _lookups(
    way: str, rows: Sequence[LookupRow], predicted_s: FloatArray, topology: Topology
) -> list[cases.Prediction]:
    """Both passes of every row, with the intervals that ``predict lookup`` gives."""
    found = []
    for row, time_s in zip(rows, predicted_s.tolist(), strict=True):
        pooled = bool(row.shards.tables.is_pooled[0])
        sigma = call_sigma(topology, row.kernel, is_pooled=pooled)
        sigma = math.hypot(sigma, rate_sigma(topology, "lookup"))
        for direction, measured_s, own_s in zip(PASSES, row.measured_s, time_s, strict=True):
            groups = {"calls": row.block, "direction": direction}
            case = cases.Case(
                name=row.point, topology=topology, measured_s=measured_s, groups=groups
            )
            predicted = {way: cases.within(own_s, sigma)}
            found.append(cases.Prediction(case=case, predicted=predicted))
    return found


def other_lookups() -> list[cases.Prediction]:
    """NVIDIA's calls of 0.07 to 1.05 million unpooled rows of 128 columns."""
    table = read_table(configs_folder() / "published" / "lookup_points.csv", LOOKUP_COLUMNS)
    topology, found = load_system("h100_sxm"), []
    for row, p in zip(table.rows, predict_lookups(table, topology), strict=True):
        if isinstance(p, Predicted) and row["device"] == "H100-SXM5-80GB":
            groups = {"calls": row["location"], "direction": row["phase"].split("+")[0]}
            case = cases.Case(
                name=row["point_id"],
                topology=topology,
                measured_s=float(row["time_us"]) * 1e-6,
                reference=row["source"],
                groups=groups | {"role": row["role"]},
            )
            ends = {"low_s": p.low_s, "high_s": p.high_s}
            time = Estimate(time_s=p.time_s, source=Source.DEFAULT, **ends)
            found.append(cases.Prediction(case=case, predicted={_OTHERS: time}))
    return found
