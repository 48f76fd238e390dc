"""The summary: time, throughput, the bottleneck, and how good the plan is proven to be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, final

from markupsafe import Markup

import costmodels
from costmodels import units
from costmodels.estimates import Source
from costmodels.pipeline import CostPipeline
from costmodels.uncertainty import host_is_assumed
from costmodels.workload import Workload
from planner.models import pipeline_of
from planner.problem import NO_CONSTRAINTS
from planner.report import base, figures
from planner.report.base import Fact, Kind, Section
from planner.report.page import block
from planner.report.sections.base import AbstractReportSection
from planner.result import OPTIMAL_GAP, TORCHREC_BASELINE, Assumed, Candidate, PlanningResult
from planner.support.text import counted, format_gap, printable, significant


@final
class SummarySection(AbstractReportSection, order=10, title="Summary"):
    """The lines that the plan command prints; the page has a verdict and six figures above them."""

    def build(self, result: PlanningResult) -> Section:
        """Facts only; warnings come as notes."""
        facts = [_headline(result.problem.workload, figures.cluster(result.problem.topology))]
        facts += [Fact(label, tuple(make(result)), first) for label, first, make in _LINES]
        warnings = dict.fromkeys((*result.warnings, *result.estimate.warnings))
        return Section(
            title=self.title,
            facts=tuple(fact for fact in facts if fact.parts),
            notes=tuple(f"warning: {printable(text)}" for text in warnings),
        )

    def draw(self, result: PlanningResult) -> Markup:
        """The verdict, the figures, and the lines; the advice may compare with TorchRec's plan."""
        summary, pipeline = self.build(result), pipeline_of(result.problem)
        rival = rival_of(result, pipeline)
        told = {fact.label: fact.parts for fact in summary.facts}
        sure = 0.0 if rival is None else pipeline.confidence_faster(result.plan, rival.plan)
        advised = advice(result, rival, sure)
        compared = advised and rival and rival.name == TORCHREC_BASELINE
        proof = told["Verdict"][-1:] if compared else told["Verdict"]
        shown = (proof, told.get("Scenarios", ()))
        time, solver = result.estimate.time, result.solver
        _, interval = base.format_interval(time.time_s, time.low_s, time.high_s)
        low, high = interval.strip("[]").split(" .. ")
        kind = figures.objective_kind(solver.objective)
        return block(
            "summary",
            advice=advised,
            verdict=["; ".join(parts) for parts in shown if parts],
            r=result,
            spread=f"{low} to {high}",
            ended=f"{solver.status.words} after {solver.seconds:.1f} s",
            bound="unproven" if solver.bound is None else base.format_cell(kind, solver.bound),
            notes=summary.notes,
            pairs=[(fact.label, "; ".join(fact.parts)) for fact in summary.facts[1:]],
        )


# ------------------------------------------------------------------ the advice

IN_USE: Final = "the plan in use"
_WORTH: Final = 0.02
_SURE: Final = {
    0.9: "Recommended: take this plan.",
    0.6: "This plan is probably better.",
    0.0: "This plan may be better; measure both.",
}
_REASON_SHARE: Final = 0.2


def rival_of(result: PlanningResult, pipeline: CostPipeline) -> Candidate | None:
    """The plan to compare with: that in use, or TorchRec's own, or the fastest baseline."""
    limit = result.problem.move_limit
    if limit is not None:
        return Candidate.of(IN_USE, limit.start, pipeline)
    incumbent, others = figures.split_baselines(result)
    return incumbent or min(others, key=lambda b: b.estimate.time.time_s, default=None)


