"""Plans under rules that couple tables, and where memory is tight: before and after a search."""

from __future__ import annotations

import numpy as np

from planner.search.base import Record
from planner.search.common.home import home_choices
from planner.search.common.schedule import USUAL, Schedule
from planner.search.construct.packing import is_tight, offer_exact_packing, offer_packings
from planner.search.improve.single_changes import follow_chain
from planner.space.evaluation import Assignment, SearchSpace


def start_under_rules(space: SearchSpace, record: Record, *, schedule: Schedule = USUAL) -> None:
    """Look for plans that keep the rules, before the search proper.

    The plan in use is offered, also if nothing limits moves away from it. Under a limit on moves,
    a chain of moves from it follows. If there are rules, or memory is tight, packings follow.

    Args:
        space: options, places and rules.
        record: is offered every plan.
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
                until_s = meter.spent_s + schedule.chains_share * meter.planned_s
                follow_chain(space, record, start, until_s=until_s)
    if not (space.rules or is_tight(space)):
        return
    offer_packings(space, record, share=schedule.packing_share, first_only=not space.rules)


def finish_under_rules(space: SearchSpace, record: Record, *, seed: int) -> None:
    """If the search has found no plan, look for packings, and ask CP-SAT if there are none either.

    Args:
        space: options, places and rules.
        record: is offered every plan.
        seed: of the random numbers.
    """
    if record.best is None and not (record.bound is not None and np.isinf(record.bound)):
        offer_packings(space, record)
        if record.best is None:
            offer_exact_packing(space, record, seed=seed)
