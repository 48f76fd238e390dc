"""Kernels of pointwise attention and layers beside their predictions, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

import numpy as np

from costmodels.sustained import ScoreWork, Works
from planner.cli.console import Settings, say, write_json
from planner.cli.printing.show import print_rows
from planner.cli.printing.validate_transformers import unfitted_json
from planner.validation.attention import AttentionCase, summarize
from planner.validation.transformers import Prediction

_SHORT: Final = 1024
"""Positions up to which a sequence is listed as short."""


def print_cases(cases: Sequence[AttentionCase], found: dict[str, list[float]]) -> None:
    """Errors by device, width of heads, pass and length."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for i, c in enumerate(cases):
        passed = "backward" if c.is_backward else "forward"
        length = f"to {_SHORT}" if c.positions <= _SHORT else f"above {_SHORT}"
        groups.setdefault((c.device.name, str(c.width), passed, length), []).append(i)
    rows = []
    for key, members in sorted(groups.items()):
        errors = (
            np.array([times[i] / cases[i].measured_s - 1.0 for i in members])
            for times in found.values()
        )
        shown = (f"{100 * np.mean(np.abs(e)):.1f} % ({100 * np.mean(e):+.0f})" for e in errors)
        rows.append((*key, str(len(members)), *shown))
    columns = ("device", "head", "pass", "positions", "rows", "shipped", "head out", "device out")
    print_rows("Kernels of pointwise attention: mean error (bias)", columns, rows)


def print_errors(cases: Sequence[AttentionCase], found: dict[str, list[float]]) -> None:
    """One line per way of fitting."""
    for name, s in summarize(cases, found).items():
        say(
            f"{name:26}  MAPE {100 * s.mean_error_ratio:.1f} %"
            f"   p90 {100 * s.p90_error_ratio:.1f} %"
            f"   worst {100 * s.worst_error_ratio:.1f} %   over {s.count} rows"
        )


def print_works(settings: Settings, works: dict[str, Works]) -> None:
    """The constants of ``costmodels/sustained.py`` as the rows give them."""
    named = {
        f"{name} {passed}": work
        for name, both in works.items()
        for passed, work in zip(("forward", "backward"), both, strict=True)
    }
    if settings.json:
        write_json({name: asdict(work) for name, work in named.items()})
        return
    rows = [(name, *_numbers(work)) for name, work in named.items()]
    columns = ("device, pass", "products", "FLOP of a score", "us of a block")
    print_rows("Work of pointwise attention, fitted to all rows of a device", columns, rows)


def as_json(
    cases: Sequence[AttentionCase], found: dict[str, list[float]], layers: Sequence[Prediction]
) -> dict[str, object]:
    """The same."""
    return {
        "cases": [
            {
                "device": c.device.name,
                "batch": c.batch,
                "heads": c.heads,
                "positions": c.positions,
                "width": c.width,
                "pass": "backward" if c.is_backward else "forward",
                "measured_s": c.measured_s,
                "predicted_s": {name: times[i] for name, times in found.items()},
                "source": c.source,
            }
            for i, c in enumerate(cases)
        ],
        "layers": [unfitted_json(x) for x in layers],
        "errors": {
            name: {k: v for k, v in asdict(s).items() if v == v}
            for name, s in summarize(cases, found).items()
        },
    }


def _numbers(work: ScoreWork) -> tuple[str, str, str]:
    return f"{work.product_ratio:.3f}", f"{work.score_flops:.0f}", f"{work.block_s * 1e6:.2f}"
