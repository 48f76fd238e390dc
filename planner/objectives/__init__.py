"""The objectives: one file each, named as users type it, with dashes for underscores."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, cast

from costmodels import discovery

if TYPE_CHECKING:
    from planner.space.evaluation import SearchSpace
    from planner.space.objective import AbstractNamedObjective, JudgedWork


def objective_names() -> tuple[str, ...]:
    """The names of all objectives in alphabetical order, found without importing them."""
    return tuple(name.replace("_", "-") for name in discovery.names(sys.modules[__name__]))


def objective_class(name: str) -> type[AbstractNamedObjective]:
    """The objective in ``planner/objectives/<name>.py``.

    Raises:
        InvalidInputError: there is no such file; the message lists the names of all objectives.
    """
    from costmodels.fields import is_in
    from planner.errors import refuse
    from planner.space.objective import AbstractNamedObjective

    if not is_in(name, objective_names()):
        known = ", ".join(objective_names())
        refuse(f"objective {name!r} is not one of {known}")
    found = discovery.load(
        sys.modules[__name__], name.replace("-", "_"), cast("type[object]", AbstractNamedObjective)
    )
    return cast("type[AbstractNamedObjective]", found)


def objective_named(name: str, space: SearchSpace | JudgedWork) -> AbstractNamedObjective:
    """The objective of that name, for plans of ``space`` or for given work.

    Raises:
        InvalidInputError: there is no objective of that name, or the problem lacks what it needs.
    """
    return objective_class(name)(space)
