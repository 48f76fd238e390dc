"""Device memory counted as TorchRec's planner counts it, for jobs that fit only by that count.

Our ledger holds more: embeddings and gradients that a rank receives, two batches of inputs in
flight, outputs with their gradients. TorchRec's counts, per shard, one batch of inputs and outputs
(``calculate_shard_storages`` with ``PipelineType.NONE``, its default), and keeps room for the dense
part and for inputs by its storage reservation.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

import numpy as np
from torchrec.distributed.planner.storage_reservations import HeuristicalStorageReservation
from torchrec.distributed.planner.types import StorageReservation

from costmodels.memory import FloatArray
from costmodels.shard_work.option_work import OptionWork
from costmodels.shard_work.work import MEMORY, Memory
from costmodels.sharding import Plan, ShardingOption
from planner.integrations.torchrec_workload import ShardableTable
from planner.integrations.translate.key_value import KeyValuePipeline

MARGIN_RATIO: Final = 0.15
"""Device memory kept free when no storage reservation is given (TorchRec 1.8, planners.py)."""

_HELD_TWICE: Final = 2.0
_GB: Final = 2.0**30
"""What TorchRec prints as GB (``bytes_to_gb``)."""


class TorchrecMemoryPipeline(KeyValuePipeline):
    """Our times with TorchRec's count of device memory."""

    def __init__(self, *arguments: Any, stateless: Collection[str] = (), **more: Any) -> None:
        """Arguments of :class:`KeyValuePipeline`; ``stateless`` are tables by name.

        Their optimizer stands among ``fused_params``, where TorchRec's estimates do not see it.
        """
        super().__init__(*arguments, **more)
        self._stateless = frozenset(stateless)

    def options_work(self, options: Sequence[ShardingOption]) -> list[OptionWork]:
        """Work of unplaced options, with smaller buffers."""
        works = zip(options, super().options_work(options), strict=True)
        return [replace(work, rows=self._recounted(work.rows, o.table)) for o, work in works]

    def plan_work(self, plan: Plan) -> FloatArray:
        """Work of a plan, with smaller buffers."""
        if not self._stateless:
            return self._recounted(super().plan_work(plan))
        work = super().plan_work(Plan(placements=()))
        for placed in plan.placements:
            one = super().plan_work(Plan(placements=(placed,)))
            work = work + self._recounted(one, placed.table)
        return work

    @cached_property
    def device_limits(self) -> FloatArray:
        """Bytes for embeddings on each rank, ``[W]``: all that the reservation left."""
        return np.asarray(self.topology.hbm_capacities() - self.workload.reserved_bytes)

    def _recounted(self, work: FloatArray, name: str = "") -> FloatArray:
        """Half of the buffers, for ours hold inputs twice and outputs with their gradients."""
        changed = work.copy()
        changed[..., MEMORY + Memory.BUFFERS] /= _HELD_TWICE
        changed[..., MEMORY + Memory.GRADIENTS] = 0.0
        if name in self._stateless:
            table = self.workload.table(name)
            row_bytes = table.embedding_dim * table.dtype.num_bytes
            state_bytes = self.workload.optimizer.state_bytes_per_row(table.embedding_dim)
            changed[..., MEMORY + Memory.OPTIMIZER] = 0.0
            for column in (Memory.CACHE, Memory.HOST):
                changed[..., MEMORY + column] *= row_bytes / (row_bytes + state_bytes)
        return changed


def default_reservation() -> StorageReservation:
    """What TorchRec's planner takes when it is given none; context hashes depend on it.

    Its advice to choose another one is for users who chose it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return HeuristicalStorageReservation(percentage=MARGIN_RATIO)


def counts_dense_part(reservation: StorageReservation) -> bool:
    """Whether a storage reservation has kept room for the dense part, so that we must not again."""
    return getattr(reservation, "_dense_storage", None) is not None


def stateless(tables: Iterable[ShardableTable]) -> frozenset[str]:
    """Names of tables whose optimizer TorchRec's count of memory does not see."""
    seen = "_optimizer_classes"
    return frozenset(t.table.name for t in tables if not hasattr(t.parameter, seen))


def is_shortage(pipeline: KeyValuePipeline) -> bool:
    """Whether all devices together lack memory for the tables, not one rank or table alone.

    TorchRec calls the first ``INSUFFICIENT_STORAGE`` and the second ``STRICT_CONSTRAINTS``.
    """
    state = pipeline.workload.optimizer.state_bytes_per_row
    needed = sum(
        t.num_embeddings * (t.embedding_dim * t.dtype.num_bytes + state(t.embedding_dim))
        for t in pipeline.workload.tables
        if t.name not in pipeline.key_values
    )
    return bool(needed > float(np.maximum(pipeline.device_limits, 0.0).sum()))


def described(reservation: StorageReservation) -> str:
    """A storage reservation in words, with its size where it tells."""
    name = type(reservation).__name__
    absolute = getattr(reservation, "_hbm_reserved_bytes", None)
    if absolute is not None:
        return f"{name}: {absolute / _GB:.3g} GB per device"
    percentage = getattr(reservation, "_percentage", None)
    return name if percentage is None else f"{name}: {percentage:.0%} of each device"
