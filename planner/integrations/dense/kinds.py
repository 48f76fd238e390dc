"""Finds the kind of each of PyTorch's operators, and turns it into one of ours."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import torch
from torch.utils.flop_counter import flop_registry

from costmodels.datatypes import DataType
from costmodels.operators import OperatorKind
from planner.errors import InvalidInputError

_TYPES: Final = {
    torch.float32: DataType.FP32,
    torch.float16: DataType.FP16,
    torch.bfloat16: DataType.BF16,
    torch.int8: DataType.INT8,
    torch.uint8: DataType.INT8,
    torch.bool: DataType.INT8,
    torch.float8_e4m3fn: DataType.FP8,
    torch.float8_e5m2: DataType.FP8,
}
_FREE_NAMES: Final = """_unsafe_view alias detach detach_ empty empty_like empty_strided
    is_same_size
    lift_fresh new_empty new_empty_strided size stride storage_offset sym_numel sym_size sym_stride
    view_as zero_numel _local_scalar_dense unsafe_chunk unsafe_split unsafe_split_with_sizes
    transpose_ t_ squeeze_ unsqueeze_ as_strided_"""
_NO_WORK: Final = frozenset(_FREE_NAMES.split())
"""Operators besides views that compute nothing on the device."""
PRODUCTS: Final = {"mm": 0, "addmm": 1, "bmm": 0, "baddbmm": 1, "_scaled_mm": 0}
"""Matrix products, with the position of the argument that is the left operand."""
CONVOLUTION: Final = "convolution"
_NAMES: Final = {
    OperatorKind.NORM: """native_layer_norm native_batch_norm native_group_norm cudnn_batch_norm
        _native_batch_norm_legit _native_batch_norm_legit_no_training _fused_rms_norm
        rms_norm batch_norm_with_update _weight_norm_interface""",
    OperatorKind.SOFTMAX: "_softmax _log_softmax _safe_softmax logsumexp",
    OperatorKind.GATHER: """embedding index gather index_select take scatter scatter_add index_put
        index_put_ index_add _embedding_bag _embedding_bag_forward_only tril triu tril_indices
        triu_indices _unsafe_index take_along_dim nll_loss_forward nll_loss
        scatter_reduce index_copy masked_scatter embedding_renorm_""",
    OperatorKind.REDUCTION: """sum mean amax amin max min argmax argmin prod var var_mean std norm
        linalg_vector_norm all any cumsum mse_loss l1_loss huber_loss
        smooth_l1_loss binary_cross_entropy_with_logits binary_cross_entropy count_nonzero
        mv addmv dot vdot _trilinear std_mean median kthvalue aminmax histc
        cumprod cummax cummin logcumsumexp multi_margin_loss
        max_pool2d_with_indices max_pool3d_with_indices avg_pool1d avg_pool2d avg_pool3d
        _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d""",
    OperatorKind.ELEMENTWISE: """cat stack clone copy copy_ _to_copy fill fill_ zeros ones full
        full_like zeros_like ones_like arange linspace native_dropout constant_pad_nd where
        masked_fill masked_fill_ repeat gelu silu relu relu_ threshold hardtanh leaky_relu elu
        bernoulli bernoulli_ rand rand_like randn randn_like scalar_tensor new_zeros new_ones
        new_full roll flip zero_ slice_scatter select_scatter one_hot repeat_interleave
        glu polar complex _prelu_kernel native_channel_shuffle log_sigmoid_forward hardswish
        hardswish_ rrelu_with_noise exponential_ uniform_ normal normal_ randint eye diag_embed
        rot90 index_fill pixel_shuffle pixel_unshuffle reflection_pad1d reflection_pad2d
        replication_pad1d replication_pad2d upsample_nearest1d upsample_nearest2d
        upsample_linear1d upsample_bilinear2d im2col col2im
        fake_quantize_per_tensor_affine_cachemask""",
    OperatorKind.OTHER: """topk sort argsort _fft_r2c _fft_c2r _fft_c2c bucketize searchsorted isin
        multinomial randperm mode""",
}
SORTS: Final = ("topk", "sort", "argsort")
"""Operators that sort as many elements as they return, or a little more."""
KINDS: Final = {name: kind for kind, names in _NAMES.items() for name in names.split()}


def operator_name(func: Any) -> str:
    """The name without library and overload, such as ``addmm``."""
    return str(func.overloadpacket.__name__)


def is_free(func: Any) -> bool:
    """Whether an operator makes a view or only reads shapes, so that no kernel runs."""
    if func.namespace == "prim" or operator_name(func) in _NO_WORK:
        return True
    returned = func._schema.returns
    return bool(returned) and all(
        r.alias_info is not None and not r.alias_info.is_write for r in returned
    )


def kind_of(func: Any) -> OperatorKind | None:
    """The kind of an operator that is neither product nor attention; None if it is not known."""
    known = KINDS.get(operator_name(func))
    if known is None and torch.Tag.pointwise in func.tags:
        return OperatorKind.ELEMENTWISE
    return known


def bytes_of(tensors: Iterable[torch.Tensor]) -> float:
    """Bytes of all elements; elements that an expanded tensor repeats count once."""
    total = 0.0
    for tensor in tensors:
        distinct = math.prod(
            n for n, step in zip(tensor.shape, tensor.stride(), strict=True) if step != 0
        )
        total += float(distinct * tensor.element_size())
    return total


def data_type(tensor: torch.Tensor) -> DataType:
    """The element type; types of eight bytes count as fp32, because only products depend on it."""
    return _TYPES.get(tensor.dtype, DataType.FP32)


class Product(NamedTuple):
    """An operator that is priced as a matrix product, or a fused attention.

    ``operands`` are the tensors whose gradients are products again.
    """

    kind: OperatorKind
    shape: tuple[int, ...]
    operands: tuple[torch.Tensor, ...]
    is_causal: bool = False


def product_of(
    func: Any, path: str, args: Any, kwargs: Any, read: list[torch.Tensor], out: Any
) -> Product | None:
    """An operator as a product; None for all others.

    A convolution is one of patches and filters: the input is ``[samples, channels, ...]``, the
    filters are ``[out, in / groups, ...]`` (in and out change places if it is transposed), and the
    positions of the output are the rows of the product; those of the input if it is transposed. A
    fused attention reads queries, keys and values ``[samples, heads, positions, width]``.

    Raises:
        InvalidInputError: a product has operands of two types.
    """
    name = operator_name(func)
    if name in PRODUCTS:
        left, right = args[PRODUCTS[name] : PRODUCTS[name] + 2]
        _refuse_mixed(name, path, (left, right))
        is_batched = name in ("bmm", "baddbmm")
        shape = (int(left.shape[0]) if is_batched else 1, *left.shape[-2:], right.shape[-1])
        kind = OperatorKind.BATCHED_MATMUL if is_batched else OperatorKind.MATMUL
        return Product(kind, tuple(map(int, shape)), (left, right))
    if name == CONVOLUTION:
        given, filters = args[:2]
        transposed, groups = (_named(func, args, kwargs, x) for x in ("transposed", "groups"))
        rows = given if transposed else out
        outer, inner = int(filters.shape[0]) // groups, math.prod(map(int, filters.shape[1:]))
        columns = (outer, inner) if transposed else (inner, outer)
        shape = (groups, math.prod(rows.shape[2:]) * int(rows.shape[0]), *columns)
        kind = OperatorKind.MATMUL if groups == 1 else OperatorKind.BATCHED_MATMUL
        return Product(kind, shape, (given, filters))
    if name.startswith("_scaled_dot_product_") or name in (
        "_flash_attention_forward",
        "_efficient_attention_forward",
    ):
        query, key, value = read[:3]
        sizes = (query.shape[-2], key.shape[-2], query.shape[-1], value.shape[-1])
        shape = (math.prod(query.shape[:-2]), *map(int, sizes))
        causal = bool(_named(func, args, kwargs, "is_causal"))
        return Product(OperatorKind.ATTENTION, shape, (query, key), causal)
    return None


def _refuse_mixed(name: str, path: str, operands: Iterable[torch.Tensor]) -> None:
    """Refuse products of two types, which run on no device, but are allowed on fake tensors.

    Scaled products of two kinds of eight-bit numbers are the exception.
    """
    types = [str(x.dtype).removeprefix("torch.") for x in operands]
    if len(set(types)) > 1 and name != "_scaled_mm":
        message = (
            f"{path}: PyTorch multiplies no {types[0]} by {types[1]}; make the inputs and the "
            "parameters one type, or trace with --autocast as the model trains"
        )
        raise InvalidInputError(message)


def _named(func: Any, args: Any, kwargs: Any, name: str) -> Any:
    """An argument by its name, given by name or by position; None if it was not given."""
    if name in kwargs:
        return kwargs[name]
    for place, argument in enumerate(func._schema.arguments):
        if argument.name == name:
            return args[place] if place < len(args) else argument.default_value
    return None


def counted_flop(func: Any, args: Any, kwargs: Any, out: Any) -> float:
    """FLOP that PyTorch counts for an operator, 0 if it counts none."""
    counter = flop_registry.get(func.overloadpacket)
    return float(counter(*args, **kwargs, out_val=out)) if counter else 0.0
