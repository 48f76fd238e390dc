"""Reads the features of a table, with their indices per sample, from TorchRec's constraints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Final

from torch import nn
from torchrec.distributed.embedding import get_ec_index_dedup
from torchrec.distributed.planner.shard_estimators import _get_optimizer_multipler
from torchrec.distributed.planner.types import ParameterConstraints, SharderData
from torchrec.distributed.types import ModuleSharder
from torchrec.modules.embedding_modules import EmbeddingBagCollectionInterface

from costmodels.torchrec_estimates import TorchrecInputs
from costmodels.workload import Feature
from planner.errors import InvalidInputError
from planner.integrations.translate.settings import fused_setting

MOST_INDICES: Final = 10**6
"""The most indices per sample that a feature may have, as in a workload."""


def features_of(
    names: Sequence[str], constraint: ParameterConstraints | None, batch_size: int
) -> tuple[Feature, ...]:
    """The features of a table with their indices per sample of the rank's batch.

    TorchRec counts ``pooling_factor * num_poolings * batch_size`` indices for a feature. If a
    constraint has more or fewer values than there are features, the sum of indices is spread evenly
    over the features.

    Raises:
        InvalidInputError: the lists of a constraint differ in length, which TorchRec refuses too;
            or a value is not a number, negative, or not finite.
    """
    limit = constraint or ParameterConstraints()
    lists = {
        "pooling_factors": limit.pooling_factors,
        "num_poolings": limit.num_poolings or [1.0],
        "batch_sizes": limit.batch_sizes or [batch_size],
    }
    longest = max(len(values) for values in lists.values())
    count = len(names) if longest == 1 else longest
    for what, values in lists.items():
        is_single = len(values) == 1 and (longest == 1 or not getattr(limit, what))
        if len(values) != count and not is_single:
            message = f"{what} has {len(values)} values for {count} inputs; give one for each"
            raise InvalidInputError(message)
        wrong = [v for v in values if not (isinstance(v, Real) and 0 <= float(v) < math.inf)]
        if wrong:
            message = f"{what} must be finite numbers of 0 or more, got {wrong[0]!r}"
            raise InvalidInputError(message)
    repeated = [list(v) * (count if len(v) == 1 else 1) for v in lists.values()]
    indices = [float(p) * n * b / batch_size for p, n, b in zip(*repeated, strict=True)]
    if max(indices) > MOST_INDICES:
        message = (
            f"pooling_factors x num_poolings x batch_sizes come to {max(indices):g} indices per "
            f"sample of a batch of {batch_size:,}; at most {MOST_INDICES:,} can be planned, make "
            "them smaller"
        )
        raise InvalidInputError(message)
    if count != len(names):
        indices = [sum(indices) / len(names)] * len(names)
    return tuple(Feature(name=n, pooling_factor=i) for n, i in zip(names, indices, strict=True))


def is_spread(features: Sequence[object], constraint: ParameterConstraints) -> bool:
    """Whether a constraint has more or fewer values than there are features."""
    lists = (constraint.pooling_factors, constraint.num_poolings, constraint.batch_sizes)
    return any(values and len(values) not in (1, len(features)) for values in lists)


def uses_index_dedup(sharder: ModuleSharder[nn.Module] | SharderData) -> bool:
    """Whether the unpooled tables of a sharder exchange only the distinct indices of each batch.

    This is set when the sharder is made, or for all sharders by TorchRec's older
    ``set_ec_index_dedup``. For modules with managed collisions, the sharder of their inner tables
    decides.
    """
    inner = getattr(sharder, "_e_sharder", sharder)
    return bool(getattr(inner, "_use_index_dedup", False) or get_ec_index_dedup())


def torchrec_inputs(
    name: str,
    constraint: ParameterConstraints | None,
    parameter: nn.Parameter,
    module: nn.Module,
    sharder: ModuleSharder[nn.Module],
    batch_size: int,
    *,
    is_pooled: bool,
) -> TorchrecInputs:
    """The inputs of a table as TorchRec's estimators count them.

    Args:
        name: the name of the table.
        constraint: its constraint; if None, TorchRec assumes one feature with one index.
        parameter: its weights, on which TorchRec looks for the optimizer.
        module: the module that owns the table.
        sharder: the sharder of the module.
        batch_size: samples per rank.
        is_pooled: whether a bag becomes one vector.
    """
    limit = constraint or ParameterConstraints()
    lengths = [float(x) for x in limit.pooling_factors]
    repeats = limit.num_poolings or [1.0] * len(lengths)
    batches = limit.batch_sizes or [batch_size] * len(lengths)
    read = list(zip(lengths, repeats, batches, strict=False))
    weighted = limit.is_weighted
    if isinstance(module, EmbeddingBagCollectionInterface):
        weighted = module.is_weighted()
    fused_prefetch = fused_setting(sharder, "prefetch_pipeline")
    cache = limit.cache_params
    return TorchrecInputs(
        num_ids=sum(x * n * b for x, n, b in read),
        num_outputs=sum((min(1.0, x) if is_pooled else x) * n * b for x, n, b in read),
        is_weighted=bool(weighted) or _is_processed(name, module),
        prefetches=bool((cache and cache.prefetch_pipeline) or fused_prefetch),
        optimizer_ratio=counted_state_ratio(parameter),
    )


def counted_state_ratio(parameter: nn.Parameter) -> float:
    """Bytes of state that TorchRec's planner counts for each byte of a table's weights.

    It goes by the very class of the optimizer on the parameter: 1 for a class that it does not
    know, such as one derived from Adam, and 0 without any, as with ``fused_params``.
    """
    classes = getattr(parameter, "_optimizer_classes", None) or [None]
    return float(_get_optimizer_multipler(classes[0], parameter.shape))


def _is_processed(name: str, module: nn.Module) -> bool:
    """Whether a feature processor has the table's name; TorchRec takes it for the table's own."""
    processor = getattr(module, "_feature_processor", None)
    modules = getattr(processor, "feature_processor_modules", None)
    return isinstance(modules, nn.ModuleDict) and name in modules
