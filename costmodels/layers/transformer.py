"""``transformer``: blocks of attention and a feed-forward network, with or without a vocabulary."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

from costmodels.errors import require
from costmodels.layers import _parts
from costmodels.layers.base import AbstractLayer, Built, Flow, check_sizes
from costmodels.operators import Operator, OperatorKind


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer(AbstractLayer):
    """Blocks x + proj(attention(qkv(norm(x)))), then x + out(gelu(in(norm(x)))), and a last norm.

    ``seq`` positions per sample of ``hidden`` elements. With a ``vocabulary``, tokens and positions
    are looked up first, and at the end every position gets a product with all tokens, log-softmax
    and a loss; ``tied`` shares that product's weights with the token vectors. Without one, what
    reaches the layer has ``hidden`` elements at ``seq`` positions.

    Reference: Vaswani et al. 2017; norms first as in GPT-2 (Radford et al. 2019).
    """

    layers: int
    hidden: int
    heads: int
    ffn: int
    seq: int
    vocabulary: int = 0
    causal: bool = False
    fused_attention: bool = True
    tied: bool = True

    def __post_init__(self) -> None:
        """Check the sizes."""
        check_sizes(
            self.prefix,
            layers=self.layers,
            hidden=self.hidden,
            heads=self.heads,
            ffn=self.ffn,
            seq=self.seq,
        )
        require(
            0 <= self.vocabulary <= 10**9,
            f"layer {self.prefix}: vocabulary must be 0..1e9, got {self.vocabulary}",
        )
        require(
            self.hidden % self.heads == 0,
            f"layer {self.prefix}: hidden must be a multiple of heads, got {self.hidden} and "
            f"{self.heads}",
        )

    def build(self, flow: Flow) -> Built:
        """One block's operators with their repeats, between what begins and what ends."""
        joined, met = ((), flow) if self.vocabulary else _parts.joined(flow)
        elements = met.width * met.length
        require(
            bool(self.vocabulary) or elements == self.hidden * self.seq,
            f"layer {self.prefix}: needs {self.seq} positions of {self.hidden} elements, but "
            f"{elements} elements per sample reach it; change seq or hidden, or give a vocabulary",
        )
        rows = flow.batch_size * self.seq
        met = met.after(self.hidden, self.seq)
        block = (*self._attention(met, rows), *self._feed_forward(met, rows))
        blocks = tuple(replace(operator, num_repeats=self.layers) for operator in block)
        last = _parts.norm(f"{self.prefix}.last_norm", rows, self.hidden, met.dtype)
        operators = (*joined, *self._tokens(met, rows), *blocks, last, *self._head(met, rows))
        return self.placed(operators, met)

    def _attention(self, flow: Flow, rows: int) -> tuple[Operator, ...]:
        name, dtype, hidden = f"{self.prefix}.attention", flow.dtype, self.hidden
        return (
            _parts.norm(name, rows, hidden, dtype),
            _parts.linear(name, rows, hidden, 3 * hidden, dtype),
            *self._scores(flow, name),
            _parts.linear_of_kept(name, rows, hidden, hidden, dtype),
            _parts.streamed(name, (rows, hidden), dtype, reads=2.0),
        )

    def _scores(self, flow: Flow, name: str) -> tuple[Operator, ...]:
        return _parts.attention(
            name,
            (flow.batch_size, self.heads, self.seq, self.hidden // self.heads),
            flow.dtype,
            is_causal=self.causal,
            is_fused=self.fused_attention,
        )

    def _feed_forward(self, flow: Flow, rows: int) -> tuple[Operator, ...]:
        name, dtype = f"{self.prefix}.feed_forward", flow.dtype
        return (
            _parts.norm(name, rows, self.hidden, dtype),
            _parts.linear(name, rows, self.hidden, self.ffn, dtype),
            _parts.streamed(name, (rows, self.ffn), dtype, saved_elements=rows * self.ffn),
            _parts.linear(name, rows, self.ffn, self.hidden, dtype),
            _parts.streamed(name, (rows, self.hidden), dtype, reads=2.0),
        )

    def _tokens(self, flow: Flow, rows: int) -> tuple[Operator, ...]:
        if not self.vocabulary:
            return ()
        name, shape = f"{self.prefix}.tokens", (rows, self.hidden)
        tokens = _parts.gather(name, shape, flow.dtype, self.vocabulary * self.hidden)
        places = _parts.gather(name, (self.seq, self.hidden), flow.dtype, self.seq * self.hidden)
        return (tokens, places, _parts.streamed(name, shape, flow.dtype, reads=1.0))

    def _head(self, flow: Flow, rows: int) -> tuple[Operator, ...]:
        if not self.vocabulary:
            return ()
        name, shape = f"{self.prefix}.head", (rows, self.vocabulary)
        product = _parts.linear(name, rows, self.hidden, self.vocabulary, flow.dtype, bias=False)
        if self.tied:
            product = replace(product, num_parameters=0, parameter_bytes=0.0)
        softmax = _parts.streamed(
            name,
            shape,
            flow.dtype,
            kind=OperatorKind.SOFTMAX,
            saved_elements=rows * self.vocabulary,
        )
        return (product, softmax)
