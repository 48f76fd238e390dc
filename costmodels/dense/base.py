"""The interface of a dense model, and the operators of a workload's dense part."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from itertools import groupby
from typing import ClassVar

import numpy as np

from costmodels.datatypes import DataType, FloatArray
from costmodels.dense.rewriting import compiled, in_blocks, in_one_kernel
from costmodels.errors import require
from costmodels.layers import joins
from costmodels.layers.base import Built, Flow, build_layers
from costmodels.layers.dlrm import Dlrm
from costmodels.operators import PRODUCTS, Operator, OperatorKind
from costmodels.operators import Product as Product
from costmodels.topology import Device, Topology
from costmodels.workload import (
    DenseArch,
    HostProfile,
    InteractionKernel,
    Pipeline,
    Pooling,
    Workload,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Operators of the dense part that follow each other and share a name.

    The properties count the repeats of the operators.
    """

    name: str
    operators: tuple[Operator, ...]

    @property
    def products(self) -> tuple[Product, ...]:
        """Matrix products of the forward pass, one for each repeat."""
        found = [(o, o.product) for o in self.operators]
        return tuple(p for o, p in found if p is not None for _ in range(o.num_repeats))

    @property
    def flops(self) -> float:
        """FLOP of a forward pass."""
        return sum(o.num_repeats * o.forward_flop for o in self.operators)

    @property
    def num_parameters(self) -> int:
        """Elements that are trained, and whose gradients ranks reduce."""
        return sum(o.num_repeats * o.num_parameters for o in self.operators)


_DLRM = "bottom MLP", "interaction and top MLP"
"""Names of a DLRM's dense part before and after the looked-up vectors arrive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseLayers:
    """The layers before the looked-up vectors arrive (``bottom``), and those after (``top``)."""

    bottom: tuple[Layer, ...]
    top: tuple[Layer, ...]

    @property
    def bottom_parameters(self) -> int:
        """Trained elements of the layers before the looked-up vectors arrive."""
        return sum(layer.num_parameters for layer in self.bottom)

    @property
    def top_parameters(self) -> int:
        """Trained elements of the layers after the looked-up vectors arrive."""
        return sum(layer.num_parameters for layer in self.top)


@dataclass(frozen=True, slots=True)
class DenseTimes:
    """Seconds of the dense part on the compute stream, if the device never waits for the host.

    Each field is one number for all ranks, or an array ``[W]`` with a number for each rank.
    """

    bottom_forward_s: FloatArray | float
    top_forward_s: FloatArray | float
    top_backward_s: FloatArray | float
    bottom_backward_s: FloatArray | float
    optimizer_s: FloatArray | float

    def __post_init__(self) -> None:
        """Refuse what is no number."""
        for field in fields(self):
            value = np.asarray(getattr(self, field.name))
            is_number = np.issubdtype(value.dtype, np.number)
            require(is_number, f"dense times: {field.name} must be a number, got {value!r:.60}")

    def __iter__(self) -> Iterator[FloatArray | float]:
        """Each time, in the order of the fields."""
        return (getattr(self, field.name) for field in fields(self))


class AbstractDenseModel(ABC):
    """Predicts the seconds of the dense part, forward, backward and update, on one device."""

    __slots__ = ()

    sources: ClassVar[tuple[str, ...]]

    @abstractmethod
    def times(self, workload: Workload, topology: Topology) -> DenseTimes:
        """Times of the dense part of one rank, for the workload's local batch size.

        Args:
            workload: has the dense part and the batch size.
            topology: the ranks that train the dense part, and their device.
        """

    def sigma_ratio(self, workload: Workload) -> float | None:
        """Standard deviation of the logarithm of the error of these times.

        None if it is the one that is used for dense times in general.
        """
        del workload
        return None

    def beside(self, lookup_s: Callable[[], float]) -> AbstractDenseModel:
        """This model for a dense part whose step also contains lookups.

        Args:
            lookup_s: returns the seconds of the lookups of a step, on a rank of a plan that spreads
                whole tables evenly. It is called only by models whose times depend on it.
        """
        del lookup_s
        return self

    def sustained_ratio(self, workload: Workload, topology: Topology) -> float:
        """Where the dense part lies between a short burst (0) and one that fills the step (1)."""
        del workload, topology
        return 0.0


def dense_layers(workload: Workload) -> DenseLayers:
    """The layers of the workload's dense part, with repeated blocks written once.

    Raises:
        InvalidValueError: a layer cannot work on the tensors that reach it.
    """
    return _layers(*dense_operators(workload))


@functools.lru_cache(maxsize=64)
def _layers(before: tuple[Operator, ...], after: tuple[Operator, ...]) -> DenseLayers:
    """The layers of the operators before and after the looked-up vectors arrive.

    The result is kept, because a search asks for the same layers many times.
    """
    return DenseLayers(bottom=_grouped(in_blocks(before)), top=_grouped(in_blocks(after)))


def dense_names(workload: Workload) -> tuple[str, str]:
    """What reports call the layers before and the layers after the looked-up vectors arrive."""
    arch = workload.dense
    is_dlrm = all(isinstance(layer, Dlrm) for layer in arch.layers) and arch.operators is None
    if is_dlrm and not (arch.layers and not workload.tables):
        return _DLRM
    has_before = any(layer.before_tables for layer in arch.layers)
    listed = arch.operators.before_tables if arch.operators is not None else ()
    has_before |= any(o.product is not None for o in listed)
    return "dense part before tables", "dense part after tables" if has_before else "dense part"


def dense_operators(workload: Workload) -> tuple[tuple[Operator, ...], tuple[Operator, ...]]:
    """Operators of the dense part before and after the looked-up vectors arrive.

    Raises:
        InvalidValueError: a layer cannot work on the tensors that reach it.
    """
    before, after = _described(workload)
    if workload.pipeline is Pipeline.HUGECTR:
        return _fused(before), _fused(after)
    if workload.dense.compiled:
        return compiled(before), compiled(after)
    return before, after


def _described(workload: Workload) -> tuple[tuple[Operator, ...], tuple[Operator, ...]]:
    """:func:`dense_operators` as PyTorch runs them: no operator is part of another's kernel."""
    arch = workload.dense
    if arch.operators is not None:
        return arch.operators.before_tables, arch.operators.after_tables
    num_vectors, num_elements = _looked_up(workload, is_padded=bool(arch.layers))
    before = Flow(
        batch_size=round(workload.batch_size_per_rank * workload.tensor_parallel),
        split=workload.tensor_parallel,
        dtype=arch.dtype,
        width=arch.num_dense_features,
        has_old_bias=workload.issued_by is HostProfile.EAGER_2021,
        interaction_kernel=_interaction_kernel(workload).value,
        piece_bytes=_piece_bytes(workload),
    )
    built = _built(arch, before, num_vectors, num_elements)
    return built.before, built.after


