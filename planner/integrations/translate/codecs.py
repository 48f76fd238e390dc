"""Reads the quantized communication of a sharder from its registry of codecs."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import nn
from torchrec.distributed.planner.types import SharderData
from torchrec.distributed.types import CommOp, ModuleSharder

from costmodels.training.communication import Codec, Codecs, Communication, Precision
from costmodels.workload import Pooling, Table
from planner.options.torchrec_rules import COLUMN_MULTIPLE

_EXCHANGES: Final = {
    "all_to_all": CommOp.POOLED_EMBEDDINGS_ALL_TO_ALL.name,
    "reduce_scatter": CommOp.POOLED_EMBEDDINGS_REDUCE_SCATTER.name,
    "sequence": CommOp.SEQUENCE_EMBEDDINGS_ALL_TO_ALL.name,
}
_BY_TYPE: Final = {
    torch.float32: Precision.FP32,
    torch.float16: Precision.FP16,
    torch.bfloat16: Precision.BF16,
    torch.uint8: Precision.FP8,
    torch.int8: Precision.FP8,
}
"""Codecs of which only the element type on the wire is known; one byte is assumed to have no scale.
"""
_WITH_ROWS: Final = (Precision.FP8, Precision.MX4)


def communication_of(sharder: ModuleSharder[nn.Module] | SharderData) -> Communication | None:
    """The codecs that a sharder gives to the modules that it shards; None if it has none.

    FBGEMM's codecs have a precision and rows. For other codecs the element type on the wire counts,
    as in TorchRec's estimates; an unknown type counts as fp32. TorchRec's snapshots of sharders
    (``SharderData``) have only the sizes of element types.
    """
    sizes = getattr(sharder, "qcomm_dtype_sizes", None)
    if sizes:
        known = {key: sizes[name] for key, name in _EXCHANGES.items() if name in sizes}
        return Communication(**{k: Codecs(**_by_size(*both)) for k, both in known.items()})
    registry = getattr(sharder, "qcomm_codecs_registry", None)
    if not registry:
        return None
    found = {
        key: Codecs(forward=_codec(both.forward), backward=_codec(both.backward))
        for key, name in _EXCHANGES.items()
        if (both := registry.get(name)) is not None
    }
    return Communication(**found)


def unknown_codecs(sharder: ModuleSharder[nn.Module]) -> list[str]:
    """The element types of a sharder's codecs that cannot be priced."""
    registry = getattr(sharder, "qcomm_codecs_registry", None) or {}
    both = [codecs for name, codecs in registry.items() if name in _EXCHANGES.values()]
    every = [codec for codecs in both for codec in (codecs.forward, codecs.backward)]
    return sorted({str(c.quantized_dtype) for c in every if c.quantized_dtype not in _BY_TYPE})


def _by_size(forward: float, backward: float) -> dict[str, Codec]:
    sizes = {4.0: Precision.FP32, 2.0: Precision.FP16, 1.0: Precision.FP8}
    ways = {"forward": forward, "backward": backward}
    return {
        way: Codec(precision=sizes.get(float(size), Precision.FP32)) for way, size in ways.items()
    }


def _codec(codec: Any) -> Codec:
    named = getattr(getattr(codec, "_comm_precision", None), "value", None)
    if named in {p.value for p in Precision}:
        precision, rows = Precision(named), getattr(codec, "_row_dim", None) or 0
        return Codec(precision=precision, row_dim=max(rows, 0) if precision in _WITH_ROWS else 0)
    return Codec(precision=_BY_TYPE.get(codec.quantized_dtype, Precision.FP32))


def row_to_fill(table: Table, batch_size: int) -> int:
    """The elements of a codec's row, if a rank may send only a part of a row; otherwise 0.

    A row are the elements that a codec scales together. FBGEMM cuts everything that a rank sends to
    another into rows: ``batch_size`` times its columns, or any number of unpooled vectors. The
    result is 0 if every rank sends whole rows, however its tables are cut.
    """
    pooled = table.pooling is not Pooling.NONE
    codecs = table.codecs.exchange(sums=False, is_pooled=pooled)
    rows = {codec.scaled_together for codec in (codecs.forward, codecs.backward)}
    unit = COLUMN_MULTIPLE * (batch_size if pooled else 1)
    return max((row for row in rows if row and unit % row), default=0)
