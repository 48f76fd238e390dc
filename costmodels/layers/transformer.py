"""``transformer``: blocks of attention and a feed-forward network, with or without a vocabulary.

The operators of a block are as eager or compiled PyTorch runs them.

Operators between matrix products are limited by memory. Their amounts are therefore bytes per
element: how many bytes the forward and the backward pass read and write for each element of a
tensor. In eager PyTorch every kernel reads its inputs and writes its result. A compiler joins the
kernels between two products into one.

Under autocast, weights and residuals are fp32 and norms give fp32, so that casts stand before the
products. Without autocast, all tensors have the type of the products. Types of one byte are used by
linear layers only: each of them scales and casts its input, its weights and its gradient, and all
other operators, attention too, use two bytes per element.
"""

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar, Self, final

from costmodels.datatypes import DataType
from costmodels.layers import parts
from costmodels.layers.base import Built, Flow
from costmodels.operators import PRODUCTS, Operator, OperatorKind

_CAST = 6.0
"""Bytes per element to cast it between fp32 and a type of two bytes: four on one side, two on the
other."""
_SCALED = 6.0
"""Bytes per element to scale it from a type of two bytes to one of one byte. The tensor is read
twice, for its largest value and for the cast, and written twice, as it is and transposed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How the operators of a block are run.

    Attributes:
        dtype: type of the products of linear layers.
        autocast: whether weights and residuals are fp32, and are cast before products.
        compiled: whether a compiler joins the kernels between products.
        dropout: whether there is dropout.
        bias: whether linear layers and norms have a bias.
        composed: whether GELU, norms without bias and the cast of the logits are kernels of their
            own, as in the models of Hugging Face.
        old_bias: whether linear layers add their bias in a kernel of its own.
    """

    dtype: DataType
    autocast: bool = False
    compiled: bool = False
    dropout: bool = False
    bias: bool = True
    old_bias: bool = False
    composed: bool = False

    @property
    def is_half(self) -> bool:
        """Whether elements of products have two bytes or less."""
        return self.dtype.num_bytes < DataType.FP32.num_bytes

    @property
    def inner(self) -> DataType:
        """Type of all products that are not linear layers of a block, such as attention."""
        return DataType.BF16 if self.dtype.num_bytes < DataType.BF16.num_bytes else self.dtype

    @property
    def casts(self) -> bool:
        """Whether autocast casts anything: it does not if products are fp32."""
        return self.autocast and self.is_half

    @property
    def element(self) -> float:
        """Bytes per element of the inputs and results of products."""
        return float(parts.kept_bytes(self.dtype))

    @property
    def residual(self) -> float:
        """Bytes per element on the path of residuals."""
        return 4.0 if self.casts else self.element

    @property
    def dropped(self) -> float:
        """Bytes per element that dropout reads and writes, with one byte of its mask."""
        return 2.0 * self.element + 1.0


def _moved(
    name: str,
    shape: tuple[int, ...],
    style: Style,
    forward: float,
    backward: float,
    *,
    kind: OperatorKind = OperatorKind.ELEMENTWISE,
    saved: float = 0.0,
    num_kernels: int = 1,
    **fields: Any,
) -> Operator:
    """An operator whose time depends on the bytes that it moves.

    Args:
        name: name of the operator.
        shape: shape of the tensor that it works on.
        style: how it is run.
        forward: bytes per element that its forward pass reads and writes; 0 for none.
        backward: bytes per element that its backward pass reads and writes.
        kind: kind of the operator.
        saved: bytes per element that are kept for the backward pass.
        num_kernels: kernels of the forward pass, if there is one.
        fields: further fields of the operator.
    """
    elements = float(math.prod(shape))
    runs = num_kernels if forward else 0
    given: dict[str, Any] = {
        "dtype": style.dtype,
        "read_bytes": 0.5 * forward * elements,
        "written_bytes": 0.5 * forward * elements,
        "backward_bytes": backward * elements,
        "saved_bytes": saved * elements,
        "num_kernels": runs,
        "num_calls": runs,
        "is_vectorized": style.compiled,
    }
    return Operator(name=name, kind=kind, shape=shape, **given | fields)


