"""Kernels of quantized communication, on both sides of every exchange; memory limits them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.iteration.base import CodecTimes, FamilyTimes
from costmodels.shard_work.wire import BACKWARD, EXCHANGING_TYPES, FORWARD, Wire
from costmodels.shard_work.work import CODECS
from costmodels.sharding import ShardingType
from costmodels.stages.host import HostCosts
from costmodels.topology import Topology
from costmodels.uncertainty import Scale


class CodecModel:
    """Prices the codecs of one workload on one topology.

    A rank encodes what its own shards send before the exchange, and decodes the gradients that they
    get back after it. These depend on the plan. A rank also decodes the vectors that it receives
    for its batch and encodes their gradients. That takes the same time on every rank: all tables
    count as if they were exchanged, replicated ones too. If sharding types have different codecs,
    all vectors count with the one that takes longest.
    """

    def __init__(self, wire: Wire, topology: Topology, host: HostCosts) -> None:
        """Keep what does not depend on the plan.

        Args:
            wire: bytes per element, and what codecs read and write.
            topology: the system.
            host: what the host needs to issue a kernel.
        """
        self.rate_bytes_per_s = topology.device.hbm_bandwidth_bytes_per_s
        self._received_s = wire.received_bytes.T / self.rate_bytes_per_s
        exchanges = topology.world_size > 1
        self._latency_s = topology.device.kernel_latency_s * exchanges
        self._issue_s = host.operator_s * exchanges

    def growth(self, work: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Seconds for a rank's own shards at device speed, forward and backward, ``[..., W]``."""
        rate = self.rate_bytes_per_s
        return work[..., CODECS + FORWARD] / rate, work[..., CODECS + BACKWARD] / rate

    def of_plans(
        self, work: FloatArray, families: Sequence[FamilyTimes], speeds: FloatArray, scale: Scale
    ) -> CodecTimes:
        """Times of the codecs of one or many plans.

        Args:
            work: ``[..., W, columns]``.
            families: the sharding types that any of the plans has.
            speeds: ``[W]`` speed of each rank, as a factor on the rates of the device.
            scale: factors on all times.
        """
        present = np.zeros((*work.shape[:-2], 1, len(EXCHANGING_TYPES)))
        for family in families:
            column = EXCHANGING_TYPES.index(ShardingType(family.name))
            present[..., column] = True if family.present is None else family.present
        forward, backward = self.growth(work)
        return self._times((forward / speeds, backward / speeds), present, speeds, scale)

    def least(self, types: frozenset[ShardingType], speed: float, size: int) -> CodecTimes:
        """Times of the codecs of plans with exactly these types, without a rank's own shards.

        Args:
            types: sharding types of the plans.
            speed: speed of the fastest rank.
            size: number of ranks.
        """
        present = np.array([[float(f in types) for f in EXCHANGING_TYPES]])
        none = np.zeros(size)
        return self._times((none, none), present, np.full(size, speed), Scale())

    def _times(
        self,
        own_s: tuple[FloatArray, FloatArray],
        present: FloatArray,
        speeds: FloatArray,
        scale: Scale,
    ) -> CodecTimes:
        """Times from the seconds of each rank's own shards at its speed, forward and backward.

        Args:
            own_s: seconds ``[..., W]`` forward, and backward.
            present: ``[..., 1, types]`` 1 for each sharding type that a plan has, else 0.
            speeds: ``[W]`` speed of each rank.
            scale: factors on all times.
        """
        calls, ratio = present.sum(axis=-1), scale.lookup_ratio
        gap_s = calls * self._latency_s
        ends_s = [
            (present * self._received_s[way]).max(axis=-1) / speeds for way in (FORWARD, BACKWARD)
        ]
        return CodecTimes(
            quantize_s=(own_s[FORWARD] + gap_s) * ratio,
            dequantize_s=(ends_s[FORWARD] + gap_s) * ratio,
            quantize_gradient_s=(ends_s[BACKWARD] + gap_s) * ratio,
            dequantize_gradient_s=(own_s[BACKWARD] + gap_s) * ratio,
            host_s=calls * self._issue_s * scale.host_ratio,
        )
