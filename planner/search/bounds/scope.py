"""Which plans a program of the bound is about, and which ranks it looks at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from costmodels.datatypes import BoolArray
from planner.search.bounds.boxes import Box
from planner.search.common.milp import Rows

Name = tuple[int, int, int]
"""The name of a row about one load. Its numbers are: which row of
:class:`planner.search.bounds.rows.one_place.OnePlace`, or which rank; which of all K phases, or K
for memory; and which tangent of the phase. A name stays valid when more phases come into use."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scope:
    """Which plans a program is about, and what it looks at besides means and largest shards.

    Attributes:
        kept: ``[n]`` True for options to choose from; None for all.
        box: limits of the phases, and what fused calls cost; None for no limits.
        more: further rows about the options.
    """

    kept: BoolArray | None = None
    box: Box | None = None
    more: Sequence[Rows] = ()


EVERYTHING: Final = Scope()
"""All plans, and nothing further."""
