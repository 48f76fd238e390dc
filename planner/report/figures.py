"""Figures that several sections share: shares of tables and stages, and short names."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Final

from costmodels.estimates import IterationEstimate
from costmodels.sharding import Plan, ShardingType, TablePlacement
from costmodels.topology import Topology
from planner.objectives import objective_class, objective_names
from planner.report.base import Cell, Column, Kind
from planner.result import TORCHREC_BASELINE, Candidate, PlanningResult, ScenarioTime, SolverReport
from planner.scenarios import ScenarioRule

SHORT_NAMES: dict[ShardingType, str] = {
    ShardingType.TABLE_WISE: "TW",
    ShardingType.ROW_WISE: "RW",
    ShardingType.COLUMN_WISE: "CW",
    ShardingType.DATA_PARALLEL: "DP",
    ShardingType.TABLE_ROW_WISE: "TWRW",
    ShardingType.TABLE_COLUMN_WISE: "TWCW",
    ShardingType.GRID_SHARD: "GRID",
}
"""TorchRec's abbreviations of its sharding types."""

_IN_WORDS: dict[ShardingType, str] = {
    ShardingType.TABLE_WISE: "whole on one rank",
    ShardingType.ROW_WISE: "cut by rows over all ranks",
    ShardingType.COLUMN_WISE: "cut by columns",
    ShardingType.DATA_PARALLEL: "copied to every rank",
    ShardingType.TABLE_ROW_WISE: "cut by rows inside one host",
    ShardingType.TABLE_COLUMN_WISE: "cut by columns inside one host",
    ShardingType.GRID_SHARD: "cut by columns, each piece by rows inside one host",
}
"""What each sharding type does with a table."""

_BY_COLUMNS = (ShardingType.COLUMN_WISE, ShardingType.TABLE_COLUMN_WISE)


def shown_type(placement: TablePlacement) -> ShardingType:
    """The sharding type that describes a placement: with one column piece, a table is whole.

    TorchRec still runs such a table under the type that the plan names.
    """
    if placement.sharding_type in _BY_COLUMNS and len(placement.shards) == 1:
        return ShardingType.TABLE_WISE
    return placement.sharding_type


def short_name(placement: TablePlacement) -> str:
    """TorchRec's abbreviation of :func:`shown_type`: ``TW``."""
    return SHORT_NAMES[shown_type(placement)]


def sharding_kinds(plan: Plan) -> tuple[str, ...]:
    """How many tables are cut in which way, for cells: ``("TW 11", "RW 3")``."""
    return tuple(f"{SHORT_NAMES[kind]} {count}" for kind, count in _counts(plan).items())


def kinds_in_words(plan: Plan) -> tuple[str, ...]:
    """The same in words for people, such as ``11 tables whole on one rank (TW)``.

    Only the first part has the word "tables".
    """
    found = [(n, f"{_IN_WORDS[kind]} ({SHORT_NAMES[kind]})") for kind, n in _counts(plan).items()]
    return tuple(
        f"{count:,} {'' if i else 'table ' if count == 1 else 'tables '}{words}"
        for i, (count, words) in enumerate(found)
    )


def abbreviations(plans: Iterable[Plan]) -> str:
    """Explains the abbreviations of the sharding types in these plans; empty without a table."""
    used = {kind for plan in plans for kind in _counts(plan)}
    words = [f"{SHORT_NAMES[kind]}: {_IN_WORDS[kind]}" for kind in SHORT_NAMES if kind in used]
    return f"{'; '.join(words)}." if words else ""


def _counts(plan: Plan) -> dict[ShardingType, int]:
    """How many tables each shown type has, in the order of SHORT_NAMES; without zeros."""
    types = Counter(shown_type(p) for p in plan.placements)
    return {kind: types[kind] for kind in SHORT_NAMES if types[kind]}


PLAN_CELLS: Final[tuple[tuple[Column, Callable[[Candidate], Cell]], ...]] = (
    (Column("iteration", Kind.TIME), lambda p: p.estimate.time.time_s),
    (Column("samples", Kind.RATE), lambda p: p.estimate.samples_per_s),
    (Column("exposed", Kind.TIME, optional=True), lambda p: p.estimate.exposed_communication_s),
    (Column("fullest GiB", Kind.GIB, optional=True), lambda p: p.memory.fullest.used_bytes),
    (Column("worst/mean", Kind.FACTOR, optional=True), lambda p: p.estimate.imbalance_ratio),
    (Column("sharding"), lambda p: ", ".join(sharding_kinds(p.plan))),
)
"""What tables of plans say of each plan, after its name."""


def kernel_kinds(plan: Plan) -> tuple[str, ...]:
    """How many tables run with which compute kernel: ``("fused 14", "dense 2")``."""
    kernels = Counter(p.kernel.value for p in plan.placements)
    return tuple(f"{name} {count}" for name, count in kernels.most_common())


def merged_name(stage: str) -> str:
    """The name of a stage without the number of a gradient bucket; buckets are shown together."""
    return re.sub(r"( \d+/\d+| \d+)$", "", stage)


def path_shares(estimate: IterationEstimate) -> list[tuple[str, float]]:
    """Share (0..1) of the iteration that each stage takes on the critical path, largest first."""
    seconds = path_seconds(estimate, merged_name)
    total = estimate.time.time_s or 1.0
    return sorted(((s, t / total) for s, t in seconds.items()), key=lambda item: -item[1])