def _interaction_kernel(workload: Workload) -> InteractionKernel:
    """Which kernels run the interaction ``dot``: those that are given, or those of the pipeline."""
    usual = InteractionKernel.COMPILED if workload.dense.compiled else InteractionKernel.EAGER
    usual = InteractionKernel.FUSED if workload.pipeline is Pipeline.HUGECTR else usual
    return workload.dense.interaction_kernel or usual


def _piece_bytes(workload: Workload) -> float:
    """:attr:`Flow.piece_bytes`: HugeCTR and the DLRM of 2021 join all vectors at once."""
    is_torchrec = workload.pipeline is not Pipeline.HUGECTR
    is_torchrec &= workload.issued_by is not HostProfile.EAGER_2021
    return workload.output_dtype.num_bytes if is_torchrec and workload.tables else 0.0


@functools.lru_cache(maxsize=64)
def _fused(operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """The operators as HugeCTR runs them.

    An activation is part of the kernel of the product before it, forward and backward, which
    cuBLASLt offers; such activations are left out. Lookups write all vectors to one tensor, so that
    none are joined before: the copy after them, of a traced model, is the only one, forward and
    backward. All other kernels load vectors.
    """
    kept: list[Operator] = []
    num_calls = 0
    for listed in operators:
        if listed.num_joined:
            num_calls += listed.num_calls
            continue
        operator = listed
        if num_calls:
            total = num_calls + listed.num_calls
            operator, num_calls = replace(listed, num_calls=total, backward_bytes=None), 0
        if kept and _is_activation(operator, kept[-1]):
            saved = kept[-1].saved_bytes + operator.saved_bytes
            kept[-1] = replace(kept[-1], saved_bytes=saved)
        else:
            dtype = kept[-1].dtype if kept else operator.dtype
            joined = in_one_kernel(operator, dtype)
            kept.append(replace(joined, is_vectorized=True, is_cast=False))
    return tuple(kept)


def _is_activation(operator: Operator, before: Operator) -> bool:
    """Whether an operator reads the result of the product ``before`` it, and writes as much."""
    if before.product is None or operator.kind is not OperatorKind.ELEMENTWISE:
        return False
    given = before.product.count * before.product.m * before.product.n * operator.dtype.num_bytes
    return operator.read_bytes == given == operator.written_bytes


@functools.lru_cache(maxsize=64)
def _built(arch: DenseArch, before: Flow, num_vectors: int, num_elements: int) -> Built:
    """The operators of a dense part that is described by layers, or by the keys of a DLRM.

    The result is kept, because a search asks for the same dense part many times.

    Args:
        arch: the dense part.
        before: what reaches its first layer.
        num_vectors: looked-up vectors per sample.
        num_elements: elements of these vectors together, per sample.
    """
    if not arch.layers:
        flow = replace(before, num_vectors=num_vectors, num_elements=num_elements)
        cross_sizes = arch.dcn_num_layers, arch.dcn_low_rank_dim
        interaction = arch.interaction.value
        return joins.dlrm(flow, arch.bottom_mlp, arch.top_mlp, interaction, cross_sizes)
    tables = Flow(batch_size=before.batch_size, num_vectors=num_vectors, num_elements=num_elements)
    layers = arch.layers
    if arch.compiled:
        layers = tuple(x.as_compiled() for x in layers)
    return build_layers(layers, before, tables)


def _looked_up(workload: Workload, *, is_padded: bool) -> tuple[int, int]:
    """How many vectors a sample gets from the tables, and how many elements these have together.

    Args:
        workload: has the tables.
        is_padded: whether an unpooled feature gives a vector for each position of a sequence of its
            mean length, rounded up. Otherwise it gives one vector, because the keys of a DLRM know
            no sequences.
    """
    vectors = elements = 0
    for table in workload.tables:
        vectors += len(table.features)
        count = len(table.features)
        if table.pooling is Pooling.NONE and is_padded:
            count = sum(math.ceil(f.pooling_factor) for f in table.features)
        elements += table.embedding_dim * count
    return vectors, elements


def _grouped(operators: tuple[Operator, ...]) -> tuple[Layer, ...]:
    """Operators that follow each other and share a name, joined to layers."""
    groups = groupby(operators, key=lambda operator: operator.name)
    return tuple(Layer(name=name, operators=tuple(group)) for name, group in groups)


def dense_parameters(workload: Workload) -> int:
    """Trained elements of the dense part."""
    layers = dense_layers(workload)
    return layers.bottom_parameters + layers.top_parameters


def unrated_remark(
    workload: Workload, device: Device, *, is_calibrated: bool = False
) -> str | None:
    """A remark that the device lists no rate for a type of the products; None if it lists all.

    Calibrated CPU cores were timed in fp32 alone, whatever rates their system lists. A missing rate
    of tf32 is not remarked, because PyTorch runs such products in fp32 on devices without tf32.
    """
    before, after = dense_operators(workload)
    kinds = (*PRODUCTS, OperatorKind.ATTENTION)
    used = {o.dtype for o in (*before, *after) if o.kind in kinds} - {DataType.TF32}
    known = {DataType.FP32} if is_calibrated else dict(device.flops_per_s).keys()
    unlisted = sorted(used - known)
    if not unlisted:
        return None
    if is_calibrated:
        names = ", ".join(unlisted)
        return f"CPU cores are calibrated in fp32: products in {names} are priced as such"
    priced = dict.fromkeys(device.rated_type(dtype) for dtype in unlisted)
    return (
        f"{device.name} lists no rate for products in {', '.join(unlisted)}: the dense part is "
        f"priced at that of {', '.join(priced)}"
    )


def with_even_sequences(workload: Workload) -> Workload:
    """The workload if its data loader hands sequences out so that all ranks have equal work."""
    layers = tuple(layer.evened() for layer in workload.dense.layers)
    return replace(workload, dense=replace(workload.dense, layers=layers))


def uneven_remark(workload: Workload, topology: Topology, model: AbstractDenseModel) -> str | None:
    """What ranks wait for each other as lengths of sequences are drawn; None if they do not."""
    even = with_even_sequences(workload)
    if even == workload or topology.world_size < 2:
        return None
    drawn, balanced = (model.times(w, topology.trainers) for w in (workload, even))
    step_s = [sum(float(np.max(part)) for part in times) for times in (drawn, balanced)]
    saved_s = step_s[0] - step_s[1]
    return (
        f"lengths of sequences are as drawn: all of {topology.world_size} ranks wait for the one "
        f"with the most work; a data loader that balances them (balanced: true) would save "
        f"{saved_s * 1e3:.3g} ms a step"
    )


def activation_bytes(workload: Workload) -> float:
    """Bytes of activations that a rank keeps for its backward pass."""
    layers = dense_layers(workload)
    operators = [o for layer in (*layers.bottom, *layers.top) for o in layer.operators]
    return sum(o.num_repeats * o.saved_bytes for o in operators)
