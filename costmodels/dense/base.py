"""The interface of a dense model, and the operators of a workload's dense part."""

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from itertools import groupby

import numpy as np

from costmodels.datatypes import DataType, FloatArray
from costmodels.dense.rewriting import compiled, in_blocks, in_one_kernel
from costmodels.layers import parts
from costmodels.layers.base import Built, Flow, build_layers
from costmodels.layers.dlrm import Dlrm
from costmodels.operators import PRODUCTS, Operator, OperatorKind, Product
from costmodels.topology import Device, Topology
from costmodels.workload import (
    TORCHREC_PIPELINES,
    DenseArch,
    HostProfile,
    InteractionKernel,
    Pipeline,
    Pooling,
    Table,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseLayers:
    """The layers before the looked-up vectors arrive (``bottom``), and those after (``top``)."""

    bottom: tuple[Layer, ...]
    top: tuple[Layer, ...]

    @property
    def num_parameters(self) -> tuple[int, int]:
        """Trained elements of the layers before, and after the looked-up vectors arrive."""
        bottom, top = (sum(x.num_parameters for x in part) for part in (self.bottom, self.top))
        return bottom, top


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

    def __iter__(self) -> Iterator[FloatArray | float]:
        """Each time, in the order of the fields."""
        return (getattr(self, field.name) for field in fields(DenseTimes))


class AbstractDenseModel(ABC):
    """Predicts the seconds of the dense part, forward, backward and update, on one device."""

    __slots__ = ()

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

    def beside(self, lookup_s: Callable[[], float]) -> "AbstractDenseModel":
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
        return "bottom MLP", "interaction and top MLP"
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
    is_hugectr = workload.pipeline is Pipeline.HUGECTR
    is_old = workload.issued_by is HostProfile.EAGER_2021
    kernel = InteractionKernel.COMPILED if arch.compiled else InteractionKernel.EAGER
    kernel = InteractionKernel.FUSED if is_hugectr else kernel
    # HugeCTR and the DLRM of 2021 join all looked-up vectors at once.
    in_pieces = bool(workload.tables) and not (is_hugectr or is_old)
    before = Flow(
        batch_size=round(workload.batch_size_per_rank * workload.tensor_parallel),
        split=workload.tensor_parallel,
        dtype=arch.dtype,
        width=arch.num_dense_features,
        has_old_bias=is_old,
        interaction_kernel=(arch.interaction_kernel or kernel).value,
        piece_bytes=workload.output_dtype.num_bytes if in_pieces else 0.0,
    )
    built = _built(arch, before, num_vectors, num_elements)
    return built.before, built.after


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
    tables = replace(before, num_vectors=num_vectors, num_elements=num_elements)
    if not arch.layers:
        return parts.dlrm(tables, arch)
    layers = tuple(x.as_compiled() for x in arch.layers) if arch.compiled else arch.layers
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
    return sum(dense_layers(workload).num_parameters)


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


def uneven_remark(workload: Workload, topology: Topology, model: AbstractDenseModel) -> str | None:
    """What ranks wait for each other as lengths of sequences are drawn; None if they do not."""
    layers = tuple(layer.evened() for layer in workload.dense.layers)
    even = replace(workload, dense=replace(workload.dense, layers=layers))
    if even == workload or topology.world_size < 2:
        return None
    drawn, balanced = (model.times(w, topology.trainers) for w in (workload, even))
    saved_s = sum(float(np.max(a) - np.max(b)) for a, b in zip(drawn, balanced, strict=True))
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


# ------------------ live bytes
#
# What a rank keeps on its device while it runs the dense part forward and backward.
#
# Autograd keeps the tensors that a backward pass needs, and frees each of them after its
# operator. The peak is therefore found by going through the operators: at each of them, what all
# operators up to it keep, and the tensors that it works on. Lookups are a moment of their own,
# after the backward pass of everything that follows them.


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveBytes:
    """Bytes of activations, looked-up vectors and their gradients on one rank.

    Attributes:
        peak_bytes: the most at any moment of forward and backward pass.
        beside_lookups_bytes: those during the backward pass of the lookups.
    """

    peak_bytes: float
    beside_lookups_bytes: float


def live_bytes(workload: Workload) -> LiveBytes:
    """Bytes that are live in the passes of one micro-batch, without parameters and indices.

    ``prioritized`` also holds the vectors of the next batch that travel early, as if a plan cut all
    unpooled tables by rows; all vectors of a table that does not say which share waits.
    """
    vectors = looked_up_bytes(workload)
    held = vectors if workload.pipeline in TORCHREC_PIPELINES else 0.0
    if workload.pipeline is Pipeline.PRIORITIZED:
        held += looked_up_bytes(workload, early=True)
    return _live(dense_layers(workload), vectors, held)


def looked_up_bytes(workload: Workload, *, early: bool = False) -> float:
    """Bytes of the vectors that a rank gets for its own samples; with ``early`` of early ones."""

    def share(table: Table) -> float:
        waits = table.next_batch_ratio if table.pooling is Pooling.NONE else 1.0
        return 1.0 - (waits or 0.0) if early else 1.0

    outputs = sum(t.embedding_dim * t.outputs_per_sample * share(t) for t in workload.tables)
    return workload.batch_size_per_rank * outputs * workload.output_dtype.num_bytes


@functools.lru_cache(maxsize=64)
def _live(layers: DenseLayers, vectors_bytes: float, held_bytes: float) -> LiveBytes:
    """The peak over all operators, and the moment of the lookups, both beside ``held_bytes``.

    The vectors are held by the model until its forward pass ends. When the lookups run backward,
    there are the gradient of the joined vectors and the part of it that belongs to the tables.
    """
    before = [o for layer in layers.bottom for o in layer.operators]
    after = [o for layer in layers.top for o in layer.operators]
    kept, most = _pass(before, 0.0, 0.0)
    beside = kept + 2.0 * vectors_bytes
    _, peak = _pass(after, kept, vectors_bytes)
    most = max(most, peak, beside)
    return LiveBytes(peak_bytes=most + held_bytes, beside_lookups_bytes=beside + held_bytes)


def _pass(operators: list[Operator], kept: float, held: float) -> tuple[float, float]:
    """What is kept after the operators, and the most bytes beside any of them.

    Forward, an operator's result is there beside what the model holds (``held``). Backward, there
    are the gradients of its result and of its inputs. Of blocks that repeat, the last one counts,
    with what the blocks before it keep. Results that the backward pass computes again
    (``is_recomputed``) are there until their block ends.
    """
    most, given = kept + held, 0.0
    for repeats, run in groupby(operators, key=lambda o: o.num_repeats):
        block = list(run)
        kept += (repeats - 1) * sum(o.saved_bytes for o in block)
        again = 0.0
        for operator in block:
            kept += operator.saved_bytes
            again += operator.written_bytes if operator.is_recomputed else 0.0
            result, inputs = _result_bytes(operator), _input_gradient_bytes(operator, given)
            most = max(most, kept + again + result + max(inputs, held))
            given = result
    return kept, most


def _most_bytes(operator: Operator) -> float:
    """Bytes of an operator's largest tensor if that is fp32.

    Kernels that run one after the other, such as those of a loss, read and write more together.
    """
    return float(math.prod(operator.shape) * DataType.FP32.num_bytes)


def _result_bytes(operator: Operator) -> float:
    """Bytes of an operator's result."""
    if operator.product is not None or operator.kind is OperatorKind.ATTENTION:
        return operator.written_bytes
    return min(operator.written_bytes, _most_bytes(operator))


def _input_gradient_bytes(operator: Operator, given: float) -> float:
    """Bytes of the gradients of what an operator reads, parameters excepted.

    Elementwise kernels have two inputs at most; an operator that is several of them reads more in
    time than is there at once.

    Args:
        operator: the operator.
        given: bytes that the operator before it has written.
    """
    if not operator.has_gradient:
        return 0.0
    product = operator.product
    if product is None:
        read = operator.read_bytes
        inputs = 2.0 if operator.kind is OperatorKind.ELEMENTWISE else 1.0
        return max(min(read, inputs * _most_bytes(operator)), given)
    left = product.m * product.k if operator.left_gradient else 0
    is_weight = operator.num_parameters > 0 or not operator.right_gradient
    right = 0 if is_weight else product.k * product.n
    return float(product.count * (left + right) * operator.dtype.num_bytes)
