"""Cost models whose times are multiplied by factors that were fitted to the user's own runs.

A constant factor changes no property that searches and bounds need: a convex function stays convex,
a homogeneous one homogeneous, and a subadditive collective model subadditive.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Final, final

from costmodels.collective.base import AbstractCollectiveModel, Confidence
from costmodels.cpu.features import AbstractExchangeModel, Traffic
from costmodels.datatypes import FloatArray
from costmodels.dense.base import AbstractDenseModel, DenseTimes
from costmodels.lookup.base import AbstractLookupModel, CallFloor, LookupShard, LookupShards
from costmodels.measured.curves import Collective
from costmodels.sharding import ComputeKernel, ShardingType
from costmodels.stages.models import CostModels
from costmodels.topology import FittedFactors, Topology
from costmodels.workload import Workload

_SOURCE: Final = ("a factor fitted to runs of one's own",)
"""What the factors are taken from, as users read it."""


def scaled(models: CostModels, fitted: FittedFactors | None) -> CostModels:
    """The models with their times multiplied by the factors, and with the spread that is left.

    The factor of the host is not applied here, because it acts on the launch latency of the system.

    Args:
        models: the models of a system.
        fitted: the factors; None if there are none.
    """
    if fitted is None:
        return models
    moved, exchange = fitted.collective_ratio, models.exchange
    return replace(
        models,
        lookup=ScaledLookup(inner=models.lookup, factor_ratio=fitted.lookup_ratio),
        collective=ScaledCollective(inner=models.collective, factor_ratio=moved),
        dense=ScaledDense(inner=models.dense, factor_ratio=fitted.dense_ratio),
        exchange=None if exchange is None else ScaledExchange(inner=exchange, factor_ratio=moved),
        spread_ratio=fitted.spread_ratio,
    )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledLookup(AbstractLookupModel):
    """A lookup model whose times are multiplied by ``factor_ratio``."""

    inner: AbstractLookupModel
    factor_ratio: float
    sources: ClassVar[tuple[str, ...]] = _SOURCE

    def shard_work(self, shard: LookupShard, topology: Topology) -> FloatArray:
        """As ``inner``."""
        return self.inner.shard_work(shard, topology)

    def shards_work(self, shards: LookupShards, topology: Topology) -> FloatArray:
        """As ``inner``."""
        return self.inner.shards_work(shards, topology)

    def forward_time(self, work: FloatArray, topology: Topology) -> FloatArray:
        """As ``inner``, times the factor."""
        return self.inner.forward_time(work, topology) * self.factor_ratio

    def backward_time(self, work: FloatArray, topology: Topology) -> FloatArray:
        """As ``inner``, times the factor."""
        return self.inner.backward_time(work, topology) * self.factor_ratio

    def call_floor(self, kernel: ComputeKernel, topology: Topology) -> CallFloor:
        """As ``inner``, without the factor."""
        return self.inner.call_floor(kernel, topology)

    def for_calls(
        self, shards: LookupShards, topology: Topology, workload: Workload | None = None
    ) -> AbstractLookupModel:
        """That of ``inner``, times the factor."""
        return replace(self, inner=self.inner.for_calls(shards, topology, workload))

    def sigma_ratio(self, topology: Topology) -> float | None:
        """As ``inner``."""
        return self.inner.sigma_ratio(topology)

    def prefers_device(self, topology: Topology) -> bool:
        """As ``inner``: the factor is the same wherever rows are."""
        return self.inner.prefers_device(topology)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledCollective(AbstractCollectiveModel):
    """A collective model whose times are multiplied by ``factor_ratio``."""

    inner: AbstractCollectiveModel
    factor_ratio: float
    sources: ClassVar[tuple[str, ...]] = _SOURCE

    @property
    def full_duplex(self) -> bool:
        """As ``inner``."""
        return self.inner.full_duplex

    @property
    def pays_for_others(self) -> bool:
        """As ``inner``."""
        return self.inner.pays_for_others

    def fixed_s(self, topology: Topology, *, ranks: int, across_hosts: bool) -> float:
        """As ``inner``, times the factor."""
        fixed = self.inner.fixed_s(topology, ranks=ranks, across_hosts=across_hosts)
        return fixed * self.factor_ratio

    def all_to_all(self, send: FloatArray, receive: FloatArray, topology: Topology) -> FloatArray:
        """As ``inner``, times the factor."""
        return self.inner.all_to_all(send, receive, topology) * self.factor_ratio

    def all_to_all_s(self, send: FloatArray, receive: FloatArray, topology: Topology) -> FloatArray:
        """As ``inner``, times the factor."""
        return self.inner.all_to_all_s(send, receive, topology) * self.factor_ratio

    def reduce_scatter(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool
    ) -> FloatArray:
        """As ``inner``, times the factor."""
        seconds = self.inner.reduce_scatter(num_bytes, topology, within_host=within_host)
        return seconds * self.factor_ratio

    def reduce_scatter_s(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool
    ) -> FloatArray:
        """As ``inner``, times the factor."""
        seconds = self.inner.reduce_scatter_s(num_bytes, topology, within_host=within_host)
        return seconds * self.factor_ratio

    def all_gather_s(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool
    ) -> FloatArray:
        """As ``inner``, times the factor."""
        seconds = self.inner.all_gather_s(num_bytes, topology, within_host=within_host)
        return seconds * self.factor_ratio

    def all_reduce(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool = False
    ) -> FloatArray:
        """As ``inner``, times the factor."""
        seconds = self.inner.all_reduce(num_bytes, topology, within_host=within_host)
        return seconds * self.factor_ratio

    def all_reduce_s(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool = False
    ) -> FloatArray:
        """As ``inner``, times the factor."""
        seconds = self.inner.all_reduce_s(num_bytes, topology, within_host=within_host)
        return seconds * self.factor_ratio

    def confidence(
        self, collective: Collective, size_bytes: float, topology: Topology
    ) -> Confidence:
        """As ``inner``."""
        return self.inner.confidence(collective, size_bytes, topology)

    def plan_spread_ratio(self, topology: Topology) -> float | None:
        """As ``inner``."""
        return self.inner.plan_spread_ratio(topology)

    def remarks(self, topology: Topology) -> tuple[str, ...]:
        """As ``inner``."""
        return self.inner.remarks(topology)

    def subadditive(self) -> AbstractCollectiveModel:
        """As ``inner``, times the factor."""
        return replace(self, inner=self.inner.subadditive())


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledDense(AbstractDenseModel):
    """A dense model whose times are multiplied by ``factor_ratio``."""

    inner: AbstractDenseModel
    factor_ratio: float
    sources: ClassVar[tuple[str, ...]] = _SOURCE

    def times(self, workload: Workload, topology: Topology) -> DenseTimes:
        """As ``inner``, times the factor."""
        times, factor = self.inner.times(workload, topology), self.factor_ratio
        return DenseTimes(
            bottom_forward_s=times.bottom_forward_s * factor,
            top_forward_s=times.top_forward_s * factor,
            top_backward_s=times.top_backward_s * factor,
            bottom_backward_s=times.bottom_backward_s * factor,
            optimizer_s=times.optimizer_s * factor,
        )

    def sigma_ratio(self, workload: Workload) -> float | None:
        """As ``inner``."""
        return self.inner.sigma_ratio(workload)

    def beside(self, lookup_s: Callable[[], float]) -> ScaledDense:
        """As ``inner``, with the seconds of lookups divided by the factor.

        ``inner`` compares them with its own times, which are not multiplied by the factor yet.
        """
        return replace(self, inner=self.inner.beside(lambda: lookup_s() / self.factor_ratio))

    def sustained_ratio(self, workload: Workload, topology: Topology) -> float:
        """As ``inner``."""
        return self.inner.sustained_ratio(workload, topology)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledExchange(AbstractExchangeModel):
    """An exchange model whose times are multiplied by ``factor_ratio``."""

    inner: AbstractExchangeModel
    factor_ratio: float
    sources: ClassVar[tuple[str, ...]] = _SOURCE

    def input_growth(
        self, sharding_type: ShardingType, traffic: Traffic, batch_size_per_rank: float
    ) -> FloatArray:
        """As ``inner``, times the factor."""
        seconds = self.inner.input_growth(sharding_type, traffic, batch_size_per_rank)
        return seconds * self.factor_ratio

    def output_growth(self, sharding_type: ShardingType, traffic: Traffic) -> FloatArray:
        """As ``inner``, times the factor."""
        return self.inner.output_growth(sharding_type, traffic) * self.factor_ratio

    def output_extra(self, sharding_type: ShardingType, traffic: Traffic) -> FloatArray:
        """As ``inner``, times the factor."""
        return self.inner.output_extra(sharding_type, traffic) * self.factor_ratio

    def fixed_s(self, sharding_type: ShardingType) -> tuple[float, float]:
        """As ``inner``, times the factor."""
        indices_s, output_s = self.inner.fixed_s(sharding_type)
        return indices_s * self.factor_ratio, output_s * self.factor_ratio

    @property
    def once_s(self) -> float:
        """As ``inner``, times the factor."""
        return self.inner.once_s * self.factor_ratio

    def gradient_growth(self, num_bytes: FloatArray) -> FloatArray:
        """As ``inner``, times the factor."""
        return self.inner.gradient_growth(num_bytes) * self.factor_ratio

    @property
    def gradient_fixed_s(self) -> float:
        """As ``inner``, times the factor."""
        return self.inner.gradient_fixed_s * self.factor_ratio
