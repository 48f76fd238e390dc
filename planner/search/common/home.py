"""The plan in use, as choices among the options of a search space."""

from __future__ import annotations

from planner.space.evaluation import SearchSpace

Choice = tuple[int, tuple[int, ...]]
"""The index of an option of a table, and the ranks (or hosts) of its pieces."""


def home_choices(space: SearchSpace) -> list[Choice | None] | None:
    """How the plan in use has each table.

    Returns:
        One choice per table, None for a table that is cut as no listed option cuts it; None instead
        of the list if there is no plan in use.
    """
    limit = space.problem.move_limit
    if limit is None:
        return None
    found: list[Choice | None] = []
    for table, item in enumerate(space.tables):
        found.append(space.located(table, limit.start.placement(item.table)))
    return found
