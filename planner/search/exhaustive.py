"""Prices every plan of the search space: for tiny problems, and to check other strategies."""

from typing import Final, final

from planner.errors import refuse
from planner.search.base import AbstractStrategy, Record, SearchOutcome
from planner.search.bounds.proofs import price_all_above_floor
from planner.search.construct.walk import count_assignments

MOST_ASSIGNMENTS: Final = 2_000_000
"""Most plans that the exhaustive strategy prices, which takes a few minutes. A problem with more
plans is refused."""


@final
class Exhaustive(AbstractStrategy):
    """Prices all assignments, so that the best one is optimal."""

    def search(self, record: Record, *, seed: int) -> SearchOutcome:
        """Find the best plan of the listed options; the seed has no effect.

        Where kernels are left out of the list, it is not proven to be the best of all plans.

        Raises:
            InvalidInputError: there are more assignments than :data:`MOST_ASSIGNMENTS`.
        """
        del seed
        space = record.evaluate.space
        if count_assignments(space, MOST_ASSIGNMENTS) > MOST_ASSIGNMENTS:
            refuse(
                f"exhaustive prices up to {MOST_ASSIGNMENTS} plans; use auto for a larger problem"
            )
        price_all_above_floor(record)
        return record.outcome(proves=space.listing.has_every_kernel)
