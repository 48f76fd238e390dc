"""Operators of a dense part in another form: compiled, and with repeated blocks written once.

**Compiled** (``dense.compiled``): torch.compile leaves matrix products, attention and lookups to
the libraries, and joins the kernels between them that work on tensors of one size: activations,
sums, norms, and all of a cross layer. A joined kernel reads what its first part reads, and writes
what its last part writes and what is kept for the backward pass. Each tensor that goes from one
part to the next saves its write and its read. No step that is compiled as a whole was measured, so
that intervals are as wide as those of frameworks that were never measured.

**Blocks that repeat**, such as those of a transformer, are found too. While a device computes one
block, the host issues the next block of the same operators. So the price of a list depends on which
of its operators form repeated blocks. A list may write a block once with a number of repeats, or
write it out as often as it runs; both must have the same price. All lists are therefore brought to
the form in which a block is written once.
"""

import functools
import math
from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final

from costmodels.datatypes import DataType
from costmodels.operators import Operator, OperatorKind

_JOINED: Final = (
    OperatorKind.ELEMENTWISE,
    OperatorKind.NORM,
    OperatorKind.REDUCTION,
    OperatorKind.SOFTMAX,
)
"""Kinds of operators whose kernels a compiler writes itself."""


@functools.lru_cache(maxsize=64)
def compiled(operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """The operators with those joined that follow each other and work on as many elements.

    Operators whose kernels load vectors are those of a compiler already and stay as they are.

    Args:
        operators: as PyTorch runs them one by one.
    """
    found: list[Operator] = []
    for eager in operators:
        operator = in_one_kernel(eager, eager.dtype)
        if operator.is_vectorized:
            found.append(operator)
        elif found and _joins(found[-1], operator):
            found[-1] = _joined(found[-1], operator)
        else:
            kernels = 1 if operator.kind in _JOINED else operator.num_kernels
            found.append(replace(operator, num_kernels=kernels))
    return tuple(
        o if o.kind not in _JOINED or o.num_joined else replace(o, is_vectorized=True)
        for o in found
    )


def in_one_kernel(operator: Operator, dtype: DataType) -> Operator:
    """The terms of a cross layer in one kernel, which reads three tensors and writes one.

    Other operators stay as they are.

    Args:
        operator: the operator.
        dtype: type of the tensors of that kernel.
    """
    if operator.kind is not OperatorKind.ELEMENTWISE or not operator.name.startswith("cross."):
        return operator
    size = math.prod(operator.shape) * float(dtype.num_bytes)
    return replace(
        operator, dtype=dtype, read_bytes=3.0 * size, written_bytes=size, backward_bytes=None
    )


def _joins(before: Operator, operator: Operator) -> bool:
    """Whether one kernel does the work of two operators that follow each other."""
    alike = before.num_elements == operator.num_elements
    alike &= before.num_repeats == operator.num_repeats
    alike &= before.is_recomputed == operator.is_recomputed
    free = not (before.num_joined or operator.num_joined or before.shared_bytes)
    written = before.kind in _JOINED and operator.kind in _JOINED and not before.is_vectorized
    return alike and free and written and before.has_gradient == operator.has_gradient


def _joined(before: Operator, operator: Operator) -> Operator:
    """The kernel of two operators; what goes from one to the other is neither written nor read."""
    passed = min(before.written_bytes, operator.read_bytes)
    kept = min(passed, before.saved_bytes)
    backward = before.backward_moved_bytes + operator.backward_moved_bytes - 2.0 * passed
    least = max(before.backward_moved_bytes, operator.backward_moved_bytes)
    has_norm = OperatorKind.NORM in (before.kind, operator.kind)
    return replace(
        operator,
        name=before.name,
        kind=OperatorKind.NORM if has_norm else operator.kind,
        read_bytes=before.read_bytes + operator.read_bytes - passed,
        written_bytes=before.written_bytes - passed + kept + operator.written_bytes,
        num_parameters=before.num_parameters + operator.num_parameters,
        parameter_bytes=before.parameter_bytes + operator.parameter_bytes,
        saved_bytes=before.saved_bytes + operator.saved_bytes,
        num_kernels=1,
        num_calls=max(before.num_calls, operator.num_calls),
        backward_bytes=max(backward, least) if operator.has_gradient else 0.0,
    )


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


def in_blocks(operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """The same operators in the form in which blocks that follow each other are written once.

    The operators of such a block keep the names of its first repeat, and their numbers of repeats
    are multiplied by the number of blocks.
    """
    written = _written_out(operators)
    number: dict[Operator, int] = {}
    plain = [number.setdefault(replace(o, name="", num_repeats=1), len(number)) for o in operators]
    found: list[Operator] = []
    for at, period, repeats in repeating([(plain[index], count) for index, _, count in written]):
        for index, name, count in written[at : at + period]:
            found.append(replace(operators[index], name=name, num_repeats=count * repeats))
    return tuple(found)


def _written_out(operators: Sequence[Operator]) -> list[tuple[int, str, int]]:
    """Every block written out as often as it runs, unless that takes too many operators.

    Operators that follow each other with the same number of repeats are taken as one block. The
    second repeat of an operator ``a`` is named ``a.1``, the third ``a.2``, and so on.

    Returns:
        For each operator its position in the given list, its name with the number of the repeat,
        and its repeats that were not written out.
    """
    found: list[tuple[int, str, int]] = []
    for repeats, run in groupby(enumerate(operators), key=lambda entry: entry[1].num_repeats):
        block = list(run)
        if repeats > 1 and repeats * len(block) <= _MOST_WRITTEN:
            found += [(at, o.name, 1) for at, o in block]
            for i in range(1, repeats):
                found += [(at, f"{o.name}.{i}", 1) for at, o in block]
        else:
            found += [(at, o.name, repeats) for at, o in block]
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