def advice(result: PlanningResult, rival: Candidate | None, sure: float) -> str:
    """A sentence on what to do.

    Args:
        result: the planning result.
        rival: the plan to compare with, if there is one.
        sure: probability that the best plan is faster than the rival, 0..1.
    """
    if not result.best.memory.fits:
        return "Do not run this plan: it does not fit in memory."
    if rival is None:
        return ""
    who = {IN_USE: IN_USE, TORCHREC_BASELINE: "TorchRec's own plan"}.get(rival.name)
    who = who or f"the plan of {rival.name}"
    gain = figures.speedup(result.best, rival) - 1.0
    if not rival.memory.fits:
        return f"Recommended: take this plan. Of the two, {who} does not fit in memory."
    if abs(gain) < _WORTH:
        return f"Either plan will do: this one takes about as long as {who}."
    if gain < 0:
        objective, problem = result.solver.objective, result.problem
        shorter = f"the iteration of {who} is {base.format_share(-gain)} shorter"
        if figures.objective_kind(objective) is not Kind.TIME:
            return f"This plan was searched for objective {objective}: {shorter}."
        if rival.name == IN_USE:
            return f"Recommended: keep the plan in use; {shorter}."
        rules = problem.has_rules or problem.constraints != NO_CONSTRAINTS
        unheld = ", if it keeps your rules: it was not held to them" if rules else ""
        return f"Recommended: take {who} instead; {shorter}{unheld}."
    word = next(words for least, words in _SURE.items() if sure >= least)
    move, moved = result.reshard, ""
    if move is not None and move.payback_s is not None:
        paid = units.format_long_time(move.payback_s)
        moved = f" The move takes {units.format_time(move.time_s)} and is paid back after {paid}."
    factor, chance = base.format_factor(1.0 + gain), base.format_confidence(sure)
    return (
        f"{word} It is {factor} as fast as {who}{_reason(result.best, rival)}, and it is the "
        f"faster one with a probability of {chance} under the errors of the models and of their "
        f"inputs.{moved}"
    )


def _reason(best: Candidate, rival: Candidate) -> str:
    """Words on the family of stages that the plan shortens most on the critical path."""
    ours, theirs = (figures.family_seconds(c.estimate) for c in (best, rival))
    saved = {name: s - ours.get(name, 0.0) for name, s in theirs.items()}
    name = max(saved, key=saved.__getitem__, default="")
    gained_s = rival.estimate.time.time_s - best.estimate.time.time_s
    if not name or saved[name] < _REASON_SHARE * gained_s:
        return ""
    words = f"{units.format_time(saved[name])} less {figures.FAMILIES[name]}"
    return f", mainly since its critical path has {words}"


# ------------------------------------------------------------------ the lines

_TOP_STAGES = 2
_WORTH_TELLING = 1e-3


def _headline(workload: Workload, cluster: str) -> Fact:
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


def _verdict(result: PlanningResult) -> list[str]:
    """Whether the plan fits, its ratio to TorchRec's own plan, and how good it is proven to be.

    The ratio compares both plans under the workload itself, not under a scenario.
    """
    best, solver = result.best, result.solver
    parts = [] if best.memory.fits else ["DO NOT RUN THIS PLAN: it does not fit in memory"]
    incumbent, _ = figures.split_baselines(result)
    if incumbent is not None:
        ratio = base.format_factor(figures.speedup(best, incumbent))
        unheld = "; it need not keep limits on ranks, groups, counts or moves"
        free = unheld if figures.has_unknown_rules(result) else ""
        first = "" if not result.scenarios else " in the first scenario"
        parts.append(f"{ratio} as fast as TorchRec's own plan{first} (same cost model{free})")
    gap, objective = solver.gap_ratio, figures.plain_objective(solver.objective)
    of = "" if objective == "iteration" else f" by objective {objective}"
    status = solver.status.words
    if gap is None:
        parts.append(f"{status}, no bound: a better plan may exist")
    elif gap < OPTIMAL_GAP:
        parts.append(f"{status}, gap {format_gap(gap)}: no plan in the search space is better{of}")
    else:
        more = f"no plan in the search space is better by more{of}"
        parts.append(f"{status}, gap {format_gap(gap)}: {more}")
    return parts


def _predicted(result: PlanningResult) -> list[str]:
    """Iteration time with its 90 % interval and what widens it, and throughput.

    With scenarios it is the time in that for which the plan was made.
    """
    estimate, worst = result.estimate, figures.worst_scenario(result)
    span = worst or estimate.time
    time, interval = base.format_interval(span.time_s, span.low_s, span.high_s)
    rate = worst.samples_per_s if worst else estimate.samples_per_s
    parts = [f"{time}/iter {interval}", f"{units.format_count(rate)} samples/s"]
    if worst is not None:
        parts.append(printable(f"in {worst.name}, the slowest scenario"))
    kind = pipeline_of(result.problem).least_certain_kind(result.plan)
    unmeasured = kind == "host" and host_is_assumed(result.problem.topology)
    why = ", which was not measured" if unmeasured else ""
    return [*parts, f"90 % interval; least certain is {figures.WORDS['doubts'][kind]}{why}"]


