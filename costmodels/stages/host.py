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

from collections.abc import Sequence
from dataclasses import dataclass
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


def _both(forward: tuple[float, float], backward: tuple[float, float]) -> FloatArray:
    """Dispatches of a call and launches of a kernel, forward and backward."""
    return np.array([np.diag(forward), np.diag(backward)])


_ELEMENTWISE: Final = _both((2.2, 1.2), (3.3, 1.9))
_EAGER: Final[dict[str, FloatArray]] = {
    OperatorKind.OTHER: _both((4.4, 3.0), (6.6, 5.0)),
    OperatorKind.MATMUL: _both((3.2, 1.0), (4.8, 3.6)),
    OperatorKind.BATCHED_MATMUL: _both((3.5, 1.0), (5.5, 2.2)),
    OperatorKind.ATTENTION: _both((27.0, 5.0), (49.0, 12.0)),
    OperatorKind.ELEMENTWISE: _ELEMENTWISE,
    OperatorKind.REDUCTION: _ELEMENTWISE,
    OperatorKind.NORM: _both((3.4, 1.2), (4.6, 1.6)),
    OperatorKind.SOFTMAX: _both((1.8, 1.0), (2.6, 1.4)),
    "cast": _both((3.0, 2.1), (4.0, 2.1)),
    "gradient": np.array((1.8, 0.0)),
    "reduced": np.array((1.0, 1.0)),
    "update": np.array([(15.4, 6.0), (1.2, 0.0)]),
    "update sgd": np.array([(10.4, 2.0), (0.4, 0.0)]),
    "update adam": np.array([(12.4, 3.0), (1.5, 0.0)]),
    "update adam_foreach": np.array([(33.4, 14.0), (2.0, 0.1)]),
    "update lamb": np.array([(33.4, 14.0), (6.0, 4.0)]),
    "lookup_forward": np.array((95.0, 10.0)),
    "lookup_backward": np.array((22.0, 27.0)),
    "wrapper": np.array((110.0, 6.0)),
    "pipelined": np.array((100.0, 7.0)),
    "collective": np.array((8.0, 8.0)),
    "copy": np.array((2.5, 1.0)),
    "loss": np.array((21.5, 5.0)),
}
"""Times of tiny operators, of TorchRec's modules and of its pipeline on a CPU over that of an add_
(PyTorch 2.13, TorchRec 1.8), Python's share at 0.55 of it as in five traces of an H200; kernels of
31 dense and 20 TorchRec steps on an H200. LAMB is assumed."""
_UNPROFILED: Final = 0.4
"""Host time without the profiler over host time in the profiler's traces. It is fitted to the 36
iterations of Lin et al. 2022, together with the time between steps; ``shardplan validate published
--what single-gpu`` prints the errors when models or GPUs are left out of the fit."""


def _traced(microseconds: float) -> FloatArray:
    """Microseconds of the traces, in whole eager calls of 5 us."""
    return np.full(2, microseconds * _UNPROFILED / 5.0)


