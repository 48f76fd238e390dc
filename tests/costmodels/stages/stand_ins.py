"""Stage models with a lookup model and a dense model of known answers, and work drawn for them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from costmodels.collective.alpha_beta import AlphaBeta
from costmodels.datatypes import FloatArray
from costmodels.dense.base import AbstractDenseModel, DenseTimes
from costmodels.lookup.base import KERNELS, AbstractLookupModel, LookupShards
from costmodels.shard_work.work import (
    EXCHANGING_TYPES,
    NUM_COLUMNS,
    REPLICATED,
    call_column,
)
from costmodels.sharding import ComputeKernel, ShardingType
from costmodels.stages.models import CostModels
from costmodels.stages.stage_model import StageModel
from costmodels.topology import Topology
from costmodels.workload import Pooling, Workload
from tests.strategies import make_device, make_host, make_table, make_topology, make_workload

CALL_S, LATENCY_S = 5e-6, 2e-6
FORWARD = np.array([2.0, 3.0, 5.0, 7.0, 11.0, 13.0, 17.0, 19.0, 23.0]) * 1e-9
BACKWARD = np.array([29.0, 31.0, 37.0, 41.0, 43.0, 47.0, 53.0, 59.0, 61.0]) * 1e-9
DENSE = DenseTimes(
    bottom_forward_s=1e-4,
    top_forward_s=2e-4,
    top_backward_s=3e-4,
    bottom_backward_s=4e-4,
    optimizer_s=5e-4,
)
TWO_STEPS = (ShardingType.TABLE_ROW_WISE, ShardingType.GRID_SHARD)
SHAPES = ((1, 1, 1), (1, 2, 1), (2, 1, 1), (2, 2, 1), (2, 2, 2), (4, 2, 2), (3, 4, 1))
"""(hosts, ranks per host, hosts per scale-up domain)."""


def level_of(topology: Topology, one: int, other: int) -> int:
    """The level of links between two ranks: inside a host (0), a scale-up domain (1), outside."""
    if one // topology.local_world_size == other // topology.local_world_size:
        return 0
    return 1 if one // topology.domain_size == other // topology.domain_size else 2


@final
@dataclass(frozen=True, slots=True)
class Weighted(AbstractLookupModel):
    """Each column of work has a price of its own."""

    def shards_work(self, shards: LookupShards, topology: Topology) -> FloatArray:
        """Never asked: work is drawn here."""
        raise NotImplementedError

    def forward_time(self, work: FloatArray, topology: Topology) -> FloatArray:
        """The sum of the prices."""
        return np.asarray(work @ FORWARD)

    def backward_time(self, work: FloatArray, topology: Topology) -> FloatArray:
        """Other prices."""
        return np.asarray(work @ BACKWARD)


@final
@dataclass(frozen=True, slots=True)
class Given(AbstractDenseModel):
    """Known times."""

    def times(self, workload: Workload, topology: Topology) -> DenseTimes:
        """The same for every workload."""
        return DENSE


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A stage model and work ``[W, columns]`` for it."""

    model: StageModel
    work: FloatArray

    @property
    def ranks(self) -> range:
        return range(self.model.topology.world_size)

    def calls(self, rank: int) -> int:
        """Fused calls: pairs of type and kernel with a shard, and the replicated tables."""
        pairs = [(f, k) for f in EXCHANGING_TYPES for k in KERNELS]
        columns = [call_column(f, k) for f, k in pairs]
        columns.append(call_column(ShardingType.DATA_PARALLEL, ComputeKernel.DENSE))
        return sum(1 for column in columns if self.work[rank, column] > 0)


def system(shape: tuple[int, int, int], speeds: tuple[float, ...] = ()) -> Topology:
    hosts, local, domain_hosts = shape
    device = make_device(kernel_latency_s=LATENCY_S)
    host = make_host(eager_call_s=CALL_S)
    return make_topology(
        hosts,
        local,
        domain_hosts=domain_hosts,
        device=device,
        host=host,
        speed_by_rank_ratio=speeds,
    )


def stage_model(topology: Topology, **changes: object) -> StageModel:
    workload = make_workload(make_table("t0"), make_table("t1"), **changes)
    return StageModel(
        workload, topology, CostModels(lookup=Weighted(), collective=AlphaBeta(), dense=Given())
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any shape and speeds; most columns of the work are zero, as in real plans."""
    shape = draw(st.sampled_from(SHAPES))
    world = shape[0] * shape[1]
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    speeds = tuple(rng.uniform(0.5, 2.0, world)) if draw(st.booleans()) else ()
    work = rng.uniform(0.0, 1e6, (world, NUM_COLUMNS)) * (rng.random((world, NUM_COLUMNS)) < 0.4)
    work[:, call_column(EXCHANGING_TYPES[0], KERNELS[0]) : REPLICATED] = rng.integers(
        0, 3, (world, REPLICATED - call_column(EXCHANGING_TYPES[0], KERNELS[0]))
    ) * (rng.random((world, 1)) < 0.6)
    pooling = draw(st.sampled_from([Pooling.SUM, Pooling.NONE]))
    tables = (make_table("t0", pooling=pooling), make_table("t1", pooling=pooling))
    workload = make_workload(*tables)
    models = CostModels(lookup=Weighted(), collective=AlphaBeta(), dense=Given())
    return Case(model=StageModel(workload, system(shape, speeds), models), work=work)


CHECK = settings(max_examples=60, deadline=None)


def latency_s(topology: Topology, members: int, *, across_hosts: bool) -> float:
    """Of the outermost link that a collective crosses; nothing for one member."""
    if members == 1:
        return 0.0
    if not across_hosts:
        return topology.host_link.latency_s
    inside = topology.world_size <= topology.domain_size
    return topology.domain_link.latency_s if inside else topology.network_link.latency_s


def ring_s(topology: Topology, num_bytes: float, *, within_host: bool) -> float:
    """A reduce-scatter of so many bytes on each member."""
    members = topology.local_world_size if within_host else topology.world_size
    links = [topology.host_link.bandwidth_bytes_per_s]
    if not within_host and topology.num_hosts > 1:
        if topology.domain_size > topology.local_world_size:
            links.append(topology.domain_link.bandwidth_bytes_per_s)
        if topology.world_size > topology.domain_size:
            links.append(topology.domain_size * topology.network_link.bandwidth_bytes_per_s)
    across = not within_host and topology.num_hosts > 1
    moved = num_bytes * (members - 1) / members
    once_s = latency_s(topology, members, across_hosts=across)
    if across and topology.world_size > topology.domain_size:
        # Every domain is reached in as many rounds as it doubles from one domain to all.
        once_s *= math.ceil(math.log2(topology.world_size // topology.domain_size))
    return moved / min(links) + once_s


def models_of(model: Any) -> CostModels:
    """The models with this one in the place of its family."""
    if isinstance(model, AbstractLookupModel):
        return CostModels(lookup=model)
    if isinstance(model, AbstractDenseModel):
        return CostModels(dense=model)
    return CostModels(collective=model)
