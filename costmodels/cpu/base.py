"""The interface of an exchange model: a collective with all the copies around it.

Where compute and communication share one processor, permuting indices, packing and unpacking cost
as much as the transfer. An exchange model prices the whole; without one, exchanges cost what their
collectives cost.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from costmodels.datatypes import FloatArray
from costmodels.sharding import ShardingType


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What one sharding type exchanges, ``[..., R]`` each.

    ``arriving_bytes`` of indices and lengths from each source, ``leaving_bytes`` of pooled vectors
    to each destination, and the number of shards on the rank.
    """

    arriving_bytes: FloatArray
    leaving_bytes: FloatArray
    num_shards: FloatArray


class AbstractExchangeModel(ABC):
    """Predicts how long a rank is busy in the exchanges of one sharding type.

    Growing parts are convex, homogeneous and non-decreasing in the traffic.
    """

    __slots__ = ()

    sources: ClassVar[tuple[str, ...]]

    @abstractmethod
    def input_growth(
        self, sharding_type: ShardingType, traffic: Traffic, local_batch_size: float
    ) -> FloatArray:
        """Growing seconds of the index exchange on each rank, ``[..., R]``."""

    @abstractmethod
    def output_growth(self, sharding_type: ShardingType, traffic: Traffic) -> FloatArray:
        """Growing seconds of one exchange of pooled vectors, forward and backward alike."""

    @abstractmethod
    def output_extra(self, sharding_type: ShardingType, traffic: Traffic) -> FloatArray:
        """Seconds that one exchange of pooled vectors takes beyond its growing and fixed parts."""

    @abstractmethod
    def fixed_s(self, sharding_type: ShardingType) -> tuple[float, float]:
        """Seconds of (index exchange, one output exchange) without anything to send."""

    @property
    @abstractmethod
    def once_s(self) -> float:
        """Seconds per iteration of all exchanges together, whatever the number of types."""

    @abstractmethod
    def gradient_growth(self, num_bytes: FloatArray) -> FloatArray:
        """Growing seconds to reduce and apply gradients that every rank holds."""

    @property
    @abstractmethod
    def gradient_fixed_s(self) -> float:
        """Seconds that replicated tables cost by being there, beyond lookups and growth."""
