"""Pointwise attention that others measured (``validate published --what attention``).

configs/published/hstu_attention.csv has the times of NVIDIA's kernels of HSTU on an H100 and a
GB200, read from figures of NVIDIA/recsys-examples. All runs are causal, in bf16, with sequences of
one length; a time is the tenth percentile of 50 runs. ``costmodels.sustained.POINTWISE`` is fitted
to them: four numbers for each generation and pass, pulled to their means over the generations. How
good predictions are is shown by fits that leave out a width of heads, on both devices, and by using
the numbers of the other device. Nothing is fitted to the whole layers in hstu_layers.csv, whose
times follow from printed FLOP per second.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import numpy as np

from costmodels.datatypes import DataType
from costmodels.dense.kernels import Gpu, kernel_time
from costmodels.operators import Operator, OperatorKind
from costmodels.sustained import BURSTS, POINTWISE, ScoreWork, Works, generation_of
from costmodels.topology import Device
from planner.validation.cases import (
    AS_SHIPPED,
    Case,
    Part,
    Prediction,
    csv_rows,
    left_out,
    system,
    within,
)
from planner.validation.transformers import TransformerCase, unfitted

_FILE: Final = "hstu_attention.csv"
"""Single kernels, one shape a row."""
_LAYERS: Final = "hstu_layers.csv"
"""Whole layers, one a row."""
_SHORT: Final = 1024
"""Positions up to which a sequence is listed as short."""
_START: Final = (0.8, 300.0, 4e-6, 4e-6)
_LIMITS: Final = ((0.1, 1.0, 1e-9, 1e-9), (1.0, 1e4, 1e-3, 1e-4))
"""Where a fit begins, and the least and greatest values that it may take: for the product ratio,
the FLOP of a score, and the seconds of a block and of the start
(:class:`costmodels.sustained.ScoreWork`). The product ratio is at most 1, because no kernel's
products are faster than large products alone."""
_FITTED: Final = ("product_ratio", "score_flops", "block_s", "start_s")
"""The fields of :class:`costmodels.sustained.ScoreWork` that are fitted."""
_PULL: Final = np.array((0.3, 0.3, 0.03, 0.03))
"""Error of every case that counts as much as a generation's value being e times the mean of the
generations. The first two depend on the arithmetic of a score, which is the same everywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCase(Case):
    """One measured pass of a kernel.

    Attributes:
        batch: number of sequences.
        heads: number of heads.
        positions: positions of each sequence.
        width: elements of a head.
        is_backward: whether the backward pass was measured, or the forward pass.
    """

    batch: int
    heads: int
    positions: int
    width: int
    is_backward: bool

    @property
    def device(self) -> Device:
        """The GPU."""
        return self.topology.device

    @property
    def operator(self) -> Operator:
        """The operator that ran."""
        return _operator(self.batch * self.heads, self.positions, self.width)


@cache
def _operator(groups: int, positions: int, width: int) -> Operator:
    """The operator for ``groups`` sequences times heads, cached because fits ask for it often."""
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


LEFT_OUT: Final[dict[str, Callable[[AttentionCase, AttentionCase], bool]]] = {
    "width of heads left out": lambda case, other: case.width != other.width,
    "device left out": lambda case, other: case.topology.name != other.topology.name,
}
"""For each kind of fit: whether a case may be fitted to another one."""


def load_cases(name: str = _FILE) -> tuple[AttentionCase, ...]:
    """The cases of the measured passes of every row of a shipped file, in file order."""
    return tuple(
        AttentionCase(
            name=f"{row['batch']} x {row['positions']}, {row['heads']} x {row['width']} {key[:-3]}",
            topology=system(row["system"]),
            batch=int(row["batch"]),
            heads=int(row["heads"]),
            positions=int(row["positions"]),
            width=int(row["width"]),
            is_backward=key == "backward_ms",
            measured_s=float(row[key]) * 1e-3,
            reference=row["source"],
        )
        for row in csv_rows(name)
        for key in ("forward_ms", "backward_ms")
        if row[key]
    )


