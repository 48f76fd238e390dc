"""Every plan of the search space. For tiny cases, and to check the other strategies."""

from __future__ import annotations

from typing import Final, final

from planner.errors import InvalidInputError
from planner.search.base import (
    AbstractStrategy,
    ProgressCallback,
    Record,
    SearchOutcome,
    StopCallback,
)
from planner.search.construct.walk import count_assignments, price_all
from planner.space.evaluation import Evaluator, SearchSpace

MOST_ASSIGNMENTS: Final = 2_000_000
"""Plans that the exhaustive strategy prices at most: a few minutes."""


@final
class Exhaustive(AbstractStrategy):
    """Prices all assignments; the best one is optimal by construction."""

    __slots__ = ()

    def search(
        self,
        space: SearchSpace,
        evaluate: Evaluator,
        *,
        seed: int,
        progress: ProgressCallback | None = None,
        should_stop: StopCallback | None = None,
    ) -> SearchOutcome:
        """The optimum, the same for every seed; of the listed options where some are left out.

        Raises:
            InvalidInputError: there are more than two million assignments.
        """
        del seed
        if count_assignments(space, MOST_ASSIGNMENTS) > MOST_ASSIGNMENTS:
            msg = (
                f"the exhaustive strategy prices every plan, up to {MOST_ASSIGNMENTS}; "
                f"this problem has more ({space.num_tables} tables, {space.world_size} ranks): "
                "use the auto strategy"
            )
            raise InvalidInputError(msg)
        record = Record(evaluate, progress, should_stop)
        price_all(space, record)
        return record.outcome(proves=space.listing.has_every_kernel)
