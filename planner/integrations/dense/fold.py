"""Lists repeated operators once, such as the equal blocks of a transformer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from costmodels.dense._repeats import repeating
from costmodels.operators import Operator

_NUMBER: Final = re.compile(r"(?<![^.])\d+(?![^.])")


def folded(operators: Sequence[Operator]) -> tuple[Operator, ...]:
    """The same operators, with neighbouring equal blocks listed once with their number.

    Numbers in names are ignored in the comparison: ``blocks.0.norm`` and ``blocks.1.norm`` become
    ``blocks.*.norm``.
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
