"""Host time: how long the CPU thread of a rank takes to issue the work of an iteration.

Work is counted in two units, and the machine says how long each of them takes. A *dispatch* is what
Python and PyTorch do for one tiny operator, without its kernel; a *launch* is what the driver does
for one kernel. An eager call of a tiny kernel is one of each. Both follow from two numbers of the
system (:class:`costmodels.topology.Host`), which ``shardplan calibrate --host`` measures. How many
of them a step needs depends on the software, so each software has a named profile.

The counts of ``eager`` are those of PyTorch and TorchRec themselves: the time of each kind of
operator on tensors of eight elements on a CPU, over that of an ``add_``; TorchRec's sharded modules
and its train pipeline on one gloo rank; and the kernels of steps on a GPU. Python's share is that
of five traces. No wall of a step was fitted; but counts were rounded, and that of the wrapped model
was added, with the errors in sight. ``shardplan validate published --what steps`` prints them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.dense.base import Layer
from costmodels.operators import OperatorKind
from costmodels.topology import Host
from costmodels.training.optimizers import DenseOptimizer
from costmodels.workload import TORCHREC_PIPELINES, Feature, HostProfile, Workload

_NUMBER_BYTES: Final = 4
"""Dense features, labels and weights of indices arrive as fp32."""


def _calls(num_dispatches: float, num_launches: float) -> FloatArray:
    """Work of the host ``[2]``: how many dispatches and how many launches."""
    return np.array([num_dispatches, num_launches])


_NONE: Final = _calls(0.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLaunches:
    """A host profile: the work of the host for each kind of call, as :func:`_calls` gives it.

    Attributes:
        num_operator_calls: operators of the dense part by their kind, ``[forward pass, backward
            pass; each call, each kernel of the forward pass; 2]``; those of kind ``OTHER`` are
            taken for kinds that are not there.
        num_cast_calls: the same of casting the input and the parameters of a product under
            autocast.
        num_calls: calls by their name; those that are not there take no time.

            - ``gradient``: adding up the gradient of one tensor;
            - ``reduced``: copying the gradient of one tensor into a bucket of an all-reduce;
            - ``update``: the optimizer's step and its zeroing of gradients, without the single
              tensors;
            - ``per_update``: zeroing one tensor's gradient and updating the tensor;
            - ``lookup_forward``: a fused lookup, with what the sharded module does around it;
            - ``lookup_backward``: its backward pass;
            - ``wrapper``: what the sharded modules do once in a step: indices sorted by rank and
              split;
            - ``pipelined``: what a training pipeline of TorchRec does in a step beside the step
              itself;
            - ``collective``: issuing one collective;
            - ``copy``: issuing one copy of an input tensor to the device;
            - ``loss``: the loss, forward and backward, and the start of the backward pass;
            - ``between_steps``: reading the loss and fetching the next batch, in which the device
              has no work.
        num_updates: ``update`` and ``per_update`` of optimizers that differ from these.
        copies_block: whether the host waits for copies, as it does if memory is not pinned.
    """

    num_operator_calls: Mapping[OperatorKind, FloatArray]
    num_cast_calls: FloatArray = field(default_factory=lambda: np.zeros((2, 2, 2)))
    num_calls: Mapping[str, FloatArray] = field(default_factory=dict)
    num_updates: Mapping[DenseOptimizer, tuple[FloatArray, FloatArray]] = field(
        default_factory=dict
    )
    copies_block: bool = False

    def operator(self, kind: OperatorKind) -> FloatArray:
        """Operators of a kind, ``[2, 2, 2]``."""
        known = self.num_operator_calls
        return known.get(kind, known[OperatorKind.OTHER])

    def calls(self, name: str) -> FloatArray:
        """Calls of a name, ``[2]``."""
        return self.num_calls.get(name, _NONE)


def _both(forward: tuple[float, float], backward: tuple[float, float]) -> FloatArray:
    """Dispatches of a call and launches of a kernel, forward and backward."""
    return np.array([np.diag(forward), np.diag(backward)])


_ELEMENTWISE: Final = _both((2.2, 1.2), (3.3, 1.9))
_EAGER: Final = HostLaunches(
    num_operator_calls={
        OperatorKind.OTHER: _both((4.4, 3.0), (6.6, 5.0)),
        OperatorKind.MATMUL: _both((3.2, 1.0), (4.8, 3.6)),
        OperatorKind.BATCHED_MATMUL: _both((3.5, 1.0), (5.5, 2.2)),
        OperatorKind.ATTENTION: _both((27.0, 5.0), (49.0, 12.0)),
        OperatorKind.ELEMENTWISE: _ELEMENTWISE,
        OperatorKind.REDUCTION: _ELEMENTWISE,
        OperatorKind.NORM: _both((3.4, 1.2), (4.6, 1.6)),
        OperatorKind.SOFTMAX: _both((1.8, 1.0), (2.6, 1.4)),
    },
    num_cast_calls=_both((3.0, 2.1), (4.0, 2.1)),
    num_calls={
        "gradient": _calls(1.8, 0.0),
        "reduced": _calls(1.0, 1.0),
        "update": _calls(15.4, 6.0),
        "per_update": _calls(1.2, 0.0),
        "lookup_forward": _calls(95.0, 10.0),
        "lookup_backward": _calls(22.0, 27.0),
        "wrapper": _calls(110.0, 6.0),
        "pipelined": _calls(100.0, 7.0),
        "collective": _calls(8.0, 8.0),
        "copy": _calls(2.5, 1.0),
        "loss": _calls(21.5, 5.0),
    },
    num_updates={
        DenseOptimizer.SGD: (_calls(10.4, 2.0), _calls(0.4, 0.0)),
        DenseOptimizer.ADAM: (_calls(12.4, 3.0), _calls(1.5, 0.0)),
        DenseOptimizer.ADAM_FOREACH: (_calls(33.4, 14.0), _calls(2.0, 0.1)),
        DenseOptimizer.LAMB: (_calls(33.4, 14.0), _calls(6.0, 4.0)),
    },
)
"""Times of tiny operators, of TorchRec's modules and of its pipeline on a CPU over that of an add_
(PyTorch 2.13, TorchRec 1.8), Python's share at 0.55 of it as in five traces of an H200; kernels of
31 dense and 20 TorchRec steps on an H200. LAMB is assumed."""
_UNPROFILED: Final = 0.4
"""Host time without the profiler over host time in the profiler's traces. It is fitted to the 36
iterations of Lin et al. 2022, together with the time between steps; ``shardplan validate published
--what single-gpu`` prints the errors when models or GPUs are left out of the fit."""


def _traced(microseconds: float) -> FloatArray:
    """Microseconds of the traces, in whole eager calls of 5 us."""
    calls = microseconds * _UNPROFILED / 5.0
    return _calls(calls, calls)


_KERNEL_2021: Final = 10.4
"""Microseconds of one kernel launch in the traces (T4)."""
_KERNELS_2021: Final = 3 * _KERNEL_2021
"""The kernels that the host launches for a fused lookup, and for its backward pass."""
_BACKWARD_2021: Final = 1.67
"""Host time of a backward pass over that of its forward pass."""
_OPERATOR_2021: Final = np.array([_traced(58.0), _traced(_KERNEL_2021)])
"""Each call of an operator of the forward pass, and each of its kernels."""
_EAGER_2021: Final = HostLaunches(
    num_operator_calls={
        OperatorKind.OTHER: np.array([_OPERATOR_2021, _OPERATOR_2021 * _BACKWARD_2021])
    },
    num_calls={
        "gradient": _traced(39.0),
        "update": _traced(172.0),
        "per_update": _traced(60.0),
        "lookup_forward": _traced(105.3 + _KERNELS_2021),
        "lookup_backward": _traced(135.2 + _KERNELS_2021),
        "collective": _traced(91.6),
        "copy": _traced(52.5),
        "loss": _traced(190.0),
        "between_steps": _calls(460.0, 460.0),
    },
    copies_block=True,
)
"""Means of Lin et al.'s overheads of DLRM on PyTorch of 2021 by kind of operator
(configs/published/lin22_host_overheads.csv): for each operator T1 (gap between operators), T2
(before the first launch) and T3 (after the last one), T4 for each launch; their share without the
profiler and the time between steps from their 36 measured iterations."""
PROFILES: Final = {
    HostProfile.EAGER: _EAGER,
    HostProfile.EAGER_2021: _EAGER_2021,
    HostProfile.CUDA_GRAPH: HostLaunches(
        num_operator_calls={OperatorKind.OTHER: np.zeros((2, 2, 2))}
    ),
}
"""A captured CUDA graph is replayed without the host."""
_FULL: Final = 4.0
"""Bytes of a parameter whose product is cast, if the product is of a smaller type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCosts:
    """Seconds that the host of a rank takes to issue work.

    All methods and properties return host seconds.

    Attributes:
        host: the machine, which says how long a dispatch and a kernel launch take.
        issued_by: the software that issues the work.
        reduces: whether gradients are copied for an all-reduce, as a wrapped model does on one rank
            too.
    """

    host: Host
    issued_by: HostProfile
    reduces: bool = False

    @property
    def profile(self) -> HostLaunches:
        """The calls of the software."""
        return PROFILES[self.issued_by]

    def seconds(self, calls: FloatArray) -> float:
        """Host seconds of some work."""
        return float(calls[0] * self.host.dispatch_s + calls[1] * self.host.launch_s)

    def call_s(self, name: str) -> float:
        """One call, by its name in the profile."""
        return self.seconds(self.profile.calls(name))

    def forward_s(self, layers: Sequence[Layer]) -> float:
        """Issuing the forward pass of layers."""
        return self.seconds(self._passes(layers)[0])

    def _passes(self, layers: Sequence[Layer]) -> FloatArray:
        """The forward and the backward pass of layers ``[2, 2]``, without gradients of tensors."""
        total, profile = np.zeros((2, 2)), self.profile
        for layer in layers:
            cast = is_cast(layer)
            for o in layer.operators:
                kind = profile.operator(o.kind)
                total += o.num_repeats * (o.num_calls * kind[:, 0] + o.num_kernels * kind[:, 1])
                if cast and o.kind is OperatorKind.MATMUL and o.num_parameters:
                    total += o.num_repeats * profile.num_cast_calls.sum(axis=1)
        return total

    def backward_s(self, layers: Sequence[Layer]) -> float:
        """Issuing the backward pass of layers, and adding up the gradients of their tensors."""
        calls = self.profile.calls
        gradient = calls("gradient") + self.reduces * calls("reduced")
        return self.seconds(self._passes(layers)[1] + _num_tensors(layers) * gradient)

    def passes_s(self, layers: Sequence[Layer]) -> float:
        """Issuing forward and backward pass of layers, and the loss."""
        return self.forward_s(layers) + self.backward_s(layers) + self.call_s("loss")

    def optimizer_s(self, layers: Sequence[Layer], optimizer: DenseOptimizer) -> float:
        """Issuing the update of the layers' tensors."""
        tensors = _num_tensors(layers)
        usual = self.profile.calls("update"), self.profile.calls("per_update")
        update, per_update = self.profile.num_updates.get(optimizer, usual)
        return self.seconds(update + tensors * per_update) if tensors else 0.0

    @property
    def operator_s(self) -> float:
        """Issuing one operator of one kernel."""
        kind = self.profile.operator(OperatorKind.ELEMENTWISE)
        return self.seconds(kind[0].sum(axis=0))

    def between_steps_s(self, workload: Workload) -> float:
        """Time from the end of a step's work to the first operator of the next step.

        It is that of the workload if it gives one, else that of the profile.
        """
        given_s = workload.between_steps_s
        return self.call_s("between_steps") if given_s is None else given_s

    def copies_s(self, workload: Workload) -> float:
        """Issuing the copies of a batch: indices, lengths, labels, dense features, weights."""
        weighted = any(t.is_weighted for t in workload.tables)
        dense = workload.dense.num_dense_features > 0 or workload.dense.operators is not None
        return (3 + dense + weighted) * self.call_s("copy")

    def input_s(self, workload: Workload) -> float:
        """What sharded modules and the training pipeline do with a batch once in a step."""
        if not workload.tables:
            return 0.0
        calls, is_pipelined = self.profile.calls, workload.pipeline in TORCHREC_PIPELINES
        return self.seconds(calls("wrapper") + is_pipelined * calls("pipelined"))


