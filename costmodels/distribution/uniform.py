"""Every row is as likely as any other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from costmodels.distribution.base import AbstractIndexDistribution, FloatArray, check_rows


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Uniform(AbstractIndexDistribution):
    """p_k = 1 / E. Expected unique rows in N draws: E (1 - (1 - 1/E)^N).

    Args:
        num_embeddings: rows E of the table.
        scattered: kept for the common interface; a uniform law has no hot rows.
    """

    num_embeddings: int
    scattered: bool = True

    def __post_init__(self) -> None:
        """Check the rows."""
        check_rows(self.num_embeddings)

    def frequency_bins(self) -> tuple[FloatArray, FloatArray]:
        """One bin with all rows."""
        return np.array([float(self.num_embeddings)]), np.array([1.0 / self.num_embeddings])
