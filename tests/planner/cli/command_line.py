"""Running the command line inside the test process."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Protocol

from planner.problem import PlanningProblem
from planner.search.base import SearchProgress
from planner.settings import SearchSettings
from planner.support.status import Status

FIRST_PLAN = SearchProgress(
    seconds=0.1, incumbent=3.5e-3, bound=None, gap_ratio=None, evaluations=1, phase="rounding"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What a command left behind."""

    code: int
    out: str
    err: str


class Run(Protocol):
    """Run one command line."""

    def __call__(self, *args: object) -> Done: ...


@dataclass(slots=True, kw_only=True)
class FakeApi:
    """What the planner of the tests answers, and what it was asked."""

    status: Status = Status.OPTIMAL
    bound: float | None = 3.1e-3
    error: BaseException | None = None
    signals: tuple[int, ...] = ()
    """Sent to this process in the search, after its first plan."""
    times_s: tuple[float, ...] = (3.0e-3, 3.15e-3, 2.9e-3)
    search: SearchSettings | None = None
    asked: PlanningProblem | None = None

    def send(self, options: dict[str, Any], number: int) -> None:
        """Tell of a plan, then let a signal come; a search that is asked to stop says so."""
        options["progress"](FIRST_PLAN)
        os.kill(os.getpid(), number)
        if options["should_stop"]():
            self.status = Status.INTERRUPTED


WORKLOAD_TEXT = """\
name: small
training: {batch_size_per_rank: 512, optimizer: rowwise_adagrad}
dense: {num_dense_features: 13, bottom_mlp: [64, 32], top_mlp: [64, 1], interaction: dot}
memory: {reserve: 1 GiB}
tables:
  - {name: user, num_embeddings: 100_000, embedding_dim: 32, pooling_factor: 3}
  - {name: item, num_embeddings: 50_000, embedding_dim: 32, pooling_factor: 8}
  - {name: place, num_embeddings: 1_000, embedding_dim: 32}
  - {name: tag, num_embeddings: 20_000, embedding_dim: 32, pooling_factor: 2, count: 3}
"""

TWO_WAYS = "constraints: [{tables: '*', sharding_types: [table_wise, row_wise]}]\n"
"""For the end of a workload whose tables are cut in two ways: of all seven, proofs of what no plan
can go below take most of the time of a study."""

SYSTEM_TEXT = """\
name: small_box
device:
  name: small_gpu
  hbm_capacity: 16 GiB (datasheet)
  hbm_bandwidth: 800 GB/s (measured)
  l2_capacity: 6 MiB (datasheet)
  l2_bandwidth: 2 TB/s (default)
  flops: {fp32: 14 TFLOP/s (datasheet), fp16: 112 TFLOP/s (datasheet)}
  flops_efficiency: 0.6 (default)
  kernel_latency: 5 us (default)
  row_half: 64 B (default)
  update_efficiency: 0.5 (default)
  sort_rate: 1e9 (default)
host:
  ddr_capacity: 256 GiB (datasheet)
  ddr_bandwidth: 100 GB/s (datasheet)
  device_link_bandwidth: 12 GB/s (datasheet)
  eager_call: 5 us (default)
links:
  host: {latency: 10 us (default), bandwidth: 100 GB/s (datasheet)}
  network: {latency: 20 us (default), bandwidth: 12 GB/s (datasheet)}
layout: {gpus_per_host: 4}
"""
