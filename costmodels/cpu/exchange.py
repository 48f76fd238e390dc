"""The time of exchanges between CPU ranks, from measurements of each of TorchRec's own modules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, final

import numpy as np

from costmodels.cpu.features import AbstractExchangeModel, Traffic
from costmodels.datatypes import FloatArray
from costmodels.measured.cpu_constants import CpuConstants, ExchangeConstants
from costmodels.sharding import BY_ROWS, ShardingType

_LENGTH_BYTES = 4.0
"""Bytes of the length of a bag."""
_SHUFFLED = (ShardingType.COLUMN_WISE, ShardingType.TABLE_COLUMN_WISE)
"""Sharding types that are priced as column-wise."""

CACHED_BYTES: Final = 8e6
"""Bytes of vectors that stay in the caches of a core between two copies. Bytes beyond take
longer."""


def beyond_caches(num_bytes: float) -> float:
    """How many of ``num_bytes`` of vectors the caches cannot hold."""
    return max(num_bytes - CACHED_BYTES, 0.0)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CpuExchange(AbstractExchangeModel):
    """Seconds that are linear in bytes, with separate rates for bytes of one rank and of all ranks.

    Let a, l and n be the arriving bytes, the leaving bytes and the number of shards of a rank; A, L
    and N their sums over ranks; B the local batch size; and W the number of ranks. With constants c
    of the machine and of the exchange, a rank takes:

    - for indices c0 + c1 N 4 B + c2 n 4 B + c3 A + c4 a;
    - for pooled vectors c0 + c1 W l + c2 L + c3 max(0, W l + L - 8 MB), as the mean of the exchange
      of vectors and that of their gradients. The last term counts bytes that the caches cannot
      hold; it is not part of the growing part;
    - for gradients of replicated tables c0 + c1 times their bytes.

    Both directions count, because gloo sends and receives with the rank's own core. Bytes of all
    ranks count, because each rank permutes all of its indices and joins all of its vectors,
    wherever the tables are.

    Valid for the number of ranks of the calibration; other numbers are extrapolated.

    Args:
        constants: the constants of the machine.
    """

    constants: CpuConstants

    sources: ClassVar[tuple[str, ...]] = (
        "microbenchmarks of TorchRec's dist modules on this machine",
    )

    def input_growth(
        self, sharding_type: ShardingType, traffic: Traffic, batch_size_per_rank: float
    ) -> FloatArray:
        """``[..., W]`` seconds to permute, bucket, pack, send and unpack indices and lengths."""
        shards = traffic.num_shards * (_LENGTH_BYTES * batch_size_per_rank)
        total = traffic.arriving_bytes.sum(axis=-1, keepdims=True)
        all_shards = shards.sum(axis=-1, keepdims=True)
        _, *c = self._of(sharding_type).input_s
        return np.asarray(
            c[0] * all_shards + c[1] * shards + c[2] * total + c[3] * traffic.arriving_bytes
        )

    def output_growth(self, sharding_type: ShardingType, traffic: Traffic) -> FloatArray:
        """``[..., W]`` seconds: the mean of the exchanges of vectors and of their gradients."""
        leaving = traffic.leaving_bytes
        constants = self._of(sharding_type)
        own, joined = (
            0.5 * (a + b)
            for a, b in zip(constants.output_s[1:3], constants.gradient_s[1:3], strict=True)
        )
        produced = leaving * leaving.shape[-1]
        return np.asarray(own * produced + joined * leaving.sum(axis=-1, keepdims=True))

    def output_extra(self, sharding_type: ShardingType, traffic: Traffic) -> FloatArray:
        """``[..., W]`` seconds that bytes beyond the caches take longer."""
        leaving, constants = traffic.leaving_bytes, self._of(sharding_type)
        moved = leaving * leaving.shape[-1] + leaving.sum(axis=-1, keepdims=True)
        rate_s = 0.5 * (constants.output_s[3] + constants.gradient_s[3])
        return np.asarray(rate_s * np.maximum(moved - CACHED_BYTES, 0.0))

    def fixed_s(self, sharding_type: ShardingType) -> tuple[float, float]:
        """Seconds without bytes of the exchanges of indices and of vectors.

        They are those of three collectives of a few bytes, and of the Python code around them.
        """
        constants = self._of(sharding_type)
        return constants.input_s[0], 0.5 * (constants.output_s[0] + constants.gradient_s[0])

    @property
    def once_s(self) -> float:
        """Seconds that the exchanges of indices, vectors and gradients take once in a step."""
        return sum(self.constants.exchange_s)

    def gradient_growth(self, num_bytes: FloatArray) -> FloatArray:
        """``[...]`` seconds of copies into and out of buckets, all-reduce and optimizer."""
        return np.asarray(num_bytes * self.constants.gradient.per_byte_s)

    @property
    def gradient_fixed_s(self) -> float:
        """Seconds of a DistributedDataParallel module and of passing on the replicated vectors."""
        return self.constants.gradient.fixed_s

    def _of(self, sharding_type: ShardingType) -> ExchangeConstants:
        """The constants by which a sharding type is priced."""
        if sharding_type in BY_ROWS:
            return self.constants.row_wise
        if sharding_type in _SHUFFLED:
            return self.constants.column_wise
        return self.constants.table_wise
