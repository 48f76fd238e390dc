"""What is done with the plan that a search has found: it gets simpler, or stays near the old one.

If the host or the data source sets the iteration time, many plans are equally fast, and a search
may end with one that spreads a table of 24 rows over every rank. Therefore each cut table is tried
whole on some ranks. It stays whole if neither the objective nor the fullest device gets worse.
Before that, each table in host memory goes to device memory where it fits and the objective gets no
worse.

For the same reason a search for a successor of a plan in use ends with a plan that moves tables for
nothing, or for so little that the move is never paid back. Therefore the plan in use is tried
itself; then each table that moves is put back, the largest first. It stays there if that costs no
more than its share of what the whole move has to save: :data:`planner.result.LEAST_GAIN_RATIO` of
an iteration, and its own seconds within :data:`planner.result.PAYBACK_S` of training.
"""

from typing import Final

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.sharding import ComputeKernel, ShardingType, Spread
from planner.options.table_limits import HOST_KERNELS
from planner.options.torchrec_rules import runtime_warnings
from planner.problem import MoveLimit
from planner.replan import reshard
from planner.result import LEAST_GAIN_RATIO, PAYBACK_S
from planner.rules.placement_rules import received_bytes
from planner.space.evaluation import ROUNDED, ROUNDING, Assignment, Choice, Evaluator, SearchSpace

_TINY_RATIO: Final = 1e-3
"""Share of the largest device up to which a whole table may make the fullest device fuller, since
nobody would see that."""
_MOST_RANKS: Final = 16
"""Ranks on which a table is tried whole, those with the fewest bytes. More take longer to price."""


def simplified(evaluate: Evaluator, start: Assignment) -> Assignment:
    """A plan like ``start`` in nearer memory with fewer cuts, if one has the same objective.

    Args:
        evaluate: prices the plans that are tried.
        start: a plan that fits and keeps the rules.
    """
    space, value = evaluate.space, evaluate.value(start)
    now = _in_device_memory(evaluate, start, value)
    work = space.work(now)
    for table in range(space.num_tables):
        whole = _whole_option(space, table, now.options[table])
        if whole is None:
            continue
        rest = space.work_without(work, table, now.options[table], now.places[table])
        found = _placed(evaluate, rest, work, (table, whole))
        if found is None or found[1] > value * ROUNDING:
            continue
        changed = now.changed({table: (whole, (found[0],))})
        if space.keeps_rules(changed):
            now, work = changed, space.work(changed)
    return now


def _in_device_memory(evaluate: Evaluator, start: Assignment, value: float) -> Assignment:
    """The plan with each table that is in host memory in the same pieces in device memory."""
    space, now = evaluate.space, start
    for table, index in enumerate(start.options):
        if space.option(table, index).kernel not in HOST_KERNELS:
            continue
        nearer = space.with_kernel(table, index, ComputeKernel.FUSED)
        if nearer == index:
            continue
        changed = now.changed({table: (nearer, now.places[table])})
        if space.keeps_rules(changed) and evaluate.value(changed) <= value * ROUNDING:
            now = changed
    return now


def _whole_option(space: SearchSpace, table: int, index: int) -> int | None:
    """Index of the option with the table in one piece and the same kernel.

    None if there is none, or if the table is whole or replicated already.
    """
    own = space.option(table, index)
    is_cut = own.spread is not Spread.RANKS or own.num_pieces > 1
    if not is_cut or own.sharding_type is ShardingType.DATA_PARALLEL:
        return None
    kernel = own.kernel, own.cache_load_factor_ratio
    for whole, option in enumerate(space.tables[table].options):
        alike = (option.kernel, option.cache_load_factor_ratio) == kernel
        if alike and (option.spread, option.num_pieces) == (Spread.RANKS, 1):
            return whole
    return None


