"""From work to the duration of every stage of an iteration on every rank."""

from dataclasses import fields, replace
from functools import cached_property

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.dense.base import DenseTimes, dense_layers, dense_names
from costmodels.discovery import model_words
from costmodels.errors import require
from costmodels.iteration.base import StageTimes, require_times
from costmodels.lookup.base import NUM_LOOKUP_WORK, AbstractLookupModel, LookupWork
from costmodels.shard_work import work as columns
from costmodels.shard_work.wire import distinct_s, with_expansion
from costmodels.shard_work.work import EXCHANGING_TYPES, KERNELS
from costmodels.sharding import ComputeKernel
from costmodels.stages.exchanges import CodecModel, DenseReduction, EmbeddingExchanges
from costmodels.stages.host import HostCosts, input_bytes
from costmodels.stages.models import CostModels
from costmodels.topology import Topology, batch_ratios, with_batch
from costmodels.uncertainty import UNSCALED, Scale
from costmodels.workload import DenseParallelism, HostProfile, Workload

_ROUNDING = 1e-12
"""Relative difference of times below which they count as equal."""
_LOSS_RATIOS = 0.4, 0.6
"""Shares of the host time of the loss that fall on its forward and its backward pass. Rounded: of
the 190 us of the profile of 2021, ``mse_loss`` takes 61 or 71 with one or two of three launches."""
_PREFETCHED = (LookupWork.FORWARD_HOST_LINK, LookupWork.CACHE_INDICES)
"""Columns of the work that a cache in front of host memory does before the lookup itself."""
_DENSE = fields(DenseTimes)
"""The stages of the dense part, which :class:`StageTimes` has, too."""
_CALL_KERNELS = [*KERNELS * len(EXCHANGING_TYPES), ComputeKernel.DENSE]
"""The kernel of each column that counts the shards of a fused call."""


