"""What a workload file left open, and what a plan's step would take under other values.

Each assumed value is replaced by one from the other end of its usual range, alone, and the same
plan is priced again.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
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


_FIELDS: Final[dict[str, tuple[str, Any]]] = {
    "training.output_dtype": ("type on the wire", DataType.FP16),
    "training.optimizer": ("optimizer", Optimizer.ADAM),
    "training.pipeline": ("pipeline", Pipeline.NONE),
    "training.gradient_dtype": ("type of dense gradients", DataType.BF16),
    "training.index_bytes": ("bytes per index", 4),
}
"""How fields of a workload are told, and another value of each."""
_BATCH: Final = "training.batch_size_per_rank"
_KEYS: Final = (
    *("tables.pooling_factor", "tables.distribution", "dense"),
    *_FIELDS,
    *(_BATCH, "memory.reserve"),
)
"""What a file may leave open, in the order in which it is told."""


def _range(
    key: str, workload: Workload, names: frozenset[str]
) -> tuple[str, str, str, Workload | None]:
    """How an assumed value is told, the value, and what is at the other end of its range.

    Args:
        key: one of :data:`_KEYS`.
        workload: with the assumed value.
        names: the tables that have it, where it is one of tables.

    Returns:
        The workload with the other value last; None if it changes memory alone.
    """

    def changed(change: Callable[[Table], dict[str, Any]]) -> Workload:
        tables = (replace(t, **change(t)) if t.name in names else t for t in workload.tables)
        return replace(workload, tables=tuple(tables))

    if key == "tables.pooling_factor":
        others = (t for t in workload.tables if t.name not in names)
        known = [f.pooling_factor for t in others for f in t.features]
        mean = sum(known) / len(known) if known else _POOLING
        other = changed(
            lambda t: {
                "features": tuple(Feature(name=f.name, pooling_factor=mean) for f in t.features)
            }
        )
        why = ", the mean of the others" if known else ""
        return "pooling factor", "1", f"{significant(mean)}{why}", other
    if key == "tables.distribution":
        law = partial(Zipf, exponent=_EXPONENT)
        other = changed(lambda t: {"distribution": law(num_embeddings=t.num_embeddings)})
        return "index distribution", "uniform", f"Zipf, exponent {_EXPONENT}", other
    if key == "dense":
        mlps = (workload.dense.bottom_mlp, workload.dense.top_mlp)
        now = f"MLPs of {' and '.join(str(list(mlp)) for mlp in mlps)}"
        return "dense part", now, "none", replace(workload, dense=DenseArch())
    if key == "memory.reserve":
        now = units.format_bytes(workload.reserved_bytes)
        return "memory reserve", now, "any: it changes memory alone", None
    if key == _BATCH:
        batch = workload.batch_size_per_rank
        larger = replace(workload, batch_size_per_rank=_BATCH_FACTOR * batch)
        return "batch per rank", f"{batch:,}", f"{_BATCH_FACTOR * batch:,}", larger
    (what, value), field = _FIELDS[key], key.rpartition(".")[2]
    now, told = (str(getattr(v, "value", v)) for v in (getattr(workload, field), value))
    return what, now, told, replace(workload, **{field: value})


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
    from planner.models import pipeline_of  # pricing is not needed to say what is assumed

    shares = len(problem.workload.tables) * problem.topology.world_size

    def price(other: Workload) -> float | None:
        if not has_time() or shares > _MOST_SHARES:
            return None
        try:
            pipeline = pipeline_of(replace(problem, workload=other))
            return float(pipeline.iteration_times(pipeline.plan_work(plan)))
        except (CostModelError, PlannerError):  # the plan does not run so
            return None

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
    for key in _KEYS:
        names = frozenset(assumed.get(key, ())) & _unchanged(workload, key)
        if key in assumed and (names or not key.startswith("tables.")):
            what, value, told, other = _range(key, workload, names)
            time_s = None if other is None else price(other)
            num = len(names)
            found.append(
                Assumed(key=key, what=what, value=value, num_tables=num, other=told, time_s=time_s)
            )
    return tuple(found)


def _unchanged(workload: Workload, key: str) -> frozenset[str]:
    """The tables that have the assumed value."""
    if key == "tables.pooling_factor":
        is_so = [all(f.pooling_factor == 1.0 for f in t.features) for t in workload.tables]
    else:
        is_so = [isinstance(t.distribution, Uniform) for t in workload.tables]
    return frozenset(t.name for t, so in zip(workload.tables, is_so, strict=True) if so)