def _placed(
    evaluate: Evaluator, rest: FloatArray, before: FloatArray, choice: tuple[int, int]
) -> tuple[int, float] | None:
    """The best rank for a whole table, and the objective with it there.

    Args:
        evaluate: prices the plans that are tried.
        rest: ``[W, F]`` the work without the table.
        before: ``[W, F]`` the work with it as it is now.
        choice: the table, and the index of its whole option.

    Returns:
        None if the fullest device would get fuller on every rank.
    """
    space, (table, index) = evaluate.space, choice
    piece = space.pool[space.rows[int(space.first[table]) + index]][0]
    size = float(piece @ space.device)
    device = rest @ space.device
    ranks = np.flatnonzero(space.may_use_rank[table])
    ranks = ranks[np.argsort(device[ranks], kind="stable")][:_MOST_RANKS]
    most = float((before @ space.device).max()) * ROUNDING
    if size > _TINY_RATIO * float(space.pipeline.device_limits.max()):
        ranks = ranks[device[ranks] + size <= most]
    if not len(ranks):
        return None
    tried = np.repeat(rest[None], len(ranks), axis=0)
    tried[np.arange(len(ranks)), ranks] += piece
    values = evaluate.values(tried)
    at = int(values.argmin())
    return int(ranks[at]), float(values[at])


def staying(evaluate: Evaluator, found: Assignment, limit: MoveLimit) -> Assignment:
    """A plan like ``found`` without the moves that do not pay.

    Args:
        evaluate: prices the plans that are tried.
        found: a plan that fits and keeps the rules.
        limit: the plan in use; tables that are cut in a way that is not listed move in any case.
    """
    space = evaluate.space
    moved = {}  # the tables that may be where they are in use, and are not
    for table, own in enumerate(space.in_use or ()):
        if own is not None and own != found.choice(table):
            allowed = space.allowed(table, space.option(table, own[0]).spread)
            if allowed[list(own[1])].all():
                moved[table] = own
    if not moved:
        return found
    value, costs = evaluate.value(found), _costs_ratio(space, found, limit, moved)
    now = found.changed(moved)
    most = value + abs(value) * max(sum(costs.values()), ROUNDED)
    if _is_as_good(evaluate, now, most) and _runs(space, now, found):
        return now
    now = found
    for table in sorted(moved, key=lambda t: -costs[t]):
        if evaluate.late:
            break
        changed = now.changed({table: moved[table]})
        most = value + abs(value) * max(costs[table], ROUNDED)
        if _is_as_good(evaluate, changed, most):
            now, value = changed, evaluate.value(changed)
    return now if _runs(space, now, found) else found


def _costs_ratio(
    space: SearchSpace, found: Assignment, limit: MoveLimit, moved: dict[int, Choice]
) -> dict[int, float]:
    """The share of the objective that the move of each of these tables has to save.

    Tables share what the whole move has to save in proportion to their bytes.
    """
    problem, plan = space.problem, space.plan(found)
    workload, start = problem.workload, limit.start
    sizes = {}
    for t in moved:
        table = workload.tables[t]
        old, new = start.placement(table.name), plan.placement(table.name)
        sizes[t] = received_bytes(old, new, table, workload)
    move = reshard(start, plan, workload, problem.topology, before_s=0.0, after_s=0.0)
    if move.moved_bytes <= 0:
        return dict.fromkeys(moved, 0.0)
    whole = max(move.time_s / PAYBACK_S, LEAST_GAIN_RATIO)
    return {t: whole * size / move.moved_bytes for t, size in sizes.items()}


def _is_as_good(evaluate: Evaluator, changed: Assignment, most: float) -> bool:
    """Whether a plan keeps the rules, fits, and has at most this objective."""
    return evaluate.space.keeps_rules(changed) and evaluate.value(changed) <= most


def _runs(space: SearchSpace, changed: Assignment, found: Assignment) -> bool:
    """Whether TorchRec runs a plan, or says no more against it than against the plan found."""
    workload = space.problem.workload
    against = set(runtime_warnings(space.plan(changed), workload))
    return not against or against <= set(runtime_warnings(space.plan(found), workload))
