"""Host time: how long the CPU thread of a rank takes to issue the work of an iteration.

The terms are those of Lin et al. 2022 (arXiv 2201.07821), section 4. For each operator the host
needs T1 (gap between operators), T2 (before the first launch) and T3 (after the last launch); for
each kernel launch T4; and T5 between the launches of one operator. Their values depend on the
software, so each software has a named profile. A profile counts in kernel launches, whose time is a
number of the system.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from costmodels.dense.base import Layer
from costmodels.workload import Feature, HostProfile, Workload

_NUMBER_BYTES: Final = 4
"""Dense features, labels and weights of indices arrive as fp32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLaunches:
    """A host profile: host time of each kind of work, divided by that of one kernel launch.

    Attributes:
        operator_ratio: T1 + T2 + T3 of one operator of the forward pass.
        backward_ratio: host time of a backward pass over that of its forward pass.
        per_gradient_ratio: adding up the gradient of one tensor.
        per_update_ratio: zeroing one tensor's gradient and updating the tensor.
        update_ratio: the optimizer's step and its zeroing of gradients, without the single tensors.
        lookup_forward_ratio: T1 + T2 + T3 of the forward pass of a fused lookup.
        lookup_backward_ratio: T1 + T2 + T3 of its backward pass.
        collective_ratio: issuing one collective.
        copy_ratio: issuing one copy of an input tensor to the device.
        loss_ratio: the loss, forward and backward.
        between_steps_ratio: reading the loss and fetching the next batch, in which the device has
            no work.
        launch_ratio: T4 of one kernel; 0 if a captured graph is replayed.
        copies_block: whether the host waits for copies, as it does if memory is not pinned.
        source: where the figures come from.
    """

    operator_ratio: float
    backward_ratio: float
    per_gradient_ratio: float
    per_update_ratio: float
    update_ratio: float
    lookup_forward_ratio: float
    lookup_backward_ratio: float
    collective_ratio: float
    copy_ratio: float
    loss_ratio: float
    between_steps_ratio: float
    launch_ratio: float
    copies_block: bool
    source: str


