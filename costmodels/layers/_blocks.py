"""Operators of a transformer's blocks, as eager or compiled PyTorch runs them.

Operators between matrix products are limited by memory. Their amounts are therefore bytes per
element: how many bytes the forward and the backward pass read and write for each element of a
tensor. In eager PyTorch every kernel reads its inputs and writes its result. A compiler joins the
kernels between two products into one.

Under autocast, weights and residuals are fp32 and norms give fp32, so that casts stand before the
products. Without autocast, all tensors have the type of the products. Types of one byte are used by
linear layers only: each of them scales and casts its input, its weights and its gradient, and all
other operators, attention too, use two bytes per element.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from costmodels.datatypes import DataType
from costmodels.layers import _parts
from costmodels.operators import Operator, OperatorKind

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
        return float(_parts.kept_bytes(self.dtype))

    @property
    def residual(self) -> float:
        """Bytes per element on the path of residuals."""
        return 4.0 if self.casts else self.element

    @property
    def dropped(self) -> float:
        """Bytes per element that dropout reads and writes, with one byte of its mask."""
        return 2.0 * self.element + 1.0


def moved(
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


def linear(
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
    operators = [_parts.linear(name, rows, fan_in, fan_out, style.dtype, **given)]
    if style.bias:
        added = 2.0 * style.element if style.old_bias else 0.0
        own = {"kind": OperatorKind.REDUCTION, **_parts.trained_fields(fan_out)}
        operators.append(moved(name, (rows, fan_out), style, added, style.element, **own))
    if style.casts:
        operators.append(moved(name, (fan_in, fan_out), style, _CAST, _CAST))
    if style.dtype is not style.inner:
        operators.append(moved(name, (rows, fan_in), style, _SCALED, 0.0))
        operators.append(moved(name, (fan_in, fan_out), style, _SCALED, 0.0))
        operators.append(moved(name, (rows, fan_out), style, 0.0, _SCALED))
    return tuple(operators)


def norm(name: str, rows: int, width: int, style: Style) -> tuple[Operator, ...]:
    """A norm of ``rows`` rows of ``width`` elements.

    In the backward pass two kernels read the gradient and the input: one for the gradient of the
    input, and one for the gradients of the weights. A compiler joins the norm with the addition
    before it and the cast after it.
    """
    shape, trained = (rows, width), _parts.trained_fields(width * (2 if style.bias else 1))
    if style.composed and not style.bias:
        # A root mean square norm in single kernels: a square, a mean, two products, all in fp32.
        own = trained | {"saved": 8.0, "num_kernels": 6, "dtype": DataType.FP32}
        made, is_cast = moved(name, shape, style, 28.0, 76.0, **own), style.casts
    else:
        is_cast = style.casts and not style.compiled
        result = 4.0 if is_cast else style.element
        forward, backward = result + style.residual, 2.0 * (result + style.residual)
        forward, backward = (
            (result, backward) if style.compiled else (forward, backward + style.residual)
        )
        kept = style.residual * float(math.prod(shape)) + 8.0 * rows
        own = trained | {"kind": OperatorKind.NORM, "saved_bytes": kept}
        made = moved(name, shape, style, forward, backward, **own)
    casts = (moved(name, shape, style, _CAST, _CAST),) if is_cast else ()
    return (made, *casts)


def added(name: str, rows: int, width: int, style: Style) -> tuple[Operator, ...]:
    """Dropout, and the addition to the residuals, of ``rows`` rows of ``width`` elements.

    The backward pass adds up the gradients of both paths.
    """
    shape, path = (rows, width), style.residual
    if style.compiled:
        backward = path + (path + style.element)
        kept = 1.0 if style.dropout else 0.0
        return (moved(name, shape, style, style.element + 2.0 * path, backward, saved=kept),)
    dropped = moved(name, shape, style, style.dropped, style.dropped, saved=1.0)
    backward = 3.0 * path + (_CAST if style.casts else 0.0)
    total = moved(name, shape, style, style.element + 2.0 * path, backward)
    return (dropped, total) if style.dropout else (total,)


def activation(
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
        return (moved(name, shape, style, forward, backward, **own),)
    if not gated:
        return (moved(name, shape, style, 2.0 * e, 3.0 * e, saved=e),)
    if style.compiled:
        return (moved(name, shape, style, 3.0 * e, 5.0 * e, saved=2.0 * e),)
    return (moved(name, shape, style, 5.0 * e, 9.0 * e, saved=3.0 * e, num_kernels=2),)


def rotation(name: str, rows: int, width: int, style: Style) -> tuple[Operator, ...]:
    """Rotary positions of queries and keys, which have ``width`` elements together in each row.

    For queries and for keys these are a negation, a join, two products and a sum.
    """
    bytes_ = (2.0 if style.compiled else 13.0) * style.element
    kernels = 2 if style.compiled else 10
    return (moved(name, (rows, width), style, bytes_, bytes_, num_kernels=kernels),)


def scores(
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
    copied = moved(name, sizes, style, 2.0 * e, 2.0 * e)
    first = _parts.batched(name, (groups, length, width, length), style.inner, saved=3 * size)
    last = _parts.batched(name, (groups, length, length, width), style.inner, saved=size)
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
    own = (moved(name, shape, style, *each, **more) for runs, *each, more in between if runs)
    return (copied, copied, copied, first, *own, last, copied)


def loss(
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
        return moved(name, (rows, width), style, forward, 2.0 * e, kind=kind, saved=e)
    wide = style.element if style.is_half and not is_cast else 4.0
    forward, backward, kernels = 3.0 * wide, 5.0 * wide, 1
    if style.is_half and is_cast:
        forward, backward, kernels = _CAST + forward, backward + _CAST, 2
    elif style.casts:
        forward, backward, kernels = _CAST + forward, backward + _CAST + 4.0, 2
    return moved(
        name, (rows, width), style, forward, backward, kind=kind, saved=4.0, num_kernels=kernels
    )
