"""Operators that repeat, made one each: the blocks of a transformer once instead of 24 times."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from costmodels.operators import Operator

_SHORTEST: Final = 4
"""Operators of a block; shorter repeats, such as equal layers of an MLP, stay as they are."""
_LONGEST: Final = 1000
_NUMBER: Final = re.compile(r"(?<![^.])\d+(?![^.])")


def folded(operators: Sequence[Operator]) -> tuple[Operator, ...]:
    """The same operators with neighbouring blocks that are equal written once.

    Numbers between the points of names count for nothing: ``blocks.0.norm`` and ``blocks.1.norm``
    become ``blocks.*.norm``.
    """
    plain = [replace(operator, name=_NUMBER.sub("*", operator.name)) for operator in operators]
    number: dict[Operator, int] = {}
    ids = [number.setdefault(operator, len(number)) for operator in plain]
    found: list[Operator] = []
    at = 0
    while at < len(ids):
        period, repeats = _best(ids, at)
        if repeats > 1:
            block = plain[at : at + period]
            found += [replace(o, num_repeats=o.num_repeats * repeats) for o in block]
            at += period * repeats
        else:
            found.append(operators[at])
            at += 1
    return tuple(found)


def _best(ids: list[int], at: int) -> tuple[int, int]:
    """Length of the block that repeats from ``at`` on and saves most, and how often it comes."""
    best = (1, 1)
    for period in range(_SHORTEST, min(_LONGEST, (len(ids) - at) // 2) + 1):
        if ids[at] != ids[at + period]:
            continue
        block, repeats = ids[at : at + period], 1
        while ids[at + repeats * period : at + (repeats + 1) * period] == block:
            repeats += 1
        if (repeats - 1) * period > (best[1] - 1) * best[0]:
            best = (period, repeats)
    return best
