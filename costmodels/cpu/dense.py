"""The time of the dense part on a CPU core, from measurements on the same machine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, final

import numpy as np

from costmodels.cpu import operators
from costmodels.dense.base import AbstractDenseModel, DenseLayers, DenseTimes, Layer, dense_layers
from costmodels.measured.cpu_constants import CpuConstants, OperatorConstants
from costmodels.operators import Operator, OperatorKind, Product
from costmodels.topology import Topology
from costmodels.workload import Workload

_BOTTOM = slice(1, 6)
"""The counts of the bottom MLP among those of :func:`update_counts`."""
_PLAIN = ("", "relu", "cat", "clone", "add")
"""Functions beside matrix products in the dense parts of the calibrated training steps."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CpuDense(AbstractDenseModel):
    """Counts (:func:`dense_counts`) times calibrated seconds per count.

    These seconds were fitted to the stages of training steps with small MLPs. If a dense part has
    other operators, or if there are no tables, each operator is priced by constants of its own
    (:mod:`costmodels.cpu.operators`), provided that the calibration measured them.

    The optimizer's cost per byte is part of the reduction of gradients
    (:mod:`costmodels.cpu.exchange`).

    Args:
        constants: the constants of the machine.
    """

    constants: CpuConstants

    sources: ClassVar[tuple[str, ...]] = ("small MLPs in training steps, measured on this machine",)

    def times(self, workload: Workload, topology: Topology) -> DenseTimes:
        """Seconds of the bottom and the top MLP; what no operator causes counts with the top."""
        del topology
        layers, element = dense_layers(workload), workload.dense.dtype.num_bytes
        single = self._operators(workload, layers)
        if single is not None:
            return _by_operators(workload, layers, self.constants, single)
        bottom = layer_counts(layers.bottom, element)
        top = layer_counts(layers.top, element)
        top[0] = 1.0 if layers.bottom or layers.top else 0.0
        forward = np.array(self.constants.dense.forward_s)
        backward = np.array(self.constants.dense.backward_s)
        update = update_counts(workload) * np.array(self.constants.dense.update_s)
        return DenseTimes(
            bottom_forward_s=float(bottom @ forward),
            top_forward_s=float(top @ forward),
            top_backward_s=float(top @ backward),
            bottom_backward_s=float(update[_BOTTOM].sum()),
            optimizer_s=float(update.sum() - update[_BOTTOM].sum()),
        )

    def sigma_ratio(self, workload: Workload) -> float | None:
        """The log-standard deviation of single operators; None if times are not made of them."""
        single = self._operators(workload, dense_layers(workload))
        return None if single is None else single.sigma_ratio

    def _operators(self, workload: Workload, layers: DenseLayers) -> OperatorConstants | None:
        """Constants of single operators; None if those of whole training steps are used."""
        in_steps = workload.tables and _is_known(layers)
        return None if in_steps else self.constants.operators


def _is_known(layers: DenseLayers) -> bool:
    """Whether all operators are matrix products or functions that the calibrated steps had."""
    listed = [o for layer in (*layers.bottom, *layers.top) for o in layer.operators]
    plain = (OperatorKind.MATMUL, OperatorKind.ELEMENTWISE)
    return all(o.kind in plain and o.function in _PLAIN for o in listed)


def _by_operators(
    workload: Workload, layers: DenseLayers, constants: CpuConstants, single: OperatorConstants
) -> DenseTimes:
    """The seconds of a dense part, priced operator by operator.

    With tables, constants of whole training steps are added: what a pass takes without operators,
    and the update without the bottom MLP. Without tables no gradients are reduced, so that the step
    of the optimizer is priced here.
    """
    bottom, top = ([o for x in part for o in x.operators] for part in (layers.bottom, layers.top))
    held = operators.held_bytes((*bottom, *top))
    forward_s = backward_s = 0.0
    if workload.tables:
        forward_s, backward_s = constants.dense.forward_s[0], constants.dense.backward_s[0]
        counts = update_counts(workload)
        counts[_BOTTOM] = 0.0
        update_s = float(counts @ np.array(constants.dense.update_s))
    else:
        visited = operators.update_counts((*bottom, *top))
        update_s = float(visited @ np.array(single.update_s))
    return DenseTimes(
        bottom_forward_s=operators.forward_s(bottom, single, held),
        top_forward_s=operators.forward_s(top, single, held) + forward_s,
        top_backward_s=operators.backward_s(top, single, held) + backward_s,
        bottom_backward_s=operators.backward_s(bottom, single, held),
        optimizer_s=update_s,
    )


def dense_counts(products: Iterable[Product], joined_elements: float) -> np.ndarray:
    """What the dense part is priced by.

    Args:
        products: its matrix products.
        joined_elements: elements that operators without a product before them write.

    Returns:
        1; number of products; multiply-adds; elements that products write; ``joined_elements``; and
        elements that products read (without weights).
    """
    counts = np.zeros(6)
    counts[0], counts[4] = 1.0, joined_elements
    for p in products:
        counts[1] += 1.0
        counts[2] += float(p.count) * p.m * p.k * p.n
        counts[3] += float(p.count) * p.m * p.n
        counts[5] += float(p.count) * p.m * p.k
    return counts


def update_counts(workload: Workload) -> np.ndarray:
    """What the update at the end of a step is priced by.

    Returns:
        1; the counts of the bottom MLP (as :func:`dense_counts`, without the first); the number of
        tables, each of which has an optimizer; and the elements of the vectors and the indices of a
        batch, whose memory is given back at the end of a step.
    """
    bottom = layer_counts(dense_layers(workload).bottom, workload.dense.dtype.num_bytes)
    bottom[0] = 1.0
    batch, tables = workload.batch_size_per_rank, workload.tables
    elements = batch * sum(t.embedding_dim * len(t.features) for t in tables)
    indices = batch * sum(t.pooling_factor for t in tables)
    return np.concatenate([bottom, [float(len(tables)), float(elements), indices]])


def layer_counts(layers: tuple[Layer, ...], element_bytes: float) -> np.ndarray:
    """The counts of some layers, as :func:`dense_counts`, but with 0 in the place of the 1.

    A fused attention counts as its two products. An operator that directly follows a product, such
    as an activation, is part of it. What all other operators write, such as a concatenation or a
    norm, counts as joined elements. Copies before the last one (``Operator.num_joined``) do not:
    the constants were calibrated with that one alone.

    Args:
        layers: the layers.
        element_bytes: bytes of an element.
    """
    listed = [o for layer in layers for o in layer.operators]
    operators = [o for o in listed if _multiplies(o) or (o.moved_bytes and not o.num_joined)]
    products = [p for layer in layers for p in layer.products]
    products += [p for o in operators for p in _attention_products(o)]
    joined = sum(
        o.num_repeats * o.tensor_bytes
        for last, o in pairwise((None, *operators))
        if o is not None and not _multiplies(o) and not (last is not None and _multiplies(last))
    )
    counts = dense_counts(products, joined / element_bytes)
    counts[0] = 0.0
    return counts


def _multiplies(operator: Operator) -> bool:
    """Whether an operator is a matrix product or a fused attention."""
    return operator.product is not None or operator.kind is OperatorKind.ATTENTION


def _attention_products(operator: Operator) -> tuple[Product, ...]:
    """Both products of a fused attention, with all its repeats; empty for other operators."""
    if operator.kind is not OperatorKind.ATTENTION:
        return ()
    heads, queries, keys, width, value_width = operator.shape
    scores = Product(m=queries, k=width, n=keys, count=heads)
    values = Product(m=queries, k=keys, n=value_width, count=heads)
    return (scores, values) * operator.num_repeats
