"""Every row is as likely as any other."""

from dataclasses import dataclass
from typing import final

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.distribution.base import AbstractIndexDistribution, Rows
from costmodels.fields import settle


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Uniform(AbstractIndexDistribution):
    """Every row is drawn with probability p_k = 1 / E.

    The expected number of distinct rows in N draws is E (1 - (1 - 1/E)^N).

    Args:
        num_embeddings: rows E of the table, 1 or more.
        scattered: part of the common interface; it changes nothing, as no row is hot.

    Raises:
        InvalidValueError: ``num_embeddings`` is not a whole number from 1, or ``scattered`` is
            neither True nor False.

    Example:
        >>> round(Uniform(num_embeddings=1000).expected_unique_rows(1000))
        632
    """

    num_embeddings: Rows
    scattered: bool = True

    def __post_init__(self) -> None:
        """Check the number of rows, and convert the fields to their types."""
        settle(self, "uniform ")

    def frequency_bins(self) -> tuple[FloatArray, FloatArray]:
        """One bin with all rows."""
        return np.array([float(self.num_embeddings)]), np.array([1.0 / self.num_embeddings])
