"""Which points a calibration measures on a device: random calls, from small ones to large ones.

A point is a row of the file of raw rows (docs/reference/formats.md) without its measurement.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np

from costmodels.calibration.points import CollectivePoint, exchanges
from costmodels.units import GIB, KIB

Row = dict[str, Any]
"""A row of the file: its block, the fields of its point, and what was measured in microseconds."""

LOOKUP_BLOCKS: Final = ("hbm", "seq", "uvm", "uvmc")
"""Blocks of lookups: pooled, unpooled, in the host's memory, and behind a cache on the device."""
PRECISIONS: Final = ("fp32", "tf32", "bf16", "fp16")
_SHAPE_PRECISIONS: Final = PRECISIONS[:3]
_UNIFORM_SHARE: Final = 0.35
_EXPONENTS: Final = (0.6, 1.3)
"""Zipf exponents of the indices that are not uniform."""
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
NUM_TINY: Final = 2
"""Rows of the host's calls."""
CORE_SIZES: Final = 2e-3
"""``size_ratio`` where the device is a CPU core."""


def on_a_core(effort: DeviceEffort) -> DeviceEffort:
    """The same points for a device that is a CPU core: as many, and far smaller."""
    return replace(effort, size_ratio=min(effort.size_ratio, CORE_SIZES))


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


def lookup_rows(
    block: str, count: int, rng: np.random.Generator, *, memory_bytes: float, size_ratio: float
) -> list[Row]:
    """Random calls of a block of lookups; the tables of a call are alike.

    Args:
        block: of :data:`LOOKUP_BLOCKS`.
        count: how many.
        rng: draws them.
        memory_bytes: of the device; tables take a share of it.
        size_ratio: of a :class:`DeviceEffort`; shrinks indices, rows and bags.
    """
    found: list[Row] = []
    while len(found) < count:
        row = _lookup(block, rng, size_ratio)
        if _fits(block, row, memory_bytes, size_ratio):
            found.append({"block": block, "id": f"{block}{len(found) + 1:03d}", **row})
    return found


def _lookup(block: str, rng: np.random.Generator, size_ratio: float) -> Row:
    span = _RANGES[block]
    uniform = rng.random() < _UNIFORM_SHARE
    shrink = math.sqrt(size_ratio)
    row: Row = {
        "T": round(_log_uniform(rng, 1, max(2.0, span.tables * shrink))),
        "rows": round(_log_uniform(rng, span.rows[0] * shrink, span.rows[1] * shrink)),
        "dim": max(4, 4 * round(_log_uniform(rng, *span.dims) / 4)),
        "L": round(_log_uniform(rng, *span.pooling)),
        "B": max(8, 8 * round(_log_uniform(rng, *(b * shrink for b in span.bags)) / 8)),
        "law": "uniform" if uniform else f"zipf {rng.uniform(*_EXPONENTS):.2f}",
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


def product_rows(count: int, rng: np.random.Generator, *, size_ratio: float) -> list[Row]:
    """Square products of each precision by powers of two, and products of random shapes."""
    largest = max(6, round(13 + math.log2(size_ratio) / 3))
    rows: list[Row] = [
        {"block": "ceilings", "what": "gemm", "prec": precision, "n": 2**exponent}
        for precision in PRECISIONS
        for exponent in range(largest - 3, largest + 1)
    ]
    shrink = size_ratio ** (1 / 3)
    for k in range(count):
        sides = (2.0 ** rng.uniform(8, 15), 2.0 ** rng.uniform(4, 12), 2.0 ** rng.uniform(4, 12))
        m, inner, n = (max(8, round(side * shrink / 8) * 8) for side in sides)
        precision = _SHAPE_PRECISIONS[k % len(_SHAPE_PRECISIONS)]
        sizes = {"id": f"g{k}", "M": m, "K": inner, "N": n, "dtype": precision}
        rows.append({"block": "ceilings", "what": "gemm_shape", **sizes})
    return rows


def copy_rows(*, size_ratio: float) -> list[Row]:
    """Copies and additions on the device of 1 MiB to 4 GiB."""
    sizes = _sizes(4096, 4.0, 7, size_ratio)
    return [
        {"block": "ceilings", "what": what, "mb": mb} for mb in sizes for what in ("d2d", "add")
    ]


def link_rows(*, size_ratio: float) -> list[Row]:
    """Copies between host and device of 16 KiB to 256 MiB, of pinned and of pageable memory."""
    sizes = _sizes(262144, 4.0, 8, size_ratio)
    return [
        {"block": "ceilings", "what": "link", "pinned": pinned, "kb": kb}
        for pinned in (True, False)
        for kb in sizes
    ]


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


def num_rows(effort: DeviceEffort, world_size: int) -> int:
    """About how many rows a calibration writes, for a progress bar."""
    size, rng = effort.size_ratio, np.random.default_rng(0)
    exchanges = exchange_points(world_size, size_ratio=size) if world_size > 1 else []
    alone = (
        copy_rows(size_ratio=size),
        link_rows(size_ratio=size),
        product_rows(effort.num_products, rng, size_ratio=size),
    )
    return len(exchanges) + sum(map(len, alone)) + 1 + NUM_TINY + sum(effort.num_lookups)
