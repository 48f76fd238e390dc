"""Counts device memory as TorchRec's planner does, for jobs that fit only by that count.

Our own count has more: vectors and gradients that a rank receives, all batches of inputs that a
pipeline holds, and what lookups need for a moment in their backward pass. TorchRec counts for each
shard one batch of inputs and outputs (``calculate_shard_storages`` with ``PipelineType.NONE``, its
default), and keeps room for the dense part and for inputs by its storage reservation. It counts
outputs in the type that the constraint of a table names, or else in the type of its weights
(``EmbeddingStorageEstimator`` of TorchRec 1.8), although modules by default return fp32 for narrow
weights.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
from torchrec.distributed.planner.storage_reservations import (
    FixedPercentageStorageReservation,
    HeuristicalStorageReservation,
)
from torchrec.distributed.planner.types import ParameterConstraints, StorageReservation

from costmodels.datatypes import FloatArray
from costmodels.shard_work.option_work import OptionWork
from costmodels.shard_work.work import MEMORY, Memory, WorkModel
from costmodels.sharding import Plan, ShardingOption
from costmodels.workload import DataType, Workload
from planner.integrations.torchrec_workload import ShardableTable
from planner.integrations.translate.features import counted_state_ratio
from planner.integrations.translate.key_value import KeyValuePipeline
from planner.integrations.translate.settings import data_type_of

MARGIN_RATIO: Final = 0.15
"""Share of device memory kept free if no storage reservation is given (TorchRec 1.8, planners.py).
"""

_GB: Final = 2.0**30
"""The bytes that TorchRec prints as 1 GB (``bytes_to_gb``)."""


@dataclass(frozen=True, kw_only=True)
class TheirCount:
    """How TorchRec's count of memory differs from ours, by our names of tables.

    ``state_ratios`` are the bytes of state that it counts for each byte of weights, of the tables
    for which we count others: it does not see an optimizer that is set among ``fused_params``, and
    counts one state of the weights' type for a class that it does not know. ``outputs`` are the
    types in which it counts the outputs of tables; for other tables it is the workload's type.
    """

    state_ratios: Mapping[str, float] = field(default_factory=dict)
    outputs: Mapping[str, DataType] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """Words on what it leaves out, to append to a list of other things that it leaves out."""
        state = ""
        if self.state_ratios:
            all_of_it = not any(self.state_ratios.values())
            part = "the state of optimizers among fused_params" if all_of_it else "some state"
            state = f" and {part}" if all_of_it else f" and {part} of optimizers"
        narrow = any(kind.num_bytes < DataType.FP32.num_bytes for kind in self.outputs.values())
        return state + (", and counts outputs of narrow weights as narrow" if narrow else "")


AS_THE_WORKLOAD: Final = TheirCount()
"""For tables of which only the workload is known."""


def their_count(
    tables: Iterable[ShardableTable],
    workload: Workload,
    constraints: Mapping[str, ParameterConstraints] | None,
) -> TheirCount:
    """How TorchRec's estimates count the memory of these tables.

    Args:
        tables: the tables of the model.
        workload: the same tables as they are planned.
        constraints: TorchRec's constraints by table name.
    """
    kept = tuple(tables)
    outputs = {}
    for entry in kept:
        given = (constraints or {}).get(entry.parameter_name)
        chosen = getattr(given, "output_dtype", None)
        own = entry.table.dtype
        outputs[entry.table.name] = data_type_of(chosen, "output_dtype") if chosen else own
    ratios = {}
    for entry in kept:
        name = entry.table.name
        table, counted = workload.table(name), counted_state_ratio(entry.parameter)
        if counted != workload.trained_row_bytes(table) / table.row_bytes - 1.0:
            ratios[name] = counted
    return TheirCount(state_ratios=ratios, outputs=outputs)


class _TheirWork(WorkModel):
    """Work whose buffers are one batch of inputs and outputs, as TorchRec counts them."""

    @cached_property
    def _excess_ratio(self) -> float:
        return 0.0

    def _held(
        self, arriving: FloatArray, leaving: FloatArray, offsets: FloatArray, passing: FloatArray
    ) -> FloatArray:
        del offsets, passing
        return arriving + leaving


class TorchrecMemoryPipeline(KeyValuePipeline):
    """Our times with TorchRec's count of device memory."""

    def __init__(self, *arguments: Any, theirs: TheirCount = AS_THE_WORKLOAD, **more: Any) -> None:
        """Keep the arguments of :class:`KeyValuePipeline`, and how TorchRec counts differently."""
        super().__init__(*arguments, **more)
        self._work = _TheirWork(self.workload, self.topology, self.models.lookup)
        self._theirs = theirs
        self._by_outputs: dict[DataType, TorchrecMemoryPipeline] = {}

    def options_work(self, options: Sequence[ShardingOption]) -> list[OptionWork]:
        """Work of options, with TorchRec's smaller buffers."""
        works = super().options_work(options)
        rows = [work.rows for work in works]
        names = [option.table for option in options]
        for kind in {self._outputs_of(name) for name in names} - {self.workload.output_dtype}:
            chosen = [i for i, name in enumerate(names) if self._outputs_of(name) is kind]
            others = self._counting(kind).options_work([options[i] for i in chosen])
            for i, other in zip(chosen, others, strict=True):
                rows[i] = _with_buffers(rows[i], other.rows)
        return [
            replace(work, rows=self._recounted(own, name))
            for work, own, name in zip(works, rows, names, strict=True)
        ]

    def plan_work(self, plan: Plan) -> FloatArray:
        """Work of a plan, with TorchRec's smaller buffers."""
        own = self.workload.output_dtype
        if not self._theirs.state_ratios and set(self._theirs.outputs.values()) <= {own}:
            return self._recounted(super().plan_work(plan))
        work = super().plan_work(Plan(placements=()))
        for placed in plan.placements:
            alone = Plan(placements=(placed,))
            one, kind = super().plan_work(alone), self._outputs_of(placed.table)
            if kind is not own:
                one = _with_buffers(one, self._counting(kind).plan_work(alone))
            work = work + self._recounted(one, placed.table)
        return work

    def _outputs_of(self, name: str) -> DataType:
        """The type in which TorchRec counts the outputs of a table."""
        return self._theirs.outputs.get(name, self.workload.output_dtype)

    def _counting(self, kind: DataType) -> TorchrecMemoryPipeline:
        """A pipeline for the same tables with outputs of another type."""
        if kind not in self._by_outputs:
            workload = replace(self.workload, output_dtype=kind)
            self._by_outputs[kind] = TorchrecMemoryPipeline(
                workload, self.topology, self.models, key_values=self.key_values
            )
        return self._by_outputs[kind]

    @cached_property
    def device_limits(self) -> FloatArray:
        """Bytes for tables on each rank, ``[W]``: everything that the reservation has left."""
        return np.asarray(self.topology.hbm_capacities() - self.workload.reserved_bytes)

    def _recounted(self, work: FloatArray, name: str = "") -> FloatArray:
        """The work without gradients, and with the state of a table that TorchRec counts."""
        changed = work.copy()
        changed[..., MEMORY + Memory.GRADIENTS] = 0.0
        ratio = self._theirs.state_ratios.get(name)
        if ratio is not None:
            table = self.workload.table(name)
            changed[..., MEMORY + Memory.OPTIMIZER] = ratio * work[..., MEMORY + Memory.WEIGHTS]
            with_state = table.row_bytes * (1.0 + ratio)
            for column in (Memory.CACHE, Memory.HOST):
                changed[..., MEMORY + column] *= with_state / self.workload.trained_row_bytes(table)
        return changed


