"""What a workload file left open, and what a plan's step would take under other values.

Each assumed value is replaced by one from the other end of its usual range, alone, and the same
plan is priced again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from costmodels import units
from costmodels.distribution.uniform import Uniform
from costmodels.distribution.zipf import Zipf
from costmodels.errors import CostModelError
from costmodels.sharding import Plan
from costmodels.workload import DataType, DenseArch, Feature, Optimizer, Pipeline, Table, Workload
from planner.errors import PlannerError
from planner.problem import PlanningProblem
from planner.result import Assumed
from planner.support.text import significant

_BATCH_FACTOR: Final = 4
_POOLING: Final = 10.0
"""Indices per sample of a table with many, where no table of the workload says how many."""
_EXPONENT: Final = 1.05
_MOST_SHARES: Final = 20_000
"""Tables times ranks up to which other values are priced: a plan of more takes long to price."""


_Range = tuple[
    str,
    Callable[[Workload], str],
    Callable[[Workload, frozenset[str]], tuple[str, Workload | None]],
]
"""How an assumed value is told, the value, and what is at the other end of its range."""


def _one(key: str, what: str, value: object) -> _Range:
    """A field of the workload, and another value of it."""
    changes: dict[str, Any] = {key: value}

    def told(found: object) -> str:
        return str(getattr(found, "value", found))

    def other(workload: Workload, _: frozenset[str]) -> tuple[str, Workload]:
        return told(value), replace(workload, **changes)

    return what, lambda workload: told(getattr(workload, key)), other


def _mean_pooling(workload: Workload, names: frozenset[str]) -> tuple[str, Workload]:
    """The named tables with the mean pooling factor of the others."""
    known = [f.pooling_factor for t in workload.tables if t.name not in names for f in t.features]
    mean = sum(known) / len(known) if known else _POOLING
    why = ", the mean of the others" if known else ""

    def change(table: Table) -> Table:
        features = tuple(Feature(name=f.name, pooling_factor=mean) for f in table.features)
        return replace(table, features=features)

    return f"{significant(mean)}{why}", _changed(workload, names, change)


def _zipf(workload: Workload, names: frozenset[str]) -> tuple[str, Workload]:
    def change(table: Table) -> Table:
        law = Zipf(num_embeddings=table.num_embeddings, exponent=_EXPONENT)
        return replace(table, distribution=law)

    return f"Zipf, exponent {_EXPONENT}", _changed(workload, names, change)


def _changed(
    workload: Workload, names: frozenset[str], change: Callable[[Table], Table]
) -> Workload:
    tables = tuple(change(t) if t.name in names else t for t in workload.tables)
    return replace(workload, tables=tables)


def _larger(workload: Workload, _: frozenset[str]) -> tuple[str, Workload]:
    batch = _BATCH_FACTOR * workload.batch_size_per_rank
    return f"{batch:,}", replace(workload, batch_size_per_rank=batch)


_RANGES: Final[dict[str, _Range]] = {
    "tables.pooling_factor": ("pooling factor", lambda _: "1", _mean_pooling),
    "tables.distribution": ("index distribution", lambda _: "uniform", _zipf),
    "dense": (
        "dense part",
        lambda w: (
            "MLPs of " + " and ".join(map(str, (list(w.dense.bottom_mlp), list(w.dense.top_mlp))))
        ),
        lambda w, _: ("none", replace(w, dense=DenseArch())),
    ),
    "training.output_dtype": _one("output_dtype", "type on the wire", DataType.FP16),
    "training.optimizer": _one("optimizer", "optimizer", Optimizer.ADAM),
    "training.pipeline": _one("pipeline", "pipeline", Pipeline.NONE),
    "training.gradient_dtype": _one("gradient_dtype", "type of dense gradients", DataType.BF16),
    "training.index_bytes": _one("index_bytes", "bytes per index", 4),
    "training.batch_size_per_rank": (
        "batch per rank",
        lambda w: f"{w.batch_size_per_rank:,}",
        _larger,
    ),
    "memory.reserve": (
        "memory reserve",
        lambda w: units.format_bytes(w.reserved_bytes),
        lambda _, __: ("any: it changes memory alone", None),
    ),
}


def priced_assumptions(
    problem: PlanningProblem,
    plan: Plan,
    assumed: Mapping[str, Iterable[str]],
    has_time: Callable[[], bool] = lambda: True,
) -> tuple[Assumed, ...]:
    """What was assumed, and the step of the plan under another value of each.

    Args:
        problem: as it was planned.
        plan: the plan.
        assumed: see :func:`assumptions`.
        has_time: asked before each price; where it says False, what was assumed has no price.
    """

    def price(other: Workload) -> float | None:
        return _time_s(problem, plan, other) if has_time() else None

    return assumptions(problem.workload, assumed, price)


def assumptions(
    workload: Workload,
    assumed: Mapping[str, Iterable[str]],
    price: Callable[[Workload], float | None] = lambda _: None,
) -> tuple[Assumed, ...]:
    """What was assumed, and what it is worth.

    Args:
        workload: with the assumed values.
        assumed: the keys that a workload file left open, with the names of tables, as in
            :class:`planner.io.WorkloadFile`. Tables whose values came from elsewhere, such as
            statistics, are left out.
        price: the seconds of a step of the workload with another value.
    """
    found = []
    for key, (what, value, change) in _RANGES.items():
        names = frozenset(assumed.get(key, ())) & _unchanged(workload, key)
        if key not in assumed or (key.startswith("tables.") and not names):
            continue
        told, other = change(workload, names)
        found.append(
            Assumed(
                key=key,
                what=what,
                value=value(workload),
                num_tables=len(names),
                other=told,
                time_s=None if other is None else price(other),
            )
        )
    return tuple(found)


def _unchanged(workload: Workload, key: str) -> frozenset[str]:
    """The tables that have the assumed value."""
    if key == "tables.pooling_factor":
        is_so = [all(f.pooling_factor == 1.0 for f in t.features) for t in workload.tables]
    else:
        is_so = [isinstance(t.distribution, Uniform) for t in workload.tables]
    return frozenset(t.name for t, so in zip(workload.tables, is_so, strict=True) if so)


def _time_s(problem: PlanningProblem, plan: Plan, workload: Workload) -> float | None:
    """Seconds of a step; None where the plan is too large to price often, or does not run so."""
    from planner.models import pipeline_of  # pricing is not needed to say what is assumed

    if len(workload.tables) * problem.topology.world_size > _MOST_SHARES:
        return None
    try:
        pipeline = pipeline_of(replace(problem, workload=workload))
        return float(pipeline.iteration_times(pipeline.plan_work(plan)))
    except (CostModelError, PlannerError):
        return None
