"""Laws that prices and bounds keep whatever the plan: ``python -m tests.differential.laws --help``.

Random plans of one problem are priced, without any search, and held against

- the simulation of events, and against themselves priced one by one;
- the same tables in another order;
- every part that searches prove their bounds with: the cut that always holds, the floor of the
  plan's sharding types at its own phases, cuts made at another plan's phases, boxes around its
  phases, tangents at another plan's work, and the names that stand for other names;
- the same plans with like ranks and hosts exchanged;
- the bytes that their shards hold, counted one by one;
- longer lists of indices, wider elements and larger batches, with which no plan is faster;
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
from costmodels.distribution.zipf import Zipf
from costmodels.measured.fbgemm_constants import FbgemmConstants
from costmodels.pipeline import CostPipeline
from costmodels.sharding import SPREAD, ComputeKernel, Plan, ShardingType, Spread, TablePlacement
from costmodels.topology import Link, Topology, with_host_factor
from costmodels.workload import DataType, Workload
from planner.objectives.iteration import IterationTime
from planner.space.objective import JudgedWork
from tests.costmodels.iteration.events import simulate
from tests.differential.case import Case, limited_topology, models_on
from tests.differential.drawing.options import placements
from tests.differential.judging.descent import FEW
from tests.differential.judging.enumerator import mirrors
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
        self.pipeline = CostPipeline(case.workload, self.topology, models_on(case, self.topology))
        self.choices = [placements(case, t, few=FEW) for t in case.workload.tables]
        self.plans = [self._draw(few=i % 2 == 1) for i in range(count if all(self.choices) else 0)]
        options = [placement for own in self.choices for placement in own]
        judged = JudgedWork(pipeline=self.pipeline, pool=np.zeros((0, 0)), options=options)
        self.objective = IterationTime(judged)

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
        return self.pipeline.phases.times(self.works)

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
        yield f"{name}: {one:.9g} above {other:.9g} by {one - other:.2e}"


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


# ------------------------------------------------------------------ like ranks and hosts


def _like_ranks(priced: PricedPlans) -> Iterator[str]:
    """A plan and its mirror images take equally long; unequal row blocks have no mirror image."""
    every = list(mirrors(priced.case))
    for i in priced.rng.choice(len(every), size=min(len(every), _OTHERS), replace=False):
        mirror = every[int(i)]
        for plan, time_s in zip(priced.plans, priced.times, strict=True):
            made = [_mirrored(priced.case, p, mirror) for p in plan.placements]
            if None not in made:
                image = Plan(placements=tuple(p for p in made if p is not None))
                found = priced.pipeline.iteration_times(priced.pipeline.plan_work(image)[None])
                yield from _unlike(f"ranks as {mirror}", found, np.array([time_s]))


def _mirrored(case: Case, placement: TablePlacement, mirror: tuple[int, ...]) -> object:
    """The placement with rank ``mirror[r]`` in place of rank r; None where it has no such image."""
    kind, local = placement.sharding_type, case.topology.local_world_size
    if kind is ShardingType.DATA_PARALLEL:
        return placement
    if SPREAD[kind] is Spread.RANKS:
        moved = (replace(s, rank=mirror[s.rank]) for s in placement.shards)
        return replace(placement, shards=tuple(moved))
    table = case.workload.table(placement.table)
    parts = len(mirror) if kind is ShardingType.ROW_WISE else local
    if table.num_embeddings % parts or not _parts_are_equal(case, table.name, parts):
        return None
    if kind is ShardingType.ROW_WISE:
        return placement
    moved = (
        replace(s, rank=mirror[s.rank] // local * local + s.rank % local) for s in placement.shards
    )
    return replace(placement, shards=tuple(moved))


def _parts_are_equal(case: Case, table: str, parts: int) -> bool:
    """Whether equal parts of a table get equally many indices: hashed ids, no hottest row."""
    laws = [w.table(table).distribution for w in (case.workload, *case.scenarios)]
    return all(law.scattered and law.hottest_share(parts) * parts <= 1.002 for law in laws)


# ------------------------------------------------------------------ memory


def _memory(priced: PricedPlans) -> Iterator[str]:
    """A rank holds what its shards hold, and a plan fits if no memory is over its limit."""
    case, pipeline = priced.case, priced.pipeline
    for plan, work in zip(priced.plans, priced.works, strict=True):
        device, host = _held_bytes(case, plan)
        ledger = pipeline.memory(plan)
        for rank in ledger.ranks:
            yield from _above(f"bytes held by rank {rank.rank}", device[rank.rank], rank.used_bytes)
        for one in ledger.hosts:
            yield from _above(f"bytes held by host {one.host}", host[one.host], one.used_bytes)
        over = (pipeline.device_bytes(work) > pipeline.device_limits).any()
        over |= (pipeline.host_bytes(work) > pipeline.host_limits).any()
        near = pipeline.overflow_bytes(work, 1.0 + ROUNDING) == 0
        if ledger.fits == over and not near:
            yield f"fits: {ledger.fits}, over a limit: {over}"


def _held_bytes(case: Case, plan: Plan) -> tuple[FloatArray, FloatArray]:
    """Bytes of weights and optimizer state on each device and in each host's memory."""
    device, host = np.zeros(case.topology.world_size), np.zeros(case.topology.num_hosts)
    for placement in plan.placements:
        table = case.workload.table(placement.table)
        for shard in placement.shards:
            state = case.workload.optimizer_of(table).state_bytes_per_row(shard.num_cols)
            if placement.kernel is ComputeKernel.DENSE:
                state = 0.0
            held = shard.num_rows * (shard.num_cols * table.dtype.num_bytes + state)
            if placement.kernel in (ComputeKernel.DENSE, ComputeKernel.FUSED):
                device[shard.rank] += held
            else:
                host[shard.rank // case.topology.local_world_size] += held
    return device, host


# ------------------------------------------------------------------ more work


def _more_work(priced: PricedPlans) -> Iterator[str]:
    """No plan is faster with more to look up; the dense part may be, beside longer lookups.

    Two things of FBGEMM's kernels may get shorter, and nothing else may. A larger call finds more
    of its rows in the cache, so that its last bags wait less (the floor of the call). Rows of four
    bytes an element are not rounded, which takes longer than a few bytes of device memory.
    """
    case, day = priced.case, priced.case.workload
    topology = priced.topology
    if day.dense.is_given or topology.device.overlap_slowdown_ratio or topology.calibration:
        return
    if any(t.distribution.ids_per_draw > 1 for t in day.tables if isinstance(t.distribution, Zipf)):
        return
    at = int(priced.rng.integers(len(day.tables)))
    for name, more in _larger_days(day, at):
        own, times = priced.pipeline, priced.times
        if name == "bytes of a weight" and topology.lookup_constants is None:
            topology = replace(topology, lookup_constants=FbgemmConstants(rounded_chunk_s=0.0))
            own = CostPipeline(day, topology, models_on(case, topology))
            times = priced.times_by(own)
        pipeline = CostPipeline(more, topology, own.models)
        spared = [_spared_s(p, own, pipeline) for p in priced.plans]
        for longer_s, time_s, less_s in zip(priced.times_by(pipeline), times, spared, strict=True):
            yield from _above(f"less {name} ({case.name})", time_s - less_s, longer_s)


def _spared_s(plan: Plan, pipeline: CostPipeline, other: CostPipeline) -> float:
    """Seconds by which floors of forward calls of a plan are shorter in another pipeline."""
    calls = {(p.sharding_type, p.kernel) for p in plan.placements}
    before, after = (
        [p._stages.models.lookup.call_floor(kernel, p.topology).forward_s for _, kernel in calls]
        for p in (pipeline, other)
    )
    return sum(max(b - a, 0.0) for b, a in zip(before, after, strict=True))


def _larger_days(day: Workload, at: int) -> Iterator[tuple[str, Workload]]:
    """Days on which more is looked up in one table, or in all of them."""

    def with_table(**changes: object) -> Workload:
        changed = replace(day.tables[at], **changes)  # type: ignore[arg-type]
        return replace(day, tables=(*day.tables[:at], changed, *day.tables[at + 1 :]))

    features = tuple(
        replace(f, pooling_factor=min(1.7 * f.pooling_factor, 1e6)) for f in day.tables[at].features
    )
    if not day.lookahead_batches:
        yield "indices", with_table(features=features)
        yield "samples", replace(day, batch_size_per_rank=2 * day.batch_size_per_rank)
    yield "bytes of an index", replace(day, index_bytes=8)
    yield "bytes of an output", replace(day, output_dtype=DataType.FP32)
    yield "bytes of a weight", with_table(dtype=DataType.FP32)


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
        whole, box = objective.box(types), None
        if whole is not None:
            at = slowest[i][whole.first]
            low, high = shares[:, whole.first]
            box = whole.part(at * low, at * (1.0 + high))
            exact_s = float(box.exact_times(slowest[i][box.first][None])[0])
            yield from _above(f"shortest of a box {named}", exact_s, time_s)
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
    longer by that. Shorter pauses between kernels are such a pause too: products may lose to the
    clock what the kernels between them gain.
    """
    topology = priced.topology
    if topology.device.overlap_slowdown_ratio or topology.calibration:
        return
    for name, better in better_machines(topology):
        models = models_on(priced.case, better)
        pipeline = CostPipeline(priced.case.workload, better, models)
        change_s = _dense_s(pipeline) - _dense_s(priced.pipeline)
        longer_s = float(np.maximum(change_s, 0.0).sum(axis=0).max())
        even_s = priced.pipeline._even_lookup_s()
        saved_s = max(0.0, even_s - pipeline._even_lookup_s())
        if name == "kernel_latency_s":
            saved_s += float(np.maximum(-change_s, 0.0).sum(axis=0).min())
        yield from _above(f"dense part, {name}", longer_s, saved_s + ROUNDING * even_s)
        for faster_s, time_s in zip(priced.times_by(pipeline), priced.times, strict=True):
            yield from _above(name, faster_s, time_s + longer_s / min(topology.speeds()))


def _dense_s(pipeline: CostPipeline) -> FloatArray:
    """Seconds of each stage of the dense part on each rank at usual speed, ``[stages, W or 1]``."""
    seconds = [np.atleast_1d(part) for part in astuple(pipeline._stages.dense)]
    return np.array(np.broadcast_arrays(*seconds))


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
    yield "calls of the host", with_host_factor(topology, 0.5)
    for name, factor in (
        ("hbm_bandwidth_bytes_per_s", 2.0),
        ("l2_bandwidth_bytes_per_s", 2.0),
        ("sort_rate_per_s", 2.0),
        ("kernel_latency_s", 0.5),
        ("row_half_bytes", 0.5),
    ):
        changed = replace(device, **{name: factor * getattr(device, name)})
        yield name, replace(topology, device=changed)
    speeds = tuple(1.5 * speed for speed in topology.speeds())
    yield "speeds", replace(topology, speed_by_rank_ratio=speeds)


LAWS: tuple[Callable[[PricedPlans], Iterator[str]], ...] = (
    _same_prices,
    _like_ranks,
    _memory,
    _more_work,
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
