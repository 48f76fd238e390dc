"""What options take of memory: per unit of work, where none fits, and when memory is scarce."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from costmodels.pipeline import CostPipeline
from costmodels.sharding import ShardingOption, Spread
from planner.options.work import OptionWork
from planner.problem import Level, PlanningProblem

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_CROWDED_RATIO: Final = 0.7
"""Host kernels are listed from this share of the device memory on; below it, tables fit without."""

_ROUNDING: Final = 1.0 + 1e-12


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableOptions:
    """Options of one table with their work, and where its shards may go.

    ``works[i]`` is that of ``options[i]``, see :class:`planner.options.work.OptionWork`.
    """

    table: str
    options: tuple[ShardingOption, ...]
    works: tuple[OptionWork, ...]
    ranks: tuple[int, ...]
    hosts: tuple[int, ...]


def memory_coefficients(pipeline: CostPipeline) -> tuple[FloatArray, FloatArray]:
    """(device, host) bytes per unit of each work column; memory is linear in work.

    Returns:
        Two arrays ``[features]``: a work row ``y`` takes ``device @ y`` and ``host @ y`` bytes.
    """
    size = pipeline.num_features
    device, host = np.zeros((2, size))
    probe = np.zeros((pipeline.topology.world_size, size))
    for column in range(size):
        probe[0, column] = 1.0
        device[column] = pipeline.device_bytes(probe)[0]
        host[column] = pipeline.host_bytes(probe)[0]
        probe[0, column] = 0.0
    return device, host


def crowded(
    problem: PlanningProblem, found: Sequence[TableOptions], pipeline: CostPipeline
) -> bool:
    """Whether device memory could keep tables from their fastest option.

    Looked at: all ranks together, the largest shard, the ranks that tables are tied to, and those
    that tables kept together share.
    """
    limits = pipeline.device_limits
    if limits.min() <= 0:
        return True
    total, largest = np.zeros(len(found)), 0.0
    for t, table in enumerate(found):
        rows, first = _joined(table.works)
        sizes = pipeline.device_bytes(rows)
        counts = np.concatenate([np.bincount(w.index.ravel()) for w in table.works])
        total[t] = float(np.add.reduceat(sizes * counts, first).min())
        largest = max(largest, float(np.maximum.reduceat(sizes, first).min()))
    if largest > _CROWDED_RATIO * float(limits.min()) / 2:
        return True
    local = problem.topology.local_world_size
    bytes_on: dict[tuple[int, ...], float] = defaultdict(float)
    for t, table in enumerate(found):
        bytes_on[table.ranks] += float(total[t])
    places = {ranks: frozenset(ranks) for ranks in bytes_on}
    for ranks, every in places.items():
        inside = sum(bytes_on[p] for p, these in places.items() if these <= every)
        if inside > _CROWDED_RATIO * float(limits[list(ranks)].sum()):
            return True
    for group in problem.constraints.together:
        members = [t for t, table in enumerate(found) if group.matches(table.table)]
        room = float(limits.min()) * (1 if group.level is Level.RANK else local)
        if total[members].sum() > _CROWDED_RATIO * room:
            return True
    return False


def surely_crowded(weight_bytes: Sequence[float], device_limits: FloatArray) -> bool:
    """Whether weights alone make device memory scarce, before any option is listed."""
    return sum(weight_bytes) > _CROWDED_RATIO * float(np.maximum(device_limits, 0.0).sum())


def fits_whole(table: TableOptions, pipeline: CostPipeline) -> bool:
    """Whether the smallest device has room for the largest shard of any option of a table."""
    rows, _ = _joined(table.works)
    return not len(rows) or bool(pipeline.device_bytes(rows).max() <= pipeline.device_limits.min())


def drop_unfit(
    table: TableOptions, pipeline: CostPipeline, device: FloatArray, host: FloatArray
) -> TableOptions:
    """Without the options that do not fit even on empty devices and hosts.

    Args:
        table: all options.
        pipeline: knows the limits.
        device: device bytes per unit of work, from :func:`memory_coefficients`.
        host: host bytes per unit of work.
    """
    rows, _ = _joined(table.works)
    if len(rows) and _fit_anywhere(rows @ device, rows @ host, pipeline):
        return table
    kept = [
        i
        for i, (option, work) in enumerate(zip(table.options, table.works, strict=True))
        if _fits_empty(option, work @ device, work @ host, table, pipeline)
    ]
    return replace(
        table,
        options=tuple(table.options[i] for i in kept),
        works=tuple(table.works[i] for i in kept),
    )


def _joined(works: Sequence[OptionWork]) -> tuple[FloatArray, IntArray]:
    """Rows of several options one after the other, and where each option's begin."""
    counts = np.array([len(w.rows) for w in works], dtype=np.int64)
    rows = np.concatenate([w.rows for w in works]) if works else np.zeros((0, 0))
    return rows, np.cumsum(counts) - counts


def _fit_anywhere(device: FloatArray, host: FloatArray, pipeline: CostPipeline) -> bool:
    """Whether the smallest device holds the largest shard, and the smallest host one per rank.

    Then every option fits on empty devices and hosts.
    """
    limit, host_limit = pipeline.device_limits.min(), pipeline.host_limits.min()
    together = host.max() * pipeline.topology.local_world_size
    return bool(device.max() <= limit and together <= host_limit)


def _fits_empty(
    option: ShardingOption,
    device: FloatArray,
    host: FloatArray,
    table: TableOptions,
    pipeline: CostPipeline,
) -> bool:
    limits, host_limits = pipeline.device_limits * _ROUNDING, pipeline.host_limits * _ROUNDING
    local = pipeline.topology.local_world_size
    if option.is_uniform:
        per_host = host.reshape(-1, local).sum(axis=-1)
        return bool((device <= limits).all() and (per_host <= host_limits).all())
    if option.spread is Spread.RANKS:
        ranks = list(table.ranks)
        host_ok = host.max() <= host_limits[np.array(ranks) // local].max()
        return bool(device.max() <= limits[ranks].max() and host_ok)
    hosts = list(table.hosts)
    room = limits.reshape(-1, local)[hosts]
    fits = (device[:, None, :] <= room[None]).all(axis=-1)
    fits &= host.sum(axis=-1)[:, None] <= host_limits[hosts][None]
    return bool(fits.any(axis=-1).all())
