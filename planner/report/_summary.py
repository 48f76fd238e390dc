"""The lines of the summary: what was planned, its speed, its bottleneck, and how good it is."""

from __future__ import annotations

from collections import Counter
from typing import Final

import costmodels
from costmodels import units
from costmodels.estimates import Source
from costmodels.sharding import SPREAD, Plan, Spread
from costmodels.uncertainty import host_is_assumed
from costmodels.workload import Workload
from planner.models import pipeline_of
from planner.report import _figures as figures
from planner.report.base import (
    Fact,
    format_factor,
    format_gib,
    format_interval,
    format_share,
)
from planner.result import OPTIMAL_GAP, Candidate, PlanningResult, SolverReport
from planner.support.status import STATUS_WORDS
from planner.support.text import counted, format_gap, printable

_TOP_STAGES = 3


def headline(workload: Workload, cluster: str) -> Fact:
    """Program, workload and cluster."""
    dtypes = Counter(t.dtype.value for t in workload.tables)
    names = "/".join(name for name, _ in dtypes.most_common())
    size = units.format_bytes(workload.weight_bytes)
    tables = counted(len(workload.tables), "table")
    return Fact(
        label=f"shardplan {'.'.join(costmodels.__version__.split('.')[:2])}",
        parts=(
            f"{tables}, {size} {names}",
            printable(cluster),
            f"batch {workload.batch_size_per_rank:,}/rank",
        ),
    )


def verdict(result: PlanningResult) -> Fact:
    """Whether the plan fits, its ratio to TorchRec's own plan, and how good it is proven to be.

    The ratio compares both plans under the workload itself, not under a scenario.
    """
    best, solver = result.best, result.solver
    parts = [] if best.memory.fits else ["DO NOT RUN THIS PLAN: it does not fit in memory"]
    incumbent, _ = figures.split_baselines(result)
    if incumbent is not None:
        ratio = format_factor(figures.speedup(best, incumbent))
        unheld = "; it need not keep limits on ranks, groups, counts or moves"
        free = unheld if figures.has_unknown_rules(result) else ""
        first = "" if not result.scenarios else " in the first scenario"
        parts.append(f"{ratio} as fast as TorchRec's own plan{first} (same cost model{free})")
    gap, objective = solver.gap_ratio, figures.plain_objective(solver.objective)
    of = "" if objective == "iteration" else f" by objective {objective}"
    status = STATUS_WORDS[solver.status]
    if gap is None:
        parts.append(f"{status}, no bound: a better plan may exist")
    elif gap < OPTIMAL_GAP:
        parts.append(f"{status}, gap {format_gap(gap)}: no plan in the search space is better{of}")
    else:
        more = f"no plan in the search space is better by more{of}"
        parts.append(f"{status}, gap {format_gap(gap)}: {more}")
    return Fact(label="Verdict", parts=tuple(parts))


_WIDTH_OF: Final = {
    "lookup": "how fast tables are looked up",
    "collective": "how fast ranks exchange data",
    "dense": "how fast the dense part is computed",
    "host": "what calls cost the host",
}


def width_reason(result: PlanningResult) -> str:
    """Words on the kind of time that widens the interval most."""
    pipeline = pipeline_of(result.problem)
    kind = pipeline.least_certain_kind(result.plan)
    unmeasured = kind == "host" and host_is_assumed(result.problem.topology)
    why = ", which was not measured on this system" if unmeasured else ""
    return f"90 % interval; least certain is {_WIDTH_OF[kind]}{why}"


def predicted(result: PlanningResult) -> Fact:
    """Iteration time with its 90 % interval and what widens it, and throughput.

    With scenarios it is the time in that for which the plan was made.
    """
    estimate, worst = result.estimate, figures.worst_scenario(result)
    span = worst or estimate.time
    time, interval = format_interval(span.time_s, span.low_s, span.high_s)
    rate = worst.samples_per_s if worst else estimate.samples_per_s
    parts = [f"{time}/iter {interval}", f"{units.format_count(rate)} samples/s"]
    if worst is not None:
        parts.append(printable(f"in {worst.name}, the slowest scenario"))
    parts.append(width_reason(result))
    return Fact(label="Predicted", parts=tuple(parts))


def bottleneck(best: Candidate) -> Fact:
    """The rank with most of the critical path, the stages of that path, exposed communication."""
    estimate = best.estimate
    top = figures.path_shares(estimate)[:_TOP_STAGES]
    shares = ", ".join(f"{stage} {format_share(share)}" for stage, share in top)
    rank = f"rank {figures.bottleneck_rank(estimate)}"
    parts = [f"critical path, mostly on {rank}: {shares}"] if shares else []
    uneven = f"{estimate.imbalance_ratio:.2f}x the mean of ranks"
    parts.append(f"rank {estimate.slowest_rank} computes longest, {uneven}")
    exposed = estimate.exposed_communication_s
    share = format_share(exposed / estimate.time.time_s) if estimate.time.time_s > 0 else "-"
    parts.append(f"communication not hidden by compute {units.format_time(exposed)} ({share})")
    return Fact(label="Bottleneck", parts=tuple(parts), num_first=1)


