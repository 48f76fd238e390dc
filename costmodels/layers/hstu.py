"""``hstu``: layers of pointwise attention over a history."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

from costmodels.errors import require
from costmodels.layers import _parts
from costmodels.layers.base import AbstractLayer, Built, Flow, check_sizes
from costmodels.operators import Operator


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Hstu(AbstractLayer):
    """``layers`` of split(silu(in(norm(x)))), silu(q k) v / n, and x + out(norm(that) * u).

    ``seq`` positions of ``hidden`` elements in ``heads``; attention is not fused and not masked.
    Reference: Zhai et al. 2024 (arXiv 2402.17152), equations 1 to 3.
    """

    layers: int
    hidden: int
    heads: int
    seq: int

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

    def build(self, flow: Flow) -> Built:
        """One layer's operators with their repeats."""
        joined, met = _parts.joined(flow)
        elements = met.width * met.length
        require(
            elements == self.hidden * self.seq,
            f"layer {self.prefix}: needs {self.seq} positions of {self.hidden} elements, but "
            f"{elements} elements per sample reach it; change seq or hidden",
        )
        met = met.after(self.hidden, self.seq)
        layer = (*self._inner(met), *self._scores(met), *self._outer(met))
        repeated = tuple(replace(o, num_repeats=self.layers) for o in layer)
        return self.placed((*joined, *repeated), met)

    def _inner(self, flow: Flow) -> tuple[Operator, ...]:
        name, rows, wide, dtype = f"{self.prefix}.in", flow.positions, 4 * self.hidden, flow.dtype
        return (
            _parts.norm(name, rows, self.hidden, dtype),
            _parts.linear(name, rows, self.hidden, wide, dtype),
            _parts.streamed(name, (rows, wide), dtype, saved_elements=2 * rows * wide),
        )

    def _scores(self, flow: Flow) -> tuple[Operator, ...]:
        """Copies of queries, keys and values by head, two products, silu and the division."""
        name, dtype, rows = f"{self.prefix}.attention", flow.dtype, flow.positions
        groups, width = flow.batch_size * self.heads, self.hidden // self.heads
        kept, pairs = rows * self.hidden, groups * self.seq * self.seq
        copy = _parts.streamed(name, (rows, self.hidden), dtype, saved_elements=kept)
        score = _parts.streamed(name, (groups, self.seq, self.seq), dtype, saved_elements=pairs)
        return (
            copy,
            copy,
            _parts.batched(name, (groups, self.seq, width, self.seq), dtype),
            score,
            score,
            copy,
            _parts.batched(name, (groups, self.seq, self.seq, width), dtype),
            _parts.streamed(name, (rows, self.hidden), dtype),
        )

    def _outer(self, flow: Flow) -> tuple[Operator, ...]:
        name, rows, hidden, dtype = f"{self.prefix}.out", flow.positions, self.hidden, flow.dtype
        kept = rows * hidden
        return (
            _parts.norm(name, rows, hidden, dtype),
            _parts.streamed(name, (rows, hidden), dtype, reads=2.0, saved_elements=2 * kept),
            _parts.linear_of_kept(name, rows, hidden, hidden, dtype),
            _parts.streamed(name, (rows, hidden), dtype, reads=2.0),
        )
