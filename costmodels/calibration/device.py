"""What is measured of a device: random calls, and what the raw rows of them say of its rates.

A point is a row of the file of raw rows (docs/reference/formats.md) without its measurement. The
laws of lookups, dense parts and hosts are fitted by modules of their own; here are the numbers of a
system file that stand in a row nearly as they are: memory, products, kernels, the link to the host.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final, NamedTuple

import numpy as np

from costmodels.calibration.points import CollectivePoint, exchanges
from costmodels.measured.curves import Collective, CollectiveCurve
from costmodels.units import GIB, KIB, MIB, US
from costmodels.workload import DataType

Row = dict[str, Any]
"""A row of the file: its block, the fields of its point, and what was measured in microseconds."""

LOOKUP_BLOCKS: Final = ("hbm", "seq", "uvm", "uvmc")
"""Blocks of lookups: pooled, unpooled, in the host's memory, and behind a cache on the device."""
KERNELS_IN_A_ROW: Final = 50
"""Kernels that follow each other where the gap between kernels is measured."""
KERNEL_GAP: Final = f"kernel gap on GPU: {KERNELS_IN_A_ROW} add_, queued"
EAGER_CALL: Final = "eager add_ of 8 elements, back to back"
EAGER_PASS: Final = "eager linear+sum forward backward"
"""Names of rows in the block ``ceilings``."""
PRECISIONS: Final = ("fp32", "tf32", "bf16", "fp16")
_MEMORY_SHARE: Final = 0.15
"""Largest share of the device's memory that the tables of a point take."""
_MOST_COPIED_BYTES: Final = 12e9
"""Most bytes of rows that the indices of a call name."""
_MOST_OUTPUT_BYTES: Final = 1.5e9
_MOST_EXCHANGED_BYTES: Final = GIB
"""Largest buffer of a rank in a collective."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceEffort:
    """How much is measured on a device.

    Attributes:
        num_lookups: points of each of :data:`LOOKUP_BLOCKS`.
        num_products: matrix products of random shapes.
        repeats: how often a point is timed; medians count.
        size_ratio: the largest sizes of points, over those of a data-centre GPU.
    """

    num_lookups: tuple[int, int, int, int]
    num_products: int
    repeats: int
    size_ratio: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceJob:
    """What the ranks measure together.

    Attributes:
        kind: ``cuda`` or ``cpu``.
        effort: how much.
        seed: of the random points.
        path: the file of the rows; rank 0 writes it.
    """

    kind: str
    effort: DeviceEffort
    seed: int
    path: str


DEVICE_FULL: Final = DeviceEffort(num_lookups=(110, 20, 16, 16), num_products=60, repeats=12)
"""Some four minutes on a data-centre GPU."""
DEVICE_QUICK: Final = DeviceEffort(num_lookups=(40, 10, 8, 8), num_products=21, repeats=6)
CORE_SIZES: Final = 2e-3
"""``size_ratio`` where the device is a CPU core."""


class _Range(NamedTuple):
    """The smallest and the largest value of each number of a block's points."""

    tables: int
    rows: tuple[float, float]
    dims: tuple[float, float]
    pooling: tuple[float, float]
    bags: tuple[float, float]
    indices: tuple[float, float]
    most_bytes: float


_RANGES: Final = {
    "hbm": _Range(
        32, (1e3, 2e7), (4, 512), (1, 64), (512, 32768), (5e3, 1.2e7), most_bytes=math.inf
    ),
    "seq": _Range(8, (1e3, 2e7), (8, 256), (1, 32), (512, 16384), (5e3, 2e6), most_bytes=math.inf),
    "uvm": _Range(8, (1e4, 2e6), (16, 256), (1, 20), (512, 16384), (1e4, 4e6), most_bytes=8e8),
    "uvmc": _Range(8, (5e4, 2e6), (16, 256), (1, 20), (1024, 16384), (3e4, 4e6), most_bytes=1.2e9),
}


