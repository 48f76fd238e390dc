"""Laws that prices and bounds keep whatever the plan: ``python -m tests.differential.laws --help``.

Random plans of one problem are priced, without any search, and held against

- the simulation of events, and against themselves priced one by one;
- the same tables in another order;
- every part that searches prove their bounds with: the cut that always holds, the floor of the
  plan's sharding types at its own phases, cuts made at another plan's phases, boxes around its
  phases, tangents at another plan's work, and the names that stand for other names;
- faster machines, on which no plan takes longer.

A bound that is wrong is seldom the bound that a search ends with. Here every one is looked at.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import astuple, replace
from functools import cached_property

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.iteration._events import simulate
from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan, ShardingType
from costmodels.topology import Link, Topology
from planner.models import default_models
from planner.objectives.iteration import IterationTime
from tests.differential.case import Case, limited_topology
from tests.differential.drawing.options import placements
from tests.differential.judging.descent import FEW
from tests.differential.seeds import look_at_drawn

ROUNDING = 1e-9
"""Relative difference of sums of the same numbers in another order."""
LEAST_S = 1e-15
"""Seconds below which nothing is compared."""
_SIMULATED = 4
_OTHERS = 3
"""Plans that are simulated, and other plans at whose phases cuts are made for each plan."""


class PricedPlans:
    """Random plans of one case, priced together.

    Attributes:
        plans: every second one of one or two sharding types alone.
    """

    def __init__(self, case: Case, rng: np.random.Generator, count: int = 20) -> None:
        """Draw and price the plans; none where constraints leave a table no placement."""
        self.case, self.rng = case, rng
        self.topology = limited_topology(case)
        self.pipeline = CostPipeline(case.workload, self.topology, default_models(self.topology))
        self.choices = [placements(case, t, few=FEW) for t in case.workload.tables]
        self.plans = [self._draw(few=i % 2 == 1) for i in range(count if all(self.choices) else 0)]
        self.calls = {(p.sharding_type, p.kernel) for own in self.choices for p in own}
        self.objective = IterationTime(self.pipeline, self.calls)

    @cached_property
    def works(self) -> FloatArray:
        """``[N, W, columns]``."""
        return np.array([self.pipeline.plan_work(p) for p in self.plans])

    @cached_property
    def times(self) -> FloatArray:
        """Seconds of an iteration, ``[N]``."""
        return self.pipeline.iteration_times(self.works)

    @cached_property
    def phases(self) -> FloatArray:
        """Phases of each rank, ``[N, W, K]``."""
        return self.pipeline.phase_times(self.works)

    @cached_property
    def types(self) -> list[frozenset[ShardingType]]:
        """Sharding types of each plan."""
        return [frozenset(p.sharding_type for p in plan.placements) for plan in self.plans]

    def times_by(self, pipeline: CostPipeline) -> FloatArray:
        """The same plans priced by another pipeline, ``[N]``."""
        return pipeline.iteration_times(np.array([pipeline.plan_work(p) for p in self.plans]))

    def others(self) -> list[int]:
        """Some plans, by their number."""
        return [int(i) for i in self.rng.integers(len(self.plans), size=_OTHERS)]

    def _draw(self, *, few: bool) -> Plan:
        """A plan of any placements, or of one or two sharding types that all tables may have."""
        every = [{p.sharding_type.value for p in own} for own in self.choices]
        kinds = sorted(set.intersection(*every) if few else set.union(*every))
        if few and kinds:
            kinds = self.rng.choice(kinds, size=int(self.rng.integers(1, 3))).tolist()
        chosen = []
        for own in self.choices:
            found = [p for p in own if p.sharding_type.value in kinds] or own
            chosen.append(found[int(self.rng.integers(len(found)))])
        return Plan(placements=tuple(chosen))


def broken_laws(case: Case, seed: int) -> list[str]:
    """One line for each way in which a law is broken; the seed draws the plans."""
    priced = PricedPlans(case, np.random.default_rng(seed))
    if not priced.plans:
        return []
    return list(dict.fromkeys(line for law in LAWS for line in law(priced)))


def _above(name: str, one: float, other: float) -> Iterator[str]:
    """A line where ``one`` is above ``other`` by more than rounding."""
    if one > other * (1.0 + ROUNDING) + LEAST_S:
        yield f"{name}: {one:.9g} above {other:.9g} ({one / other - 1.0:+.2e})"


def _unlike(name: str, ones: FloatArray, others: FloatArray) -> Iterator[str]:
    """A line where two arrays of prices differ by more than rounding."""
    differ = np.abs(ones - others) > ROUNDING * np.abs(others) + LEAST_S
    if differ.any():
        at = int(np.argmax(differ))
        yield f"{name}: {ones[at]!r} and {others[at]!r}"


# ------------------------------------------------------------------ one price in several ways


def _same_prices(priced: PricedPlans) -> Iterator[str]:
    pipeline, times, works = priced.pipeline, priced.times, priced.works
    alone = np.array([pipeline.iteration_times(work[None])[0] for work in works])
    yield from _unlike("priced together and alone", times, alone)
    for work, time_s in zip(works[:_SIMULATED], times, strict=False):
        program, _ = pipeline.scheduled(pipeline.stage_times(work), work.shape[:1])
        found_s = simulate(program, len(work)).iteration_time_s
        yield from _unlike("closed form and events", np.array([time_s]), np.array([found_s]))
    tables = priced.case.workload.tables
    order = priced.rng.permutation(len(tables))
    workload = replace(priced.case.workload, tables=tuple(tables[i] for i in order))
    other = CostPipeline(workload, priced.topology, pipeline.models)
    yield from _unlike("order of tables", times, priced.times_by(other))


# ------------------------------------------------------------------ what bounds are made of


def _floors(priced: PricedPlans) -> Iterator[str]:
    objective, slowest = priced.objective, priced.phases.max(axis=-2)
    always = objective.always()
    for i, (types, time_s) in enumerate(zip(priced.types, priced.times, strict=True)):
        named = f"of {sorted(t.value for t in types)}"
        yield from _above("always", always.base + always.slopes @ slowest[i], time_s)
        floor_s = objective.separable_value(priced.works[i], types)
        yield from _above(f"floor {named}", floor_s or 0.0, time_s)
        shares = priced.rng.uniform(size=(2, slowest.shape[-1]))
        box = objective.box(types, slowest[i] * shares[0], slowest[i] * (1.0 + shares[1]))
        for other in priced.others():
            cut = objective.cut(slowest[other], types)
            if cut is not None:
                yield from _above(f"cut {named}", cut.base + cut.slopes @ slowest[i], time_s)
            if box is not None:
                cut = box.cut(slowest[other])
                yield from _above(f"box {named}", cut.base + cut.slopes @ slowest[i], time_s)


def _tangents(priced: PricedPlans) -> Iterator[str]:
    for one, other in zip(priced.others(), priced.others(), strict=True):
        row = priced.works[one][int(priced.rng.integers(priced.topology.world_size))]
        found = priced.works[other] @ priced.objective.gradient(row).T
        for phase, (tangent, rank) in enumerate(zip(found.T, priced.phases[other].T, strict=True)):
            for value, own in zip(tangent, rank, strict=True):
                yield from _above(f"tangent of phase {phase}", value, own)


def _names(priced: PricedPlans) -> Iterator[str]:
    """A plan under the name that stands for others is proven to be no slower than under theirs."""
    pipeline = priced.pipeline
    for group in pipeline.alike_types:
        for plan, time_s in zip(priced.plans, priced.times, strict=True):
            renamed = tuple(
                replace(p, sharding_type=group[0]) if p.sharding_type in group else p
                for p in plan.placements
            )
            work = pipeline.plan_work(Plan(placements=renamed))[None]
            values = priced.objective.proven_values(work, pipeline.iteration_times(work))
            yield from _above(f"named {group[0]}", float(values[0]), time_s)


# ------------------------------------------------------------------ faster machines


def _faster_machines(priced: PricedPlans) -> Iterator[str]:
    """No plan takes longer on one, unless compute that communication slows meets more of it.

    Faster lookups are a shorter pause for the matrix units, so the dense part may take longer, by
    no more than what lookups that are spread evenly gain. A plan whose own lookups gain less takes
    longer by that.
    """
    topology = priced.topology
    if topology.device.overlap_slowdown_ratio or topology.calibration:
        return
    for name, better in better_machines(topology):
        pipeline = CostPipeline(priced.case.workload, better, default_models(better))
        longer_s = float(np.maximum(_dense_s(pipeline) - _dense_s(priced.pipeline), 0.0).sum())
        saved_s = priced.pipeline._even_lookup_s() - pipeline._even_lookup_s()
        yield from _above(f"dense part, {name}", longer_s, max(0.0, saved_s))
        for faster_s, time_s in zip(priced.times_by(pipeline), priced.times, strict=True):
            yield from _above(name, faster_s, time_s + longer_s / min(topology.speeds()))


def _dense_s(pipeline: CostPipeline) -> FloatArray:
    """Seconds of each stage of the dense part on a rank of usual speed."""
    times = pipeline._dense.times(pipeline.workload, pipeline.topology.trainers)
    return np.array(astuple(times))


def better_machines(topology: Topology) -> Iterator[tuple[str, Topology]]:
    """Machines with one figure better each."""
    device, host = topology.device, topology.host
    for name in ("host_link", "domain_link", "network_link"):
        link: Link = getattr(topology, name)
        wider = replace(link, bandwidth_bytes_per_s=2.0 * link.bandwidth_bytes_per_s)
        prompter = replace(link, latency_s=0.5 * link.latency_s)
        yield f"bandwidth of {name}", replace(topology, **{name: wider})
        yield f"latency of {name}", replace(topology, **{name: prompter})
    link_s = 2.0 * host.device_link_bandwidth_bytes_per_s
    yield "host", replace(topology, host=replace(host, device_link_bandwidth_bytes_per_s=link_s))
    for name, factor in (
        ("hbm_bandwidth_bytes_per_s", 2.0),
        ("l2_bandwidth_bytes_per_s", 2.0),
        ("sort_rate_per_s", 2.0),
        ("launch_latency_s", 0.5),
        ("kernel_latency_s", 0.5),
        ("row_half_bytes", 0.5),
    ):
        changed = replace(device, **{name: factor * getattr(device, name)})
        yield name, replace(topology, device=changed)
    speeds = tuple(1.5 * speed for speed in topology.speeds())
    yield "speeds", replace(topology, speed_by_rank_ratio=speeds)


LAWS: tuple[Callable[[PricedPlans], Iterator[str]], ...] = (
    _same_prices,
    _floors,
    _tangents,
    _names,
    _faster_machines,
)


def main(arguments: list[str] | None = None) -> int:
    """Look at drawn problems; 1 if a law is broken."""
    kept = "problems keep every law"
    return look_at_drawn(arguments, __doc__, broken_laws, count=100, draw="unusual", kept=kept)


if __name__ == "__main__":
    sys.exit(main())