def _with_buffers(work: FloatArray, other: FloatArray) -> FloatArray:
    """The first work with the buffers of the second."""
    changed = work.copy()
    changed[..., MEMORY + Memory.BUFFERS] = other[..., MEMORY + Memory.BUFFERS]
    return changed


def default_reservation() -> StorageReservation:
    """The reservation that TorchRec's planner uses by default; context hashes depend on it.

    Its warning that advises to choose another one is suppressed, because no user has chosen it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return HeuristicalStorageReservation(percentage=MARGIN_RATIO)


class LeftToOurCount(FixedPercentageStorageReservation):
    """Keeps nothing, because our ledger counts what is not a table; for users who chose none."""

    def __init__(self) -> None:
        super().__init__(percentage=0.0)


def is_shortage(pipeline: KeyValuePipeline) -> bool:
    """Whether all devices together have too little memory, and not just one rank or table.

    TorchRec calls the first case ``INSUFFICIENT_STORAGE`` and the second ``STRICT_CONSTRAINTS``.
    """
    needed = sum(
        pipeline.workload.trained_bytes(t)
        for t in pipeline.workload.tables
        if t.name not in pipeline.key_values
    )
    return bool(needed > float(np.maximum(pipeline.device_limits, 0.0).sum()))


def described(reservation: StorageReservation) -> str:
    """A storage reservation in words, with its size if it is known."""
    name = type(reservation).__name__
    absolute = getattr(reservation, "_hbm_reserved_bytes", None)
    if absolute is not None:
        return f"{name}: {absolute / _GB:.3g} GB per device"
    percentage = getattr(reservation, "_percentage", None)
    return name if percentage is None else f"{name}: {percentage:.0%} of each device"
