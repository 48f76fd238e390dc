"""Add a cost model: one class, and every plan is priced with it.

A file `costmodels/collective/<name>.py` with this class would be found by `shardplan list`. Every
API also takes an instance, so nothing needs to be registered.
Run: python examples/04_add_a_cost_model.py
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from costmodels.collective.alpha_beta import AlphaBeta
from costmodels.collective.base import AbstractCollectiveModel, FloatArray
from costmodels.pipeline import CostModels, CostPipeline
from costmodels.topology import Topology
from costmodels.units import format_time
from planner import load_system, load_workload, plan


@final
@dataclass(frozen=True, slots=True)
class Congested(AbstractCollectiveModel):
    """Alpha-beta with all-to-alls slowed by other jobs on the network."""

    slowdown_ratio: float
    inner: AlphaBeta
    sources: ClassVar[tuple[str, ...]] = ("this example",)

    def fixed_s(self, topology: Topology, *, ranks: int, across_hosts: bool) -> float:
        """Latency is not affected."""
        return self.inner.fixed_s(topology, ranks=ranks, across_hosts=across_hosts)

    def all_to_all(self, send: FloatArray, receive: FloatArray, topology: Topology) -> FloatArray:
        """Seconds per rank."""
        return np.asarray(self.slowdown_ratio * self.inner.all_to_all(send, receive, topology))

    def reduce_scatter(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool
    ) -> FloatArray:
        """Not affected: NCCL runs it as a ring."""
        return self.inner.reduce_scatter(num_bytes, topology, within_host=within_host)


def main() -> None:
    """Price one plan on a quiet and on a congested network."""
    workload = load_workload("dlrm_dcnv2_mlperf")
    topology = load_system("h100_sxm", gpus=16)
    best = plan(workload, topology, time_limit_s=2).plan
    for name, model in (("quiet", AlphaBeta()), ("congested", Congested(3.0, AlphaBeta()))):
        pipeline = CostPipeline(workload, topology, CostModels(collective=model))
        print(f"{name:10} {format_time(pipeline.estimate(best).time.time_s)}")


if __name__ == "__main__":
    main()
