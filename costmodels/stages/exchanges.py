"""What ranks exchange: for the tables, and to train the dense part.

For tables these are indices to the shards, vectors back, and their gradients; for the dense part
all-reduces in buckets, or shards of parameters.
"""

import math
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Final

import numpy as np

from costmodels.collective.base import AbstractCollectiveModel, balanced_s, spread_by_level
from costmodels.cpu.exchange import Traffic
from costmodels.datatypes import FloatArray
from costmodels.dense.base import DenseLayers
from costmodels.errors import refuse
from costmodels.iteration.base import CodecTimes, FamilyTimes, require_times
from costmodels.measured.curves import Collective
from costmodels.shard_work import work as columns
from costmodels.shard_work.wire import BACKWARD, FORWARD, Wire
from costmodels.shard_work.work import EXCHANGING_TYPES, sent_bytes
from costmodels.sharding import BY_HOSTS, ShardingType
from costmodels.stages.host import HostCosts
from costmodels.stages.models import CostModels
from costmodels.topology import Topology, batch_ratios, group_topology
from costmodels.uncertainty import Scale
from costmodels.workload import DataType, DenseParallelism, Pipeline, Pooling, Workload

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
    others, rest = divmod(topology.world_size, split)
    group = None if rest else group_topology(topology, split, between_hosts=True)
    peers = None if rest else group_topology(topology, others)
    if group is None or peers is None:
        refuse(
            f"tensor_parallel must divide the {topology.local_world_size} ranks of a host, or be "
            f"those of a number of hosts that divides {topology.num_hosts}, got {split}"
        )
    return group, peers


