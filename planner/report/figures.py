"""Figures that several sections share: shares of tables and stages, and short names."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import groupby
from typing import Any, Final

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.dense.base import dense_parameters
from costmodels.estimates import CriticalStep, IterationEstimate, MemoryLedger
from costmodels.pipeline import CostPipeline
from costmodels.shard_work.work import CALLS, INPUT, OUTPUT, REPLICATED
from costmodels.sharding import Plan, ShardingType, TablePlacement
from costmodels.topology import Topology
from planner.io.documents import read_words
from planner.objectives import objective_class, objective_names
from planner.report.base import Cell, Column, Kind, format_gib
from planner.result import TORCHREC_BASELINE, Candidate, PlanningResult, ScenarioTime, ranks_held
from planner.scenarios import ScenarioRule
from planner.support.text import printable

WORDS: Final = read_words("report")
_TYPES: Final[dict[ShardingType, list[str]]] = {
    ShardingType(kind): told for kind, told in WORDS["types"].items()
}
_FAMILIES: Final[dict[str, list[str]]] = WORDS["families"]
SHORT_NAMES: Final = {kind: short for kind, (short, _) in _TYPES.items()}

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
    types = ((n, *_TYPES[kind]) for kind, n in _counts(plan).items())
    found = [(n, f"{words} ({short})") for n, short, words in types]
    return tuple(
        f"{count:,} {'' if i else 'table ' if count == 1 else 'tables '}{words}"
        for i, (count, words) in enumerate(found)
    )


def abbreviations(plans: Iterable[Plan]) -> str:
    """Explains the abbreviations of the sharding types in these plans; empty without a table."""
    used = {kind for plan in plans for kind in _counts(plan)}
    words = [": ".join(told) for kind, told in _TYPES.items() if kind in used]
    return f"{'; '.join(words)}." if words else ""


def _counts(plan: Plan) -> dict[ShardingType, int]:
    """How many tables each shown type has, in the order of SHORT_NAMES; without zeros."""
    types = Counter(shown_type(p) for p in plan.placements)
    return {kind: types[kind] for kind in SHORT_NAMES if types[kind]}


PLAN_CELLS: Final[dict[Column, Callable[[Candidate], Cell]]] = {
    Column("iteration", Kind.TIME): lambda p: p.estimate.time.time_s,
    Column("samples", Kind.RATE): lambda p: p.estimate.samples_per_s,
    Column("exposed", Kind.TIME, optional=True): lambda p: p.estimate.exposed_communication_s,
    Column("fullest GiB", Kind.GIB, optional=True): lambda p: p.memory.fullest.used_bytes,
    Column("worst/mean", Kind.FACTOR, optional=True): lambda p: p.estimate.imbalance_ratio,
    Column("sharding"): lambda p: ", ".join(sharding_kinds(p.plan)),
}
"""What tables of plans say of each plan, after its name."""


def kernel_name(placement: TablePlacement) -> str:
    """The kernel, with the share of the rows that its cache can hold."""
    ratio, kernel = placement.cache_load_factor_ratio, placement.kernel.value
    return kernel if ratio is None else f"{kernel} {100 * ratio:.2g}%"


def merged_name(stage: str) -> str:
    """The name of a stage without the number of a gradient bucket; buckets are shown together."""
    return re.sub(r"( \d+/\d+| \d+)$", "", stage)


def path_shares(estimate: IterationEstimate) -> list[tuple[str, float]]:
    """Share (0..1) of the iteration that each stage takes on the critical path, largest first."""
    seconds = path_seconds(estimate, lambda step: merged_name(step.stage))
    total = estimate.time.time_s or 1.0
    return sorted(((s, t / total) for s, t in seconds.items()), key=lambda item: -item[1])


def path_seconds(
    estimate: IterationEstimate, key: Callable[[CriticalStep], Any]
) -> dict[Any, float]:
    """Seconds of the steps of the critical path that have the same key."""
    seconds: defaultdict[Any, float] = defaultdict(float)
    for step in estimate.critical_path:
        seconds[key(step)] += step.duration_s
    return seconds


def worst_scenario(result: PlanningResult) -> ScenarioTime | None:
    """The slowest scenario, if the search minimised the slowest one; otherwise None."""
    if not result.scenarios or not result.solver.objective.startswith(ScenarioRule.WORST):
        return None
    return max(result.scenarios, key=lambda s: s.time_s)


def bottleneck_rank(estimate: IterationEstimate) -> int:
    """The rank with most of the time on the critical path; the first one in a tie."""
    seconds = path_seconds(estimate, lambda step: step.rank)
    return min(seconds, key=lambda r: (-seconds[r], r), default=estimate.slowest_rank)


def notable_ranks(estimate: IterationEstimate) -> tuple[tuple[str, int], ...]:
    """The rank with most of the critical path, and the slowest, median and fastest by compute."""
    order = [r.rank for r in sorted(estimate.ranks, key=lambda r: (r.compute_s, r.rank))]
    ranks = (bottleneck_rank(estimate), estimate.slowest_rank, order[len(order) // 2], order[0])
    words = dict(
        reversed(tuple(zip(ranks, ("critical", "slowest", "median", "fastest"), strict=True)))
    )
    return tuple((words[rank], rank) for rank in dict.fromkeys(ranks))


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


def unfit_baselines(result: PlanningResult) -> tuple[str, ...]:
    """The baselines that found no plan."""
    keeps = " and keeps the constraints" if has_unknown_rules(result) else ""
    names = ", ".join(map(printable, result.unfit_baselines))
    return (f"{names}: found no plan that fits{keeps}",) if names else ()


def fullest_hosts(ledger: MemoryLedger) -> tuple[str, ...]:
    """The hosts whose memory holds tables, the fullest first."""
    used = [h for h in ledger.hosts if h.used_bytes > 0]
    return tuple(
        f"host {h.host}: {format_gib(h.used_bytes)} of {format_gib(h.capacity_bytes)} GiB"
        for h in sorted(used, key=lambda h: -h.used_bytes / h.capacity_bytes)
    )


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
    numbered = enumerate(sorted(set(ranks)))
    runs = [[r for _, r in own] for _, own in groupby(numbered, lambda item: item[1] - item[0])]
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)


_MOST_RANGES = 6


def where(placement: TablePlacement) -> str:
    """Ranks that hold a part of a table as ranges, ``0-7, 12``, or how many where these are many.

    A table with fewer rows than ranks has none on some of them.
    """
    ranks = ranks_held(placement)
    ranges = rank_ranges(ranks)
    return ranges if ranges.count(",") < _MOST_RANGES else f"{len(set(ranks))} ranks"


def plain_objective(name: str) -> str:
    """The name of an objective without a word on scenarios, such as ``worst iteration``."""
    return name.rpartition(" ")[2]


def objective_kind(name: str) -> Kind:
    """How values of an objective are written; a shorter iteration makes times smaller alone."""
    plain = plain_objective(name)
    is_time = plain in objective_names() and objective_class(plain).unit == "s"
    return Kind.TIME if is_time else Kind.NUMBER


# ------------------------------------------------------------------ families of stages

FAMILIES: Final[dict[str, str]] = {name: words for name, (words, _) in _FAMILIES.items()}


def family(stage: str) -> str:
    """The family of a stage by its name."""
    return next(name for name, (_, rule) in _FAMILIES.items() if re.search(rule, stage))


def durations_s(
    estimate: IterationEstimate, name_of: Callable[[str], str]
) -> dict[str, list[float]]:
    """Seconds on every rank of the stages that have one name, in order of time: name -> ``[W]``."""
    found: dict[str, list[float]] = {}
    for stage in sorted(estimate.stages, key=lambda s: min(s.start_s, default=0.0)):
        if any(stage.duration_s):
            name = name_of(stage.name)
            total = found.get(name, [0.0] * len(stage.duration_s))
            found[name] = [a + b for a, b in zip(total, stage.duration_s, strict=True)]
    return found


def family_durations_s(estimate: IterationEstimate) -> dict[str, list[float]]:
    """Seconds of each family of stages on every rank, in the order of FAMILIES: name -> ``[W]``."""
    found = durations_s(estimate, family)
    return {name: found[name] for name in FAMILIES if name in found}


def family_keys(families: Collection[str]) -> list[tuple[str, str]]:
    """Style class and words of some families, for a legend, in the order of FAMILIES."""
    return [(f"c-{name}", words) for name, words in FAMILIES.items() if name in families]


def family_seconds(estimate: IterationEstimate) -> dict[str, float]:
    """Seconds that the critical path spends in each family of stages, in the order of FAMILIES.

    They sum to the iteration time.
    """
    seconds = path_seconds(estimate, lambda step: family(step.stage))
    return {name: seconds[name] for name in FAMILIES if name in seconds}


# ------------------------------------------------------------------ what each table costs

_LOOKUPS: Final = ("cache", "lookup", "lookup-b")
_EXCHANGES: Final = {
    "input": slice(INPUT, OUTPUT),
    "output": slice(OUTPUT, CALLS),
    "gradient": slice(OUTPUT, CALLS),
}
_DENSE_GRADIENT_BYTES: Final = 4.0


def table_costs(plan: Candidate, pipeline: CostPipeline) -> Mapping[str, tuple[float, float]]:
    """Seconds per rank and iteration of lookups and of exchanges that each table of a plan causes.

    On each rank, the time of lookups is shared out in proportion to what the lookups of each table
    would take alone, and the time of an exchange in proportion to bytes. The time of the all-reduce
    is shared out in proportion to bytes among replicated tables and the dense part.
    """
    durations = family_durations_s(plan.estimate)
    none = [0.0] * len(plan.estimate.ranks)
    spent = {name: np.array(durations.get(name, none)) for name in FAMILIES}
    placements = plan.plan.placements
    work = pipeline.placements_work(plan.plan)
    rows, index = work.rows, work.index
    forward, backward = pipeline.lookup_times(rows)
    lookup = _shared((forward + backward)[index], sum(spent[f] for f in _LOOKUPS))
    exchange = np.zeros(len(placements))
    for name, columns in _EXCHANGES.items():
        exchange += _shared(rows[:, columns].sum(axis=-1)[index], spent[name])
    dense = dense_parameters(pipeline.workload) * _DENSE_GRADIENT_BYTES
    exchange += _shared(rows[:, REPLICATED][index], spent["reduce"], others=dense)
    return {
        p.table: (float(a), float(b)) for p, a, b in zip(placements, lookup, exchange, strict=True)
    }


def _shared(parts: FloatArray, total_s: FloatArray | int, others: float = 0.0) -> FloatArray:
    """``[T]`` shares of ``total_s [W]`` in proportion to ``parts [T, W]``, as means over ranks."""
    whole = parts.sum(axis=0) + others
    return np.asarray((parts / np.where(whole > 0, whole, 1.0) * total_s).mean(axis=1))
