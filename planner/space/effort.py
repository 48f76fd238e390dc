"""How much work a search has done, counted so that it is the same on every machine.

A search that ended by the clock would find other plans on a busy machine than on an idle one. So
each part of it says what it has done, in seconds of a machine that does not exist: nominal seconds,
from counts of what was computed. The costs below were fitted to processor seconds of one core; only
their ratios matter for where a search ends.

Users count in priced plans: work worth ``n`` of them has been done when the nominal seconds of
pricing ``n`` plans one by one have been spent.
"""

from __future__ import annotations

import math
from typing import Final

_PRICE_CALL_S: Final = 1.1e-3
_PRICE_ENTRY_S: Final = 2e-8
"""Pricing plans: per call, and per entry of work."""
_PROGRAM_S: Final = 2.2e-3
_PROGRAM_ENTRY_S: Final = 6e-7
_PIVOT_ROW_S: Final = 5.5e-8
"""Linear programs: each, per coefficient, and per pivot and row; building and reading included."""
_NODE_S: Final = 1e-3
"""The same of mixed-integer programs, per node, beside its pivots."""
_INSERTION_S: Final = 2.5e-4
_INSERTION_ENTRY_S: Final = 4e-7
"""Putting a table where it fits best: each, and per load of every rank."""
_PLACING_S: Final = 3.3e-5
_PLACING_RANK_S: Final = 2e-7
"""Placing the options of all tables: per table, and per table and rank."""
_NEIGHBOURS_S: Final = 6e-4
_NEIGHBOURS_ENTRY_S: Final = 4e-7
"""Looking at all moves from some ranks: each time, and per load of every rank."""
_LEAST_LEFT_SHARE: Final = 0.1
"""Share of what was planned that a search counts on until a limit ends it."""


def priced_s(count: int, entries: int) -> float:
    """Nominal seconds of pricing ``count`` plans with ``entries`` of work each, at once."""
    return _PRICE_CALL_S + _PRICE_ENTRY_S * count * entries


def program_s(entries: int, rows: int, pivots: int, nodes: int = 0) -> float:
    """Nominal seconds of building, solving and reading a program."""
    return _PROGRAM_S + _PROGRAM_ENTRY_S * entries + _PIVOT_ROW_S * pivots * rows + _NODE_S * nodes


def insertion_s(entries: int) -> float:
    """Nominal seconds of finding the best option and places of one table."""
    return _INSERTION_S + _INSERTION_ENTRY_S * entries


def placing_s(tables: int, ranks: int) -> float:
    """Nominal seconds of placing given options of all tables."""
    return tables * (_PLACING_S + _PLACING_RANK_S * ranks)


def neighbours_s(entries: int) -> float:
    """Nominal seconds of looking at the moves from the fullest ranks."""
    return _NEIGHBOURS_S + _NEIGHBOURS_ENTRY_S * entries


class Meter:
    """Adds up nominal seconds, against a limit.

    Attributes:
        most_s: the limit; infinite for none.
        planned_s: what the search can count on, of which its parts get their shares: the limit, or
            less where a time limit is likely to end it sooner.
        spent_s: so far.
    """

    def __init__(self, most_s: float = math.inf, time_limit_s: float | None = None) -> None:
        """Nothing is spent yet; a nominal second takes about a second by the clock."""
        self.most_s = most_s
        self.planned_s = most_s if time_limit_s is None else min(most_s, time_limit_s)
        self.spent_s = 0.0

    @property
    def left_s(self) -> float:
        """Nominal seconds that the search can count on.

        On a machine that does more by the clock than was planned, that is a small share of it.
        """
        planned_s = max(self.planned_s - self.spent_s, _LEAST_LEFT_SHARE * self.planned_s)
        return max(min(planned_s, self.most_s - self.spent_s), 0.0)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left."""
        return self.spent_s >= self.most_s

    def spend(self, seconds: float) -> None:
        """Add what has been done."""
        self.spent_s += seconds
