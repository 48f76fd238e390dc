"""Operators that repeat, made one each: the blocks of a transformer once instead of 24 times."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from costmodels.dense._repeats import repeating
from costmodels.operators import Operator

_NUMBER: Final = re.compile(r"(?<![^.])\d+(?![^.])")


def folded(operators: Sequence[Operator]) -> tuple[Operator, ...]:
    """The same operators with neighbouring blocks that are equal written once.

    Numbers between the points of names count for nothing: ``blocks.0.norm`` and ``blocks.1.norm``
    become ``blocks.*.norm``.
    """
    plain = [replace(operator, name=_NUMBER.sub("*", operator.name)) for operator in operators]
    found: list[Operator] = []
    for at, period, repeats in repeating(plain):
        if repeats > 1:
            block = plain[at : at + period]
            found += [replace(o, num_repeats=o.num_repeats * repeats) for o in block]
        else:
            found += operators[at : at + period]
    return tuple(found)
