"""Measured times of collectives."""

import itertools
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from costmodels.errors import require
from costmodels.fields import Positive, Range, Several, settle


class Collective(StrEnum):
    """What the ranks do together. Sizes are counted in bytes as nccl-tests counts them.

    The size is, for each rank: all that it sends, its own part included (all-to-all); its whole
    output (all-gather); its whole input (reduce-scatter); its buffer (all-reduce).
    """

    ALL_TO_ALL = "all_to_all"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_REDUCE = "all_reduce"


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCurve:
    """Measured times of one collective in one shape, at several sizes.

    Attributes:
        collective: the collective.
        ranks: how many ranks take part.
        domains: over how many scale-up domains they are spread evenly.
        size_bytes: sizes as nccl-tests counts them (:class:`Collective`); they rise.
        time_s: seconds at each size.
        network_bytes_per_s: nominal rate of a rank's network link; 0 if the collective uses no
            network or the rate is not known.
        version: version of the library that ran the collective; empty if not known.
        source: where the times come from.
        priority: 0 for curves of the system itself. Curves of like systems have higher numbers, and
            are used only if there is no curve with a lower number.
        fabric: kind of network (:mod:`costmodels.fabrics`); empty if the collective uses none or it
            is not known.

    Raises:
        InvalidValueError: ranks, sizes or times do not fit together.
    """

    collective: Collective
    ranks: Annotated[int, Range(2, 2**31)]
    domains: Several
    size_bytes: tuple[Positive, ...]
    time_s: tuple[Positive, ...]
    network_bytes_per_s: float = 0.0
    version: str = ""
    source: str = ""
    priority: int = 0
    fabric: str = ""

    def __post_init__(self) -> None:
        """Check shape, sizes and times."""
        settle(self, "a collective curve: ")
        sizes = self.size_bytes
        require(
            self.ranks % self.domains == 0,
            f"{self.ranks} ranks do not divide over {self.domains} domains",
        )
        require(
            len(sizes) == len(self.time_s) and len(sizes) >= 2,
            f"a curve needs as many sizes as times and at least 2, "
            f"got {len(sizes)} and {len(self.time_s)}",
        )
        rising = all(a < b for a, b in itertools.pairwise(sizes))
        require(rising, "sizes of a curve must rise")

    @property
    def shape(self) -> tuple[int, int]:
        """(ranks, domains)."""
        return self.ranks, self.domains