def path_seconds(estimate: IterationEstimate, name_of: Callable[[str], str]) -> dict[str, float]:
    """Seconds that the critical path spends in the stages that have one name."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for step in estimate.critical_path:
        seconds[name_of(step.stage)] += step.duration_s
    return seconds


def worst_scenario(result: PlanningResult) -> ScenarioTime | None:
    """The slowest scenario, if the search minimised the slowest one; otherwise None."""
    if not result.scenarios or not result.solver.objective.startswith(ScenarioRule.WORST):
        return None
    return max(result.scenarios, key=lambda s: s.time_s)


def bottleneck_rank(estimate: IterationEstimate) -> int:
    """The rank with most of the time on the critical path; the first one in a tie."""
    seconds: defaultdict[int, float] = defaultdict(float)
    for step in estimate.critical_path:
        seconds[step.rank] += step.duration_s
    if not seconds:
        return estimate.slowest_rank
    return min(seconds, key=lambda rank: (-seconds[rank], rank))


def speedup(best: Candidate, other: Candidate) -> float:
    """Iteration time of ``other`` divided by that of ``best``."""
    mine = best.estimate.time.time_s
    return other.estimate.time.time_s / mine if mine > 0 else 1.0


def split_baselines(result: PlanningResult) -> tuple[Candidate | None, tuple[Candidate, ...]]:
    """The plan of TorchRec's own planner, if it is among the baselines, and the others."""
    incumbent = next((b for b in result.baselines if b.name == TORCHREC_BASELINE), None)
    return incumbent, tuple(b for b in result.baselines if b is not incumbent)


def has_unknown_rules(result: PlanningResult) -> bool:
    """Whether the problem has rules that TorchRec's planner does not know.

    A plan in use is not such a rule if there is no limit on what moves.
    """
    rules, moves = result.problem.constraints, result.problem.move_limit
    tied = any(rule.ranks or rule.hosts for rule in rules.tables)
    limited = moves is not None and (moves.max_bytes, moves.max_tables) != (None, None)
    return tied or limited or bool(rules.together or rules.apart or rules.counts)


def named_plans(result: PlanningResult) -> list[tuple[str, str, Candidate]]:
    """(name, role, plan) of every priced plan, best first; plans of one strategy are numbered."""
    found = [("chosen", result.best)]
    found += [("runner-up", plan) for plan in result.runners_up]
    found += [("baseline", plan) for plan in result.baselines]
    seen: Counter[str] = Counter()
    named = []
    for role, plan in found:
        seen[plan.name] += 1
        count = seen[plan.name]
        named.append((plan.name if count == 1 else f"{plan.name} {count}", role, plan))
    return named


def cluster(topology: Topology) -> str:
    """The cluster in a few words: ``16 x h100_sxm (2 hosts x 8)``."""
    shape = f"{topology.num_hosts} hosts x {topology.local_world_size}"
    where = "1 host" if topology.num_hosts == 1 else shape
    words = f"{topology.world_size} x {topology.name} ({where})"
    if topology.whole is not None:
        words += f", one group of {topology.whole.world_size} ranks"
    if topology.fitted is not None:
        words += ", fitted to measured runs"
    return words


def rank_ranges(ranks: list[int]) -> str:
    """Sorted ranks as ranges: ``0-3, 8``."""
    parts: list[tuple[int, int]] = []
    for rank in sorted(set(ranks)):
        if parts and rank == parts[-1][1] + 1:
            parts[-1] = (parts[-1][0], rank)
        else:
            parts.append((rank, rank))
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


_MOST_RANGES = 6


def where(ranks: list[int]) -> str:
    """Ranks as ranges, ``0-7, 12``, or how many where the ranges are many."""
    ranges = rank_ranges(ranks)
    return ranges if ranges.count(",") < _MOST_RANGES else f"{len(set(ranks))} ranks"


_WORTH_TELLING = 1e-3
_UNSEEN = "kernel launches and overlap, which the bound does not count"
_UNEVEN = "work spread unevenly over ranks"
_DEARER = "tables cut in ways that cost more than those of the bound"


def gap_parts(solver: SolverReport) -> list[tuple[float, str]]:
    """The parts of a gap, as shares of the value, without those too small to mention."""
    gap, uneven = solver.gap_ratio, solver.uneven_gap_ratio
    parts = [(solver.unseen_gap_ratio, _UNSEEN)]
    if gap is not None and uneven is not None:
        parts.append((uneven, _UNEVEN))
        rest = gap - uneven - solver.unseen_gap_ratio
        parts.append((rest, _DEARER))
    return [(ratio, words) for ratio, words in parts if ratio >= _WORTH_TELLING]


def plain_objective(name: str) -> str:
    """The name of an objective without a word on scenarios, such as ``worst iteration``."""
    return name.rpartition(" ")[2]


def is_of_speed(name: str) -> bool:
    """Whether a shorter iteration makes an objective smaller, as it does for a time."""
    return objective_kind(name)[0] is Kind.TIME


def objective_kind(name: str) -> tuple[Kind, str]:
    """How values of an objective are written, and their unit."""
    plain = plain_objective(name)
    unit = objective_class(plain).unit if plain in objective_names() else ""
    return Kind.TIME if unit == "s" else Kind.NUMBER, unit