def _linear(
    name: str, rows: int, fan_in: int, fan_out: int, style: Style, *, keeps_input: bool = True
) -> tuple[Operator, ...]:
    """A linear layer: its product, the sum of its bias's gradient, and the casts that it needs.

    Args:
        name: name of the operators.
        rows: rows of its input.
        fan_in: elements of a row of its input.
        fan_out: elements of a row of its result.
        style: how it is run.
        keeps_input: whether no other operator keeps the input for the backward pass.
    """
    given = {"bias": False, "keeps_input": keeps_input, "is_cast": False}
    operators = [parts.linear(name, rows, fan_in, fan_out, style.dtype, **given)]
    if style.bias:
        added = 2.0 * style.element if style.old_bias else 0.0
        own = {"kind": OperatorKind.REDUCTION, **parts.trained_fields(fan_out)}
        operators.append(_moved(name, (rows, fan_out), style, added, style.element, **own))
    if style.casts:
        operators.append(_moved(name, (fan_in, fan_out), style, _CAST, _CAST))
    if style.dtype is not style.inner:
        operators.append(_moved(name, (rows, fan_in), style, _SCALED, 0.0))
        operators.append(_moved(name, (fan_in, fan_out), style, _SCALED, 0.0))
        operators.append(_moved(name, (rows, fan_out), style, 0.0, _SCALED))
    return tuple(operators)


def _norm(name: str, rows: int, width: int, style: Style) -> tuple[Operator, ...]:
    """A norm of ``rows`` rows of ``width`` elements.

    In the backward pass two kernels read the gradient and the input: one for the gradient of the
    input, and one for the gradients of the weights. A compiler joins the norm with the addition
    before it and the cast after it.
    """
    shape, trained = (rows, width), parts.trained_fields(width * (2 if style.bias else 1))
    if style.composed and not style.bias:
        # A root mean square norm in single kernels: a square, a mean, two products, all in fp32.
        own = trained | {"saved": 8.0, "num_kernels": 6, "dtype": DataType.FP32}
        made, is_cast = _moved(name, shape, style, 28.0, 76.0, **own), style.casts
    else:
        is_cast = style.casts and not style.compiled
        result = 4.0 if is_cast else style.element
        forward, backward = result + style.residual, 2.0 * (result + style.residual)
        forward, backward = (
            (result, backward) if style.compiled else (forward, backward + style.residual)
        )
        kept = style.residual * float(math.prod(shape)) + 8.0 * rows
        own = trained | {"kind": OperatorKind.NORM, "saved_bytes": kept}
        made = _moved(name, shape, style, forward, backward, **own)
    casts = (_moved(name, shape, style, _CAST, _CAST),) if is_cast else ()
    return (made, *casts)


def _added(name: str, rows: int, width: int, style: Style) -> tuple[Operator, ...]:
    """Dropout, and the addition to the residuals, of ``rows`` rows of ``width`` elements.

    The backward pass adds up the gradients of both paths.
    """
    shape, path = (rows, width), style.residual
    if style.compiled:
        backward = path + (path + style.element)
        kept = 1.0 if style.dropout else 0.0
        return (_moved(name, shape, style, style.element + 2.0 * path, backward, saved=kept),)
    dropped = _moved(name, shape, style, style.dropped, style.dropped, saved=1.0)
    backward = 3.0 * path + (_CAST if style.casts else 0.0)
    total = _moved(name, shape, style, style.element + 2.0 * path, backward)
    return (dropped, total) if style.dropout else (total,)


def _activation(
    name: str, rows: int, width: int, style: Style, *, gated: bool
) -> tuple[Operator, ...]:
    """The activation of a feed-forward network, with results of ``width`` elements in each row.

    It is GELU, or if ``gated`` the product of one half of its input with SiLU of the other half.
    Composed GELU is a power, two sums, four products and a hyperbolic tangent in fp32.
    """
    e, shape = style.element, (rows, width)
    if not gated and style.composed:
        casts = 4.0 if style.casts else 0.0
        forward, backward = 72.0 + casts, 112.0 + casts
        own: dict[str, Any] = {"saved": 28.0, "num_kernels": 9, "dtype": DataType.FP32}
        return (_moved(name, shape, style, forward, backward, **own),)
    if not gated:
        return (_moved(name, shape, style, 2.0 * e, 3.0 * e, saved=e),)
    if style.compiled:
        return (_moved(name, shape, style, 3.0 * e, 5.0 * e, saved=2.0 * e),)
    return (_moved(name, shape, style, 5.0 * e, 9.0 * e, saved=3.0 * e, num_kernels=2),)


def _rotation(name: str, rows: int, width: int, style: Style) -> tuple[Operator, ...]:
    """Rotary positions of queries and keys, which have ``width`` elements together in each row.

    For queries and for keys these are a negation, a join, two products and a sum.
    """
    bytes_ = (2.0 if style.compiled else 13.0) * style.element
    kernels = 2 if style.compiled else 10
    return (_moved(name, (rows, width), style, bytes_, bytes_, num_kernels=kernels),)


