"""What plans cost, by the cost models alone: work of each table, sums of it, prices of the sums.

The judge of the product's own objectives is ``costmodels.pipeline.CostPipeline``; that of
TorchRec's is its estimate of each shard, put together here as TorchRec does: the rating is the
largest sum of shards on a rank, the critical path the largest forward and the largest backward
compute plus, for each module and sharding type, the largest exchange in either direction.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import final

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan, Shard, ShardingType, TablePlacement
from costmodels.torchrec_estimates import TorchrecMachine, TorchrecShard, TorchrecTable
from costmodels.workload import Workload
from planner.scenarios import ScenarioRule
from tests.differential.case import Case, limited_topology, models_on

_KINDS = tuple(kind.value for kind in ShardingType)


class Judge(ABC):
    """Prices plans of one case from the work of their tables, which adds up.

    Attributes:
        limits: ``[M]`` bytes of each memory: devices, then hosts, of every scenario.
    """

    limits: FloatArray

    @abstractmethod
    def work(self, placement: TablePlacement) -> FloatArray:
        """What one placed table puts on each rank, ``[W, F]``."""

    def works(self, placements: Sequence[TablePlacement]) -> FloatArray:
        """:meth:`work` of each, ``[n, W, F]``."""
        return np.array([self.work(p) for p in placements])

    @abstractmethod
    def memory(self, work: FloatArray) -> FloatArray:
        """Bytes of each memory, ``[..., M]`` of work ``[..., W, F]``; linear."""

    @abstractmethod
    def values(self, work: FloatArray) -> FloatArray:
        """The objective of each plan, ``[...]``, whether it fits or not."""

    def plan_work(self, plan: Plan) -> FloatArray:
        """Work of a whole plan, ``[W, F]``."""
        return np.asarray(self.works(plan.placements).sum(axis=0))

    def price(self, plan: Plan) -> float:
        """The objective of one plan."""
        return float(self.values(self.plan_work(plan)[None])[0])

    def overfull(self, plan: Plan) -> list[str]:
        """The memories that a plan overfills, one line each."""
        used = self.memory(self.plan_work(plan))
        return [
            f"memory {m}: {used[m]:.6g} bytes of {self.limits[m]:.6g}"
            for m in np.flatnonzero(used > self.limits)
        ]


def judge_of(case: Case) -> Judge:
    """The judge of a case's objective."""
    return TorchrecJudge(case) if case.on_torchrecs_terms else PipelineJudge(case)


@final
class PipelineJudge(Judge):
    """The product's cost pipeline, one for each scenario; their work stands side by side."""

    def __init__(self, case: Case) -> None:
        topology = limited_topology(case)
        models = models_on(case, topology)
        self.pipelines = [
            CostPipeline(workload, topology, models)
            for workload in (case.workload, *case.scenarios)
        ]
        self._objective = case.objective
        self._robust = case.robust
        limits = [(p.device_limits, p.host_limits) for p in self.pipelines]
        self.limits = np.concatenate([part for pair in limits for part in pair])

    def work(self, placement: TablePlacement) -> FloatArray:
        alone = Plan(placements=(placement,))
        return np.concatenate([p.plan_work(alone) for p in self.pipelines], axis=-1)

    def works(self, placements: Sequence[TablePlacement]) -> FloatArray:
        """As columns: thousands of placements one by one take longer than pricing all plans."""
        if not placements:
            return np.array([])
        every = Plan(placements=tuple(placements))
        return np.concatenate([p.placements_work(every).full for p in self.pipelines], axis=-1)

    def memory(self, work: FloatArray) -> FloatArray:
        parts = []
        for pipeline, own in zip(self.pipelines, self._split(work), strict=True):
            parts += [pipeline.device_bytes(own), pipeline.host_bytes(own)]
        return np.concatenate(parts, axis=-1)

    def values(self, work: FloatArray) -> FloatArray:
        pairs = zip(self.pipelines, self._split(work), strict=True)
        values = np.stack([self._values(pipeline, own) for pipeline, own in pairs])
        return np.asarray(values.max(0) if self._robust is ScenarioRule.WORST else values.mean(0))

    def _values(self, pipeline: CostPipeline, work: FloatArray) -> FloatArray:
        if self._objective == "phases":
            largest = pipeline.phases.times(work).max(axis=-2)
            return np.asarray(pipeline.phases.base_s + largest @ pipeline.phases.weights)
        return pipeline.iteration_times(work)

    def _split(self, work: FloatArray) -> list[FloatArray]:
        return np.split(work, len(self.pipelines), axis=-1)


def torchrec_shards(
    placement: TablePlacement, workload: Workload, machine: TorchrecMachine
) -> Iterator[tuple[Shard, TorchrecShard]]:
    """Each shard of a placed table, and the shard as TorchRec's estimates see it."""
    table = TorchrecTable.of(workload.table(placement.table), workload)
    of = table, machine, placement.sharding_type, placement.kernel
    for shard in placement.shards:
        yield shard, TorchrecShard(*of, shard.num_cols, placement.cache_load_factor_ratio)


@final
class TorchrecJudge(Judge):
    """TorchRec's estimates. Columns: device bytes, host bytes, seconds by what is waited for.

    TorchRec gives each rank an equal part of its host's memory.
    """

    def __init__(self, case: Case) -> None:
        topology = limited_topology(case)
        self._workload = case.workload
        self._world = topology.world_size
        self._machine = TorchrecMachine.of(topology)
        self._by_phase = case.objective == "torchrec-critical-path"
        kinds = {(t.module, kind) for t in case.workload.tables for kind in _KINDS}
        self._exchanges = {key: i for i, key in enumerate(sorted(kinds))}
        self._num_columns = 4 + 2 * len(kinds) if self._by_phase else 3
        device = self._machine.device_limits_bytes(case.workload)
        per_rank = np.floor(topology.ddr_capacities() / topology.local_world_size)
        self.limits = np.array([*device, *np.repeat(per_rank, topology.local_world_size)])

    def work(self, placement: TablePlacement) -> FloatArray:
        work = np.zeros((self._world, self._num_columns))
        table = self._workload.table(placement.table)
        for shard, theirs in torchrec_shards(placement, self._workload, self._machine):
            perf, row = theirs.perf(), work[shard.rank]
            row[:2] += theirs.storage(shard.num_rows)
            if not self._by_phase:
                row[2] += perf.total_s
                continue
            row[2:4] += perf.fwd_compute_s, perf.bwd_compute_s
            at = 4 + 2 * self._exchanges[table.module, placement.sharding_type.value]
            row[at : at + 2] += perf.fwd_comms_s, perf.bwd_comms_s
        return work

    def memory(self, work: FloatArray) -> FloatArray:
        return np.concatenate([work[..., 0], work[..., 1]], axis=-1)

    def values(self, work: FloatArray) -> FloatArray:
        return np.asarray(work[..., 2:].max(axis=-2).sum(axis=-1))