_EAGER: Final = HostLaunches(
    operator_ratio=4.0,
    backward_ratio=2.0,
    per_gradient_ratio=0.0,
    per_update_ratio=0.0,
    update_ratio=0.0,
    lookup_forward_ratio=12.0,
    lookup_backward_ratio=12.0,
    collective_ratio=8.0,
    copy_ratio=0.0,
    loss_ratio=0.0,
    between_steps_ratio=0.0,
    launch_ratio=1.0,
    copies_block=False,
    source="medians of Lin et al.'s traces over one launch of 5 us: 20 us per operator, 60 us per "
    "lookup, 40 us per collective; a fused optimizer and pinned copies are not counted",
)
_UNPROFILED: Final = 0.38
"""Host time without the profiler over host time in the profiler's traces. It is fitted to the 36
iterations of Lin et al. 2022, together with the time between steps; ``shardplan validate published
--what single-gpu`` prints the errors when models or GPUs are left out of the fit."""
_US: Final = _UNPROFILED / 5.0
"""One microsecond of the traces, in launches of 5 us."""
_EAGER_2021: Final = HostLaunches(
    operator_ratio=58.0 * _US,
    backward_ratio=1.67,
    per_gradient_ratio=39.0 * _US,
    per_update_ratio=60.0 * _US,
    update_ratio=172.0 * _US,
    lookup_forward_ratio=105.3 * _US,
    lookup_backward_ratio=135.2 * _US,
    collective_ratio=91.6 * _US,
    copy_ratio=52.5 * _US,
    loss_ratio=190.0 * _US,
    between_steps_ratio=420.0,
    launch_ratio=10.4 * _US,
    copies_block=True,
    source="means of Lin et al.'s overheads of DLRM on PyTorch of 2021 by kind of operator "
    "(configs/published/lin22_host_overheads.csv); their share without the profiler and the time "
    "between steps from their 36 measured iterations",
)
_CUDA_GRAPH: Final = HostLaunches(
    operator_ratio=0.0,
    backward_ratio=0.0,
    per_gradient_ratio=0.0,
    per_update_ratio=0.0,
    update_ratio=0.0,
    lookup_forward_ratio=0.0,
    lookup_backward_ratio=0.0,
    collective_ratio=0.0,
    copy_ratio=0.0,
    loss_ratio=0.0,
    between_steps_ratio=0.0,
    launch_ratio=0.0,
    copies_block=False,
    source="a captured CUDA graph is replayed without the host",
)
PROFILES: Final = {
    HostProfile.EAGER: _EAGER,
    HostProfile.EAGER_2021: _EAGER_2021,
    HostProfile.CUDA_GRAPH: _CUDA_GRAPH,
}
_LOOKUP_KERNELS: Final = 3.0
"""Kernels that the host launches for a fused lookup, and for its backward pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCosts:
    """Seconds that the host of a rank takes to issue work.

    All methods and properties return host seconds.

    Attributes:
        profile: the software that issues the work.
        launch_s: seconds of one kernel launch on this system.
    """

    profile: HostLaunches
    launch_s: float

    @classmethod
    def of(cls, launch_latency_s: float, profile: HostProfile) -> HostCosts:
        """Costs of a host whose kernel launch takes ``launch_latency_s``."""
        return cls(profile=PROFILES[profile], launch_s=launch_latency_s)

    def forward_s(self, layers: Sequence[Layer]) -> float:
        """Issuing the part of a forward pass that the device has to wait for.

        Of a block that repeats, the device waits for the first repeat only; see :meth:`repeats_s`.
        """
        calls = sum(layer.first_calls for layer in layers)
        kernels = sum(layer.first_kernels for layer in layers)
        return self._operators_s(calls, kernels)

    def repeats_s(self, layers: Sequence[Layer]) -> float:
        """Issuing all repeats of blocks but the first, while the device computes those before."""
        calls = sum(layer.num_calls - layer.first_calls for layer in layers)
        kernels = sum(layer.num_kernels - layer.first_kernels for layer in layers)
        return self._operators_s(calls, kernels)

    def _operators_s(self, calls: int, kernels: int) -> float:
        """Issuing ``calls`` operators that have ``kernels`` kernels together."""
        launches = calls * self.profile.operator_ratio + kernels * self.profile.launch_ratio
        return launches * self.launch_s

    def backward_s(self, layers: Sequence[Layer]) -> float:
        """Issuing the backward pass of layers, and adding up the gradients of their tensors."""
        gradients = _num_tensors(layers) * self.profile.per_gradient_ratio * self.launch_s
        return self.profile.backward_ratio * self.forward_s(layers) + gradients

    def passes_s(self, layers: Sequence[Layer]) -> float:
        """Issuing forward and backward pass of layers with all their repeats, and the loss."""
        repeats_s = (1.0 + self.profile.backward_ratio) * self.repeats_s(layers)
        return self.forward_s(layers) + self.backward_s(layers) + repeats_s + self.loss_s

    def optimizer_s(self, layers: Sequence[Layer]) -> float:
        """Issuing the update of the layers' tensors."""
        tensors = _num_tensors(layers)
        updates = tensors * self.profile.per_update_ratio + (
            self.profile.update_ratio if tensors else 0.0
        )
        return updates * self.launch_s

    @property
    def operator_s(self) -> float:
        """Issuing one operator of one kernel."""
        return self._operators_s(1, 1)

    @property
    def lookup_s(self) -> float:
        """Issuing a fused lookup."""
        launches = self.profile.lookup_forward_ratio + _LOOKUP_KERNELS * self.profile.launch_ratio
        return launches * self.launch_s

    @property
    def lookup_backward_s(self) -> float:
        """Issuing the backward pass of a fused lookup."""
        launches = self.profile.lookup_backward_ratio + _LOOKUP_KERNELS * self.profile.launch_ratio
        return launches * self.launch_s

    @property
    def collective_s(self) -> float:
        """Issuing one collective."""
        return self.profile.collective_ratio * self.launch_s

    @property
    def loss_s(self) -> float:
        """Issuing the loss, forward and backward."""
        return self.profile.loss_ratio * self.launch_s

    def between_steps_s(self, workload: Workload) -> float:
        """Time from the end of a step's work to the first operator of the next step.

        It is that of the workload if it gives one, else that of the profile.
        """
        given_s = workload.between_steps_s
        return self.profile.between_steps_ratio * self.launch_s if given_s is None else given_s

    def copies_s(self, workload: Workload) -> float:
        """Issuing the copies of a batch: indices, lengths, labels, dense features, weights."""
        weighted = any(t.is_weighted for t in workload.tables)
        tensors = 3 + bool(workload.dense.num_dense_features) + weighted
        return tensors * self.profile.copy_ratio * self.launch_s


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
    return workload.local_batch_size * per_sample


def _num_tensors(layers: Sequence[Layer]) -> int:
    """Number of trained tensors of layers, repeats included.

    Each matrix product of a layer with parameters has a matrix, and each such layer a bias.
    """
    trained = [layer for layer in layers if layer.num_parameters]
    biases = sum(max(o.num_repeats for o in layer.operators) for layer in trained)
    return biases + sum(len(layer.products) for layer in trained)
