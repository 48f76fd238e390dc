"""Finds plans under which TorchRec computes what the module computes.

**Mean pooling.** Under some plans TorchRec divides too often or not often enough
(:mod:`planner.options.runtime_warnings`). Therefore modules with mean-pooled tables are searched in
two ways that are both correct: no such table is cut by rows, or all tables of the module are.

**Outputs that are not fp32.** The tables of a module with the same sharding type share an exchange.
A rank sends and expects the output type of its own tables, or fp32 if it has none of them. Training
fails if ranks expect different types. Such a module is then searched again, with only those
sharding types under which every rank has a part of its tables.

**Column pieces of unpooled tables** have one width in the plans of a search
(:mod:`planner.solving.runnable`). TorchRec's own plan is not used if they differ.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from costmodels.sharding import Plan, ShardingType
from costmodels.workload import DataType, Workload
from planner.errors import NoPlanFoundError
from planner.integrations.drop_in.search import RIVAL, Memories, best_plan
from planner.integrations.translate.constraints import refused_types
from planner.integrations.translate.errors import ShardPlannerError
from planner.options.narrowing import pooled_alike, without_types
from planner.options.runtime_warnings import runtime_warnings, width_problems
from planner.problem import Constraints
from planner.result import PlanningResult

logger: Final = logging.getLogger(__name__)


def soundest_plan(
    workload: Workload,
    memories: Memories,
    limits: Constraints,
    asked: Callable[[], Mapping[str, Any]],
    rival: Plan | None = None,
    *,
    outputs: Mapping[str, DataType] = MappingProxyType({}),
    **more: Any,
) -> PlanningResult:
    """The best plan under which TorchRec computes what the model computes.

    If there is no such plan, the search is done without this rule, and a warning says so.

    Args:
        workload: the tables, with the module of each.
        memories: as in :func:`best_plan`.
        limits: limits of the search, one rule for each table.
        asked: returns the settings of a search that begins now.
        rival: TorchRec's own plan.
        outputs: the output types that are not fp32, by table.
        more: further arguments of :func:`best_plan`.

    Raises:
        ShardPlannerError: there is no plan, even without the rules of this module.
    """

    def search(
        within: Constraints, against: Plan | None, known: PlanningResult | None = None
    ) -> PlanningResult:
        beaten_by = {} if known is None else {"beaten_by": _value(known)}
        return best_plan(workload, memories, within, {**asked(), **beaten_by}, against, **more)

    world_size = memories.ledger.world_size
    best = _best_pooling(workload, limits, rival, search)
    if rival and best.plan == rival and width_problems(rival, workload):
        with contextlib.suppress(ShardPlannerError, NoPlanFoundError):
            best = _best_pooling(workload, limits, None, search)
    uneven = uneven_outputs(best.plan, workload, outputs, world_size)
    everywhere = _on_every_rank(workload, limits, uneven)
    if everywhere != limits:
        with contextlib.suppress(ShardPlannerError):
            best = _best_pooling(workload, everywhere, None, search)
            uneven = uneven_outputs(best.plan, workload, outputs, world_size)
    if uneven:
        logger.warning("training may fail: %s", _uneven_words(uneven))
    for line in runtime_warnings(best.plan, workload):
        if line not in best.warnings:
            logger.warning(line)
    return best


def _best_pooling(
    workload: Workload,
    limits: Constraints,
    rival: Plan | None,
    search: Callable[..., PlanningResult],
) -> PlanningResult:
    """The better plan of the two ways to pool means; its bound is the lower one of both.

    The second search ends as soon as its bound is above the value of the first plan.
    """
    ways = list(
        dict.fromkeys(_limited(workload, limits, by_rows=by_rows) for by_rows in (False, True))
    )
    results: list[PlanningResult] = []
    is_proven = True
    for way in ways:
        against = rival if rival and not refused_types(way, rival) else None
        try:
            results.append(search(way, against, next(iter(results), None)))
        except (ShardPlannerError, NoPlanFoundError) as error:
            if ways == [limits]:
                raise
            is_proven &= bool(results) or isinstance(error, ShardPlannerError)
    if not results:
        return search(limits, rival)
    if ways == [limits]:
        return results[0]
    # If both have the same value, TorchRec's own plan is taken.
    best = min(results, key=lambda r: (_value(r), r.best.name != RIVAL))
    bounds = [r.solver.bound for r in results if r.solver.bound is not None]
    is_proven &= len(bounds) == len(results)
    return replace(best, solver=replace(best.solver, bound=min(bounds) if is_proven else None))


def _value(result: PlanningResult) -> float:
    is_time = result.solver.objective == "iteration"
    return result.estimate.time.time_s if is_time else result.solver.value


def _limited(workload: Workload, limits: Constraints, *, by_rows: bool) -> Constraints:
    """Limits under which no mean-pooled table is cut by rows, or all tables of its module are."""
    kept = pooled_alike(workload, limits.tables, by_rows=by_rows)
    return limits if kept == limits.tables else replace(limits, tables=kept)


def uneven_outputs(
    plan: Plan, workload: Workload, outputs: Mapping[str, DataType], world_size: int
) -> list[str]:
    """Modules in which ranks expect different output types in one exchange.

    Args:
        plan: a plan of the workload.
        workload: the tables, with the module of each.
        outputs: the output types that are not fp32, by table.
        world_size: number of ranks.
    """
    if not outputs:
        return []
    modules = {t.name: t.module for t in workload.tables}
    seen: dict[tuple[str, ShardingType], list[set[DataType]]] = {}
    for placed in plan.placements:
        if placed.sharding_type is ShardingType.DATA_PARALLEL:
            continue
        key = modules[placed.table], placed.sharding_type
        ranks = seen.setdefault(key, [set() for _ in range(world_size)])
        for rank in placed.ranks:
            ranks[rank].add(outputs.get(placed.table, DataType.FP32))
    return sorted(
        {
            module
            for (module, _), ranks in seen.items()
            if len({min(types) if len(types) == 1 else DataType.FP32 for types in ranks}) > 1
        }
    )


def _uneven_words(modules: Sequence[str]) -> str:
    return (
        f"tables of modules {list(modules)[:5]} have outputs that are not fp32, and not every rank "
        "has some of them; allow data_parallel and row_wise for these tables, or take fp32"
    )


def _on_every_rank(workload: Workload, limits: Constraints, modules: Sequence[str]) -> Constraints:
    """Limits that leave tables of some modules only types under which every rank has a part."""
    gone = set(ShardingType) - {ShardingType.DATA_PARALLEL, ShardingType.ROW_WISE}
    rules = tuple(
        (without_types(rule, gone) or rule) if table.module in modules else rule
        for table, rule in zip(workload.tables, limits.tables, strict=True)
    )
    return limits if rules == limits.tables else replace(limits, tables=rules)
