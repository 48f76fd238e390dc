"""Plans under rules that couple tables, and where memory is tight: before and after a search."""

from __future__ import annotations

import numpy as np

from planner.search.base import Record
from planner.search.common.home import home_choices
from planner.search.common.schedule import USUAL, Schedule
from planner.search.construct.packing import is_tight, offer_exact_packing, offer_packings
from planner.search.improve.budget_moves import follow_chains
from planner.search.improve.rule_search import RuleSearch
from planner.space.evaluation import Assignment, SearchSpace


def start_under_rules(
    space: SearchSpace, record: Record, *, seed: int, schedule: Schedule = USUAL
) -> None:
    """Look for plans that keep the rules, before the search proper.

    The plan in use is offered, also if nothing limits moves away from it. Under a limit on moves,
    chains of moves from it follow. If there are rules, or memory is tight, packings follow; if
    there are rules, a descent from the best plan.

    Args:
        space: options, places and rules.
        record: is offered every plan.
        seed: of the random numbers.
        schedule: how much work each part may take.
    """
    home = home_choices(space)
    if home is not None:
        known = [c for c in home if c is not None]
        if len(known) == space.num_tables:
            start = Assignment(
                options=tuple(o for o, _ in known), places=tuple(p for _, p in known)
            )
            record.consider(start, "plan in use")
            if space.rules.budget is not None:
                meter = record.evaluate.meter
                until_s = meter.spent_s + schedule.turn_share * meter.planned_s
                follow_chains(space, record, start, until_s=until_s, schedule=schedule)
    if not (space.rules or is_tight(space)):
        return
    offer_packings(space, record, share=schedule.start_share, first_only=not space.rules)
    if space.rules:
        meter = record.evaluate.meter
        until_s = meter.spent_s + schedule.turn_share * meter.planned_s
        _improve(space, record, seed=seed, patience=0, until_s=until_s)


def finish_under_rules(
    space: SearchSpace, record: Record, *, seed: int, schedule: Schedule = USUAL
) -> None:
    """Look for plans after the search proper.

    If it has found no plan, packings follow, and CP-SAT if these find none either. If there are
    rules, local search follows until it helps no more.

    Args:
        space: options, places and rules.
        record: is offered every plan.
        seed: of the random numbers.
        schedule: when the local search ends.
    """
    if record.best is None and not (record.bound is not None and np.isinf(record.bound)):
        offer_packings(space, record)
        if record.best is None:
            offer_exact_packing(space, record, seed=seed)
    if space.rules:
        patience = schedule.steps(space.num_tables)
        _improve(space, record, seed=seed, patience=patience, until_s=np.inf)


def _improve(
    space: SearchSpace, record: Record, *, seed: int, patience: int, until_s: float
) -> None:
    """Descend and kick from the best plan, until a reading of the meter at most."""
    start = record.best
    if start is None or record.stopped or record.proven:
        return
    search = RuleSearch(space, record, np.random.default_rng(seed), until_s=until_s)
    search.descend(start)
    search.iterate(patience)