def _written_scores(
    name: str, sizes: tuple[int, int, int], style: Style, *, is_causal: bool, is_masked: bool
) -> tuple[Operator, ...]:
    """Attention that writes its scores.

    Queries, keys, values and the result are copied, because their axes change order. Scores are
    scaled, masked, normalized and dropped out. Under autocast they are normalized in fp32: the
    kernel of the softmax itself casts fp16, and a kernel of its own casts bf16.

    Args:
        name: name of the operators.
        sizes: samples times heads, positions, and elements of a head.
        style: how the operators are run.
        is_causal: whether positions attend only to earlier ones.
        is_masked: whether a mask of each sample's padding is added.
    """
    groups, length, width = sizes
    e, shape, size = style.element, (groups, length, length), groups * length * width
    copied = _moved(name, sizes, style, 2.0 * e, 2.0 * e)
    first = parts.batched(name, (groups, length, width, length), style.inner, saved=3 * size)
    last = parts.batched(name, (groups, length, length, width), style.inner, saved=size)
    is_bf16, kind = style.casts and style.dtype is DataType.BF16, OperatorKind.SOFTMAX
    wide, read = 4.0 if style.casts else e, 4.0 if is_bf16 else e
    between: tuple[tuple[bool, float, float, dict[str, Any]], ...] = (
        (True, 2.0 * e, 2.0 * e, {}),
        (is_masked, 2.0 * e, 0.0, {}),
        (is_causal, 2.0 * e, 2.0 * e, {}),
        (is_bf16, _CAST, _CAST, {}),
        (True, read + wide, 2.0 * wide + read, {"kind": kind, "saved": wide}),
        (style.dropout, 2.0 * wide + 1.0, 2.0 * wide + 1.0, {"saved": 1.0}),
        (style.casts, _CAST, _CAST, {"saved": 2.0}),
    )
    if style.compiled:
        between = ((True, 2.0 * e, 3.0 * e, {"kind": kind, "saved": e}),)
    own = (_moved(name, shape, style, *each, **more) for runs, *each, more in between if runs)
    return (copied, copied, copied, first, *own, last, copied)