def _bottleneck(result: PlanningResult) -> list[str]:
    """The rank with most of the critical path, the stages of that path, exposed communication."""
    estimate = result.estimate
    top = figures.path_shares(estimate)[:_TOP_STAGES]
    shares = ", ".join(f"{stage} {base.format_share(share)}" for stage, share in top)
    rank = f"rank {figures.bottleneck_rank(estimate)}"
    parts = [f"critical path, mostly on {rank}: {shares}"] if shares else []
    uneven = f"{estimate.imbalance_ratio:.2f}x the mean of ranks"
    parts.append(f"rank {estimate.slowest_rank} computes longest, {uneven}")
    exposed = estimate.exposed_communication_s
    share = base.format_share(exposed / estimate.time.time_s) if estimate.time.time_s > 0 else "-"
    parts.append(f"communication not hidden by compute {units.format_time(exposed)} ({share})")
    return parts


def _memory(result: PlanningResult) -> list[str]:
    """The fullest rank with its capacity, and the fullest host if a table is in host memory."""
    best = result.best
    rank = best.memory.fullest
    used, capacity = base.format_gib(rank.used_bytes), base.format_gib(rank.capacity_bytes)
    reserve = base.format_gib(rank.reserved_bytes)
    parts = [f"fullest rank {rank.rank}: {used} of {capacity} GiB, {reserve} GiB of it in reserve"]
    parts += figures.fullest_hosts(best.memory)[:1]
    return parts if best.memory.fits else [*parts, "DOES NOT FIT"]


def _kinds(result: PlanningResult) -> tuple[str, ...]:
    """How many tables are cut in which way, and with which kernels."""
    if not result.plan.placements:
        return ("no tables",)
    kernels = Counter(p.kernel.value for p in result.plan.placements).most_common()
    told = ", ".join(f"{name} {count}" for name, count in kernels)
    return (*figures.kinds_in_words(result.plan), f"kernels: {told}")


def _inputs(result: PlanningResult) -> list[str]:
    """How many numbers of the system come from each kind of source, the strongest first."""
    counts = Counter(p.source for p in result.problem.topology.provenance)
    parts = [f"{counts[source]} {source.value}" for source in Source if counts[source]]
    return [*parts, f"weakest input: {result.estimate.time.source.value}"]


def _baselines(result: PlanningResult) -> list[str]:
    """How fast the plan is beside baselines, and which baselines found none."""
    _, others = figures.split_baselines(result)
    ratios = [
        f"{base.format_factor(figures.speedup(result.best, b))} over {b.name}" for b in others
    ]
    return [*ratios, *figures.unfit_baselines(result)]


def _search(result: PlanningResult) -> list[str]:
    """How the search ended, what its gap is made of, and what it did."""
    solver = result.solver
    gap, other = solver.gap_ratio, solver.work - solver.evaluations
    uneven, unseen = solver.uneven_gap_ratio, solver.unseen_gap_ratio
    proof = "no bound" if gap is None else f"gap {format_gap(gap)}"
    shares = {"kernel launches and overlap, which the bound does not count": unseen}
    if gap is not None and uneven is not None:
        shares["work spread unevenly over ranks"] = uneven
        rest = gap - uneven - unseen
        shares["tables cut in ways that cost more than those of the bound"] = rest
    told = (f"{format_gap(r)} {name}" for name, r in shares.items() if r >= _WORTH_TELLING)
    parts = "; ".join(told)
    proof += f" ({parts})" if parts else ""
    more = f", and other work that counts as {other:,} more" if other > 0 else ""
    return [
        f"{solver.strategy}: {solver.status.words}, {proof}, {solver.seconds:.1f} s",
        f"{counted(solver.evaluations, 'plan')} priced{more}",
        f"seed {solver.seed}",
    ]


# ------------------------------------------------------------------ lines of some results

_MOST_SCENARIOS = 5
_MOST_ASSUMED = 3


def _cost(result: PlanningResult) -> tuple[str, ...]:
    """Dollars per billion samples, and the source of the price."""
    usd, topology = result.usd_per_billion_samples, result.problem.topology
    price = topology.price_per_device_usd_per_hour
    if usd is None or price is None:
        return ()
    origin = next((p for p in topology.provenance if p.name == "price"), None)
    words = [] if origin is None else [origin.source.value, origin.reference]
    source = f" ({', '.join(w for w in words if w)})" if any(words) else ""
    kind = "GPU" if topology.compute_device == "cuda" else "CPU rank"
    paid = f"{counted(topology.trainers.world_size, kind)} at {significant(price, 6)} USD/h"
    return (f"{significant(usd)} USD per billion samples", printable(f"{paid}{source}"))


