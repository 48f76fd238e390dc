"""Which table a node is split on, by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from costmodels.datatypes import FloatArray
from planner.search.bounds.branching import TableSplit, widest_split
from planner.search.common.linear import LinearModel

TABLE_OF = np.array([0, 0, 0, 1, 1])
"""Three options of one table and two of another."""
MEAN = np.array(
    [
        [1.0, 5.0, 5.0, 60.0, 0.0],
        [2.0, 5.0, 5.0, 40.0, 0.0],
        [4.0, 5.0, 5.0, 10.0, 0.0],
        [3.0, 1.0, 2.0, 40.0, 0.0],
        [3.0, 9.0, 8.0, 50.0, 0.0],
    ]
)
"""``[n, P + 2]``: seconds in two phases, the second by two tangents; device and host bytes."""


def split(shares: list[float], slopes: list[float], *, limit: float = 1000.0) -> TableSplit | None:
    """The split of a solution on devices with so many bytes; all memory is worth 100."""
    pipeline = SimpleNamespace(device_limits=np.full(2, limit))
    space = SimpleNamespace(pipeline=pipeline, first=np.array([0, 3, 5]), table_of=TABLE_OF)
    model = SimpleNamespace(space=space, mean=MEAN, phase_index=np.array([0, 1, 1]))
    return widest_split(
        cast("LinearModel", cast("Any", model)), np.array(shares), np.array(slopes), 100.0
    )


def options(mask: FloatArray) -> list[int]:
    return np.flatnonzero(mask).tolist()


def test_the_table_whose_mixed_options_differ_most_is_split_at_their_mean() -> None:
    found = split([0.5, 0.0, 0.5, 0.5, 0.5], [1.0, 0.1])
    assert found is not None
    assert found.worth == pytest.approx(1.5), "1 and 4 seconds lie 1.5 from their mean"
    assert options(found.lower) == [0, 1, 3, 4]
    assert options(found.upper) == [2, 3, 4]
    found = split([0.5, 0.0, 0.5, 0.5, 0.5], [0.1, 1.0])
    assert found is not None
    assert found.worth == pytest.approx(4.0), "1 and 9 seconds"
    assert options(found.lower) == [0, 1, 2, 3]
    assert options(found.upper) == [0, 1, 2, 4]


def test_device_memory_counts_where_it_is_full() -> None:
    shares = [0.5, 0.0, 0.5, 1.0, 0.0]
    assert MEAN[:, -2] @ np.array(shares) == 75.0
    roomy, full = (split(shares, [0.1, 0.1], limit=limit) for limit in (76.0, 75.0))
    assert roomy is not None
    assert full is not None
    assert roomy.worth == pytest.approx(0.15)
    assert options(roomy.upper) == [2, 3, 4]
    assert full.worth == pytest.approx(25.0 / 75.0 * 100.0), "60 and 10 bytes of 75"
    assert options(full.lower) == [2, 3, 4]
    assert options(full.upper) == [0, 1, 3, 4]


def test_nothing_is_split_where_nothing_is_mixed() -> None:
    assert split([0.0, 1.0, 0.0, 1.0, 0.0], [1.0, 1.0]) is None


def test_options_that_are_alike_are_not_split() -> None:
    """Whose loads differ by less than a millionth of the best plan, which is worth 100."""
    shares = [0.5, 0.0, 0.5, 1.0, 0.0]
    assert split(shares, [0.6e-4, 0.0]) is None, "1.5 times that is 0.9 millionths"
    found = split(shares, [0.7e-4, 0.0])
    assert found is not None
    assert found.worth == pytest.approx(1.05e-4)
