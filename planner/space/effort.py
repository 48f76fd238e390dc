"""How much work a search has done, counted so that it is the same on every machine.

A search that ended by the clock would find other plans on a busy machine than on an idle one.
Therefore each part of a search counts what it has computed, and turns the counts into nominal
seconds by the costs below. These costs were fitted to processor seconds of one core of a machine of
2023; only their ratios decide where a search ends.

Users count work in priced plans: work of ``n`` priced plans has been done when the nominal seconds
of pricing ``n`` plans one by one have been spent.
"""

import math
from typing import Final

_PRICE_CALL_S: Final = 1.1e-3
_PRICE_ENTRY_S: Final = 2e-8
"""Pricing plans: for each call, and for each number in the work arrays of the plans."""
_PROGRAM_S: Final = 2.2e-3
_PROGRAM_ENTRY_S: Final = 6e-7
_PIVOT_ROW_S: Final = 5.5e-8
"""Linear programs: for each program, for each coefficient, and for each pivot times the rows. They
include building the program and reading its solution."""
_INSERTION_S: Final = 1.5e-4
_INSERTION_ENTRY_S: Final = 1.5e-7
"""Putting one table where it fits best: for each time, and for each number that is compared."""
_SHARING_S: Final = 1.6e-4
_SHARING_ENTRY_S: Final = 1.3e-8
"""Sharing out the pieces of two places: for each time, and for each load in each way to do it."""
_PLACING_S: Final = 3.3e-5
_PLACING_RANK_S: Final = 2e-7
"""Placing given options: for each table, and for each table on each rank."""
_LEAST_LEFT_SHARE: Final = 0.1
"""A search goes on counting on this share of its planned work until its limit is reached."""


def priced_s(count: int, entries: int) -> float:
    """Nominal seconds of pricing ``count`` plans in one call, with ``entries`` numbers each."""
    return _PRICE_CALL_S + _PRICE_ENTRY_S * count * entries


def program_s(entries: int, rows: int, pivots: int) -> float:
    """Nominal seconds of building and solving a program, and of reading its solution.

    Args:
        entries: coefficients that are not zero.
        rows: constraints of the program.
        pivots: pivots of the simplex method.
    """
    return _PROGRAM_S + _PROGRAM_ENTRY_S * entries + _PIVOT_ROW_S * pivots * rows


def insertion_s(entries: int) -> float:
    """Nominal seconds of finding the best option and places of one table."""
    return _INSERTION_S + _INSERTION_ENTRY_S * entries


def sharing_s(entries: int) -> float:
    """Nominal seconds of sharing out the pieces of two ranks or hosts.

    Args:
        entries: loads, times the ways to share the pieces out.
    """
    return _SHARING_S + _SHARING_ENTRY_S * entries


def placing_s(tables: int, ranks: int) -> float:
    """Nominal seconds of placing given options of all tables."""
    return tables * (_PLACING_S + _PLACING_RANK_S * ranks)


class Meter:
    """Adds up the nominal seconds of a search, and compares them with a limit.

    Attributes:
        most_s: the limit; infinite without one.
        planned_s: what the search plans with, and what it shares out among its parts: the limit, or
            less if a time limit is likely to end the search sooner.
        spent_s: what has been spent so far.
    """

    def __init__(self, most_s: float = math.inf, time_limit_s: float | None = None) -> None:
        """Start with nothing spent. A nominal second is taken for a second by the clock."""
        self.most_s = most_s
        self.planned_s = most_s if time_limit_s is None else min(most_s, time_limit_s)
        self.spent_s = 0.0

    @property
    def left_s(self) -> float:
        """Nominal seconds that the search can still plan with.

        A fast machine has spent all planned seconds before the time limit. It then plans with a
        small share of them at a time, until the time limit or the limit of work ends the search.
        """
        planned_s = max(self.planned_s - self.spent_s, _LEAST_LEFT_SHARE * self.planned_s)
        return max(min(planned_s, self.most_s - self.spent_s), 0.0)

    def spend(self, seconds: float) -> None:
        """Add the nominal seconds of what has been done."""
        self.spent_s += seconds
