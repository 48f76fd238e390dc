"""What would help: the same plan, priced on faster systems and with other batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import ClassVar, Final, final

from costmodels.dense.base import with_even_sequences
from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan
from costmodels.topology import Topology, with_host_factor
from costmodels.workload import Workload
from planner.report.base import Column, Kind, Section
from planner.report.sections.base import AbstractReportSection
from planner.result import PlanningResult

_TWICE: Final = 2.0
_MOST_WORK: Final = 40_000
"""If tables times ranks exceed this, pricing the plan again takes too long for a report."""
_NOTHING: Final = 5e-4


@final
class HelpSection(AbstractReportSection):
    """The plan as it is, on a faster system or with another batch; a new plan may gain more."""

    title: ClassVar[str] = "What would help"
    short: ClassVar[str] = "What helps"
    order: ClassVar[int] = 26

    def build(self, result: PlanningResult) -> Section | None:
        """A row for each change that matters; the most samples per second come first."""
        problem = result.problem
        work = len(problem.workload.tables) * problem.topology.world_size
        if problem.models is not None or problem.topology.calibration or work >= _MOST_WORK:
            return None
        before = result.estimate.samples_per_s
        priced = _priced(problem.workload, problem.topology, result.plan)
        found = [row for row in priced if abs(row[0] / before - 1.0) > _NOTHING]
        found.sort(key=lambda row: (-row[0], row[1]))
        rows = tuple(
            (name, samples / before, time_s, samples, "yes" if fits else "NO")
            for samples, name, time_s, fits in found
        )
        if not rows:
            return None
        return Section(
            title=self.title,
            columns=(
                Column("change"),
                Column("throughput", Kind.FACTOR),
                Column("iteration", Kind.TIME),
                Column("samples", Kind.RATE),
                Column("fits"),
            ),
            rows=rows,
            notes=("This plan, priced again with each change; a new plan may gain more.",),
        )


@lru_cache(maxsize=1)
def _priced(
    workload: Workload, topology: Topology, plan: Plan
) -> tuple[tuple[float, str, float, bool], ...]:
    """(samples per second, name, seconds, whether it fits) of each change.

    The last answer is kept, because terminal, page and Markdown all ask for the same plan.
    """
    found = []
    for name, changed, system in _changes(workload, topology):
        pipeline = CostPipeline(changed, system)
        time_s = float(pipeline.iteration_times(pipeline.plan_work(plan)))
        samples = changed.batch_size_per_rank * system.world_size / time_s
        found.append((samples, name, time_s, pipeline.memory(plan).fits))
    return tuple(found)


def _changes(workload: Workload, topology: Topology) -> Iterator[tuple[str, Workload, Topology]]:
    device, links = topology.device, topology.links
    if topology.num_hosts > 1:
        rate = links.network.bandwidth_bytes_per_s * _TWICE
        faster = replace(links, network=replace(links.network, bandwidth_bytes_per_s=rate))
        yield "twice the network bandwidth", workload, topology.with_links(faster)
    rate = links.host.bandwidth_bytes_per_s * _TWICE
    faster = replace(links, host=replace(links.host, bandwidth_bytes_per_s=rate))
    if topology.domain_link == topology.host_link:
        faster = replace(faster, domain=faster.host)
    if topology.local_world_size > 1:
        yield "twice the bandwidth inside a host", workload, topology.with_links(faster)
    memory = replace(device, hbm_bandwidth_bytes_per_s=_TWICE * device.hbm_bandwidth_bytes_per_s)
    yield "twice the memory bandwidth", workload, replace(topology, device=memory)
    rates = tuple((dtype, _TWICE * rate) for dtype, rate in device.flops_per_s)
    products = replace(device, flops_per_s=rates)
    yield "twice the rate of matrix products", workload, replace(topology, device=products)
    yield "half the host time per call", workload, with_host_factor(topology, 1.0 / _TWICE)
    if (even := with_even_sequences(workload)) != workload:
        yield "sequences balanced over ranks", even, topology
    if workload.dense.operators is None:
        batch = workload.batch_size_per_rank * int(_TWICE)
        yield "twice the batch", replace(workload, batch_size_per_rank=batch), topology
