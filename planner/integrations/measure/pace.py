"""Measures how slow the machine is at a moment, by timing the same work again and again."""

import time
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any, Generic, NamedTuple

import numpy as np
import torch

from costmodels.calibration.points import Point, scaled
from costmodels.datatypes import FloatArray

_ROWS, _COLUMNS, _BAG = 1_000_000, 8, 10
_NUM_BATCHES, _LOOKED_UP = 8, 60_000
_WIDTH, _PRODUCTS = 96, 24
_CALLS, _STEPS = 150, 2000
_AROUND_S = 3.0
"""The pace of a moment is the mean of readings within so many seconds; single readings differ by a
fifth."""
_TRIED_S = 30.0
"""About how long a plan is measured."""


class Timed(NamedTuple, Generic[Point]):
    """A measured point, when by the clock of :func:`time.perf_counter`, and beside what kind."""

    point: Point
    at_s: float
    beside: str


class Pace:
    """Measures the machine's pace beside other measurements, and corrects them by it.

    Other guests of the same processor can slow a core of a virtual machine down by up to 40 % for
    minutes. No clock shows this, and repeating a measurement within these minutes does not help.
    All work becomes slower by about the same factor, which the fixed work here measures: lookups in
    a table larger than caches, products of matrices inside caches, and calls of tiny operators.
    """

    def __init__(self) -> None:
        """Make the buffers, and do the work once for every batch of indices."""
        generator = torch.Generator().manual_seed(0)
        self._table = torch.rand(_ROWS, _COLUMNS, generator=generator)
        shape = (_NUM_BATCHES, _LOOKED_UP)
        self._indices = cycle(torch.randint(0, _ROWS, shape, generator=generator))
        self._offsets = torch.arange(0, _LOOKED_UP, _BAG)
        self._matrix = torch.rand(_WIDTH, _WIDTH, generator=generator)
        self._few = torch.rand(16, generator=generator)
        self._kind = ""
        self._readings: list[tuple[float, float, str]] = []  # when, its logarithm, beside what
        for _ in range(_NUM_BATCHES):
            self.read()
        self._readings.clear()

    def read(self) -> None:
        """Do the fixed work (about 2 ms), and note the time and the processor seconds that it took.

        Call it before, between and after all measurements.
        """
        marks = [time.thread_time()]
        for work in (self._look_up, self._multiply, self._call):
            work()
            marks.append(time.thread_time())
        reading = float(np.log(np.diff(marks)).mean())
        self._readings.append((time.perf_counter(), reading, self._kind))

    def timed(
        self, beside: str, measure: Callable[..., Sequence[Point]], *arguments: Any
    ) -> list[Timed[Point]]:
        """The points of ``measure``, dated at the middle of its time; reads before and after.

        ``beside`` names the kind of measurement; measurements of all kinds have to take turns, so
        that a slow minute of the machine is as likely in each of them.
        """
        self._kind = beside
        self.read()
        started = time.perf_counter()
        points = measure(*arguments)
        middle = 0.5 * (started + time.perf_counter())
        self.read()
        return [Timed(point, middle, beside) for point in points]

    def typical_s(self, beside: str = "") -> float:
        """The typical pace beside a kind of measurement: the median of its readings.

        A reading is the geometric mean of the seconds of the kinds of work.
        """
        return float(np.exp(np.median(self._beside(beside)[1])))

    def sigma_ratio(self) -> float:
        """Log-standard deviation of the pace from one half minute to another.

        It is taken around the median beside each kind of measurement, which is the pace of
        :meth:`at_typical`.
        """
        typical = {kind: np.log(self.typical_s(kind)) for _, _, kind in self._readings}
        logs = np.array([log - typical[kind] for _, log, kind in self._readings])
        half_minute = np.array([at_s // _TRIED_S for at_s, _, _ in self._readings])
        apart = [logs[half_minute == number].mean() for number in np.unique(half_minute)]
        return float(np.sqrt(np.mean(np.square(apart))))

    def at_typical(self, timed: Timed[Point]) -> Point:
        """The point with the seconds it would have taken at the typical pace."""
        beside = timed.beside
        return scaled(timed.point, self.typical_s(beside) / self.around_s(timed.at_s, beside))

    def around_s(self, at_s: float, beside: str = "") -> float:
        """The pace at a moment: geometric mean over readings beside a kind within 3 seconds.

        If there is no such reading, the nearest one of that kind counts.
        """
        times, logs = self._beside(beside)
        near = np.abs(times - at_s) <= _AROUND_S
        if not near.any():
            near[np.argmin(np.abs(times - at_s))] = True
        return float(np.exp(logs[near].mean()))

    def _beside(self, beside: str) -> tuple[FloatArray, FloatArray]:
        """When readings beside a kind of measurement were, and their logarithms."""
        times, logs = np.array([r[:2] for r in self._readings if r[2] == beside]).T
        return times, logs

    def _look_up(self) -> None:
        indices = next(self._indices)
        torch.nn.functional.embedding_bag(indices, self._table, self._offsets, mode="sum")

    def _multiply(self) -> None:
        for _ in range(_PRODUCTS):
            self._matrix @ self._matrix  # the result is not needed

    def _call(self) -> None:
        few, counted = self._few, dict[int, int]()
        for _ in range(_CALLS):
            few = few + 1.0
        for i in range(_STEPS):
            counted[i & 63] = 2 * i
