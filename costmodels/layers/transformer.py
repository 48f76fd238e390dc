"""``transformer``: blocks of attention and a feed-forward network, with or without a vocabulary."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import ClassVar, final

from costmodels.datatypes import DataType
from costmodels.layers import _blocks, _parts, joins
from costmodels.layers.base import Built, Flow
from costmodels.operators import PRODUCTS, Operator, OperatorKind


class Checkpoint(StrEnum):
    """What the backward pass computes a second time instead of keeping it.

    ``none``: nothing. ``selective``: all operators except products and attention. ``full``:
    everything except the input of each block, up to the last tensor that the backward pass reads;
    this leaves out the last product of a block, as PyTorch does from 2.1 on without
    ``use_reentrant``. ``reentrant``: the whole block, as PyTorch does with ``use_reentrant`` and
    older PyTorch always.
    """

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"
    REENTRANT = "reentrant"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer(joins.AbstractSequenceLayer):
    """Blocks of attention and a feed-forward network, and a last norm.

    A block computes x + proj(attention(qkv(norm(x)))), and then x + out(gelu(in(norm(x)))). With a
    vocabulary, tokens and positions are looked up first. At the end, positions are multiplied by
    the vectors of all tokens, and a log-softmax and a loss follow. Without a vocabulary, ``hidden``
    elements at each of ``seq`` positions reach the layer.

    If ranks share the layer (tensor parallelism), each has a part of the heads, of the feed-forward
    network and of the vocabulary. Between these, each has a part of the positions, as in Megatron's
    sequence parallelism.

    Reference: Vaswani et al. 2017; norms first as in GPT-2 (Radford et al. 2019).

    Attributes:
        layers: number of blocks.
        hidden: elements of a position.
        heads: heads of the queries.
        ffn: inner width of the feed-forward network.
        seq: positions per sample.
        vocabulary: number of tokens; 0 for a layer without tokens and loss.
        causal: whether positions attend only to earlier ones.
        fused_attention: whether one kernel computes attention without writing scores.
        tied: whether the product with all tokens uses the vectors that tokens are looked up in.
        kv_heads: heads of keys and values, which the heads of queries share; 0 for ``heads``.
        gated: whether the feed-forward network has two inner products (SwiGLU).
        bias: whether linear layers and norms have a bias.
        rotary: whether positions are rotary instead of learned.
        masked: whether a mask of each sample's padding is added to the scores.
        joint_qkv: whether queries, keys and values are one product instead of three.
        flash: generation of the kernel of fused attention: 1, 2 or 3
            (:class:`costmodels.operators.Operator`).
        dropout: whether there is dropout.
        predicted: positions per sample that have a loss; 0 for all.
        head_transform: whether BERT's linear layer stands before the product with all tokens.
        fused_loss: whether the loss is one kernel that makes no copy of the logits in fp32.
        autocast: whether weights and residuals are fp32 and are cast before products. Otherwise all
            have the type of the dense part.
        compiled: whether the kernels between products are joined, as torch.compile does.
        composed: whether GELU, or the norms of a model without bias, are kernels of their own for
            every power, product and sum, as in the models of Hugging Face. None for those models
            that look like its GPT-2 and Llama: causal, with a vocabulary, not compiled, in fp32 or
            under autocast, and either gated or with one product for queries, keys and values.
        checkpoint: what the backward pass computes again (:class:`Checkpoint`).
        lengths: equally likely lengths of the sequences, such as quantiles of the data. Padding is
            then left out. The time of fused attention depends on the sum of the squared lengths,
            and the rank with the most work sets the pace. Empty if every sequence counts as ``seq``
            positions, as padded ones do.
        balanced: whether the data loader hands sequences out so that all ranks have equal work.
    """

    can_split: ClassVar[bool] = True
    needs: ClassVar[Mapping[str, str]] = {
        **joins.AbstractSequenceLayer.needs,
        **dict.fromkeys(("lengths", "flash"), "fused_attention"),
        **dict.fromkeys(("tied", "predicted", "head_transform", "fused_loss"), "vocabulary"),
    }

    layers: int
    hidden: int
    heads: int
    ffn: int
    vocabulary: int = field(default=0, metadata={"most": 10**9})
    causal: bool = False
    fused_attention: bool = True
    tied: bool = True
    kv_heads: int = 0
    gated: bool = False
    bias: bool = True
    rotary: bool = False
    masked: bool = False
    joint_qkv: bool = True
    flash: int = 2
    dropout: bool = False
    predicted: int = 0
    head_transform: bool = False
    fused_loss: bool = False
    autocast: bool = False
    compiled: bool = False
    composed: bool | None = None
    checkpoint: Checkpoint = Checkpoint.NONE

    def __post_init__(self) -> None:
        """Refuse sizes that are out of range, and keys that do not fit together."""
        joins.AbstractSequenceLayer.__post_init__(self)
        self.need(
            self.hidden % self.heads == 0,
            f"hidden must be a multiple of heads, got {self.hidden} and {self.heads}",
        )
        self.need(
            self.heads % (self.kv_heads or 1) == 0,
            f"heads must be a multiple of kv_heads, got {self.heads} and {self.kv_heads}",
        )
        self.need(
            self.predicted <= self.seq,
            f"predicted must be 0..seq positions, got {self.predicted} of {self.seq}",
        )
        self.need(
            not (self.masked and self.fused_attention),
            "masked needs fused_attention: false; the mask of a fused kernel is not "
            "priced (lengths leave padding out)",
        )

    def _is_composed(self, dtype: DataType) -> bool:
        """Whether activations and norms run as single kernels of PyTorch (``composed``)."""
        if self.composed is not None or self.compiled or not (self.vocabulary and self.causal):
            return bool(self.composed)
        is_wide = self.autocast or dtype.num_bytes == DataType.FP32.num_bytes
        return is_wide and (self.gated or self.joint_qkv)

    def as_compiled(self) -> Transformer:
        """The same blocks, compiled."""
        return replace(self, compiled=True)

    def build(self, flow: Flow) -> Built:
        """Tokens, the operators of one block with their repeats, the last norm and the loss."""
        split = flow.split
        joined: tuple[Operator, ...] = ()
        met = flow.after(self.hidden, math.ceil(self.mean_length))
        if not self.vocabulary:
            widths, advice = (self.hidden,) * 2, "change seq or hidden, or give a vocabulary"
            joined, met = self.positions(flow, widths, advice)
        rows = self.rows(flow.batch_size)
        self.need(
            all(size % split == 0 for size in (self.heads, self.kv_heads, self.ffn)),
            f"heads, kv_heads and ffn must be multiples of tensor_parallel "
            f"{split}, got {self.heads}, {self.kv_heads} and {self.ffn}",
        )
        keys = ("autocast", "compiled", "dropout", "bias")
        given = {key: getattr(self, key) for key in keys}
        given |= {"old_bias": met.has_old_bias, "composed": self._is_composed(met.dtype)}
        style = _blocks.Style(dtype=met.dtype, **given)
        inner, outer = self._feed_forward(rows, split, style)
        block = self._kept((*self._attention(met, rows, style), *inner), outer)
        blocks = tuple(replace(o, num_repeats=self.layers) for o in block)
        last = _blocks.norm(f"{self.prefix}.last_norm", rows // split, self.hidden, style)
        ends = (*last, *self._head(met, style))
        own = (*self._tokens(rows // split, split, style), *blocks, *ends)
        return self.placed((*joined, *self.uneven(own, flow.batch_size)), met)

    def _kept(
        self, block: tuple[Operator, ...], outer: tuple[Operator, ...]
    ) -> tuple[Operator, ...]:
        """The operators of a block, marked with what its backward pass computes again.

        Args:
            block: the operators before the last product.
            outer: the last product and the operators that follow it.
        """
        every, whole = (*block, *outer), (*PRODUCTS, OperatorKind.ATTENTION)
        if self.checkpoint == Checkpoint.NONE:
            return every
        if self.checkpoint == Checkpoint.SELECTIVE:
            return tuple(o if o.kind in whole else _again(o) for o in every)
        # The first norm keeps what it saves, the input of the block: all else follows from that.
        first = replace(_again(block[0]), saved_bytes=block[0].saved_bytes)
        is_read = self.checkpoint == Checkpoint.REENTRANT or self.dropout
        last = tuple(
            _again(o)
            if is_read or (o.kind not in whole and o.saved_bytes)
            else replace(o, saved_bytes=0.0)
            for o in outer
        )
        return (first, *map(_again, block[1:]), *last)

    def _attention(self, flow: Flow, rows: int, style: _blocks.Style) -> tuple[Operator, ...]:
        """The first half of a block: norm, queries, keys and values, attention, and addition."""
        name, hidden, width = f"{self.prefix}.attention", self.hidden, self.hidden // self.heads
        others = 2 * width * (self.kv_heads or self.heads) // flow.split
        mine, own = hidden // flow.split, rows // flow.split
        first: tuple[Operator, ...] = ()
        if self.joint_qkv:
            first = _blocks.linear(name, rows, hidden, mine + others, style)
            joined = 2.0 * style.element
            first += (_blocks.moved(name, (rows, mine + others), style, 0.0, joined),)
        else:
            for i, size in enumerate((mine, others // 2, others // 2)):
                first += _blocks.linear(name, rows, hidden, size, style, keeps_input=not i)
        last = _blocks.linear(name, rows, mine, hidden, style, keeps_input=False)
        if self.rotary:
            first += _blocks.rotation(name, rows, mine + others // 2, style)
        return (
            *_blocks.norm(name, own, hidden, style),
            *first,
            *self._scores(flow, rows, name, style),
            *_shared(last, flow.split),
            *_blocks.added(name, own, hidden, style),
        )

    def _scores(
        self, flow: Flow, rows: int, name: str, style: _blocks.Style
    ) -> tuple[Operator, ...]:
        """The attention itself, with written scores, or by one kernel that writes none.

        The kernel keeps queries, keys, values, the result, and one number in fp32 per row of
        scores. It reads shared keys and values for all heads of queries, as FlashAttention does.
        """
        width, heads = self.hidden // self.heads, self.heads // flow.split
        batch, length, seen = flow.batch_size, self.seq, self.seq
        if not self.fused_attention:
            sizes = (batch * heads, length, width)
            return _blocks.scores(name, sizes, style, is_causal=self.causal, is_masked=self.masked)
        if self.lengths:  # Without padding each sequence attends only to itself.
            batch, length, seen = 1, rows, self.seen
        dtype, queries = style.inner, batch * heads * length
        # Keys and values, compared with queries.
        shared = 2.0 * (math.ceil(self.kv_heads / flow.split) or heads) / heads
        kernel = Operator(
            name=name,
            kind=OperatorKind.ATTENTION,
            shape=(batch * heads, length, seen, width, width),
            dtype=dtype,
            read_bytes=(1.0 + shared) * queries * width * dtype.num_bytes,
            written_bytes=float(queries * width * dtype.num_bytes + 4 * queries),
            saved_bytes=(2.0 + shared) * queries * width * style.element + 4.0 * queries,
            is_causal=self.causal,
            flash_version=self.flash,
        )
        return (kernel,)

    def _feed_forward(
        self, rows: int, split: int, style: _blocks.Style
    ) -> tuple[tuple[Operator, ...], tuple[Operator, ...]]:
        """The second half of a block: up to its activation; then its last product, and addition."""
        name, width, own = f"{self.prefix}.feed_forward", self.ffn // split, rows // split
        outer = _blocks.linear(name, rows, width, self.hidden, style)
        inner = (
            *_blocks.norm(name, own, self.hidden, style),
            *_blocks.linear(name, rows, self.hidden, width * (2 if self.gated else 1), style),
            *_blocks.activation(name, rows, width, style, gated=self.gated),
        )
        return inner, (*_shared(outer, split), *_blocks.added(name, own, self.hidden, style))

    def _tokens(self, rows: int, split: int, style: _blocks.Style) -> tuple[Operator, ...]:
        """The lookups of tokens and learned positions, for ``rows`` positions of this rank."""
        if not self.vocabulary:
            return ()
        name, shape = f"{self.prefix}.tokens", (rows, self.hidden)
        size = math.ceil(self.vocabulary / split) * self.hidden
        filled = 4.0 if style.casts else style.element
        back = 3.0 * style.residual * rows * self.hidden + filled * size
        found = [_parts.gather(name, shape, style.inner, size, backward_bytes=back)]
        if not self.rotary:
            learned, path = (self.seq, self.hidden), style.residual
            found.append(_parts.gather(name, learned, style.inner, math.prod(learned)))
            found.append(_blocks.moved(name, shape, style, 2.0 * path, path))
        if style.dropout:
            found.append(_blocks.moved(name, shape, style, style.dropped, style.dropped, saved=1.0))
        return tuple(found)

    def _head(self, flow: Flow, style: _blocks.Style) -> tuple[Operator, ...]:
        """The product with all tokens, and the loss."""
        if not self.vocabulary:
            return ()
        name, hidden = f"{self.prefix}.head", self.hidden
        rows = flow.batch_size * self.predicted or self.rows(flow.batch_size)
        found: tuple[Operator, ...] = ()
        if self.head_transform:
            found = (
                *_blocks.linear(name, rows, hidden, hidden, style),
                *_blocks.activation(name, rows, hidden, style, gated=False),
                *_blocks.norm(name, rows, hidden, style),
            )
        plain = replace(style, bias=False, dtype=style.inner)
        classes = math.ceil(self.vocabulary / flow.split)
        product, *casts = _blocks.linear(name, rows, hidden, classes, plain)
        if self.tied:
            product = replace(product, num_parameters=0, parameter_bytes=0.0)
        is_cast = self.causal or not self.autocast
        ended = _blocks.loss(name, rows, classes, style, is_fused=self.fused_loss, is_cast=is_cast)
        return (*found, product, *casts, ended)


def _again(operator: Operator) -> Operator:
    """The operator, if the backward pass runs it again instead of keeping what it needs."""
    return replace(operator, is_recomputed=True, saved_bytes=0.0)


def _shared(linear: tuple[Operator, ...], split: int) -> tuple[Operator, ...]:
    """A linear layer of which each of ``split`` ranks has a part of the input.

    The ranks add up their results.
    """
    if split == 1:
        return linear
    return (replace(linear[0], shared_bytes=linear[0].written_bytes), *linear[1:])