def _loss(
    name: str, rows: int, width: int, style: Style, *, is_fused: bool, is_cast: bool
) -> Operator:
    """Log-softmax and negative log-likelihood of ``rows`` rows over ``width`` classes, in fp32.

    Eager PyTorch first casts logits of two bytes to fp32, unless the loss is that of masked words
    under autocast (``is_cast`` false): their log-softmax is in two bytes, and its result is cast.
    The backward pass fills the gradient, computes that of the log-softmax, and casts it back.
    Compiled code reads the logits twice in the forward pass. A fused loss (``is_fused``) reads them
    once in the forward pass, and overwrites them in the backward pass.
    """
    e, kind = style.element, OperatorKind.SOFTMAX
    if is_fused or style.compiled:
        forward = e if is_fused else 2.0 * e
        return _moved(name, (rows, width), style, forward, 2.0 * e, kind=kind, saved=e)
    wide = style.element if style.is_half and not is_cast else 4.0
    forward, backward, kernels = 3.0 * wide, 5.0 * wide, 1
    if style.is_half and is_cast:
        forward, backward, kernels = _CAST + forward, backward + _CAST, 2
    elif style.casts:
        forward, backward, kernels = _CAST + forward, backward + _CAST + 4.0, 2
    return _moved(
        name, (rows, width), style, forward, backward, kind=kind, saved=4.0, num_kernels=kernels
    )


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
class Transformer(parts.AbstractSequenceLayer):
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
    needs: ClassVar[dict[str, str]] = parts.AbstractSequenceLayer.needs | {
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
        parts.AbstractSequenceLayer.__post_init__(self)
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

    def as_compiled(self) -> Self:
        """The same blocks, compiled."""
        return replace(self, compiled=True)

    def build(self, flow: Flow) -> Built:
        """Tokens, the operators of one block with their repeats, the last norm and the loss."""
        split = flow.split
        joined: tuple[Operator, ...] = ()
        met = flow.after(self.hidden, math.ceil(self.mean_length))
        if not self.vocabulary:
            joined, met = self.positions(flow, (self.hidden, self.hidden))
        rows = self.rows(flow.batch_size)
        self.need(
            all(size % split == 0 for size in (self.heads, self.kv_heads, self.ffn)),
            f"heads, kv_heads and ffn must be multiples of tensor_parallel "
            f"{split}, got {self.heads}, {self.kv_heads} and {self.ffn}",
        )
        keys = ("autocast", "compiled", "dropout", "bias")
        given = {key: getattr(self, key) for key in keys}
        given |= {"old_bias": met.has_old_bias, "composed": self._is_composed(met.dtype)}
        style = Style(dtype=met.dtype, **given)
        inner, outer = self._feed_forward(rows, split, style)
        block = self._kept((*self._attention(met, rows, style), *inner), outer)
        blocks = tuple(replace(o, num_repeats=self.layers) for o in block)
        last = _norm(f"{self.prefix}.last_norm", rows // split, self.hidden, style)
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

    def _attention(self, flow: Flow, rows: int, style: Style) -> tuple[Operator, ...]:
        """The first half of a block: norm, queries, keys and values, attention, and addition."""
        name, hidden, width = f"{self.prefix}.attention", self.hidden, self.hidden // self.heads
        others = 2 * width * (self.kv_heads or self.heads) // flow.split
        mine, own = hidden // flow.split, rows // flow.split
        first: tuple[Operator, ...] = ()
        if self.joint_qkv:
            first = _linear(name, rows, hidden, mine + others, style)
            joined = 2.0 * style.element
            first += (_moved(name, (rows, mine + others), style, 0.0, joined),)
        else:
            for i, size in enumerate((mine, others // 2, others // 2)):
                first += _linear(name, rows, hidden, size, style, keeps_input=not i)
        last = _linear(name, rows, mine, hidden, style, keeps_input=False)
        if self.rotary:
            first += _rotation(name, rows, mine + others // 2, style)
        return (
            *_norm(name, own, hidden, style),
            *first,
            *self._scores(flow, rows, name, style),
            *_shared(last, flow.split),
            *_added(name, own, hidden, style),
        )

    def _scores(self, flow: Flow, rows: int, name: str, style: Style) -> tuple[Operator, ...]:
        """The attention itself, with written scores, or by one kernel that writes none.

        The kernel keeps queries, keys, values, the result, and one number in fp32 per row of
        scores. It reads shared keys and values for all heads of queries, as FlashAttention does.
        """
        width, heads = self.hidden // self.heads, self.heads // flow.split
        batch, length, seen = flow.batch_size, self.seq, self.seq
        if not self.fused_attention:
            sizes = (batch * heads, length, width)
            return _written_scores(name, sizes, style, is_causal=self.causal, is_masked=self.masked)
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
        self, rows: int, split: int, style: Style
    ) -> tuple[tuple[Operator, ...], tuple[Operator, ...]]:
        """The second half of a block: up to its activation; then its last product, and addition."""
        name, width, own = f"{self.prefix}.feed_forward", self.ffn // split, rows // split
        outer = _linear(name, rows, width, self.hidden, style)
        inner = (
            *_norm(name, own, self.hidden, style),
            *_linear(name, rows, self.hidden, width * (2 if self.gated else 1), style),
            *_activation(name, rows, width, style, gated=self.gated),
        )
        return inner, (*_shared(outer, split), *_added(name, own, self.hidden, style))

    def _tokens(self, rows: int, split: int, style: Style) -> tuple[Operator, ...]:
        """The lookups of tokens and learned positions, for ``rows`` positions of this rank."""
        if not self.vocabulary:
            return ()
        name, shape = f"{self.prefix}.tokens", (rows, self.hidden)
        size = math.ceil(self.vocabulary / split) * self.hidden
        filled = 4.0 if style.casts else style.element
        back = 3.0 * style.residual * rows * self.hidden + filled * size
        found = [parts.gather(name, shape, style.inner, size, backward_bytes=back)]
        if not self.rotary:
            learned, path = (self.seq, self.hidden), style.residual
            found.append(parts.gather(name, learned, style.inner, math.prod(learned)))
            found.append(_moved(name, shape, style, 2.0 * path, path))
        if style.dropout:
            found.append(_moved(name, shape, style, style.dropped, style.dropped, saved=1.0))
        return tuple(found)

    def _head(self, flow: Flow, style: Style) -> tuple[Operator, ...]:
        """The product with all tokens, and the loss."""
        if not self.vocabulary:
            return ()
        name, hidden = f"{self.prefix}.head", self.hidden
        rows = flow.batch_size * self.predicted or self.rows(flow.batch_size)
        found: tuple[Operator, ...] = ()
        if self.head_transform:
            found = (
                *_linear(name, rows, hidden, hidden, style),
                *_activation(name, rows, hidden, style, gated=False),
                *_norm(name, rows, hidden, style),
            )
        plain = replace(style, bias=False, dtype=style.inner)
        classes = math.ceil(self.vocabulary / flow.split)
        product, *casts = _linear(name, rows, hidden, classes, plain)
        if self.tied:
            product = replace(product, num_parameters=0, parameter_bytes=0.0)
        is_cast = self.causal or not self.autocast
        ended = _loss(name, rows, classes, style, is_fused=self.fused_loss, is_cast=is_cast)
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
