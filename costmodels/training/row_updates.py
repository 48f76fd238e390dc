"""How the backward pass of a lookup updates the rows of its table."""

from __future__ import annotations

from enum import StrEnum


class RowUpdate(StrEnum):
    """What a backward kernel does if several indices of a batch name the same row.

    - ``deduplicated``: FBGEMM's exact update. Indices are sorted; then every distinct row is
      updated once.
    - ``deduplicated_without_sort``: the same update, if the time of the sort is not asked for, as
      for a trace that lists the update kernel alone.
    - ``per_index``: a row is updated once for each of its indices, by atomic additions and without
      a sort, as kernels before FBGEMM did.
    """

    DEDUPLICATED = "deduplicated"
    DEDUPLICATED_WITHOUT_SORT = "deduplicated_without_sort"
    PER_INDEX = "per_index"

    @property
    def sorts(self) -> bool:
        """Whether the time includes a sort of the indices."""
        return self is RowUpdate.DEDUPLICATED
