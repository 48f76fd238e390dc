"""Exchanges between ranks that are CPU cores, from TorchRec's own modules timed one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, final

import numpy as np

from costmodels.cpu.constants import CpuConstants, ExchangeConstants
from costmodels.datatypes import FloatArray
from costmodels.exchange import AbstractExchangeModel, Traffic
from costmodels.sharding import ShardingType

_LENGTH_BYTES = 4.0
_SHUFFLED = (ShardingType.COLUMN_WISE, ShardingType.TABLE_COLUMN_WISE)
_REDUCED = (ShardingType.ROW_WISE, ShardingType.TABLE_ROW_WISE, ShardingType.GRID_SHARD)

CACHED_BYTES: Final = 8e6
"""Vectors that stay in the caches of a core between two copies."""


def beyond_caches(num_bytes: float) -> float:
    """Bytes of vectors that the caches cannot keep."""
    return max(num_bytes - CACHED_BYTES, 0.0)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CpuExchange(AbstractExchangeModel):
    """Linear in bytes, with separate rates for what a rank holds and what all ranks hold.

    With a, l, n the arriving bytes, leaving bytes and shards of a rank, A, L, N their sums over
    ranks, B the local batch and W the ranks:

    - indices: c0 + c1 N 4 B + c2 n 4 B + c3 A + c4 a;
    - pooled vectors: c0 + c1 W l + c2 L + c3 max(0, W l + L - 8 MB), the mean of forward and
      backward; the last term, what the caches cannot keep, is not part of the growing part;
    - replicated gradients: c0 + c1 bytes.

    Gloo moves bytes with the rank's own core, in and out, so a rank pays for both directions; and
    every rank permutes all its indices and joins all its vectors, wherever the tables are.

    Valid for the number of ranks it was calibrated with; others are extrapolated.
    """

    constants: CpuConstants

    sources: ClassVar[tuple[str, ...]] = (
        "microbenchmarks of TorchRec's dist modules on this machine",
    )

    def input_growth(
        self, sharding_type: ShardingType, traffic: Traffic, local_batch_size: int
    ) -> FloatArray:
        """Permutation, bucketing, packing, transfer and unpacking of indices and lengths."""
        shards = traffic.num_shards * (_LENGTH_BYTES * local_batch_size)
        total = traffic.arriving_bytes.sum(axis=-1, keepdims=True)
        all_shards = shards.sum(axis=-1, keepdims=True)
        _, *c = self._of(sharding_type).input_s
        return np.asarray(
            c[0] * all_shards + c[1] * shards + c[2] * total + c[3] * traffic.arriving_bytes
        )

    def output_growth(self, sharding_type: ShardingType, traffic: Traffic) -> FloatArray:
        """Mean of the exchange of vectors and that of their gradients."""
        leaving = traffic.leaving_bytes
        constants = self._of(sharding_type)
        own, joined = (
            0.5 * (a + b)
            for a, b in zip(constants.output_s[1:3], constants.gradient_s[1:3], strict=True)
        )
        produced = leaving * leaving.shape[-1]
        return np.asarray(own * produced + joined * leaving.sum(axis=-1, keepdims=True))

    def output_extra(self, sharding_type: ShardingType, traffic: Traffic) -> FloatArray:
        """What large exchanges cost more."""
        leaving, constants = traffic.leaving_bytes, self._of(sharding_type)
        moved = leaving * leaving.shape[-1] + leaving.sum(axis=-1, keepdims=True)
        rate_s = 0.5 * (constants.output_s[3] + constants.gradient_s[3])
        return np.asarray(rate_s * np.maximum(moved - CACHED_BYTES, 0.0))

    def fixed_s(self, sharding_type: ShardingType) -> tuple[float, float]:
        """Three collectives of a few bytes, and the Python around them."""
        constants = self._of(sharding_type)
        return constants.input_s[0], 0.5 * (constants.output_s[0] + constants.gradient_s[0])

    @property
    def once_s(self) -> float:
        """Index exchange, output exchange and gradient exchange."""
        return sum(self.constants.exchange_s)

    def gradient_growth(self, num_bytes: FloatArray) -> FloatArray:
        """Copies into and out of buckets, all-reduce, optimizer step."""
        return np.asarray(num_bytes * self.constants.gradient.per_byte_s)

    @property
    def gradient_fixed_s(self) -> float:
        """A DistributedDataParallel module, and handing on the vectors of replicated tables."""
        return self.constants.gradient.fixed_s

    def _of(self, sharding_type: ShardingType) -> ExchangeConstants:
        if sharding_type in _REDUCED:
            return self.constants.row_wise
        if sharding_type in _SHUFFLED:
            return self.constants.column_wise
        return self.constants.table_wise
