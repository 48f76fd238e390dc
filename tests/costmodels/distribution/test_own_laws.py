"""Index laws of users: bins that are none are refused before anything is priced by them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from costmodels.distribution.base import AbstractIndexDistribution
from costmodels.distribution.laws import Bins, Laws
from costmodels.distribution.zipf import Zipf
from costmodels.errors import InvalidValueError


class Own(AbstractIndexDistribution):
    """A law of 10 rows with any bins."""

    scattered = True

    def __init__(self, bins: Any) -> None:
        self.num_embeddings = 10
        self.bins = bins

    def frequency_bins(self) -> Any:
        """The bins as they were given."""
        return self.bins


@pytest.mark.parametrize(
    ("rows", "probability", "words"),
    [
        ([50.0, 50.0], [0.01, 0.01], "the rows of all bins must sum to 10, got 100"),
        ([5.0, 5.0], [0.2, 0.2], "rows times probabilities must sum to 1, got 2"),
        (
            [5.0, 5.0],
            [-0.1, 0.3],
            "rows and probabilities .* finite and not negative",
        ),
        (
            [np.nan, 5.0],
            [0.1, 0.1],
            "rows and probabilities .* finite and not negative",
        ),
        ([5.0, 5.0], [0.05, 0.15], "bins of a law must be hottest first"),
        ([], [], "must return two arrays of one length"),
        ([10.0], [0.05, 0.05], "must return two arrays of one length"),
    ],
)
def test_bins_that_are_none_are_refused(
    rows: list[float], probability: list[float], words: str
) -> None:
    with pytest.raises(InvalidValueError, match=rf"^Own\.frequency_bins:? {words}"):
        Bins(Own((np.array(rows), np.array(probability))))


def test_nearly_flat_laws_are_no_fault() -> None:
    """Rounding lets a bin of a Zipf law with a huge shift rise a little above the one before."""
    for shift in np.geomspace(1e9, 9.9e11, 40):
        law = Zipf(num_embeddings=10**6, exponent=1.0, shift=float(shift))
        assert law.expected_unique_rows(1000) == pytest.approx(999.5, rel=1e-3)


def test_lists_in_the_place_of_bins_are_refused() -> None:
    for bins in (None, ([5.0, 5.0], [0.1, 0.1])):
        with pytest.raises(InvalidValueError, match="must return two arrays"):
            Bins(Own(bins))
    assert Bins(Own((np.array([10.0]), np.array([0.1])))).rows.tolist() == [10.0]


def test_a_law_that_answers_for_one_range_alone_is_refused() -> None:
    """As many ranges as bins would pass for one range by its bins."""

    class OneByOne(Own):
        scattered = False

        def range_rows(self, row_offset: Any, num_rows: Any) -> Any:
            """The rows of each bin in one range."""
            ends = np.array([5.0, 10.0])
            inside = np.minimum(ends, row_offset + num_rows) - np.maximum(ends - 5, row_offset)
            return np.maximum(inside, 0.0)

    laws = Laws([OneByOne((np.array([5.0, 5.0]), np.array([0.2, 0.0])))])
    with pytest.raises(InvalidValueError, match=r"^OneByOne\.range_rows .*got shape \(2,\)"):
        laws.range_share(np.zeros(2, int), np.array([0, 5]), np.array([5, 2]))
