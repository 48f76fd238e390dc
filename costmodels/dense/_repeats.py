"""Finds blocks of operators that repeat in a list, such as the blocks of a transformer.

While a device computes one block, the host issues the next block of the same operators. So the
price of a list depends on which of its operators form repeated blocks. A list may write a block
once with a number of repeats, or write it out as often as it runs; both must have the same price.
This module therefore brings all lists to the form in which a block is written once.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final, NamedTuple

from costmodels.operators import Operator

_SHORTEST: Final = 4
"""Fewest operators of a block. Shorter groups that repeat, such as equal layers of an MLP, are not
taken as blocks."""
_LONGEST: Final = 1000
"""Most operators of a block. Each length up to this one is tried at each place of a list, so a
longer one would cost time; a transformer block has some tens of operators."""
_MOST_WRITTEN: Final = 4096
"""Most operators to which a block is written out, repeats included. Blocks that would take more are
kept as the list has them, so that a list with millions of repeats stays small."""


def repeating(keys: Sequence[Hashable]) -> list[tuple[int, int, int]]:
    """Divide a list into runs of equal blocks.

    Args:
        keys: one key for each operator; operators with equal keys are equal.

    Returns:
        For each run, in order: the position of its first operator, the operators of one block, and
        the number of blocks. An operator outside of repeated blocks is a run ``(position, 1, 1)``.
    """
    number: dict[Hashable, int] = {}
    ids = [number.setdefault(key, len(number)) for key in keys]
    found: list[tuple[int, int, int]] = []
    at = 0
    while at < len(ids):
        period, repeats = _best(ids, at)
        found.append((at, period, repeats))
        at += period * repeats
    return found


class _Written(NamedTuple):
    """An operator of a list that was written out.

    Attributes:
        operator: its position in the list as it was given.
        name: its name, with the number of the repeat.
        num_repeats: its repeats that were not written out.
    """

    operator: int
    name: str
    num_repeats: int


def in_blocks(operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """The same operators in the form in which blocks that follow each other are written once.

    The operators of such a block keep the names of its first repeat, and their numbers of repeats
    are multiplied by the number of blocks.
    """
    written = _written_out(operators)
    number: dict[Operator, int] = {}
    plain = [number.setdefault(replace(o, name="", num_repeats=1), len(number)) for o in operators]
    found: list[Operator] = []
    for at, period, repeats in repeating([(plain[w.operator], w.num_repeats) for w in written]):
        for index, name, count in written[at : at + period]:
            found.append(replace(operators[index], name=name, num_repeats=count * repeats))
    return tuple(found)


def _written_out(operators: Sequence[Operator]) -> list[_Written]:
    """Every block written out as often as it runs, unless that takes too many operators.

    Operators that follow each other with the same number of repeats are taken as one block. The
    second repeat of an operator ``a`` is named ``a.1``, the third ``a.2``, and so on.
    """
    found: list[_Written] = []
    for repeats, run in groupby(enumerate(operators), key=lambda entry: entry[1].num_repeats):
        block = list(run)
        if repeats > 1 and repeats * len(block) <= _MOST_WRITTEN:
            found += [_Written(at, o.name, 1) for at, o in block]
            for i in range(1, repeats):
                found += [_Written(at, f"{o.name}.{i}", 1) for at, o in block]
        else:
            found += [_Written(at, o.name, repeats) for at, o in block]
    return found


def _best(ids: list[int], at: int) -> tuple[int, int]:
    """The block at position ``at`` whose repeats save most operators: its length, its repeats."""
    best = (1, 1)
    for period in range(_SHORTEST, min(_LONGEST, (len(ids) - at) // 2) + 1):
        if ids[at] != ids[at + period]:
            continue
        block, repeats = ids[at : at + period], 1
        while ids[at + repeats * period : at + (repeats + 1) * period] == block:
            repeats += 1
        if (repeats - 1) * period > (best[1] - 1) * best[0] and not _repeats_itself(block):
            best = (period, repeats)
    return best


def _repeats_itself(block: list[int]) -> bool:
    """Whether a block consists of a shorter block several times, as four equal layers do."""
    size = len(block)
    parts = (part for part in range(1, size // 2 + 1) if size % part == 0)
    return any(block[:part] * (size // part) == block for part in parts)
