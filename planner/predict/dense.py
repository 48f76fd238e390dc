"""Predicts matrix products of the dense part, one for each row of a CSV file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from costmodels.collective.base import Basis
from costmodels.cpu.dense import dense_counts
from costmodels.dense.base import Product
from costmodels.dense.roofline import product_s
from costmodels.estimates import Source
from costmodels.topology import Topology
from costmodels.uncertainty import rate_sigma
from costmodels.workload import DataType
from planner.io.system.measured_files import load_constants
from planner.models import calibrated_spread_ratio
from planner.predict.rows import (
    CsvRows,
    Predicted,
    Unmodelled,
    interval,
    number,
    parsed,
    spread_ratio,
)

DENSE_COLUMNS: Final = ("M", "K", "N")
DENSE_OPTIONAL: Final = ("batch", "dtype")
_MOST: Final = 2**31
_MODEL_SIGMA: Final = 0.28
"""Log-standard deviation of the errors on the products to which the tiles were fitted."""


def predict_products(table: CsvRows, topology: Topology) -> tuple[Predicted | Unmodelled, ...]:
    """Predict the product of every row: ``batch`` products of M x K by K x N in ``dtype``.

    Args:
        table: columns ``M``, ``K``, ``N``, ``batch`` (default 1) and ``dtype`` (default fp32).
        topology: the system, one device of which computes.

    Raises:
        InvalidInputError: some rows are wrong; the message lists all of them with their lines.
    """
    rows = parsed(table, _product)
    if topology.calibration:
        return tuple(_on_cpu(row, topology) for row in rows)
    spread = spread_ratio(rate_sigma(topology, "dense"), _MODEL_SIGMA)
    sources = [p.source for p in topology.provenance if p.name == "device.flops_efficiency"]
    known = bool(sources) and sources[0] in (Source.MEASURED, Source.CALIBRATED)
    basis = Basis.CALIBRATED if known else Basis.ANALYTIC
    return tuple(_on_device(row, topology, spread, basis) for row in rows)


def _on_device(
    row: tuple[Product, DataType] | Unmodelled, topology: Topology, spread: float, basis: Basis
) -> Predicted | Unmodelled:
    """A product at the rate of its element type; tf32 runs as fp32 on devices without it."""
    if isinstance(row, Unmodelled):
        return row
    product, dtype = row
    if dtype is not DataType.TF32 and dtype not in dict(topology.device.flops_per_s):
        return Unmodelled(reason=f"{topology.device.name} lists no rate for products in {dtype}")
    return interval(product_s(product, dtype, topology.device), spread, basis)


def _on_cpu(
    row: tuple[Product, DataType] | Unmodelled, topology: Topology
) -> Predicted | Unmodelled:
    """A product on a core, by the constants of a calibrated machine, which are those of fp32."""
    if isinstance(row, Unmodelled):
        return row
    product, dtype = row
    if dtype is not DataType.FP32:
        return Unmodelled(reason=f"this machine was calibrated in fp32, not in {dtype}")
    counts = dense_counts((product,), joined_elements=0.0)
    counts[0] = 0.0
    constants = load_constants(topology.calibration).dense
    seconds = float(counts @ np.array(constants.forward_s))
    spread = calibrated_spread_ratio(topology, "dense forward") or spread_ratio(_MODEL_SIGMA)
    return interval(seconds, spread, Basis.CALIBRATED)


def _product(row: Mapping[str, str]) -> tuple[Product, DataType] | Unmodelled:
    """A row's product and element type.

    Raises:
        ValueError: a cell is wrong.
    """
    given = {name: text.strip() for name, text in row.items() if text.strip()}
    missing = [c for c in DENSE_COLUMNS if c not in given]
    if missing:
        return Unmodelled(reason=f"{', '.join(missing)} not given")
    m, k, n, count = (
        int(number({"batch": "1", **given}, c, low=1, high=_MOST, whole=True))
        for c in (*DENSE_COLUMNS, "batch")
    )
    text = given.get("dtype", "fp32")
    try:
        dtype = DataType(text.lower())
    except ValueError:
        message = f"dtype {text!r} is not one of {', '.join(DataType)}"
        raise ValueError(message) from None
    return Product(m=m, k=k, n=n, count=count), dtype
