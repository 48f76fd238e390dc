"""The headline: what was planned, how fast it will be, what holds it back, how good it is."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar, final

import costmodels
from costmodels import units
from costmodels.estimates import Source
from costmodels.sharding import SPREAD, Plan, Spread
from costmodels.workload import Workload
from planner.printable import printable
from planner.report import _extras as extras
from planner.report import _figures as figures
from planner.report.base import (
    AbstractReportSection,
    Fact,
    Section,
    format_factor,
    format_gib,
    format_interval,
    format_share,
)
from planner.result import Candidate, PlanningResult, SolverReport
from planner.status import STATUS_WORDS

_TOP_STAGES = 3


@final
class SummarySection(AbstractReportSection):
    """The lines that the plan command prints."""

    title: ClassVar[str] = "Summary"
    order: ClassVar[int] = 10

    def build(self, result: PlanningResult) -> Section:
        """Facts only; warnings come as notes."""
        incumbent, others = figures.split_baselines(result)
        facts = [
            headline(result.problem.workload, figures.cluster(result.problem.topology)),
            predicted(result.best, incumbent),
            _baselines(result, others),
            bottleneck(result.best),
            memory(result.best),
            extras.cost(result),
            extras.move(result),
            extras.scenarios(result),
            _solver(result.solver, result.best.plan),
            Fact(label="Searched", parts=result.searched),
            kinds(result.best),
            inputs(result.best),
        ]
        return Section(
            title=self.title,
            facts=tuple(fact for fact in facts if fact.parts),
            notes=warnings(result.warnings, result.estimate.warnings),
        )


def headline(workload: Workload, cluster: str) -> Fact:
    """Program, workload and cluster."""
    dtypes = Counter(t.dtype.value for t in workload.tables)
    names = "/".join(name for name, _ in dtypes.most_common())
    size = units.format_bytes(workload.weight_bytes)
    tables = "1 table" if len(workload.tables) == 1 else f"{len(workload.tables):,} tables"
    return Fact(
        label=f"shardplan {'.'.join(costmodels.__version__.split('.')[:2])}",
        parts=(
            f"{tables}, {size} {names}",
            printable(cluster),
            f"batch {workload.local_batch_size:,}/rank",
        ),
    )


def predicted(best: Candidate, incumbent: Candidate | None) -> Fact:
    """Iteration time with its 90 % interval, throughput, and the ratio to TorchRec's plan."""
    estimate = best.estimate
    time, interval = format_interval(
        estimate.time.time_s, estimate.time.low_s, estimate.time.high_s
    )
    parts = [f"{time}/iter {interval}", f"{units.format_count(estimate.samples_per_s)} samples/s"]
    if incumbent is not None:
        ratio = format_factor(figures.speedup(best, incumbent))
        parts.append(f"{ratio} as fast as TorchRec's greedy plan (same model)")
    return Fact(label="Predicted", parts=tuple(parts))


def bottleneck(best: Candidate) -> Fact:
    """Slowest rank, the stages that fill the critical path, and exposed communication."""
    estimate = best.estimate
    top = figures.path_shares(estimate)[:_TOP_STAGES]
    shares = ", ".join(f"{stage} {format_share(share)}" for stage, share in top)
    parts = [
        f"rank {estimate.slowest_rank}: {shares}" if shares else f"rank {estimate.slowest_rank}"
    ]
    parts.append(f"worst/mean rank {estimate.imbalance_ratio:.2f}")
    exposed = estimate.exposed_communication_s
    share = format_share(exposed / estimate.time.time_s) if estimate.time.time_s > 0 else "-"
    parts.append(f"exposed communication {units.format_time(exposed)} ({share})")
    return Fact(label="Bottleneck", parts=tuple(parts))


def memory(best: Candidate) -> Fact:
    """The fullest rank against its capacity, and the fullest host if any table lives there."""
    rank = best.memory.fullest
    used, capacity = format_gib(rank.used_bytes), format_gib(rank.capacity_bytes)
    reserve = format_gib(rank.reserved_bytes)
    parts = [f"fullest rank {rank.rank}: {used} of {capacity} GiB (reserve {reserve})"]
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
        return Fact(label="Kinds", parts=("no tables",))
    kernels = ", ".join(figures.kernel_kinds(best.plan))
    return Fact(label="Kinds", parts=(*figures.sharding_kinds(best.plan), f"kernels: {kernels}"))


def inputs(best: Candidate) -> Fact:
    """How many input numbers come from which kind of source, strongest first."""
    counts = Counter(p.source for p in best.estimate.provenance)
    parts = [f"{counts[source]} {source.value}" for source in Source if counts[source]]
    weakest = f"the estimate rests on: {best.estimate.time.source.value}"
    return Fact(label="Inputs", parts=(*parts, weakest) if parts else (weakest,))


def warnings(*groups: tuple[str, ...]) -> tuple[str, ...]:
    """Warnings of the search and of the estimate, each once."""
    unique = dict.fromkeys(printable(text) for group in groups for text in group)
    return tuple(f"warning: {text}" for text in unique)


def _baselines(result: PlanningResult, others: tuple[Candidate, ...]) -> Fact:
    ratios = [f"{format_factor(figures.speedup(result.best, b))} over {b.name}" for b in others]
    words = "does not fit"
    words += " or breaks a constraint" if result.problem.has_rules else ""
    unfit = [f"{printable(name)} {words}" for name in result.unfit_baselines]
    return Fact(label="Speed-up", parts=(*ratios, *unfit))


_WORTH_TELLING = 1e-3


_WORTH_EXPLAINING = 0.03
_FEW_SHARDS = 8.0


def _few_shards(plan: Plan) -> str | None:
    """How many shards with a place of their own a rank holds, if so few that bounds prove little.

    ``benchmarks.search.blame`` and ``benchmarks.search.additive`` show that plans in such cases
    hardly improve with more time, while bounds balance the phases better than whole shards can.
    """
    ranks = Counter(
        rank for p in plan.placements if SPREAD[p.sharding_type] is not Spread.UNIFORM
        for rank in p.ranks
    )  # fmt: skip
    if not ranks or (mean := ranks.total() / len(ranks)) >= _FEW_SHARDS:
        return None
    return f"{mean:.1f} placed shards per rank: with so few the bound proves less"


def _solver(solver: SolverReport, plan: Plan) -> Fact:
    gap = solver.gap_ratio
    proof = "no bound" if gap is None else f"gap {_format_gap(gap)}"
    parts = [(r, name) for r, name in figures.gap_parts(solver) if r >= _WORTH_TELLING]
    proof += f" ({'; '.join(f'{_format_gap(r)} {name}' for r, name in parts)})" if parts else ""
    wide = gap is not None and gap - solver.unseen_gap_ratio >= _WORTH_EXPLAINING
    reason = _few_shards(plan) if wide else None
    status = STATUS_WORDS[solver.status]
    return Fact(
        label="Solver",
        parts=(
            f"{solver.strategy}: {status}, {proof}, {solver.seconds:.1f} s",
            f"{solver.evaluations:,} plans priced{_other_work(solver)}",
            f"seed {solver.seed}",
            *([] if reason is None else [reason]),
        ),
    )


def _other_work(solver: SolverReport) -> str:
    """What the search did besides pricing: pivots of bounds and moves, counted in priced plans."""
    other = solver.work - solver.evaluations
    return f", and other work worth {other:,} more" if other > 0 else ""


def _format_gap(gap_ratio: float) -> str:
    percent = 100 * gap_ratio
    return f"{percent:.2g} %" if percent >= 0.01 else "0 %"
