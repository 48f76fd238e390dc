"""The values that the page shows: the result, and what is computed from it for the page."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from markupsafe import Markup

from costmodels.datatypes import FloatArray
from costmodels.dense.base import dense_parameters
from costmodels.estimates import IterationEstimate
from costmodels.pipeline import CostPipeline
from costmodels.shard_work.work import CALLS, INPUT, OUTPUT, REPLICATED, output_traffic_bytes
from costmodels.topology import Topology
from planner.models import pipeline_of
from planner.report import figures
from planner.report.page import fill
from planner.result import Candidate, PlanningResult

IN_USE: Final = "the plan in use"


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One plan and its forward exchange, ``[W, W]`` bytes from rank i to rank j.

    ``scale_s`` is the length of a time axis that several plans share; 0 for an axis of its own.
    """

    plan: Candidate
    topology: Topology
    traffic_bytes: FloatArray
    scale_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The values that :func:`gather` computes.

    Attributes:
        result: the planning result.
        view: the best plan with its traffic.
        rated_s: TorchRec's rating of the best plan, the runners-up and the baselines, in this
            order.
        rival: the plan to compare with: the plan in use, or else TorchRec's own, or else the
            fastest baseline.
        confidence_ratio: probability that the best plan is faster than the rival.
    """

    result: PlanningResult
    view: View
    rated_s: tuple[float, ...]
    rival: Candidate | None = None
    confidence_ratio: float | None = None


def gather(result: PlanningResult) -> Evidence:
    """Compute the traffic of the best plan, TorchRec's rating of all plans, and the rival."""
    from planner.solving.prepare import objective_value  # the search, which takes long to load

    rated = replace(result.problem, scenarios=())
    pipeline = pipeline_of(result.problem)
    plans = (result.best, *result.runners_up, *result.baselines)
    rival = _rival(result, pipeline)
    sure = None if rival is None else pipeline.confidence_faster(result.plan, rival.plan)
    return Evidence(
        result=result,
        view=view_of(pipeline, result.best),
        rated_s=tuple(objective_value(rated, p.plan, "torchrec") for p in plans),
        rival=rival,
        confidence_ratio=sure,
    )


def _rival(result: PlanningResult, pipeline: CostPipeline) -> Candidate | None:
    limit = result.problem.move_limit
    if limit is not None:
        return Candidate.of(IN_USE, limit.start, pipeline)
    incumbent, others = figures.split_baselines(result)
    return incumbent or min(others, key=lambda b: b.estimate.time.time_s, default=None)


def view_of(pipeline: CostPipeline, plan: Candidate) -> View:
    """A plan with its forward exchange."""
    traffic = output_traffic_bytes(pipeline.plan_work(plan.plan), pipeline.topology)
    return View(plan=plan, topology=pipeline.topology, traffic_bytes=traffic)


def notable_ranks(estimate: IterationEstimate) -> tuple[tuple[str, int], ...]:
    """The rank with most of the critical path, and the slowest, median and fastest by compute."""
    order = sorted(estimate.ranks, key=lambda r: (r.compute_s, r.rank))
    found = (
        ("critical", figures.bottleneck_rank(estimate)),
        ("slowest", estimate.slowest_rank),
        ("median", order[len(order) // 2].rank),
        ("fastest", order[0].rank),
    )
    seen: dict[int, str] = {}
    for word, rank in found:
        seen.setdefault(rank, word)
    return tuple((word, rank) for rank, word in seen.items())


# ------------------------------------------------------------------ families of stages

FAMILIES: Final[dict[str, str]] = {
    "input": "input exchange",
    "cache": "cache fetch",
    "lookup": "lookup forward",
    "output": "output exchange",
    "dense": "dense forward",
    "dense-b": "dense backward",
    "gradient": "gradient exchange",
    "lookup-b": "lookup backward",
    "reduce": "all-reduce",
    "other": "host launches and data",
}
"""The style class of each family's colour, and its name for people, in the order of an iteration.
"""

_RULES: Final = (
    ("input", r"^input"),
    ("cache", r"^cache|prefetch"),
    ("reduce", r"all-reduce"),
    ("lookup-b", r"^lookup.*backward"),
    ("lookup", r"^lookup"),
    ("output", r"^output"),
    ("gradient", r"^gradient"),
    ("dense-b", r"(MLP|^dense part).*backward|optimizer"),
    ("dense", r"MLP|^dense part"),
)


def family(stage: str) -> str:
    """The family of a stage by its name."""
    return next((name for name, rule in _RULES if re.search(rule, stage)), "other")


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


def family_legend(families: Collection[str]) -> Markup:
    """The legend for some families, in the order of FAMILIES."""
    keys = [(f"c-{name}", words) for name, words in FAMILIES.items() if name in families]
    return fill("{{ blocks.legend(keys) }}", keys=keys)


def family_seconds(estimate: IterationEstimate) -> dict[str, float]:
    """Seconds that the critical path spends in each family of stages, in the order of FAMILIES.

    They sum to the iteration time.
    """
    seconds = figures.path_seconds(estimate, family)
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