class StageModel:
    """Prices the stages of one workload on one topology; work arrays are ``[..., W, columns]``.

    Attributes:
        slowest_dense: the rank whose dense part takes longest; None if all take the same time.
    """

    def __init__(self, workload: Workload, topology: Topology, models: CostModels) -> None:
        """Price what does not depend on the plan."""
        require(
            workload.dense_parallelism is DenseParallelism.DDP or models.exchange is None,
            "dense_parallelism fsdp: no all-gather was calibrated for ranks that are CPU cores; "
            "use ddp",
        )
        self.workload = workload
        self.topology = topology
        self.models = models
        self.speeds = topology.speeds()
        self._batch_ratio = batch_ratios(workload, topology)
        self.dense = self._dense_times()
        for field in _DENSE:
            require_times(getattr(self.dense, field.name), f"the dense part's {field.name}")
        seconds = sum(self.dense) / self.speeds
        is_even = seconds.max() <= seconds.min() * (1.0 + _ROUNDING)
        self.slowest_dense = None if is_even else int(np.argmax(seconds))
        self._layers = dense_layers(workload)
        self.reduction = DenseReduction(workload, topology.trainers, self._layers, models)
        wrapped = bool(workload.tables) or topology.world_size > 1
        self._host = HostCosts(host=topology.host, issued_by=workload.issued_by, reduces=wrapped)
        self.exchanges = EmbeddingExchanges(workload, topology, models)
        wire = self.exchanges.wire
        self.codecs = None if wire is None else CodecModel(wire, topology, self._host)

    def _dense_times(self) -> DenseTimes:
        """Times of the dense part at device speed; arrays ``[W]`` where batches are unequal."""
        model, trainers = self.models.dense, self.topology.trainers
        workloads = [self.workload]
        if self._batch_ratio is not None:
            workloads = [with_batch(self.workload, ratio) for ratio in self._batch_ratio]
        each = [model.times(workload, trainers) for workload in workloads]
        for times in each:
            require(
                isinstance(times, DenseTimes)
                and all(np.ndim(s) == 0 and np.asarray(s).dtype.kind in "iuf" for s in times),
                f"{model_words(model)}: times must return DenseTimes of numbers, got {times!r:.60}",
            )
        if self._batch_ratio is None:
            return with_expansion(each[0], self.workload, self.topology)
        return DenseTimes(*map(np.array, zip(*each, strict=True)))

    @cached_property
    def least_dense(self) -> DenseTimes:
        """For each time of the dense part the least that any rank has, at the fastest speed.

        The times divided by the speed of the fastest rank are never above those of any rank.
        """
        if self._batch_ratio is None:
            return self.dense
        fastest = float(self.speeds.max()) * (1.0 - _ROUNDING)
        return DenseTimes(*(float((s / self.speeds).min()) * fastest for s in self.dense))

    def lookup_times(self, work: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """:func:`lookup_times` of ranks, ``[..., W]`` each, at the speed of the device."""
        return lookup_times(self.models.lookup, work, self.topology)

    @cached_property
    def _call_floors_s(self) -> FloatArray:
        """Fixed seconds ``[calls, 3]`` of each fused call: forward, backward and cache fetch."""
        model, topology = self.models.lookup, self.topology
        known = {kernel: model.call_floor(kernel, topology) for kernel in KERNELS}
        seconds = np.array([known[kernel] for kernel in _CALL_KERNELS])
        require_times(seconds, f"{model_words(model)}: call_floor")
        return seconds

    def times(self, work: FloatArray, scale: Scale) -> StageTimes:
        """Durations of every stage of one or many plans, multiplied by the factors in ``scale``."""
        forward, backward, fetch = self.lookup_times(work)
        # Shards of one sharding type and kernel are looked up by one fused call.
        called = work[..., columns.CALLS : columns.REPLICATED] > 0
        calls = called.sum(axis=-1)
        forward_floor_s, backward_floor_s, fetch_floor_s = np.moveaxis(
            called @ self._call_floors_s, -1, 0
        )
        shards = called[..., :-1].reshape(-1, len(EXCHANGING_TYPES), len(KERNELS))
        used = np.flatnonzero(shards.any(axis=(0, 2)))
        tail_s = self.reduction.tail_s(work[..., columns.REPLICATED].max(axis=-1, keepdims=True))
        ratio = scale.collective_ratio
        families = tuple(self.exchanges.family_times(work, int(f), ratio) for f in used)
        model = self.codecs
        codecs = None if model is None else model.times(work, families, self.speeds, scale)
        idle = self._without_tables
        if scale is not UNSCALED:
            idle = self._idle_times(self.speeds, self.dense, self.input_copy_s, scale)
        return replace(
            idle,
            lookup_host_s=calls * self._host.call_s("lookup_forward") * scale.host_ratio,
            lookup_backward_host_s=calls * self._host.call_s("lookup_backward") * scale.host_ratio,
            lookup_forward_s=(forward / self.speeds + forward_floor_s) * scale.lookup_ratio,
            lookup_backward_s=(backward / self.speeds + backward_floor_s) * scale.lookup_ratio,
            cache_fetch_s=(fetch + fetch_floor_s) * scale.lookup_ratio,
            families=families,
            codecs_s=codecs,
            tail_bucket_s=tail_s * ratio,
            overlap_slowdown_ratio=self.topology.device.overlap_slowdown_ratio,
        )

    def least_times(self, calls: FloatArray, *, slow: int | None = None) -> StageTimes:
        """Stage times of made-up ranks without lookups, exchanges or replicated tables.

        The ranks are on the fastest device, and communication does not slow them down.

        Args:
            calls: ``[R]`` fused calls of each rank.
            slow: the position of a rank that has the dense part of :attr:`slowest_dense` instead,
                on the device of that rank.
        """
        least = self._call_floors_s.min(axis=0)
        speeds, dense = self.speeds.max(keepdims=True), self.least_dense
        if slow is not None:
            there, rank = np.arange(len(calls)) == slow, self.slowest_dense
            speeds = np.where(there, self.speeds[rank], speeds)
            each = (np.broadcast_to(s, self.speeds.shape)[rank] for s in self.dense)
            pairs = zip(each, dense, strict=True)
            dense = DenseTimes(*(np.where(there, slow_s, s) for slow_s, s in pairs))
        return replace(
            self._idle_times(speeds, dense, np.min(self.input_copy_s), UNSCALED),
            lookup_host_s=calls * self._host.call_s("lookup_forward"),
            lookup_backward_host_s=calls * self._host.call_s("lookup_backward"),
            lookup_forward_s=calls * least[0],
            lookup_backward_s=calls * least[1],
        )

    @cached_property
    def _without_tables(self) -> StageTimes:
        """:meth:`_idle_times` of the ranks as they are: the same for every plan, so made once."""
        return self._idle_times(self.speeds, self.dense, self.input_copy_s, UNSCALED)

    def _idle_times(
        self, speeds: FloatArray, dense: DenseTimes, copy_s: FloatArray | float, scale: Scale
    ) -> StageTimes:
        """Stage times with nothing to look up, to exchange or to replicate.

        Args:
            speeds: ``[W]`` factors on the rates of the device.
            dense: seconds of the dense part at the speed of the device.
            copy_s: seconds in which a batch is copied to the device.
            scale: factors on all times.
        """
        issue, layers, exchange = self._host, self._layers, self.models.exchange
        # Of exchanges that are priced with the copies around them, what they cost once in a step.
        splits_s = self.exchanges.lengths_s if exchange is None else exchange.once_s
        host, none, ratio = scale.host_ratio, np.zeros(1), scale.collective_ratio
        every, optimizer = (*layers.bottom, *layers.top), self.workload.dense_optimizer
        copied_s = issue.copies_s(self.workload) + issue.input_s(self.workload)
        copied_s += issue.between_steps_s(self.workload)
        loss_s = [r * (issue.call_s("loss") if layers.top else 0.0) for r in _LOSS_RATIOS]
        rate, trainers = self.workload.input_samples_per_s, self.topology.trainers.world_size
        dense = replace(dense, top_backward_s=dense.top_backward_s + self.reduction.cast_s)
        dense_s = {f.name: getattr(dense, f.name) / speeds * scale.dense_ratio for f in _DENSE}
        for name, seconds in zip(("forward", "backward"), self.reduction.shared_s, strict=True):
            dense_s[f"top_{name}_s"] = dense_s[f"top_{name}_s"] + seconds * ratio
        # A sharded dense part is gathered twice and scattered once in each micro-batch.
        calls = 2 * len(self.reduction.gathers_s) + len(self.reduction.scatters_s)
        issued_s = issue.passes_s(every) + issue.copies_s(self.workload)
        issued = np.array(issued_s + calls * issue.call_s("collective"))
        passes_s = np.sum([dense_s[name] for name in dense_s if name != "optimizer_s"], axis=0)
        return StageTimes(
            **dense_s,
            input_splits_s=splits_s * ratio,
            next_batch_ratio=self.exchanges.next_batch_ratio,
            bucket_s=tuple(s * ratio for s in self.reduction.beside_backward_s),
            piece_ratio=self.reduction.pieces,
            gather_s=tuple(s * ratio for s in self.reduction.gathers_s),
            last_scatter_s=sum(self.reduction.scatters_s[-1:], none) * ratio,
            earlier_s=self.reduction.earlier_s(passes_s, issued, speeds, scale),
            bottom_host_s=issue.forward_s(layers.bottom) * host,
            top_host_s=(issue.forward_s(layers.top) + loss_s[0]) * host,
            top_backward_host_s=(issue.backward_s(layers.top) + loss_s[1]) * host,
            bottom_backward_host_s=issue.backward_s(layers.bottom) * host,
            optimizer_host_s=issue.optimizer_s(every, optimizer) * host,
            collective_host_s=issue.call_s("collective") * (self.topology.world_size > 1) * host,
            input_copy_s=copy_s * host,
            copy_host_s=copied_s * host,
            # Memory is not pinned there.
            copy_blocks_host=self.workload.issued_by is HostProfile.EAGER_2021,
            floor_s=self.workload.samples_per_rank * trainers / rate if rate else 0.0,
            single_stream=self.topology.device.single_stream,
            has_tables=bool(self.workload.tables),
            dense_names=dense_names(self.workload),
        )

    @cached_property
    def input_copy_s(self) -> FloatArray | float:
        """Seconds to copy a step's batches to the device and to find their distinct indices.

        There is no copy where ranks are CPU cores.
        """
        if self.topology.device.single_stream:
            return 0.0
        copied_s = input_bytes(self.workload) * self.workload.gradient_accumulation
        copied_s /= self.topology.host.device_link_bandwidth_bytes_per_s
        copied_s += distinct_s(self.workload, self.topology)
        return copied_s if self._batch_ratio is None else copied_s * self._batch_ratio


def lookup_times(
    model: AbstractLookupModel, work: FloatArray, topology: Topology
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Seconds ``[...]`` of forward lookup, backward lookup and cache fetch, without launches.

    What a cache in front of host memory does before the lookup counts as the fetch, and not as part
    of the forward lookup.

    Args:
        model: prices lookups.
        work: ``[..., columns]``.
        topology: the system.
    """
    shape = (*work.shape[:-1], len(KERNELS), NUM_LOOKUP_WORK)
    per_kernel = work[..., columns.LOOKUP : columns.INPUT].reshape(shape)
    caching = KERNELS.index(ComputeKernel.FUSED_UVM_CACHING)
    prefetched = np.zeros_like(per_kernel[..., caching, :])
    direct = per_kernel.copy()
    for column in _PREFETCHED:
        prefetched[..., column] = per_kernel[..., caching, column]
        direct[..., caching, column] = 0.0
    fetch = model.forward_time(prefetched, topology)
    forward = model.forward_time(direct, topology).sum(axis=-1)
    backward = model.backward_time(per_kernel, topology).sum(axis=-1)
    return forward, backward, fetch
