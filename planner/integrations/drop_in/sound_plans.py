"""Plans under which TorchRec computes what the module computes, and exchanges what it expects.

**Mean pooling.** TorchRec divides too often or too seldom under some plans
(:mod:`planner.options.mean_pooling`). So the mean-pooled tables of a module are searched in two
ways, both of them right: none is cut by rows, or all its tables are.

**Outputs that are not fp32.** The tables of a module with one sharding type share an exchange. A
rank sends and expects the type of its own tables' outputs; without any of these tables, fp32. Where
ranks come to different types training fails, so such a module is searched again with types that
every rank has.

**Column pieces of unpooled tables.** Those of a module have to have one width
(:mod:`planner.options.unpooled_widths`). A module whose pieces differ is searched again with whole
tables, and where these do not fit, with wider pieces.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from costmodels.sharding import Plan, ShardingType
from costmodels.workload import DataType, Pooling, Workload
from planner.errors import NoPlanFoundError
from planner.integrations.drop_in.search import RIVAL, Memories, best_plan
from planner.integrations.translate.constraints import refused_types, without_types
from planner.integrations.translate.errors import ShardPlannerError
from planner.options.mean_pooling import (
    NOT_DIVIDED,
    rows_change,
    tables_by_module,
)
from planner.options.runtime_warnings import runtime_warnings
from planner.options.torchrec_rules import SUMS_ROWS
from planner.options.unpooled_widths import width_problems
from planner.problem import Constraints, TableConstraint
from planner.result import PlanningResult

logger: Final = logging.getLogger(__name__)

_WIDTH_SEARCHES: Final = 4
"""Searches at most for pieces of one width where whole tables do not fit."""


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
    """The best plan that TorchRec runs as the model says.

    Where no such plan is left, the search goes on without that rule, and a warning says so.

    Args:
        workload: the tables, with the module of each.
        memories: as of :func:`best_plan`.
        limits: of the search, one rule for each table.
        asked: settings of a search that begins now.
        rival: TorchRec's own plan.
        outputs: types of outputs that are not fp32, by table.
        more: further arguments of :func:`best_plan`.

    Raises:
        ShardPlannerError: there is no plan, whatever the rules here.
    """

    def search(
        within: Constraints, against: Plan | None, known: PlanningResult | None = None
    ) -> PlanningResult:
        beaten_by = {} if known is None else {"beaten_by": _value(known)}
        return best_plan(workload, memories, within, {**asked(), **beaten_by}, against, **more)

    world_size = memories.ledger.world_size
    best = _best_pooling(workload, limits, rival, search)
    of_one_width = rival if rival and not width_problems(rival, workload) else None
    best, limits = _of_one_width(
        workload, limits, best, partial(_best_pooling, rival=of_one_width, search=search)
    )
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
    """The better plan of both ways; its bound is the lower of theirs.

    The second search ends as soon as its bound is above the plan of the first.
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
    best = min(results, key=lambda r: (_value(r), r.best.name != RIVAL))  # a draw is TorchRec's
    bounds = [r.solver.bound for r in results if r.solver.bound is not None]
    is_proven &= len(bounds) == len(results)
    return replace(best, solver=replace(best.solver, bound=min(bounds) if is_proven else None))


