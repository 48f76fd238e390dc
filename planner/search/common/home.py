"""The plan in use, as choices among the options of a search space."""

from __future__ import annotations

from planner.space.evaluation import SearchSpace

Choice = tuple[int, tuple[int, ...]]
"""An option of a table, and its places."""


def home_choices(space: SearchSpace) -> list[Choice | None] | None:
    """Each table as the plan in use has it; None without such a plan, or where it is no option."""
    limit = space.problem.move_limit
    if limit is None:
        return None
    found: list[Choice | None] = []
    for table, item in enumerate(space.tables):
        found.append(space.located(table, limit.start.placement(item.table)))
    return found