_KERNEL_2021: Final = 10.4
"""Microseconds of one kernel launch in the traces (T4)."""
_KERNELS_2021: Final = 3 * _KERNEL_2021
"""The kernels that the host launches for a fused lookup, and for its backward pass."""
_BACKWARD_2021: Final = 1.67
"""Host time of a backward pass over that of its forward pass."""
_OPERATOR_2021: Final = np.array([_traced(58.0), _traced(_KERNEL_2021)])
"""Each call of an operator of the forward pass, and each of its kernels."""
_EAGER_2021: Final[dict[str, FloatArray]] = {
    OperatorKind.OTHER: np.array([_OPERATOR_2021, _OPERATOR_2021 * _BACKWARD_2021]),
    "gradient": _traced(39.0),
    "update": np.array([_traced(172.0), _traced(60.0)]),
    "lookup_forward": _traced(105.3 + _KERNELS_2021),
    "lookup_backward": _traced(135.2 + _KERNELS_2021),
    "collective": _traced(91.6),
    "copy": _traced(52.5),
    "loss": _traced(190.0),
    "between_steps": np.array((460.0, 460.0)),
}
"""Means of Lin et al.'s overheads of DLRM on PyTorch of 2021 by kind of operator
(configs/published/lin22_host_overheads.csv): for each operator T1 (gap between operators), T2
(before the first launch) and T3 (after the last one), T4 for each launch; their share without the
profiler and the time between steps from their 36 measured iterations."""
PROFILES: Final[dict[HostProfile, dict[str, FloatArray]]] = {
    HostProfile.EAGER: _EAGER,
    HostProfile.EAGER_2021: _EAGER_2021,
    HostProfile.CUDA_GRAPH: {},
}
"""For each software the work of the host for a call of each name: ``[2]``, how many dispatches and
how many launches. Calls that are not there take no time; a captured CUDA graph is replayed without
the host.

- kinds of operators of the dense part, and ``cast``, the casts of the input and the parameters of a
  product under autocast: ``[forward pass, backward pass; each call, each kernel of the forward
  pass; 2]``. Kinds that are not there take what ``other`` does;
- ``gradient``: adding up the gradient of one tensor;
- ``reduced``: copying the gradient of one tensor into a bucket of an all-reduce;
- ``update``: the optimizer's step and its zeroing of gradients, without the single tensors; then
  zeroing one tensor's gradient and updating the tensor. Optimizers that differ have their own;
- ``lookup_forward``: a fused lookup, with what the sharded module does around it;
- ``lookup_backward``: its backward pass;
- ``wrapper``: what the sharded modules do once in a step: indices sorted by rank and split;
- ``pipelined``: what a training pipeline of TorchRec does in a step beside the step itself;
- ``collective``: issuing one collective;
- ``copy``: issuing one copy of an input tensor to the device;
- ``loss``: the loss, forward and backward, and the start of the backward pass;
- ``between_steps``: reading the loss and fetching the next batch, in which the device has no work.
"""
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

    def calls(self, name: str, other: str = "") -> FloatArray:
        """The work of calls of a name, or else of another one."""
        known = PROFILES[self.issued_by]
        return known.get(name, known.get(other, np.zeros(2)))

    def seconds(self, calls: FloatArray) -> float:
        """Host seconds of some work."""
        return float(np.sum(calls * np.array((self.host.dispatch_s, self.host.launch_s))))

    def call_s(self, name: str) -> float:
        """One call, by its name in the profile."""
        return self.seconds(self.calls(name))

    def forward_s(self, layers: Sequence[Layer]) -> float:
        """Issuing the forward pass of layers."""
        return self.seconds(self._passes(layers)[0])

    def _passes(self, layers: Sequence[Layer]) -> FloatArray:
        """The forward and the backward pass of layers ``[2, 2]``, without gradients of tensors."""
        total = np.zeros((2, 2))
        for layer in layers:
            cast = is_cast(layer)
            for o in layer.operators:
                kind = self.calls(o.kind, OperatorKind.OTHER)
                runs = np.array((o.num_calls, o.num_kernels))
                total += o.num_repeats * (runs @ kind)
                if cast and o.kind is OperatorKind.MATMUL and o.num_parameters:
                    total += o.num_repeats * (np.ones(2) @ self.calls("cast"))
        return total

    def backward_s(self, layers: Sequence[Layer]) -> float:
        """Issuing the backward pass of layers, and adding up the gradients of their tensors."""
        gradient = self.calls("gradient") + self.reduces * self.calls("reduced")
        return self.seconds(self._passes(layers)[1] + _num_tensors(layers) * gradient)

    def passes_s(self, layers: Sequence[Layer]) -> float:
        """Issuing forward and backward pass of layers, and the loss."""
        return self.forward_s(layers) + self.backward_s(layers) + self.call_s("loss")

    def optimizer_s(self, layers: Sequence[Layer], optimizer: DenseOptimizer) -> float:
        """Issuing the update of the layers' tensors."""
        tensors = _num_tensors(layers)
        update = self.calls(f"update {optimizer}", "update")
        return self.seconds(np.array((1, tensors)) @ update) if tensors else 0.0

    @property
    def operator_s(self) -> float:
        """Issuing one operator of one kernel."""
        return self.seconds(self.calls(OperatorKind.ELEMENTWISE, OperatorKind.OTHER)[0].sum(axis=0))

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
        is_pipelined = workload.pipeline in TORCHREC_PIPELINES
        return self.call_s("wrapper") + is_pipelined * self.call_s("pipelined")


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
