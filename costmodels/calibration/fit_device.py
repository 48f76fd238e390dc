"""What the raw rows of a device say of its rates: memory, products, kernels, the link to its host.

The laws of lookups, dense parts and hosts are fitted by modules of their own; here are the numbers
of a system file that stand in a row nearly as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

import numpy as np

from costmodels.calibration.device_designs import Row
from costmodels.calibration.fitting import FitError, geomean_error, log_errors
from costmodels.errors import InvalidValueError
from costmodels.measured.curves import Collective, CollectiveCurve
from costmodels.units import KIB, MIB, US
from costmodels.workload import DataType

_MICROSECOND: Final = 1e-6
EAGER_CALL: Final = "eager add_ of 8 elements, back to back"
EAGER_PASS: Final = "eager linear+sum forward backward"
"""Names of the rows in the block ``ceilings`` of GPU measurements."""


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
            f"eager_call: {self.eager_call_s / _MICROSECOND:.2f} us {note}",
            f"eager_pass: {self.eager_pass_s / _MICROSECOND:.1f} us {note}",
        )


def host_calls_of(rows: Iterable[Mapping[str, Any]]) -> HostCalls:
    """The same numbers from measured rows of the block ``ceilings``, times in microseconds.

    Raises:
        InvalidValueError: the rows have no such measurement.
    """
    ceilings = [row for row in rows if row.get("block") == "ceilings"]
    found = {row.get("what"): row for row in ceilings}
    missing = [name for name in (EAGER_CALL, EAGER_PASS) if "wall_us" not in found.get(name, {})]
    if missing:
        message = f"no row of the block 'ceilings' has wall_us of {', '.join(map(repr, missing))}"
        raise InvalidValueError(message)
    machine = str(found.get("env", {}).get("gpu", "one machine"))
    return HostCalls(
        eager_call_s=float(found[EAGER_CALL]["wall_us"]) * _MICROSECOND,
        eager_pass_s=float(found[EAGER_PASS]["wall_us"]) * _MICROSECOND,
        machine=f"host of {machine}",
    )


_LARGE_MIB: Final = 256.0
"""Copies from this size on run at the rate of the memory; caches hold no tenth of them."""
_LARGE_LINK_KIB: Final = 16384.0
"""Copies to the host from this size on run at the rate of the link."""
_ROUNDING: Final = 0.01
"""How far the bytes of ranks may differ in an exchange that counts as balanced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Rates of a device; None or empty where no row says it.

    Attributes:
        hbm_capacity_bytes: memory of the device as its driver reports it.
        num_multiprocessors: as its driver reports them; 0 if not known.
        hbm_bandwidth_bytes_per_s: median rate of large copies and additions, in which every byte
            that is read or written counts.
        products_flops: element types with the rate of the best large product, 2 n^3 / time.
        kernel_latency_s: time from one tiny kernel to the next.
        host_link_bytes_per_s: median rate of large copies of pinned memory to the device.
        exchange_latency_s: time of the smallest balanced all-to-all.
        exchange_bytes_per_s: what a rank sends to others per second in the largest one.
    """

    hbm_capacity_bytes: float | None
    num_multiprocessors: int
    hbm_bandwidth_bytes_per_s: float | None
    products_flops: tuple[tuple[DataType, float], ...]
    kernel_latency_s: float | None
    host_link_bytes_per_s: float | None
    exchange_latency_s: float | None
    exchange_bytes_per_s: float | None


def fit_rates(environment: Row, rows: Sequence[Row]) -> Rates:
    """The rates that rows of the block ``ceilings``, and collectives, show.

    Args:
        environment: the first row of the file.
        rows: rows that were checked.
    """
    ceilings = [row for row in rows if row["block"] == "ceilings"]
    exchanges = _balanced(rows, Collective.ALL_TO_ALL)
    memory = environment.get("mem")
    return Rates(
        hbm_capacity_bytes=float(memory) if memory else None,
        num_multiprocessors=int(environment.get("sms") or 0),
        hbm_bandwidth_bytes_per_s=_median(
            2.0 * MIB * row["mb"] / (US * row["us"])
            for row in ceilings
            if row["what"] in ("d2d", "add") and row["mb"] >= _LARGE_MIB
        ),
        products_flops=_product_rates(ceilings),
        kernel_latency_s=_median(
            US * row["us_each"] for row in ceilings if row["what"].startswith("kernel gap")
        ),
        host_link_bytes_per_s=_median(
            KIB * row["kb"] / (US * row["h2d_us"])
            for row in ceilings
            if row["what"] == "link" and row["pinned"] and row["kb"] >= _LARGE_LINK_KIB
        ),
        exchange_latency_s=US * exchanges[0]["us"] if exchanges else None,
        exchange_bytes_per_s=(
            exchanges[-1]["sent_bytes"][0] / (US * exchanges[-1]["us"]) if exchanges else None
        ),
    )


def collective_curves(rows: Sequence[Row], *, version: str, source: str) -> list[CollectiveCurve]:
    """The measured curve of each collective whose balanced sizes were measured.

    Args:
        rows: rows that were checked.
        version: of the library.
        source: device and software.
    """
    found = []
    for collective in Collective:
        balanced = _balanced(rows, collective)
        if len(balanced) >= 2:
            curve = CollectiveCurve(
                collective=collective,
                ranks=balanced[0]["ranks"],
                domains=1,
                size_bytes=tuple(_size_bytes(row) for row in balanced),
                time_s=tuple(US * row["us"] for row in balanced),
                version=version,
                source=source,
            )
            found.append(curve)
    return found


def uneven_error(rows: Sequence[Row]) -> FitError | None:
    """How well the balanced all-to-alls predict those in which ranks send unequal amounts.

    The prediction is the time of the balanced one in which every rank sends as much as the rank
    that sends most; between sizes, logarithms are interpolated. No uneven one is fitted, so errors
    are those of left-out points. None without rows of both kinds.
    """
    balanced = _balanced(rows, Collective.ALL_TO_ALL)
    known = [row for row in balanced if row["sent_bytes"][0] > 0]
    uneven = [
        row
        for row in rows
        if row["block"] == "collectives"
        if known and row["operation"] == known[0]["operation"] and row["ranks"] == known[0]["ranks"]
        if max(row["sent_bytes"]) > (1.0 + _ROUNDING) * min(row["sent_bytes"])
    ]
    if len(known) < 2 or not uneven:
        return None
    sizes, times = ([row["sent_bytes"][0] for row in known], [row["us"] for row in known])
    asked = np.log([max(row["sent_bytes"]) for row in uneven])
    predicted = np.exp(np.interp(asked, np.log(sizes), np.log(times)))
    errors = log_errors(predicted, np.array([row["us"] for row in uneven]))
    return FitError(
        name="uneven all-to-all, by its largest sender",
        num_points=len(uneven),
        geomean_ratio=geomean_error(errors),
        held_out_ratio=geomean_error(errors),
        p90_ratio=float(np.expm1(np.quantile(np.abs(errors), 0.9))),
    )


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


def _product_rates(ceilings: Sequence[Row]) -> tuple[tuple[DataType, float], ...]:
    best: dict[DataType, float] = {}
    for row in ceilings:
        if row["what"] == "gemm":
            kind, rate = DataType(row["prec"]), 2.0 * row["n"] ** 3 / (US * row["us"])
            best[kind] = max(rate, best.get(kind, 0.0))
    return tuple(best.items())


def _median(values: Iterable[float]) -> float | None:
    found = list(values)
    return median(found) if found else None
