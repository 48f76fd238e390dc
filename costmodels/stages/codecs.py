"""Kernels of quantized communication: memory-bound, on both sides of every exchange."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from costmodels.iteration.base import CodecTimes, FamilyTimes, FloatArray
from costmodels.shard_work.wire import BACKWARD, EXCHANGING_TYPES, FORWARD, Wire
from costmodels.shard_work.work import CODECS
from costmodels.sharding import ShardingType
from costmodels.stages.host import HostCosts
from costmodels.topology import Topology
from costmodels.uncertainty import Scale


class CodecModel:
    """Prices the codecs of one workload on one topology.

    What a rank's own shards send, and the gradients they get back, are coded there, before the
    exchange and after it. What arrives is decoded on every rank alike; replicated tables are
    counted in that like the others, and where sharding types have different codecs, the type that
    costs most.
    """

    def __init__(self, wire: Wire, topology: Topology, host: HostCosts) -> None:
        """Keep what does not depend on the plan.

        Args:
            wire: bytes per element, and what codecs read and write.
            topology: the system.
            host: what issuing a kernel takes.
        """
        self.rate_bytes_per_s = topology.device.hbm_bandwidth_bytes_per_s
        self._received_s = wire.received_bytes.T / self.rate_bytes_per_s
        exchanges = topology.world_size > 1
        self._latency_s = topology.device.kernel_latency_s * exchanges
        self._issue_s = host.operator_s * exchanges

    def growth(self, work: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Seconds at device speed for a rank's own shards, forward and backward, ``[..., W]``."""
        rate = self.rate_bytes_per_s
        return work[..., CODECS + FORWARD] / rate, work[..., CODECS + BACKWARD] / rate

    def of_plans(
        self, work: FloatArray, families: Sequence[FamilyTimes], speeds: FloatArray, scale: Scale
    ) -> CodecTimes:
        """Kernels of one or many plans.

        Args:
            work: ``[..., W, columns]``.
            families: the sharding types that any of the plans has.
            speeds: of the ranks, ``[W]``.
            scale: factors on all times.
        """
        present = np.zeros((*work.shape[:-2], 1, len(EXCHANGING_TYPES)))
        for family in families:
            column = EXCHANGING_TYPES.index(ShardingType(family.name))
            present[..., column] = True if family.present is None else family.present
        forward, backward = self.growth(work)
        return self._times((forward / speeds, backward / speeds), present, speeds, scale)

    def least(self, types: frozenset[ShardingType], speed: float, size: int) -> CodecTimes:
        """Kernels of plans with exactly these types beside those for a rank's own shards.

        Args:
            types: of the plans.
            speed: of the fastest rank.
            size: ranks.
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
