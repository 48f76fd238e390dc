"""``hstu``: layers of pointwise attention over a history."""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import ClassVar, final

from costmodels.layers import parts
from costmodels.layers.base import Built, Flow, Operators
from costmodels.operators import Operator, OperatorKind


class Kernel(StrEnum):
    """The kernels of fused attention: FBGEMM's, which is written with CUTLASS, and Triton's."""

    CUTLASS = "cutlass"
    TRITON = "triton"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Hstu(parts.AbstractSequenceLayer):
    """Layers of pointwise attention over a history of n positions x.

    Each layer computes u, v, q, k = split(silu(in(norm(x)))), then a = silu(q k) v / n, and gives
    x + out(norm(a) * u). Reference: Zhai et al. 2024 (arXiv 2402.17152), equations 1 to 3.

    Attributes:
        layers: number of layers.
        hidden: elements of a position.
        heads: heads of attention.
        seq: positions of a history; its greatest length if ``lengths`` are given.
        qk_width: elements of a head's queries, and of its keys; 0 for hidden / heads.
        value_width: elements of a head's values, and of its gates u; 0 for hidden / heads.
        input_width: elements of a position as it arrives; 0 for ``hidden``. If these differ, a
            linear layer turns one into the other.
        causal: whether positions attend only to earlier ones.
        fused_attention: whether layers run as Meta's and NVIDIA's code does on GPUs. Attention is
            then one kernel that writes no scores; the activation and the last sum are part of the
            products before them; and norm and gate are one kernel. Otherwise scores are written, as
            PyTorch's own operators do.
        kernel: the kernel of a fused attention (:class:`Kernel`).
        contextual: how many of the positions, of ``seq`` and of ``lengths``, are contextual ones,
            which stand before the history.
        contextual_width: elements of a contextual position as it arrives; 0 for the others'.
        stu: whether fused layers are the STU of Meta's generative-recommenders. The product after
            the attention takes x, u and the gated norm(a) side by side; only u has an activation;
            and the backward pass computes norms, activations, and u, v, q and k once more.
        lengths: equally likely lengths of the history, such as quantiles of the data. Kernels then
            skip the padding. The time of attention depends on the sum of the squared lengths of a
            batch, and the rank with the most work sets the pace. Empty if all histories have
            ``seq`` positions.
        samples_per_history: samples of a rank's batch with the same history, as in data in the
            order of users. The fewer different ones a batch has, the more do the ranks differ.
        balanced: whether the data loader hands histories out so that all ranks have equal work.
    """

    layers: int
    hidden: int
    heads: int
    qk_width: int = 0
    value_width: int = 0
    input_width: int = 0
    causal: bool = False
    fused_attention: bool = False
    kernel: Kernel = Kernel.CUTLASS
    contextual: int = 0
    contextual_width: int = 0
    stu: bool = False
    samples_per_history: int = field(default=1, metadata={"most": 10**8})
    needs: ClassVar[dict[str, str]] = parts.AbstractSequenceLayer.needs | {
        "kernel": "fused_attention",
        "stu": "fused_attention",
        "contextual_width": "contextual",
        "samples_per_history": "lengths",
    }

    def __post_init__(self) -> None:
        """Refuse sizes that are out of range, and keys that do not fit together."""
        parts.AbstractSequenceLayer.__post_init__(self)
        self.need(
            (self.qk_width > 0 and self.value_width > 0) or self.hidden % self.heads == 0,
            f"hidden must be a multiple of heads, got {self.hidden} and {self.heads}; or "
            "give qk_width and value_width",
        )
        least = min(self.lengths or (self.seq,))
        self.need(
            0 <= self.contextual < least,
            f"contextual must be 0..{least - 1}, fewer than the positions of each "
            f"history, got {self.contextual}",
        )

    @property
    def remark(self) -> str:
        """Says that scores are written, which is seldom what runs on a GPU."""
        if self.fused_attention:
            return ""
        return (
            f"layer {self.prefix}: scores are written to memory, as PyTorch's own operators do; "
            "with the fused kernels of FBGEMM or Triton, set fused_attention: true"
        )

    @property
    def repeats(self) -> int:
        """Samples of a batch that have the same history."""
        return self.samples_per_history

    @property
    def _widths(self) -> tuple[int, int]:
        """Elements of a position's queries and values in all heads.

        Its keys have as many as queries, its gates as many as values.
        """
        usual = self.hidden // self.heads
        return (self.qk_width or usual) * self.heads, (self.value_width or usual) * self.heads

    def build(self, flow: Flow) -> Built:
        """The operators of one layer, repeated for all layers."""
        given = self.input_width or self.hidden
        others = self.contextual, self.contextual_width or given
        first, met = self.positions(flow, (given, self.hidden), others)
        rows = self.rows(flow.batch_size)
        layer = (*self._inner(met, rows), *self._seen(met, rows), *self._outer(met, rows))
        repeated = tuple(replace(o, num_repeats=self.layers) for o in layer)
        return self.placed((*first, *self.uneven(repeated, flow.batch_size)), met)

    def _part(self, name: str, flow: Flow) -> parts.Part:
        """Makes the operators of a part of the layer."""
        return parts.Part(name=f"{self.prefix}.{name}", dtype=flow.dtype)

    def _inner(self, flow: Flow, rows: int) -> Operators:
        """Norm, product and activation of ``rows`` positions.

        With fused attention the product's kernel computes the activation too, and writes its result
        with and without activation.
        """
        part, wide = self._part("in", flow), 2 * sum(self._widths)
        norm = part.norm(rows, self.hidden, is_recomputed=self.stu)
        kept = 0 if self.stu else rows * self.hidden
        product = part.linear(rows, self.hidden, wide, saved=kept, is_recomputed=self.stu)
        if self.stu:
            return norm, product, part.streamed((rows, self._widths[1]), is_recomputed=True)
        active = part.streamed((rows, wide), saved=2 * rows * wide)
        if self.fused_attention:
            active = _in_product(active, 0.0, active.written_bytes, 3.0 * active.written_bytes)
        return norm, product, active

    def _seen(self, flow: Flow, rows: int) -> Operators:
        """The attention of every position to the positions of its history."""
        groups, long, seen = flow.batch_size * self.heads, self.seq, self.seq
        if self.lengths:
            groups, long, seen = self.heads, rows, self.seen
        if not self.fused_attention:
            return self._scores(flow, rows, (groups, long, seen))
        # Other operators keep what the backward pass of the one kernel reads.
        (queries, values), element = self._widths, float(flow.dtype.num_bytes)
        kernel = self._part("attention", flow).operator(
            (groups, long, seen, queries // self.heads, values // self.heads),
            kind=OperatorKind.ATTENTION,
            read_bytes=element * rows * (2 * queries + values),
            written_bytes=element * rows * values,
            is_causal=self.causal,
            is_pointwise=True,
            flash_version=1 if self.kernel == Kernel.TRITON else 3,
        )
        return (kernel,)

    def _scores(self, flow: Flow, rows: int, pairs: tuple[int, int, int]) -> Operators:
        """Attention that writes its scores: copies by head, two products, silu, division and mask.

        Args:
            flow: what reaches the layer.
            rows: positions of the batch.
            pairs: groups (sequences times heads), queries, and keys of each group.
        """
        part, (groups, long, seen) = self._part("attention", flow), pairs
        queries, values = self._widths
        score = part.streamed(pairs, saved=groups * long * seen)
        masked = part.streamed(pairs, reads=2.0)
        masked = replace(masked, backward_bytes=masked.moved_bytes)
        query = part.streamed((rows, queries), saved=rows * queries)
        return (
            query,
            query,
            part.batched((groups, long, queries // self.heads, seen)),
            score,
            score,
            *((masked,) if self.causal else ()),
            part.streamed((rows, values), saved=rows * values),
            part.batched((groups, long, seen, values // self.heads)),
            part.streamed((rows, values)),
        )

    def _outer(self, flow: Flow, rows: int) -> Operators:
        """Norm, gate, product and sum of ``rows`` positions.

        With fused attention, norm and gate are one kernel, and so are product and sum. In a STU
        that kernel also writes x and u beside the gated result.
        """
        part, hidden, wide = self._part("out", flow), self.hidden, self._widths[1]
        norm = part.norm(rows, wide)
        gate = part.streamed((rows, wide), reads=2.0, saved=2 * rows * wide)
        added = part.streamed((rows, hidden), reads=2.0)
        if self.fused_attention:
            size = norm.written_bytes
            kept = norm.saved_bytes + gate.saved_bytes / 2
            norm = replace(norm, read_bytes=2.0 * size, backward_bytes=5.0 * size, saved_bytes=kept)
            if self.stu:
                joined = 2.0 * size + added.written_bytes
                norm = replace(norm, read_bytes=joined, written_bytes=joined, is_recomputed=True)
                norm = replace(norm, backward_bytes=3.0 * joined)
                wide = 2 * wide + hidden
            added = _in_product(added, added.written_bytes, 0.0, 0.0)
        product = part.linear(rows, wide, hidden, saved=0)
        return (norm, product, added) if self.fused_attention else (norm, gate, product, added)


def _in_product(operator: Operator, read: float, written: float, backward: float) -> Operator:
    """An operator that the kernel of a product computes too, with the bytes that it adds."""
    inside = replace(operator, num_kernels=0, num_calls=0, backward_bytes=backward)
    return replace(inside, read_bytes=read, written_bytes=written)
