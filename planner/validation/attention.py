"""Pointwise attention that others measured (``validate published --what attention``).

configs/published/hstu_attention.csv holds the times of NVIDIA's kernels of HSTU on an H100 and a
GB200, read from figures of NVIDIA/recsys-examples: causal, bf16, all sequences of one length, the
tenth percentile of 50 runs. ``costmodels.sustained.POINTWISE`` is fitted to them: three
numbers for each generation and pass. What a prediction is worth shows where they are fitted without
the width of its heads, and where the other device's are taken. Whole layers, in hstu_layers.csv,
are never fitted; their times follow from the printed FLOP a second.
"""

from __future__ import annotations

import csv
import io as text_io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np

from costmodels.datatypes import DataType
from costmodels.dense.roofline import attention_s
from costmodels.operators import Operator, OperatorKind
from costmodels.sustained import BURSTS, POINTWISE, ScoreWork, Works, generation_of
from costmodels.topology import Device
from costmodels.validation.metrics import ErrorSummary, summarize_errors
from planner import io
from planner.io.library import configs_folder
from planner.validation.transformers import Prediction, unfitted

_FILE: Final = "hstu_attention.csv"
_LAYERS: Final = "hstu_layers.csv"
_START: Final = (0.8, 300.0, 4e-6)
_LIMITS: Final = ((0.1, 1.0, 1e-9), (1.0, 1e4, 1e-3))
"""Product ratio, FLOP of a score and seconds of a block: where a fit begins, and what it stays
within. No kernel's products are faster than large ones alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCase:
    """One measured pass of a kernel: ``batch`` sequences of ``positions``, heads of ``width``."""

    device: Device
    batch: int
    heads: int
    positions: int
    width: int
    is_backward: bool
    measured_s: float
    source: str

    @property
    def operator(self) -> Operator:
        """What ran."""
        return _operator(self.batch * self.heads, self.positions, self.width)


@cache
def _operator(groups: int, positions: int, width: int) -> Operator:
    """Kept, for a fit asks for the same ones hundreds of times."""
    size = float(DataType.BF16.num_bytes * groups * positions * width)
    return Operator(
        name="attention",
        kind=OperatorKind.ATTENTION,
        shape=(groups, positions, positions, width, width),
        dtype=DataType.BF16,
        read_bytes=3.0 * size,
        written_bytes=size,
        is_causal=True,
        is_pointwise=True,
        flash_version=3,
    )


Leaving = Callable[[AttentionCase, AttentionCase], bool]
AS_SHIPPED: Final = "as shipped (fitted to all)"
LEFT_OUT: Final[dict[str, Leaving]] = {
    "width of heads left out": lambda case, other: (
        case.device == other.device and case.width != other.width
    ),
    "device left out": lambda case, other: case.device != other.device,
}
"""Which other cases a case may be fitted to, by name."""


def load_cases() -> tuple[AttentionCase, ...]:
    """Both passes of every shipped row, in file order."""
    text = (configs_folder() / "published" / _FILE).read_text(encoding="utf-8")
    return tuple(
        AttentionCase(
            device=_device(row["system"]),
            batch=int(row["batch"]),
            heads=int(row["heads"]),
            positions=int(row["positions"]),
            width=int(row["width"]),
            is_backward=is_backward,
            measured_s=float(row["backward_ms" if is_backward else "forward_ms"]) * 1e-3,
            source=row["source"],
        )
        for row in csv.DictReader(text_io.StringIO(text))
        for is_backward in (False, True)
    )


def layers() -> tuple[Prediction, ...]:
    """Whole layers, to which nothing is fitted. They ran alone for a moment, as in a burst."""
    return unfitted(_LAYERS, BURSTS)


def fit(cases: Sequence[AttentionCase]) -> Works:
    """Work of both passes with the least squares of ln(predicted / measured)."""
    from scipy.optimize import least_squares

    found = []
    for is_backward in (False, True):
        chosen = [c for c in cases if c.is_backward == is_backward]

        def errors(logs: np.ndarray, chosen: list[AttentionCase] = chosen) -> list[float]:
            works = _works(np.exp(logs))
            return [math.log(_time_s(c, works) / c.measured_s) for c in chosen]

        best = least_squares(errors, np.log(_START), bounds=np.log(_LIMITS))
        found.append(_works(np.exp(best.x))[0])
    return found[0], found[1]


def fitted_works(cases: Sequence[AttentionCase]) -> dict[str, Works]:
    """The work of every generation, fitted to all of its cases."""
    names = sorted({generation_of(c.device) for c in cases})
    return {n: fit([c for c in cases if generation_of(c.device) == n]) for n in names}


def predictions(cases: Sequence[AttentionCase]) -> dict[str, list[float]]:
    """Seconds of every case by what its kernel's work was fitted to."""
    found = {AS_SHIPPED: [_time_s(c, POINTWISE[generation_of(c.device)]) for c in cases]}
    kinds = {(c.device.name, c.width): c for c in cases}  # others are left out by these two alone
    for name, is_kept in LEFT_OUT.items():
        kept = {k: tuple(i for i, o in enumerate(cases) if is_kept(c, o)) for k, c in kinds.items()}
        works = {indices: fit([cases[i] for i in indices]) for indices in set(kept.values())}
        found[name] = [_time_s(c, works[kept[c.device.name, c.width]]) for c in cases]
    return found


def summarize(
    cases: Sequence[AttentionCase], found: dict[str, list[float]]
) -> dict[str, ErrorSummary]:
    """Errors by what was fitted to."""
    measured = [c.measured_s for c in cases]
    return {name: summarize_errors(times, measured) for name, times in found.items()}


def _time_s(case: AttentionCase, works: Works) -> float:
    return attention_s(case.operator, case.device, works, is_backward=case.is_backward)


def _works(values: np.ndarray) -> Works:
    work = ScoreWork(
        product_ratio=float(values[0]), score_flops=float(values[1]), block_s=float(values[2])
    )
    return work, work


@cache
def _device(system: str) -> Device:
    return io.load_system(system, gpus=1).device
