"""Features of a table with their indices per sample, from TorchRec's constraints."""

from __future__ import annotations

from collections.abc import Sequence

from torchrec.distributed.planner.types import ParameterConstraints

from costmodels.workload import Feature
from planner.errors import InvalidInputError


def features_of(
    names: Sequence[str], constraint: ParameterConstraints | None, batch_size: int
) -> tuple[Feature, ...]:
    """Features with their indices per sample of the rank's batch.

    TorchRec counts ``pooling_factor * num_poolings * batch_size`` indices for a feature.
    """
    limit = constraint or ParameterConstraints()
    poolings = _per_feature(limit.pooling_factors, names, "pooling_factors")
    repeats = _per_feature(limit.num_poolings or [1.0], names, "num_poolings")
    batches = _per_feature(limit.batch_sizes or [batch_size], names, "batch_sizes")
    return tuple(
        Feature(name=n, pooling_factor=float(p) * r * b / batch_size)
        for n, p, r, b in zip(names, poolings, repeats, batches, strict=True)
    )


def _per_feature(values: Sequence[float], names: Sequence[str], what: str) -> list[float]:
    if len(values) == 1:
        return list(values) * len(names)
    if len(values) != len(names):
        message = f"{what} has {len(values)} values for {len(names)} features; give one for each"
        raise InvalidInputError(message)
    return list(values)