def device_points(effort: DeviceEffort, seed: int, *, memory_bytes: float = math.inf) -> list[Row]:
    """Everything that needs one device only, in the order in which it is measured.

    These are the gap between kernels; the host's calls; copies and additions on the device of 1 MiB
    to 4 GiB; copies between host and device of 16 KiB to 256 MiB, of pinned and of pageable memory;
    square products of each precision by powers of two, and products of random shapes; and random
    lookups, in which the tables of a call are alike.

    Args:
        effort: how much.
        seed: of the random points.
        memory_bytes: of the device; tables take a share of it.
    """
    size, rng = effort.size_ratio, np.random.default_rng(seed)
    points: list[Row] = [{"what": what} for what in (KERNEL_GAP, EAGER_CALL, EAGER_PASS)]
    points += [
        {"what": what, "mb": mb} for mb in _sizes(4096, 4.0, 7, size) for what in ("d2d", "add")
    ]
    points += [
        {"what": "link", "pinned": pinned, "kb": kb}
        for pinned in (True, False)
        for kb in _sizes(262144, 4.0, 8, size)
    ]
    largest = max(6, round(13 + math.log2(size) / 3))
    points += [
        {"what": "gemm", "prec": precision, "n": 2**exponent}
        for precision in PRECISIONS
        for exponent in range(largest - 3, largest + 1)
    ]
    for k in range(effort.num_products):
        sides = (2.0 ** rng.uniform(8, 15), 2.0 ** rng.uniform(4, 12), 2.0 ** rng.uniform(4, 12))
        m, inner, n = (max(8, round(side * size ** (1 / 3) / 8) * 8) for side in sides)
        precision = PRECISIONS[k % 3]  # products in fp16 take as long as those in bf16
        sizes = {"id": f"g{k}", "M": m, "K": inner, "N": n, "dtype": precision}
        points.append({"what": "gemm_shape", **sizes})
    points = [{"block": "ceilings", **point} for point in points]
    for block, count in zip(LOOKUP_BLOCKS, effort.num_lookups, strict=True):
        found = 0
        while found < count:
            row = _lookup(block, rng, size)
            if _fits(block, row, memory_bytes, size):
                found += 1
                points.append({"block": block, "id": f"{block}{found:03d}", **row})
    return points


def _lookup(block: str, rng: np.random.Generator, size_ratio: float) -> Row:
    span = _RANGES[block]
    uniform = rng.random() < 0.35
    shrink = math.sqrt(size_ratio)
    row: Row = {
        "T": round(_log_uniform(rng, 1, max(2.0, span.tables * shrink))),
        "rows": round(_log_uniform(rng, span.rows[0] * shrink, span.rows[1] * shrink)),
        "dim": max(4, 4 * round(_log_uniform(rng, *span.dims) / 4)),
        "L": round(_log_uniform(rng, *span.pooling)),
        "B": max(8, 8 * round(_log_uniform(rng, *(b * shrink for b in span.bags)) / 8)),
        "law": "uniform" if uniform else f"zipf {rng.uniform(0.6, 1.3):.2f}",
        "wdtype": str(rng.choice(["fp32", "fp32", "fp16"])),
        "opt": str(rng.choice(["rowwise_adagrad", "rowwise_adagrad", "sgd"])),
        "loc": {"uvm": "uvm", "uvmc": "uvm_caching"}.get(block, "hbm"),
        "pooled": block != "seq",
        "seed": int(rng.integers(1 << 30)),
    }
    if block == "uvmc":
        row["clf"] = round(float(rng.uniform(0.05, 0.3)), 3)
    return {**row, "N": row["T"] * row["B"] * row["L"]}


def _fits(block: str, row: Row, memory_bytes: float, size_ratio: float) -> bool:
    """Whether a call has neither too few nor too many indices, and fits into memory."""
    span = _RANGES[block]
    element = 2 if row["wdtype"] == "fp16" else 4
    low, high = (n * size_ratio for n in span.indices)
    table_bytes = row["T"] * row["rows"] * row["dim"] * element
    outputs = row["T"] * row["B"] if row["pooled"] else row["N"]
    return bool(
        low <= row["N"] <= high
        and table_bytes <= _MEMORY_SHARE * memory_bytes
        and row["N"] * row["dim"] * element <= min(span.most_bytes, _MOST_COPIED_BYTES)
        and outputs * row["dim"] * 4 <= _MOST_OUTPUT_BYTES
    )


def exchange_points(world_size: int, *, size_ratio: float) -> list[CollectivePoint]:
    """Collectives from 1 KiB in the buffer of a rank on, by powers of four.

    In all-to-alls that are balanced, every rank sends the same to every rank.
    """
    largest = max(KIB, int(_MOST_EXCHANGED_BYTES * size_ratio))
    points = []
    for size in (KIB * 4**k for k in range(1 + int(math.log(largest / KIB, 4)))):
        part = size / world_size
        sent = size * (world_size - 1) / world_size
        points += exchanges(world_size, sent_bytes=sent, kept_bytes=part, reduced_bytes=size)
    return points


def _sizes(largest: int, step: float, count: int, size_ratio: float) -> list[int]:
    """``count`` sizes up to ``largest * size_ratio``, each ``step`` times the one before."""
    top = max(1.0, largest * size_ratio)
    return sorted({max(1, round(top / step**i)) for i in range(count)})


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))


# ------------------------------------------------------------------ rates of the device


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCalls:
    """Seconds of the calls that :class:`costmodels.topology.Host` is described by.

    Attributes:
        eager_call_s: an addition in place on eight elements and the record of an event.
        eager_pass_s: forward and backward pass of a linear layer of 8 by 8 on 8 samples and the sum
            of its result, and the record of an event.
        machine: where they were measured, for people.
    """

    eager_call_s: float
    eager_pass_s: float
    machine: str

    def lines(self) -> tuple[str, str]:
        """The keys of ``host`` in a system file."""
        note = f"(measured, {self.machine})"
        return (
            f"eager_call: {self.eager_call_s / US:.2f} us {note}",
            f"eager_pass: {self.eager_pass_s / US:.1f} us {note}",
        )