def _of_one_width(
    workload: Workload,
    limits: Constraints,
    best: PlanningResult,
    again: Callable[[Workload, Constraints], PlanningResult],
) -> tuple[PlanningResult, Constraints]:
    """A result without pieces of several widths in one module, and the limits that gave it.

    First with whole tables. Where these do not fit, tables that the last result cuts keep its
    widest pieces or wider ones, and tables that it leaves whole are not called ``column_wise``,
    until all pieces have one width. The given result if there are no such pieces, or if no search
    is rid of them.
    """
    modules = width_problems(best.plan, workload)
    if not modules:
        return best, limits
    whole = replace(
        limits,
        tables=tuple(
            replace(rule, min_column_width=table.embedding_dim)
            if table.pooling is Pooling.NONE and table.module in modules
            else rule
            for table, rule in zip(workload.tables, limits.tables, strict=True)
        ),
    )
    with contextlib.suppress(ShardPlannerError, NoPlanFoundError):
        return again(workload, whole), whole
    found, within = best, limits
    with contextlib.suppress(ShardPlannerError, NoPlanFoundError):
        for _ in range(_WIDTH_SEARCHES):
            within = _wider_pieces(workload, within, found.plan, modules)
            found = again(workload, within)
            modules = width_problems(found.plan, workload)
            if not modules:
                return found, within
    return best, limits


def _wider_pieces(
    workload: Workload, limits: Constraints, plan: Plan, modules: Iterable[str]
) -> Constraints:
    """Limits under which the unpooled tables of some modules come closer to pieces of one width.

    Args:
        workload: the tables, with the module of each.
        limits: one rule for each table.
        plan: made under these limits.
        modules: paths of modules whose pieces have several widths.
    """
    placements = {p.table: p for p in plan.placements}
    rules = {t.name: rule for t, rule in zip(workload.tables, limits.tables, strict=True)}
    for module in modules:
        own = [t for t in workload.tables if t.module == module and t.pooling is Pooling.NONE]
        least = {t.name: min(s.num_cols for s in placements[t.name].shards) for t in own}
        cut = [t for t in own if least[t.name] < t.embedding_dim]
        widest = max((s.num_cols for t in cut for s in placements[t.name].shards), default=0)
        for table in own:
            rule = rules[table.name]
            if table in cut:
                rules[table.name] = replace(rule, min_column_width=widest)
            else:
                other_name = without_types(rule, (ShardingType.COLUMN_WISE,))
                rules[table.name] = other_name or rule
    return replace(limits, tables=tuple(rules.values()))


def _value(result: PlanningResult) -> float:
    is_time = result.solver.objective == "iteration"
    return result.estimate.time.time_s if is_time else result.solver.value


def _limited(workload: Workload, limits: Constraints, *, by_rows: bool) -> Constraints:
    """Limits under which no mean is cut by rows, or all tables of its module are.

    A module that has only the other way gets that; one that has neither keeps its limits.
    """
    rules = dict(zip((t.name for t in workload.tables), limits.tables, strict=True))
    for tables in tables_by_module(workload).values():
        if all(t.pooling is not Pooling.MEAN for t in tables):
            continue
        whole = [
            (t, without_types(rules[t.name], SUMS_ROWS if t.pooling is Pooling.MEAN else ()))
            for t in tables
        ]
        changes = rows_change(tables)
        rows = [(t, None if changes else without_types(rules[t.name], NOT_DIVIDED)) for t in tables]
        for way in (rows, whole) if by_rows else (whole, rows):
            left = {t.name: rule for t, rule in way if rule is not None}
            if len(left) == len(way):
                rules |= left
                break
    kept: tuple[TableConstraint, ...] = tuple(rules.values())
    return limits if kept == limits.tables else replace(limits, tables=kept)


def uneven_outputs(
    plan: Plan, workload: Workload, outputs: Mapping[str, DataType], world_size: int
) -> list[str]:
    """Modules in which ranks come to different types of outputs in one exchange.

    Args:
        plan: of the workload.
        workload: the tables, with the module of each.
        outputs: types of outputs that are not fp32, by table.
        world_size: ranks.
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
    """Limits with types alone, for tables of some modules, of which every rank has a part."""
    gone = set(ShardingType) - {ShardingType.DATA_PARALLEL, ShardingType.ROW_WISE}
    rules = tuple(
        (without_types(rule, gone) or rule) if table.module in modules else rule
        for table, rule in zip(workload.tables, limits.tables, strict=True)
    )
    return limits if rules == limits.tables else replace(limits, tables=rules)
