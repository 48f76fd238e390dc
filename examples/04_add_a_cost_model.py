"""Add a cost model: one class, and plans are searched for and priced with it.

Nothing needs to be registered: an instance is an argument of `plan`, and the command line takes the
file itself, as in `shardplan plan WORKLOAD --model collective=my_model.py`. A file
`costmodels/collective/<name>.py` with this class would also be found by its name.
Run: python examples/04_add_a_cost_model.py
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import final

import numpy as np

from costmodels.collective.alpha_beta import AlphaBeta
from costmodels.collective.base import AbstractCollectiveModel
from costmodels.datatypes import FloatArray
from costmodels.pipeline import CostModels
from costmodels.topology import Topology
from costmodels.units import format_time
from planner import compare, load_system, load_workload, plan


@final
@dataclass(frozen=True, slots=True)
class Congested(AbstractCollectiveModel):
    """Alpha-beta with all-to-alls slowed by other jobs on the network."""

    slowdown_ratio: float = 3.0
    inner: AlphaBeta = field(default_factory=AlphaBeta)

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
    """Plan for a quiet and for a congested network, and price both plans on both."""
    workload = replace(load_workload("small_demo"), batch_size_per_rank=65_536)
    topology = load_system("h100_sxm", gpus=16)
    models = {
        "quiet": CostModels(collective=AlphaBeta()),
        "congested": CostModels(collective=Congested()),
    }
    plans = {
        name: plan(workload, topology, models=own, max_evaluations=200).plan
        for name, own in models.items()
    }
    print(
        "Each plan on both networks: the one that was made for a network is the faster one there."
    )
    for name, own in models.items():
        quiet, congested = compare(workload, topology, plans, models=own)
        print(
            f"on the {name} network an iteration takes "
            f"{format_time(quiet.estimate.time.time_s)} with the plan for the quiet one, "
            f"{format_time(congested.estimate.time.time_s)} with the plan for the congested one"
        )


if __name__ == "__main__":
    main()
