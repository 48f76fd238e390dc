"""Operators of a dense part as a compiler runs them (``dense.compiled``).

torch.compile leaves matrix products, attention and lookups to the libraries, and joins the kernels
between them that work on tensors of one size: activations, sums, norms, and all of a cross layer.
A joined kernel reads what its first part reads, and writes what its last part writes and what is
kept for the backward pass. Each tensor that goes from one part to the next saves its write and its
read. No step that is compiled as a whole was measured, so that intervals are as wide as those of
frameworks that were never measured.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace
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