class DenseReduction:
    """Prices the collectives of the dense part of one workload; they are the same for every plan.

    Where groups of ranks share layers (``tensor_parallel``), gradients are reduced over the ranks
    that have the same part of the layers.

    Attributes:
        num_parameters: trained elements of the dense part.
        is_sharded: whether ranks share parameters, gradients and states.
        buckets: bytes of the top's gradients in each all-reduce; the last one also has the
            bottom's.
        tail_bytes: bytes of the last all-reduce without those of replicated tables.
        gathered_bytes: bytes of all gathered parameters, in the type of the products or in 2 bytes
            at least.
        cast_s: seconds to convert a micro-batch's gradients to the type in which they are reduced.
            This happens if parameters are sharded, because gradients then are in the type of the
            products first; otherwise it takes no time.
        gathers_s: seconds to gather the parameters of each piece.
        scatters_s: seconds to reduce the gradients of each piece, in the order of the backward
            pass.
        beside_backward_s: seconds of the collectives that reduce gradients beside the backward
            pass, which are all but the last one.
    """

    def __init__(
        self, workload: Workload, topology: Topology, layers: DenseLayers, models: CostModels
    ) -> None:
        """Price what does not depend on the plan.

        Raises:
            InvalidValueError: the ranks that share layers are neither a part of a host nor whole
                hosts.
        """
        self._workload, self._layers = workload, layers
        self._collective, self._exchange = models.collective, models.exchange
        self._split = workload.tensor_parallel
        self._trainers = topology
        self._group, self._topology = _divided(topology, self._split)
        bottom, top = layers.num_parameters
        self.num_parameters = top + bottom
        is_alone = self._topology.world_size == 1 or not self.num_parameters
        self.is_sharded = workload.dense_parallelism is DenseParallelism.FSDP and not is_alone
        reduced = workload.gradient_dtype.num_bytes
        count = min(_MAX_BUCKETS, max(1, math.ceil(top * reduced / _BUCKET_BYTES)))
        self.buckets = (top * reduced / count,) * count
        self.tail_bytes = 0.0 if self.is_sharded else self.buckets[-1] + bottom * reduced
        computed = max(workload.dense.dtype.num_bytes, DataType.BF16.num_bytes)
        self.gathered_bytes = float(self.num_parameters * computed)
        is_cast = self.is_sharded and computed != reduced
        cast_bytes = float(self.num_parameters * (computed + reduced)) if is_cast else 0.0
        self.cast_s = cast_bytes / topology.device.hbm_bandwidth_bytes_per_s
        scattered, shares = float(self.num_parameters * reduced), self.pieces
        self.gathers_s = self._each_s(Collective.ALL_GATHER, self.gathered_bytes, shares)
        self.scatters_s = self._each_s(Collective.REDUCE_SCATTER, scattered, shares[::-1])
        self.beside_backward_s = self.scatters_s[:-1]
        if not self.is_sharded:
            beside = (np.array(num_bytes) for num_bytes in self.buckets[:-1])
            self.beside_backward_s = tuple(map(self.all_reduce_s, beside))

    def growth(self, num_bytes: FloatArray) -> FloatArray:
        """Growing part, in seconds, of an all-reduce over all ranks that train the dense part."""
        if self._exchange is not None:
            return self.all_reduce_s(num_bytes)
        seconds = self._collective.all_reduce(num_bytes, self._trainers)
        require_times(seconds, "an all-reduce")
        return seconds

    def tail_s(self, replicated_bytes: FloatArray) -> FloatArray:
        """Seconds of the last all-reduce, of the gradients that are reduced after the others.

        They are those of the bottom MLP, of the last bucket of the top, and of replicated tables.
        """
        fixed_s = 0.0 if self._exchange is None else self._exchange.gradient_fixed_s
        return self.all_reduce_s(self.tail_bytes + replicated_bytes) + fixed_s * (
            replicated_bytes > 0
        )

    def all_reduce_s(self, num_bytes: FloatArray) -> FloatArray:
        """Seconds of an all-reduce over the ranks that have the same part of every layer.

        An exchange model counts the optimizer's step after it too. One rank without tables reduces
        nothing, and its optimizer is priced with the dense part.
        """
        if self._exchange is not None:
            is_alone = self._trainers.world_size == 1 and not self._workload.tables
            return self._exchange.gradient_growth(num_bytes * (not is_alone))
        kind, topology = Collective.ALL_REDUCE, self._topology
        return balanced_s(self._collective, kind, num_bytes, topology) * (num_bytes > 0)

    @cached_property
    def shared_s(self) -> tuple[float, float]:
        """Seconds in which ranks that share layers add up results, in forward and backward pass.

        Nothing computes beside these collectives.
        """
        if self._split == 1:
            return 0.0, 0.0
        operators = [o for x in self._layers.top for o in x.operators if o.shared_bytes]
        price = partial(balanced_s, self._collective, Collective.ALL_REDUCE, topology=self._group)
        once_s = [o.num_repeats * float(price(np.array(o.shared_bytes))) for o in operators]
        again_s = [s for o, s in zip(operators, once_s, strict=True) if o.is_recomputed]
        return sum(once_s), sum(once_s) + sum(again_s)

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

    def _each_s(
        self, kind: Collective, whole_bytes: float, shares: tuple[float, ...]
    ) -> tuple[FloatArray, ...]:
        """Seconds of a collective of each share of some bytes."""
        each = (np.array(whole_bytes * share) for share in shares)
        return tuple(balanced_s(self._collective, kind, size, self._topology) for size in each)

    def earlier_s(
        self, passes_s: FloatArray, issued_s: FloatArray, speeds: FloatArray, scale: Scale
    ) -> FloatArray | None:
        """Seconds of all micro-batches of a step but the last one; None if there is only one.

        Each micro-batch adds its gradients to those before it. For a sharded dense part, parameters
        are gathered twice and gradients are reduced in every micro-batch; this runs beside compute
        and slows it down. Otherwise gradients stay on their rank. A micro-batch takes at least as
        long as the host needs to issue it.

        Args:
            passes_s: seconds of forward and backward pass of a micro-batch on each rank.
            issued_s: seconds that the host needs to issue them.
            speeds: ``[W]`` speed of each rank.
            scale: factors on all times but ``passes_s``.
        """
        earlier, device = self._workload.gradient_accumulation - 1, self._topology.device
        if not earlier:
            return None
        host_s = issued_s * scale.host_ratio
        if not self.is_sharded:
            # Two reads and one write add the gradients of a micro-batch to those before it.
            added_s = 3.0 * self.gathered_bytes / device.hbm_bandwidth_bytes_per_s
            return earlier * np.maximum(passes_s + added_s * (scale.dense_ratio / speeds), host_s)
        none = np.zeros(())
        beside_s = 2.0 * sum(self.gathers_s, none) + sum(self.scatters_s, none)
        beside_s = beside_s * scale.collective_ratio
        alone_s = (self.gathers_s[0] + self.scatters_s[-1]) * scale.collective_ratio
        slowed_s = passes_s + device.overlap_slowdown_ratio * beside_s + alone_s
        return earlier * np.maximum(np.maximum(slowed_s, beside_s), host_s)