_LARGE_MIB: Final = 256.0
"""Copies from this size on run at the rate of the memory; caches hold no tenth of them."""
_LARGE_LINK_KIB: Final = 16384.0
"""Copies to the host from this size on run at the rate of the link."""
_ROUNDING: Final = 0.01
"""How far the bytes of ranks may differ in an exchange that counts as balanced."""


def fit_rates(environment: Row, rows: Sequence[Row]) -> dict[str, Any]:
    """The rates that rows of the block ``ceilings``, and collectives, show.

    Args:
        environment: the first row of the file.
        rows: rows that were checked.

    Returns:
        Rates by name; without those that no row says:

        - ``hbm_capacity_bytes`` and ``num_multiprocessors`` (0 if not known), as the driver of the
          device reports them.
        - ``hbm_bandwidth_bytes_per_s``: median rate of large copies and additions, in which every
          byte that is read or written counts.
        - ``products_flops``: element types with the rate of the best large product, 2 n^3 / time.
        - ``kernel_latency_s``: time from one tiny kernel to the next.
        - ``host_link_bytes_per_s``: median rate of large copies of pinned memory to the device.
        - ``eager_call_s``, ``eager_pass_s``: as in :class:`HostCalls`, if there are both.
        - ``exchange_latency_s``: time of the smallest balanced all-to-all.
        - ``exchange_bytes_per_s``: what a rank sends to others per second in the largest one.
    """
    ceilings = [row for row in rows if row["block"] == "ceilings"]
    seen = {
        "hbm_bandwidth_bytes_per_s": [
            2.0 * MIB * row["mb"] / (US * row["us"])
            for row in ceilings
            if row["what"] in ("d2d", "add") and row["mb"] >= _LARGE_MIB
        ],
        "kernel_latency_s": [
            US * row["us_each"] for row in ceilings if row["what"].startswith("kernel gap")
        ],
        "host_link_bytes_per_s": [
            KIB * row["kb"] / (US * row["h2d_us"])
            for row in ceilings
            if row["what"] == "link" and row["pinned"] and row["kb"] >= _LARGE_LINK_KIB
        ],
    }
    found: dict[str, Any] = {name: median(values) for name, values in seen.items() if values}
    memory, best = environment.get("mem"), dict[DataType, float]()
    for row in ceilings:
        if row["what"] == "gemm":
            kind, rate = DataType(row["prec"]), 2.0 * row["n"] ** 3 / (US * row["us"])
            best[kind] = max(rate, best.get(kind, 0.0))
    found |= {"hbm_capacity_bytes": float(memory)} if memory else {}
    found |= {"num_multiprocessors": int(environment.get("sms") or 0), "products_flops": best}
    calls = {row["what"]: US * row["wall_us"] for row in ceilings if "wall_us" in row}
    if calls.keys() >= {EAGER_CALL, EAGER_PASS}:
        found |= {"eager_call_s": calls[EAGER_CALL], "eager_pass_s": calls[EAGER_PASS]}
    if exchanges := _balanced(rows, Collective.ALL_TO_ALL):
        large = exchanges[-1]
        found["exchange_latency_s"] = US * exchanges[0]["us"]
        found["exchange_bytes_per_s"] = large["sent_bytes"][0] / (US * large["us"])
    return found


def collective_curves(rows: Sequence[Row], *, version: str, source: str) -> list[CollectiveCurve]:
    """The measured curve of each collective whose balanced sizes were measured.

    Args:
        rows: rows that were checked.
        version: of the library.
        source: device and software.
    """
    measured = {collective: _balanced(rows, collective) for collective in Collective}
    return [
        CollectiveCurve(
            collective=collective,
            ranks=balanced[0]["ranks"],
            domains=1,
            size_bytes=tuple(_size_bytes(row) for row in balanced),
            time_s=tuple(US * row["us"] for row in balanced),
            version=version,
            source=source,
        )
        for collective, balanced in measured.items()
        if len(balanced) >= 2
    ]


def _balanced(rows: Sequence[Row], collective: Collective) -> list[Row]:
    """Rows in which every rank sends and keeps the same, by size; one row of each size.

    Rows of fewer ranks than others are left out.
    """
    most = max((row["ranks"] for row in rows if row["block"] == "collectives"), default=0)
    by_size = {
        _size_bytes(row): row
        for row in rows
        if row["block"] == "collectives" and row["operation"] == collective.value
        if row["ranks"] == most
        if max(row["sent_bytes"]) - min(row["sent_bytes"]) <= _ROUNDING * max(row["sent_bytes"])
        if min(row["sent_bytes"]) > 0 and min(row["kept_bytes"]) > 0
    }
    return [by_size[size] for size in sorted(by_size)]


def _size_bytes(row: Row) -> float:
    """The size of a collective as :class:`Collective` counts it."""
    kept, sent = float(row["kept_bytes"][0]), float(row["sent_bytes"][0])
    if row["operation"] == Collective.ALL_REDUCE.value:
        return kept
    return sent + kept if row["operation"] == Collective.ALL_TO_ALL.value else kept * row["ranks"]
