"""How the backward pass of a lookup updates the rows of its table."""

from __future__ import annotations

from enum import StrEnum


class RowUpdate(StrEnum):
    """What a backward kernel does where several indices name the same row.

    ``deduplicated`` is FBGEMM's exact update: indices are sorted, then every distinct row is
    updated once. ``deduplicated_without_sort`` is the same where the sort is no part of the time,
    as in a trace that lists the update kernel alone. ``per_index`` updates a row once for each of
    its indices by atomic additions and sorts nothing, as kernels before FBGEMM did.
    """

    DEDUPLICATED = "deduplicated"
    DEDUPLICATED_WITHOUT_SORT = "deduplicated_without_sort"
    PER_INDEX = "per_index"

    @property
    def sorts(self) -> bool:
        """Whether the time includes a sort of the indices."""
        return self is RowUpdate.DEDUPLICATED
