"""Blocks of operators that repeat, such as those of a transformer, told from the list alone.

While a device computes one block, the host issues the next equal one, so prices depend on which
operators are blocks. That must not depend on how a list was written: a block once with its repeats,
or as often as it comes.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final, NamedTuple

from costmodels.operators import Operator

_SHORTEST: Final = 4
"""Operators of a block; shorter repeats, such as equal layers of an MLP, stay as they are."""
_LONGEST: Final = 1000
_MOST_WRITTEN: Final = 4096
"""Operators that a block with its repeats is written out to; longer ones stay as they are."""


def repeating(keys: Sequence[Hashable]) -> list[tuple[int, int, int]]:
    """Where each run of equal blocks begins, how many operators a block has, and how many blocks.

    Args:
        keys: what tells operators apart.
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
    """One of the operators written out: which one of the list, its name and its own repeats."""

    operator: int
    name: str
    num_repeats: int


def in_blocks(operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """The same operators with neighbouring blocks that are equal written once, whatever they say.

    A block has the names of the first one.
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
    """Blocks as often as they come, where they are not too long; names tell repeats apart."""
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
    """Length of the block that repeats from ``at`` on and saves most, and how often it comes."""
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
    """Whether a block is a shorter one several times, as four layers of an MLP are."""
    size = len(block)
    parts = (part for part in range(1, size // 2 + 1) if size % part == 0)
    return any(block[:part] * (size // part) == block for part in parts)