def _checkpoints(result: PlanningResult) -> tuple[str, ...]:
    """How often to write checkpoints, by Young and Daly, where hosts fail."""
    every_s = result.checkpoint_interval_s
    if every_s is None:
        return ()
    return (f"every {units.format_long_time(every_s)} loses the least time (Young and Daly)",)


def move(result: PlanningResult) -> list[str]:
    """What moves away from the plan in use, how long that takes, and when it pays back."""
    reshard = result.reshard
    if reshard is None:
        return []
    if not reshard.moved_tables and not reshard.recut_tables:
        return ["none: stay with the plan in use, no move pays"]
    moved, most = map(units.format_bytes, (reshard.moved_bytes, reshard.most_received_bytes))
    tables = f"{reshard.moved_tables} of {len(result.problem.workload.tables)} tables"
    parts = [f"{tables}, {moved}, at most {most} to one rank"]
    if reshard.recut_tables:
        recut = f"{reshard.recut_tables} more change in place"
        parts.append(f"{recut}: no rank receives any of them")
    parts.append(f"{units.format_time(reshard.time_s)} once")
    if reshard.payback_iterations is None:
        return [*parts, "not faster than the plan in use"]
    gain = base.format_share(reshard.saved_s / reshard.before_s) if reshard.before_s > 0 else "-"
    verdict = "it pays" if reshard.pays else "it does not pay"
    paid = f"paid back after {reshard.payback_iterations:,} iterations"
    return [*parts, f"saves {gain} of each iteration: {verdict}, {paid}"]


def assumed_words(assumed: Sequence[Assumed], ours_s: float | None) -> tuple[str, ...]:
    """How many values were assumed, and the one that moves the step most, but for the batch.

    Args:
        assumed: the values that a workload file left open.
        ours_s: the step with these values; None if there is no plan, and so no step.
    """
    if not assumed:
        return ()
    words = counted(len(assumed), "value")
    if ours_s is None:
        shown = ", ".join(f"{a.what} {a.value}{_tables(a)}" for a in assumed[:_MOST_ASSUMED])
        more = len(assumed) - _MOST_ASSUMED
        return (f"{words}: {shown}" + (f", and {more} more" if more > 0 else ""),)
    moves = [
        (abs(a.time_s - ours_s), a.time_s, a)
        for a in assumed
        if a.time_s is not None and a.key != "training.batch_size_per_rank"
    ]
    if moves:
        _, time_s, most = max(moves, key=lambda found: found[0])
        told = f"{most.what} {most.value}{_tables(most)}"
        words += f", chiefly {told}: {units.format_time(time_s)} with {most.other}"
    return (words,)


def _tables(assumed: Assumed) -> str:
    return f" of {counted(assumed.num_tables, 'table')}" if assumed.num_tables else ""


def _scenarios(result: PlanningResult) -> list[str]:
    """The iteration time in each scenario, slowest first, and what the other lines refer to."""
    ordered = sorted(result.scenarios, key=lambda s: (-s.time_s, s.name))
    shown = [f"{printable(s.name)} {units.format_time(s.time_s)}" for s in ordered]
    if len(shown) > _MOST_SCENARIOS:
        shown = [*shown[:_MOST_SCENARIOS], f"and {len(shown) - _MOST_SCENARIOS} faster ones"]
    if shown:
        first = printable(result.scenarios[0].name)
        shown.append(f"speed-up, bottleneck and cost are about {first}; memory holds all of them")
    return shown


_LINES: Final[tuple[tuple[str, int | None, Callable[[PlanningResult], Sequence[str]]], ...]] = (
    ("Verdict", None, _verdict),
    ("Predicted", None, _predicted),
    ("Bottleneck", 1, _bottleneck),
    ("Memory", None, _memory),
    ("Cost", None, _cost),
    ("Move", None, move),
    ("Checkpoints", None, _checkpoints),
    ("Scenarios", None, _scenarios),
    ("Assumed", None, lambda result: assumed_words(result.assumed, result.estimate.time.time_s)),
    ("Speed-up", 0, _baselines),
    ("Solver", 0, _search),
    ("Searched", 0, lambda result: result.searched),
    ("Sharding", 0, _kinds),
    ("Inputs", 0, _inputs),
)
"""Each line after the first: its label, how many of its parts the first screen shows (None for
all), and what makes them."""
