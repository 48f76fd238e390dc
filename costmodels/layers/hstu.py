"""``hstu``: layers of pointwise attention over a history."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import final

from costmodels.errors import require
from costmodels.layers import _parts
from costmodels.layers._lengths import Lengths
from costmodels.layers.base import AbstractLayer, Built, Flow, check_sizes
from costmodels.operators import Operator


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Hstu(AbstractLayer):
    """``layers`` of split(silu(in(norm(x)))), silu(q k) v / n, and x + out(norm(that) * u).

    ``seq`` positions of ``hidden`` elements in ``heads``; attention is not fused and not masked.
    ``lengths`` are equally likely lengths of the history, such as its quantiles: kernels then skip
    the padding, and pairs of positions follow the sum of squared lengths.
    Reference: Zhai et al. 2024 (arXiv 2402.17152), equations 1 to 3.
    """

    layers: int
    hidden: int
    heads: int
    seq: int
    lengths: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check the sizes."""
        check_sizes(
            self.prefix, layers=self.layers, hidden=self.hidden, heads=self.heads, seq=self.seq
        )
        require(
            self.hidden % self.heads == 0,
            f"layer {self.prefix}: hidden must be a multiple of heads, got {self.hidden} and "
            f"{self.heads}",
        )
        Lengths.of(self.prefix, self.lengths, self.seq)

    @property
    def _lengths(self) -> Lengths:
        return Lengths.of(self.prefix, self.lengths, self.seq)

    def build(self, flow: Flow) -> Built:
        """One layer's operators with their repeats."""
        joined, met = _parts.joined(flow)
        elements, positions = met.width * met.length, math.ceil(self._lengths.mean)
        require(
            elements == self.hidden * positions,
            f"layer {self.prefix}: needs {positions} positions of {self.hidden} elements, but "
            f"{elements} elements per sample reach it; change seq or hidden",
        )
        met = met.after(self.hidden, positions)
        rows = self._lengths.rows(flow.batch_size)
        layer = (*self._inner(met, rows), *self._scores(met, rows), *self._outer(met, rows))
        repeated = tuple(replace(o, num_repeats=self.layers) for o in layer)
        repeated = self._lengths.uneven(repeated, flow.batch_size)
        return self.placed((*joined, *repeated), met)

    def _inner(self, flow: Flow, rows: int) -> tuple[Operator, ...]:
        name, wide, dtype = f"{self.prefix}.in", 4 * self.hidden, flow.dtype
        return (
            _parts.norm(name, rows, self.hidden, dtype),
            _parts.linear(name, rows, self.hidden, wide, dtype),
            _parts.streamed(name, (rows, wide), dtype, saved_elements=2 * rows * wide),
        )

    def _scores(self, flow: Flow, rows: int) -> tuple[Operator, ...]:
        """Copies of queries, keys and values by head, two products, silu and the division."""
        name, dtype = f"{self.prefix}.attention", flow.dtype
        groups, width = flow.batch_size * self.heads, self.hidden // self.heads
        long, seen = self.seq, self.seq
        if self.lengths:
            groups, long, seen = self.heads, rows, self._lengths.seen
        kept, pairs = rows * self.hidden, groups * long * seen
        copy = _parts.streamed(name, (rows, self.hidden), dtype, saved_elements=kept)
        score = _parts.streamed(name, (groups, long, seen), dtype, saved_elements=pairs)
        return (
            copy,
            copy,
            _parts.batched(name, (groups, long, width, seen), dtype),
            score,
            score,
            copy,
            _parts.batched(name, (groups, long, seen, width), dtype),
            _parts.streamed(name, (rows, self.hidden), dtype),
        )

    def _outer(self, flow: Flow, rows: int) -> tuple[Operator, ...]:
        name, hidden, dtype = f"{self.prefix}.out", self.hidden, flow.dtype
        kept = rows * hidden
        return (
            _parts.norm(name, rows, hidden, dtype),
            _parts.streamed(name, (rows, hidden), dtype, reads=2.0, saved_elements=2 * kept),
            _parts.linear_of_kept(name, rows, hidden, hidden, dtype),
            _parts.streamed(name, (rows, hidden), dtype, reads=2.0),
        )