def memory(best: Candidate) -> Fact:
    """The fullest rank with its capacity, and the fullest host if a table is in host memory."""
    rank = best.memory.fullest
    used, capacity = format_gib(rank.used_bytes), format_gib(rank.capacity_bytes)
    reserve = format_gib(rank.reserved_bytes)
    parts = [f"fullest rank {rank.rank}: {used} of {capacity} GiB, {reserve} GiB of it in reserve"]
    hosts = [h for h in best.memory.hosts if h.used_bytes > 0]
    if hosts:
        host = max(hosts, key=lambda h: h.used_bytes / h.capacity_bytes)
        used, capacity = format_gib(host.used_bytes), format_gib(host.capacity_bytes)
        parts.append(f"host {host.host}: {used} of {capacity} GiB")
    if not best.memory.fits:
        parts.append("DOES NOT FIT")
    return Fact(label="Memory", parts=tuple(parts))


def kinds(best: Candidate) -> Fact:
    """How many tables are cut in which way, and with which kernels."""
    if not best.plan.placements:
        return Fact(label="Sharding", parts=("no tables",), num_first=0)
    kernels = ", ".join(figures.kernel_kinds(best.plan))
    parts = (*figures.kinds_in_words(best.plan), f"kernels: {kernels}")
    return Fact(label="Sharding", parts=parts, num_first=0)


def inputs(best: Candidate) -> Fact:
    """How many numbers of the system come from each kind of source, the strongest first."""
    counts = Counter(p.source for p in best.estimate.provenance)
    parts = [f"{counts[source]} {source.value}" for source in Source if counts[source]]
    weakest = f"weakest input: {best.estimate.time.source.value}"
    return Fact(label="Inputs", parts=(*parts, weakest), num_first=0)


def warnings(*groups: tuple[str, ...]) -> tuple[str, ...]:
    """All warnings, each once."""
    unique = dict.fromkeys(printable(text) for group in groups for text in group)
    return tuple(f"warning: {text}" for text in unique)


def baselines(result: PlanningResult, others: tuple[Candidate, ...]) -> Fact:
    ratios = [f"{format_factor(figures.speedup(result.best, b))} over {b.name}" for b in others]
    names = [printable(name) for name in result.unfit_baselines]
    one = len(names) == 1
    words = "does not fit" if one else "do not fit"
    if figures.has_unknown_rules(result):
        words += " or breaks a constraint" if one else " or break a constraint"
    unfit = [f"{', '.join(names)} {words}"] if names else []
    return Fact(label="Speed-up", parts=(*ratios, *unfit), num_first=0)


_WORTH_EXPLAINING = 0.03
_FEW_SHARDS = 8.0


def _few_shards(plan: Plan) -> str | None:
    """Words on how many placed shards a rank has, if they are so few that bounds prove little.

    ``benchmarks.search.blame`` and ``benchmarks.search.additive`` show that plans in such cases
    hardly improve with more time, while bounds balance the phases better than whole shards can.
    """
    ranks = Counter(
        rank for p in plan.placements if SPREAD[p.sharding_type] is not Spread.UNIFORM
        for rank in p.ranks
    )  # fmt: skip
    if not ranks or (mean := ranks.total() / len(ranks)) >= _FEW_SHARDS:
        return None
    return f"only {mean:.1f} shards per rank to place: with so few, the bound is weak"


def solver_line(solver: SolverReport, plan: Plan) -> Fact:
    gap = solver.gap_ratio
    proof = "no bound" if gap is None else f"gap {format_gap(gap)}"
    parts = figures.gap_parts(solver)
    proof += f" ({'; '.join(f'{format_gap(r)} {name}' for r, name in parts)})" if parts else ""
    wide = gap is not None and gap - solver.unseen_gap_ratio >= _WORTH_EXPLAINING
    reason = _few_shards(plan) if wide else None
    status = STATUS_WORDS[solver.status]
    return Fact(
        label="Solver",
        parts=(
            f"{solver.strategy}: {status}, {proof}, {solver.seconds:.1f} s",
            f"{counted(solver.evaluations, 'plan')} priced{_other_work(solver)}",
            f"seed {solver.seed}",
            *([] if reason is None else [reason]),
        ),
        num_first=0,
    )


def _other_work(solver: SolverReport) -> str:
    """The work of the search that was not pricing, such as bounds, counted in priced plans."""
    other = solver.work - solver.evaluations
    return f", and other work that counts as {other:,} more" if other > 0 else ""
