"""The work of an option, with equal rows stored once.

A row-wise table gives hundreds of ranks the same work. Stored in full, the options of a few
thousand tables on 512 ranks would take gigabytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.datatypes import FloatArray, IntArray

_AT_ONCE: Final = 32_768
"""Rows that are multiplied in one call. All rows at once would need a second copy of them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OptionWork:
    """``rows[index]`` is the work as :meth:`costmodels.pipeline.CostPipeline.option_work` gives it.

    Attributes:
        rows: ``[distinct, F]``, in the order in which ``index`` first names them.
        index: ``[W]``, ``[pieces]`` or ``[pieces, L]``, depending on the option's spread. Options
            share it, so it is read-only.
    """

    rows: FloatArray
    index: IntArray

    @staticmethod
    def of(work: FloatArray) -> OptionWork:
        """From work ``[..., F]``; neighbouring rows that are equal become one."""
        return OptionWork(
            rows=work.reshape(-1, work.shape[-1]),
            index=np.arange(np.prod(work.shape[:-1])).reshape(work.shape[:-1]),
        ).merged()

    @property
    def full(self) -> FloatArray:
        """The work with every row, ``[..., F]``, as ``option_work`` returns it."""
        return np.asarray(self.rows[self.index])

    def merged(self) -> OptionWork:
        """The same work; rows that are equal to the row before them are joined with it."""
        new = np.ones(len(self.rows), dtype=bool)
        new[1:] = (self.rows[1:] != self.rows[:-1]).any(axis=-1)
        if new.all():
            return self
        return OptionWork(rows=self.rows[new], index=(np.cumsum(new) - 1)[self.index])

    def __matmul__(self, coefficients: FloatArray) -> FloatArray:
        """The product of the work with coefficients ``[F]``, shaped like ``index``."""
        return np.asarray((self.rows @ coefficients)[self.index])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorkPool:
    """The rows of many options, one option after the other.

    Attributes:
        rows: ``[M, F]`` of all options.
        first: ``[n]`` the first row of each option.
        index: for each option which row is where, shaped like the option's own index.
        counts: ``[M]`` how often an option has a row.
    """

    rows: FloatArray
    first: IntArray
    index: tuple[IntArray, ...]
    counts: IntArray

    @staticmethod
    def of(works: Sequence[OptionWork], num_features: int) -> WorkPool:
        """Put the rows of ``works`` one after the other."""
        if not works:
            none = np.zeros(0, dtype=np.int64)
            return WorkPool(rows=np.zeros((0, num_features)), first=none, index=(), counts=none)
        sizes = np.array([len(work.rows) for work in works], dtype=np.int64)
        first = np.cumsum(sizes) - sizes
        lengths = np.array([work.index.size for work in works], dtype=np.int64)
        flat = np.concatenate([work.index.ravel() for work in works])
        flat += np.repeat(first, lengths)
        ends = np.cumsum(lengths)
        spans = zip((ends - lengths).tolist(), ends.tolist(), works, strict=True)
        return WorkPool(
            rows=np.concatenate([work.rows for work in works]),
            first=first,
            index=tuple(flat[a:b].reshape(work.index.shape) for a, b, work in spans),
            counts=np.bincount(flat, minlength=int(sizes.sum())),
        )

    def summed(self) -> FloatArray:
        """The work of each option, summed over all its ranks, ``[n, F]``."""
        total = np.zeros((len(self.first), self.rows.shape[1]))
        ends = np.append(self.first[1:], len(self.rows))
        begin = 0
        while begin < len(self.first):
            start = int(self.first[begin])
            end = max(begin + 1, int(np.searchsorted(ends, start + _AT_ONCE, side="right")))
            part = slice(start, int(ends[end - 1]))
            weighted = self.rows[part] * self.counts[part, None]
            total[begin:end] = np.add.reduceat(weighted, self.first[begin:end] - start, axis=0)
            begin = end
        return total
