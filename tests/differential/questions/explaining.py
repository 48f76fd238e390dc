"""What ``explain`` says of drawn plans: ``python -m tests.differential.questions.explaining -h``.

A drawn plan is explained. Every option of every table has to cost what the plan changed by hand
costs, has to keep the rules and fit, and no placement of one table that is priced by enumeration
may be better than the best one told. Bytes that a change moves are counted shard by shard.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from costmodels.sharding import Plan, TablePlacement
from planner.errors import InfeasibleError, InvalidInputError
from planner.explain.explainer import Change, Explainer, OptionCost
from planner.options.torchrec_rules import layout_problems
from planner.problem import MoveLimit
from tests.differential.asking import problem_of
from tests.differential.case import Case, received_bytes
from tests.differential.check import same
from tests.differential.judging.enumerator import Enumerator
from tests.differential.judging.rules import broken_rules
from tests.differential.seeds import look_at_drawn

_TRIED: Final = 300
"""Random plans among which one that keeps the rules and fits is looked for."""
_ROUNDING: Final = 1e-9
_BYTES: Final = 1.0


def explained_case(case: Case) -> Case:
    """The case as ``explain`` is asked: one day, the iteration time, no limit on moves."""
    return replace(case, moves=None, scenarios=(), objective="iteration")


def explain_faults(case: Case, seed: int) -> list[str]:
    """One line for each wrong figure about a plan of the case; the seed draws the plan."""
    case = explained_case(case)
    space = Enumerator(case, mirrors=False)
    if not all(space.choices):
        return []
    rng = np.random.default_rng(seed)
    drawn = (space.random_plan(rng) for _ in range(_TRIED))
    plan = next((p for p in drawn if is_allowed(space, p)), None)
    if plan is None:
        return []
    try:
        explainer = Explainer(problem_of(case), plan)
    except (InfeasibleError, InvalidInputError) as error:
        return [f"a plan that keeps the rules is refused: {error}"]
    now_s = space.judge.price(plan)
    if not same(explainer.plan_time_s, now_s):
        return [f"the plan takes {explainer.plan_time_s:.9g} s, priced {now_s:.9g}"]
    lines = [line for i in range(len(space.choices)) for line in _table_faults(space, explainer, i)]
    changes = explainer.changes(limit=1000)
    return lines + [line for c in changes for line in _change_faults(space, plan, c)]


def is_allowed(space: Enumerator, plan: Plan) -> bool:
    """Whether a plan keeps all rules and fits."""
    return not broken_rules(space.case, plan) and not space.judge.overfull(plan)


def with_table(plan: Plan, placement: TablePlacement) -> Plan:
    """The plan with another placement of one table."""
    return Plan(
        placements=tuple(placement if p.table == placement.table else p for p in plan.placements)
    )


def _table_faults(space: Enumerator, explainer: Explainer, index: int) -> Iterator[str]:
    """Wrong figures of the options of one table."""
    name, plan = space.case.workload.tables[index].name, explainer.plan
    options = explainer.table(name).options
    if sum(o.is_chosen for o in options) != 1:
        yield f"{name}: {sum(o.is_chosen for o in options)} options are the plan's own"
    for option in options:
        yield from _option_faults(space, plan, option)
    ways = [w for p in space.choices[index] if is_allowed(space, w := with_table(plan, p))]
    least_s = min((space.judge.price(way) for way in ways), default=math.inf)
    told_s = min(o.plan_time_s for o in options if o.plan_time_s < math.inf)
    if told_s > least_s * (1.0 + _ROUNDING):
        yield f"{name}: best told {told_s:.9g} s, best {least_s:.9g} ({told_s / least_s - 1:+.3%})"
    fitting = {_cut(w.placement(name)) for w in ways}
    for option in options:
        if option.plan_time_s == math.inf and _cut(option.placement) in fitting:
            yield f"{name}: {_words(option.placement)} is said not to fit, and fits"


def _option_faults(space: Enumerator, plan: Plan, option: OptionCost) -> Iterator[str]:
    """Lines where an option that is told to cost so much does not, or must not be chosen."""
    if option.plan_time_s == math.inf:
        return
    words = f"{option.placement.table}: {_words(option.placement)}"
    after = with_table(plan, option.placement)
    price_s = space.judge.price(after)
    if not same(option.plan_time_s, price_s):
        yield f"{words}: told {option.plan_time_s:.9g} s, priced {price_s:.9g}"
    case = space.case
    found = [*broken_rules(case, after), *space.judge.overfull(after)]
    found += layout_problems(after, case.workload, case.topology)
    yield from (f"{words}: {problem}" for problem in found)


def _change_faults(space: Enumerator, plan: Plan, change: Change) -> Iterator[str]:
    """Lines where a change costs or moves something else than it is told to."""
    words = f"change of {change.table} to {_words(change.after)}"
    after = with_table(plan, change.after)
    price_s = space.judge.price(after)
    if not same(change.plan_time_s, price_s):
        yield f"{words}: told {change.plan_time_s:.9g} s, priced {price_s:.9g}"
    if not is_allowed(space, after):
        yield f"{words}: breaks a rule or does not fit"
    moved = replace(space.case, moves=MoveLimit(start=plan))
    counted = received_bytes(moved, change.after)
    if abs(counted - change.moved_bytes) > _BYTES + _ROUNDING * counted:
        yield f"{words}: moves {change.moved_bytes:.9g} bytes, counted {counted:.9g}"


def _cut(placement: TablePlacement) -> tuple[object, ...]:
    """How a placement cuts a table, whatever the places."""
    shards = sorted((s.row_offset, s.num_rows, s.col_offset, s.num_cols) for s in placement.shards)
    ratio = placement.cache_load_factor_ratio
    return placement.sharding_type, placement.kernel, ratio, tuple(shards)


def _words(placement: TablePlacement) -> str:
    ranks = ", ".join(map(str, placement.ranks))
    return f"{placement.sharding_type} {placement.kernel} on {ranks}"


def main(arguments: list[str] | None = None) -> int:
    """Explain drawn plans; 1 if a figure is wrong."""
    kept = "plans are explained by true figures"
    return look_at_drawn(arguments, __doc__, explain_faults, count=100, draw="usual", kept=kept)


if __name__ == "__main__":
    sys.exit(main())