# ------------------ exchanges
#
# The exchanges of tables: indices to the shards, vectors back, and their gradients.

NUM_EXCHANGES: Final = 3
_, _SECOND_EXCHANGE, INDICES = range(NUM_EXCHANGES)
"""The exchanges of one sharding type: two of vectors, and that of indices."""


class EmbeddingExchanges:
    """Prices the exchanges of each sharding type; work arrays are ``[..., W, columns]``.

    Attributes:
        pays_for_others: whether the exchange of a rank takes longer when others have more to send
            to it.
        wire: bytes of compressed exchanges; None if nothing is compressed.
        batch_ratio: ``[W]`` batch of each rank over the mean; None if batches are equal.
        lengths_s: seconds of the exchange of lengths, which is taken to be empty.
    """

    def __init__(self, workload: Workload, topology: Topology, models: CostModels) -> None:
        """Price what does not depend on the plan."""
        self.workload = workload
        self.topology = topology
        self.models = models
        self.pays_for_others = models.exchange is not None or models.collective.pays_for_others
        self.wire = Wire.of(workload, topology)
        self.batch_ratio = batch_ratios(workload, topology)
        self.lengths_s = models.collective.fixed_s(
            topology, ranks=topology.world_size, across_hosts=topology.num_hosts > 1
        )
        require_times(self.lengths_s, "an empty all-to-all")
        self._pooled = any(t.pooling is not Pooling.NONE for t in workload.tables)

    @cached_property
    def least_collective(self) -> AbstractCollectiveModel:
        """A subadditive collective model that is never above the one in use."""
        return self.models.collective.subadditive()

    @cached_property
    def next_batch_ratio(self) -> float:
        """Share of the vectors of row-wise tables whose rows the next batch has too.

        It is the mean over all tables by the bytes of their vectors. Pooled tables count as 1,
        because TorchRec's PECEmbeddingCollection has none. Of D(n) distinct rows in n indices, two
        sets of m and n indices share D(m) + D(n) - D(m + n). Here n are the indices of all ranks,
        and m those of one rank if they are exchanged once, otherwise a single one.
        """
        if self.workload.pipeline is not Pipeline.PRIORITIZED:
            return 1.0
        waiting, total = 0.0, 0.0
        for table in self.workload.tables:
            pooled, distinct = table.pooling is not Pooling.NONE, table.distribution
            sent = self.workload.batch_size_per_rank * table.outputs_per_sample
            one, whole = 1.0, sent * self.topology.world_size
            if table.deduplicates_indices:
                one, sent = sent, distinct.expected_unique_rows(sent)
            shared = 1.0 if pooled else table.next_batch_ratio
            if shared is None:
                own, before, both = map(distinct.expected_unique_rows, (one, whole, one + whole))
                shared = min(max((own + before - both) / own, 0.0), 1.0) if own > 0 else 1.0
            waiting += shared * sent * table.embedding_dim
            total += sent * table.embedding_dim
        return waiting / total if total else 1.0

    def output_exchanges(self, kind: ShardingType) -> range:
        """Which collectives of the output exchange run: the first (0), the second (1), or both.

        The second exists for types by hosts only. TorchRec's ``comm_ops.py`` runs no collective of
        a single rank: none across hosts if there is one host, none inside hosts of one rank.
        """
        if kind not in BY_HOSTS or self.topology.num_hosts == 1:
            return range(1)
        alone = self.topology.local_world_size == 1 and self.models.exchange is None
        return range(1 if alone else 0, 2)

    def growth(self, work: FloatArray, family: int) -> tuple[FloatArray, ...]:
        """Growing parts ``[..., W]`` of the exchanges: their seconds without what is fixed."""
        found = self._exchange_times(work, family, None, whole=False)
        for seconds in found:
            require_times(seconds, f"an exchange of {EXCHANGING_TYPES[family].value} tables")
        return found

    def _adds(self, kind: ShardingType) -> bool:
        """Whether the first exchange of vectors adds up partial sums."""
        return kind in BY_HOSTS or (kind is ShardingType.ROW_WISE and self._pooled)

    def exchange(
        self,
        kind: ShardingType,
        which: int,
        sent: FloatArray,
        model: AbstractCollectiveModel,
        *,
        whole: bool,
        ratio: FloatArray | None = None,
    ) -> FloatArray:
        """Seconds of one exchange on each rank.

        Args:
            kind: the sharding type.
            which: the first exchange of vectors (0), which for types by hosts is inside a host; the
                second one (1), across hosts; or that of ``INDICES`` (2).
            sent: bytes between each two ranks with a mean batch: those that a rank sends, or for
                indices gets.
            model: prices the collectives.
            whole: whether with all that is fixed; otherwise the part that grows with the bytes.
            ratio: batch of each rank over the mean, ``[W]``: what a rank gets, or for indices
                sends, is in proportion. The buffer of a reduce-scatter stays as large as with equal
                batches.
        """
        topology, by_hosts = self.topology, kind in BY_HOSTS
        all_to_all = model.all_to_all_s if whole else model.all_to_all
        hosts, local = topology.num_hosts, topology.local_world_size
        if which == _SECOND_EXCHANGE:
            if not by_hosts or hosts == 1:
                return np.zeros_like(sent)
            # Ranks of the same local index exchange, one on each host.
            lanes = sent.reshape((*sent.shape[:-1], hosts, local)).swapaxes(-1, -2)
            weights = None if ratio is None else ratio.reshape(hosts, local).T
            sides = _weighted(lanes, 1, topology.domain_size // local, weights)
            return all_to_all(*sides, topology).swapaxes(-1, -2).reshape(sent.shape)
        if which == INDICES or not self._adds(kind):
            own, others = _weighted(sent, local, topology.domain_size, ratio)
            sides = (others, own) if which == INDICES else (own, others)
            return all_to_all(*sides, topology)
        if by_hosts and local == 1:
            return np.zeros_like(sent)
        buffer_s = partial(model.buffer_s, Collective.REDUCE_SCATTER)
        reduce_scatter = buffer_s if whole else model.reduce_scatter
        return reduce_scatter(sent * topology.world_size, topology, within_host=by_hosts)

    def family_times(self, work: FloatArray, family: int, factor: FloatArray) -> FamilyTimes:
        """Times of the collectives of one sharding type in each plan, multiplied by ``factor``.

        A collective takes as long as on the slowest rank.
        """
        calls = _calls(work, family)
        some = (calls.sum(axis=-1) > 0).any(axis=-1, keepdims=True)
        present = None if some.all() else some
        kind = EXCHANGING_TYPES[family]
        labels = ("reduce-scatter" if self._adds(kind) else "all-to-all", "all-to-all")
        run = self.output_exchanges(kind)

        def slowest(seconds: FloatArray) -> FloatArray:
            """Seconds ``[..., 1]`` of a collective; 0 in plans without the sharding type."""
            longest = seconds.max(axis=-1, keepdims=True) * factor
            return np.asarray(longest if present is None else longest * present)

        ways = (None,) if self.wire is None else (FORWARD, BACKWARD)
        each = [self._exchange_times(work, family, way, whole=True) for way in ways]
        forward, *backward = (tuple(slowest(seconds[i]) for i in run) for seconds in each)
        return FamilyTimes(
            name=kind.value,
            present=present,
            input_s=slowest(each[0][INDICES]),
            outputs_s=tuple(zip((labels[i] for i in run), forward, strict=True)),
            gradients_s=backward[0] if backward else None,
        )

    def _exchange_times(
        self, work: FloatArray, family: int, way: int | None, *, whole: bool
    ) -> tuple[FloatArray, ...]:
        """Seconds ``[..., W]`` of the first, the second and the index exchange of a type.

        Args:
            work: ``[..., W, columns]``.
            family: the sharding type.
            way: as in :func:`sent_bytes`.
            whole: whether with all that is fixed. Otherwise, if batches are unequal, every rank
                counts with the smallest batch, so that the result is never above the real times.
        """
        kind, exchange = EXCHANGING_TYPES[family], self.models.exchange
        sent, arriving = sent_bytes(work, family, way), work[..., columns.INPUT + family]
        if exchange is None:
            ratio = self.batch_ratio
            least = 1.0 if ratio is None or whole else ratio.min()
            ratio = ratio if whole else None
            model, sizes = self.models.collective, (*sent, arriving)
            first, second, indices = (
                self.exchange(kind, which, size * least, model, whole=whole, ratio=ratio)
                for which, size in enumerate(sizes)
            )
            return first, second, indices + self.lengths_s * whole
        shards = _calls(work, family).sum(axis=-1)
        traffic = Traffic(arriving_bytes=arriving, leaving_bytes=sent[0], num_shards=shards)
        batch = self.workload.batch_size_per_rank
        first, indices = exchange.seconds(kind, traffic, batch, whole=whole)
        return first, np.zeros_like(first), indices


def _weighted(
    per_peer: FloatArray, local: int, domain: int, ratio: FloatArray | None
) -> tuple[FloatArray, FloatArray]:
    """Bytes that each rank sends and that it gets, by level of links, as ``spread_by_level``.

    A rank sends ``per_peer`` bytes to a rank with a mean batch, and in proportion to the batch to
    others. ``ratio`` has the batches over their mean; None if they are equal.
    """
    own, others = spread_by_level(per_peer, local=local, domain=domain)
    if ratio is None:
        return own, others
    _, peers = spread_by_level(ratio, local=local, domain=domain)
    return per_peer[..., None] * peers, others * ratio[..., None]


def _calls(work: FloatArray, family: int) -> FloatArray:
    """The shards of each fused call of a sharding type, ``[..., kernels]``."""
    count = len(columns.KERNELS)
    first = columns.CALLS + family * count
    return work[..., first : first + count]


# ------------------ codecs
#
# Kernels of quantized communication, on both sides of every exchange; memory limits them.


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
        own_s = work[..., columns.CODECS : columns.CODECS + 2] / self.rate_bytes_per_s
        return own_s[..., FORWARD], own_s[..., BACKWARD]

    def times(
        self, work: FloatArray, families: Sequence[FamilyTimes], speeds: FloatArray, scale: Scale
    ) -> CodecTimes:
        """Times of the codecs of one or many plans.

        Args:
            work: ``[..., W, columns]``; zeros for times without a rank's own shards.
            families: the sharding types that any of the plans has.
            speeds: ``[W]`` speed of each rank, as a factor on the rates of the device.
            scale: factors on all times.
        """
        present = np.zeros((*work.shape[:-2], 1, len(EXCHANGING_TYPES)))
        for family in families:
            column = EXCHANGING_TYPES.index(ShardingType(family.name))
            present[..., column] = True if family.present is None else family.present
        own_s = [seconds / speeds for seconds in self.growth(work)]
        calls, ratio = present.sum(axis=-1), scale.lookup_ratio
        gap_s = calls * self._latency_s
        ends_s = [
            (present * self._received_s[way]).max(axis=-1) / speeds for way in (FORWARD, BACKWARD)
        ]
        return {
            "output quantize": (own_s[FORWARD] + gap_s) * ratio,
            "output dequantize": (ends_s[FORWARD] + gap_s) * ratio,
            "gradient quantize": (ends_s[BACKWARD] + gap_s) * ratio,
            "gradient dequantize": (own_s[BACKWARD] + gap_s) * ratio,
            "host": calls * self._issue_s * scale.host_ratio,
        }