def layers() -> tuple[Prediction[TransformerCase], ...]:
    """Whole layers, to which nothing is fitted, with predictions at the full rates of the device.

    The layers ran alone for a short time, so that the device did not lower its clock.
    """
    return unfitted(_LAYERS, BURSTS)


def fit(cases: Sequence[AttentionCase]) -> dict[str, Works]:
    """The work of both passes on each generation, by least squares of relative errors.

    Args:
        cases: the cases that it is fitted to.
    """
    names = sorted({generation_of(c.device) for c in cases})
    passes = [_fit([c for c in cases if c.is_backward == x], names) for x in (False, True)]
    return {name: (passes[0][name], passes[1][name]) for name in names}


def _fit(cases: Sequence[AttentionCase], names: Sequence[str]) -> dict[str, ScoreWork]:
    """The work of one pass on each of these generations."""
    from scipy.optimize import least_squares

    is_backward = cases[0].is_backward

    def works(logs: np.ndarray) -> dict[str, ScoreWork]:
        values = np.exp(logs).reshape(len(names), -1).tolist()
        return {
            name: replace(
                POINTWISE[name][is_backward],
                **dict(zip(_FITTED, row, strict=True)),
            )
            for name, row in zip(names, values, strict=True)
        }

    def errors(logs: np.ndarray) -> np.ndarray:
        found = works(logs)
        off = [
            math.log(_time_s(c, (found[generation_of(c.device)],) * 2) / c.measured_s)
            for c in cases
        ]
        rows = logs.reshape(len(names), -1)
        pulled = math.sqrt(len(cases) / len(names)) * _PULL * (rows - rows.mean(axis=0))
        return np.concatenate([off, pulled.ravel()])

    start, low, high = (np.tile(np.log(x), len(names)) for x in (_START, *_LIMITS))
    return works(least_squares(errors, start, bounds=(low, high)).x)


def predictions(cases: Sequence[AttentionCase]) -> tuple[Prediction[AttentionCase], ...]:
    """Every case, predicted also by the work that is fitted to others."""
    fits = left_out(cases, cases, LEFT_OUT, lambda kept: fit([cases[i] for i in kept]))
    return tuple(
        Prediction(
            case=c,
            predicted={
                AS_SHIPPED: within(_time_s(c, POINTWISE[generation_of(c.device)])),
                **{
                    name: within(_time_s(c, _on(c.device, works[i])))
                    for name, works in fits.items()
                },
            },
        )
        for i, c in enumerate(cases)
    )


def parts() -> tuple[Part, ...]:
    """The kernels, and the whole layers."""
    return (
        Part(
            "kernels",
            "Kernels of pointwise attention",
            predictions(load_cases()),
            by={
                "device": lambda c: c.device.name,
                "head": lambda c: str(c.width),
                "pass": lambda c: "backward" if c.is_backward else "forward",
                "positions": lambda c: f"{'to' if c.positions <= _SHORT else 'above'} {_SHORT}",
            },
            unit="us",
        ),
        Part("layers", "Layers of HSTU, forward and backward; nothing is fitted to them", layers()),
    )


def _on(device: Device, found: dict[str, Works]) -> Works:
    """Fitted work on a device; if it has none, that of the other generation in its own blocks."""
    name = generation_of(device)
    works = found.get(name) or next(iter(found.values()))
    own = POINTWISE[name]
    forward, backward = (
        replace(work, rows=ours.rows, is_tiled=ours.is_tiled)
        for work, ours in zip(works, own, strict=True)
    )
    return forward, backward


def _time_s(case: AttentionCase, works: Works) -> float:
    """Predicted seconds of a case."""
    return kernel_time(case.operator, Gpu.plain(case.device), works, is_backward=case.is_backward)
