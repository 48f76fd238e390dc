"""Single questions about one index law, for formulas that answer many at once."""

from __future__ import annotations

import numpy as np

from costmodels.distribution.base import AbstractIndexDistribution, side_by_side


def asked(
    law: AbstractIndexDistribution, question: str, *values: float, ids: tuple[int, ...] = ()
) -> float:
    """The answer of a method of ``Laws`` to one query: counts, then an id and a number of rows."""
    columns = [np.array([float(v)]) for v in values] + [np.array([i]) for i in ids]
    found = getattr(side_by_side((law,)), question)(np.zeros(1, dtype=np.int64), *columns)
    return float(np.ravel(found[0])[0])


def range_share(law: AbstractIndexDistribution, row_offset: int, num_rows: int) -> float:
    """Share (0..1) of all accesses on the ids of a range."""
    return asked(law, "range_share", ids=(row_offset, num_rows))


def unique_rows_in_range(
    law: AbstractIndexDistribution, num_indices: float, row_offset: int, num_rows: int
) -> float:
    """Distinct rows expected in an id range if the whole table receives so many indices."""
    return asked(law, "unique_rows_in_range", num_indices, ids=(row_offset, num_rows))


def expected_misses(
    law: AbstractIndexDistribution, num_indices: float, cached_rows: float
) -> float:
    """Misses of an empty LRU cache in so many indices."""
    return asked(law, "expected_misses", num_indices, cached_rows)


def characteristic_draws(law: AbstractIndexDistribution, cached_rows: float) -> float:
    """Draws after which an LRU cache forgets a row."""
    return asked(law, "filled", cached_rows)
