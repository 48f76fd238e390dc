"""Collectives that train the dense part: all-reduces in buckets, or shards of parameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Final

import numpy as np

from costmodels.collective.base import AbstractCollectiveModel
from costmodels.datatypes import FloatArray
from costmodels.dense.base import DenseLayers
from costmodels.errors import require
from costmodels.topology import Topology
from costmodels.workload import DataType, DenseParallelism, Workload

_BUCKET_BYTES: Final = 25 * 1024**2
"""Bytes of gradients in one all-reduce: the default bucket of DistributedDataParallel."""
_MAX_BUCKETS: Final = 8
"""Most pieces in which a dense part and its collectives are priced. More would follow large models
more closely and make every program longer."""


def _divided(topology: Topology, split: int) -> tuple[Topology, Topology]:
    """The ranks that share layers, and the ranks that have the same part of every layer.

    Ranks that share layers follow each other, on one host or on several whole hosts. Collectives
    across hosts then use the links between hosts, as other collectives do.

    Args:
        topology: all ranks.
        split: how many ranks share layers.

    Raises:
        InvalidValueError: they are neither a part of a host nor whole hosts.
    """
    local, hosts = topology.local_world_size, topology.num_hosts
    if split == 1:
        return topology, topology
    if local % split == 0:
        spread = topology.domain_size // topology.local_world_size
        peers = topology.resized(hosts, local // split)
        return topology.resized(1, split), replace(peers, domain_size=spread * local // split)
    spanned = split // local
    require(
        split % local == 0 and hosts % spanned == 0,
        f"tensor_parallel must divide the {local} ranks of a host, or be those of a number of "
        f"hosts that divides {hosts}, got {split}",
    )
    domain = max(1, topology.domain_size // split)
    peers = topology.resized(hosts // spanned, 1)
    return topology.resized(spanned, local), replace(peers, domain_size=domain)


class DenseReduction:
    """Prices the collectives of the dense part of one workload; they are the same for every plan.

    Where groups of ranks share layers (``tensor_parallel``), gradients are reduced over the ranks
    that have the same part of the layers.
    """

    def __init__(
        self,
        workload: Workload,
        topology: Topology,
        layers: DenseLayers,
        collective: AbstractCollectiveModel,
    ) -> None:
        """Keep the arguments.

        Raises:
            InvalidValueError: the ranks that share layers are neither a part of a host nor whole
                hosts.
        """
        self._workload, self._layers, self._collective = workload, layers, collective
        self._split = workload.tensor_parallel
        self._group, self._topology = _divided(topology, self._split)

    def all_reduce_s(self, num_bytes: FloatArray) -> FloatArray:
        """Seconds of an all-reduce over the ranks that have the same part of every layer."""
        return self._collective.all_reduce_s(num_bytes, self._topology) * (num_bytes > 0)

    @cached_property
    def shared_s(self) -> tuple[float, float]:
        """Seconds in which ranks that share layers add up results, in forward and backward pass.

        Nothing computes beside these collectives.
        """
        if self._split == 1:
            return 0.0, 0.0
        operators = [o for x in self._layers.top for o in x.operators if o.shared_bytes]
        once_s = [
            o.num_repeats
            * float(self._collective.all_reduce_s(np.array(o.shared_bytes), self._group))
            for o in operators
        ]
        again_s = [s for o, s in zip(operators, once_s, strict=True) if o.is_recomputed]
        return sum(once_s), sum(once_s) + sum(again_s)

    @cached_property
    def num_parameters(self) -> int:
        """Trained elements of the dense part."""
        return self._layers.top_parameters + self._layers.bottom_parameters

    @cached_property
    def is_sharded(self) -> bool:
        """Whether ranks share parameters, gradients and states."""
        is_alone = self._topology.world_size == 1 or not self.num_parameters
        return self._workload.dense_parallelism is DenseParallelism.FSDP and not is_alone

    @cached_property
    def buckets(self) -> tuple[float, ...]:
        """Bytes of the top's gradients in each all-reduce; the last one also has the bottom's."""
        top = self._layers.top_parameters * self._workload.gradient_dtype.num_bytes
        count = min(_MAX_BUCKETS, max(1, math.ceil(top / _BUCKET_BYTES)))
        return (top / count,) * count

    @cached_property
    def tail_bytes(self) -> float:
        """Bytes of the last all-reduce without those of replicated tables."""
        if self.is_sharded:
            return 0.0
        bottom = self._layers.bottom_parameters * self._workload.gradient_dtype.num_bytes
        return self.buckets[-1] + bottom

    @cached_property
    def pieces(self) -> tuple[float, ...]:
        """The share of each piece in which a sharded dense part runs; empty if it is not sharded.

        The first layer is a piece of its own, because nothing computes while it is gathered.
        """
        if not self.is_sharded:
            return ()
        trained = [x for x in (*self._layers.bottom, *self._layers.top) if x.num_parameters]
        repeats = max(o.num_repeats for x in trained for o in x.operators)
        num_layers = max(2, repeats, len(trained))
        rest = min(_MAX_BUCKETS - 1, num_layers - 1)
        return (1.0 / num_layers, *((1.0 - 1.0 / num_layers) / rest,) * rest)

    @property
    def gathered_bytes(self) -> float:
        """Bytes of all gathered parameters, in the type of the products or in 2 bytes at least."""
        element = max(self._workload.dense.dtype.num_bytes, DataType.BF16.num_bytes)
        return float(self.num_parameters * element)

    @property
    def scattered_bytes(self) -> float:
        """Bytes of all gradients when they are reduced."""
        return float(self.num_parameters * self._workload.gradient_dtype.num_bytes)

    @property
    def cast_s(self) -> float:
        """Seconds to convert a micro-batch's gradients to the type in which they are reduced.

        This happens if parameters are sharded, because gradients then are in the type of the
        products first. Otherwise the result is 0.
        """
        computed = max(self._workload.dense.dtype.num_bytes, DataType.BF16.num_bytes)
        reduced = self._workload.gradient_dtype.num_bytes
        if not self.is_sharded or computed == reduced:
            return 0.0
        moved = float(self.num_parameters * (computed + reduced))
        return moved / self._topology.device.hbm_bandwidth_bytes_per_s

    @cached_property
    def gathers_s(self) -> tuple[FloatArray, ...]:
        """Seconds to gather the parameters of each piece."""
        return self._each_s(self._collective.all_gather_s, self.gathered_bytes, self.pieces)

    @cached_property
    def scatters_s(self) -> tuple[FloatArray, ...]:
        """Seconds to reduce the gradients of each piece, in the order of the backward pass."""
        scatter, shares = self._collective.reduce_scatter_s, self.pieces[::-1]
        return self._each_s(scatter, self.scattered_bytes, shares)

    def _each_s(
        self, collective: Callable[..., FloatArray], whole_bytes: float, shares: tuple[float, ...]
    ) -> tuple[FloatArray, ...]:
        """Seconds of a collective of each share of some bytes."""
        each = (np.array(whole_bytes * share) for share in shares)
        return tuple(collective(size, self._topology, within_host=False) for size in each)

    def beside_backward_s(
        self, all_reduce_s: Callable[[FloatArray], FloatArray]
    ) -> tuple[FloatArray, ...]:
        """Seconds of the collectives that reduce gradients beside the backward pass.

        These are all but the last one. ``all_reduce_s`` prices an all-reduce of so many bytes.
        """
        if self.is_sharded:
            return self.scatters_s[:-1]
        return tuple(all_reduce_s(np.array(b)) for b in self.buckets[:-1])

    @property
    def calls_per_pass(self) -> int:
        """Collectives of a micro-batch before the last one: those of a sharded dense part."""
        return 2 * len(self.gathers_s) + len(self.scatters_s) if self.is_sharded else 0

    def earlier_s(
        self,
        passes_s: FloatArray,
        issued_s: FloatArray,
        dense_ratio: FloatArray,
        collective_ratio: FloatArray,
    ) -> FloatArray | None:
        """Seconds of all micro-batches of a step but the last one; None if there is only one.

        Each micro-batch adds its gradients to those before it. For a sharded dense part, parameters
        are gathered twice and gradients are reduced in every micro-batch; this runs beside compute
        and slows it down. Otherwise gradients stay on their rank. A micro-batch takes at least as
        long as the host needs to issue it.

        Args:
            passes_s: seconds of forward and backward pass of a micro-batch on each rank.
            issued_s: seconds that the host needs to issue them.
            dense_ratio: ``[W]`` factor on compute, divided by the speed of each rank.
            collective_ratio: factor on collectives.
        """
        earlier, device = self._workload.gradient_accumulation - 1, self._topology.device
        if not earlier:
            return None
        if not self.is_sharded:
            # Two reads and one write add the gradients of a micro-batch to those before it.
            added_s = 3.0 * self.gathered_bytes / device.hbm_bandwidth_bytes_per_s
            return earlier * np.maximum(passes_s + added_s * dense_ratio, issued_s)
        none = np.zeros(())
        beside_s = 2.0 * sum(self.gathers_s, none) + sum(self.scatters_s, none)
        beside_s = beside_s * collective_ratio
        alone_s = (self.gathers_s[0] + self.scatters_s[-1]) * collective_ratio
        slowed_s = passes_s + device.overlap_slowdown_ratio * beside_s + alone_s
        return earlier * np.maximum(np.maximum(slowed_s, beside_s), issued_s)
