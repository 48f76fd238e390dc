"""How well table-batched lookups on a GPU are predicted.

    python benchmarks/lookup_gpu.py

Mean absolute and largest error in percent of FBGEMM's lookups on an H100, by where the table lies
and by phase. The constants of the lookup model were fitted to the rows of role ``calibrate``; the
rows of role ``validate`` were never fitted.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from planner.io import load_system
from planner.io.library import configs_folder
from planner.predict import Predicted, Table, read_table
from planner.predict_lookup import LOOKUP_COLUMNS, predict_lookups

DEVICE, SYSTEM = "H100-SXM5-80GB", "h100_sxm"
Errors = dict[tuple[str, ...], list[float]]


def points() -> Table:
    """The rows measured on the device."""
    table = read_table(configs_folder() / "published" / "lookup_points.csv", LOOKUP_COLUMNS)
    kept = [i for i, row in enumerate(table.rows) if row["device"] == DEVICE]
    return Table(
        path=table.path,
        columns=table.columns,
        rows=tuple(table.rows[i] for i in kept),
        lines=tuple(table.lines[i] for i in kept),
    )


def errors() -> Errors:
    """Relative errors by (role, location) and by (role, location, phase)."""
    table = points()
    found: Errors = defaultdict(list)
    for row, p in zip(table.rows, predict_lookups(table, load_system(SYSTEM)), strict=True):
        if isinstance(p, Predicted):
            error = 1e6 * p.time_s / float(row["time_us"]) - 1.0
            found[row["role"], row["location"]].append(error)
            found[row["role"], row["location"], row["phase"]].append(error)
    return found


def main() -> None:
    """Print one line per group."""
    print(f"{'role':10s} {'location':12s} {'phase':20s} {'rows':>5s} {'MAPE':>7s} {'worst':>7s}")
    for key, values in sorted(errors().items()):
        role, location, phase = (*key, "all")[:3]
        size = 100 * np.abs(values)
        line = f"{role:10s} {location:12s} {phase:20s} {len(values):5d} "
        print(line + f"{size.mean():6.1f}% {size.max():6.1f}%")


if __name__ == "__main__":
    main()