def is_cast(layer: Layer) -> bool:
    """Whether autocast casts the inputs and parameters of a layer, and no operator says so.

    Parameters are then of four bytes, and the product of fewer. Layers that list their casts have
    an operator of the size of the parameters.
    """
    sizes = {o.shape for o in layer.operators if o.kind is OperatorKind.ELEMENTWISE}
    products = [o for o in layer.operators if o.kind is OperatorKind.MATMUL and o.num_parameters]
    return any(
        o.dtype.num_bytes < _FULL
        and o.parameter_bytes >= _FULL * o.num_parameters
        and o.shape[2:] not in sizes
        for o in products
    )


def input_bytes(workload: Workload) -> float:
    """Bytes of a rank's batch that are copied to its device.

    These are indices, a length for each feature and sample (as wide as an index), weights of
    weighted tables, dense features, and one label per sample. A feature that several tables look up
    is in the batch once.
    """
    weighted: dict[Feature, bool] = {}
    for table in workload.tables:
        for feature in table.features:
            weighted[feature] = weighted.get(feature, False) or table.is_weighted
    per_sample = _NUMBER_BYTES * (workload.dense.num_dense_features + 1.0)
    for feature, is_weighted in weighted.items():
        per_index = workload.index_bytes + (_NUMBER_BYTES if is_weighted else 0)
        per_sample += feature.pooling_factor * per_index + workload.index_bytes
    return workload.batch_size_per_rank * per_sample


def _num_tensors(layers: Sequence[Layer]) -> int:
    """Number of trained tensors of layers, repeats included.

    Each matrix product of a layer with parameters has a matrix, and each such layer a bias.
    """
    trained = [layer for layer in layers if layer.num_parameters]
    biases = sum(max(o.num_repeats for o in layer.operators) for layer in trained)
    return biases + sum(len(layer.products) for layer in trained)
