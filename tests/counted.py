"""Laws of samples that were counted by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from costmodels.datatypes import IntArray
from costmodels.distribution.empirical import Empirical
from costmodels.distribution.samples import smooth


def law_of_counts(
    counts: Sequence[int] | IntArray,
    num_embeddings: int,
    *,
    num_unique_curve: tuple[tuple[float, float], ...] = (),
) -> Empirical:
    """The smoothed law of a sample, from the accesses of each row; zeros are left out."""
    array = np.asarray(counts, dtype=np.int64)
    values, rows = np.unique(array[array > 0], return_counts=True)
    law = smooth(values, rows.astype(np.int64), num_embeddings)
    return Empirical.from_bins(
        law.num_rows, law.num_draws, num_embeddings, num_unique_curve=num_unique_curve
    )
