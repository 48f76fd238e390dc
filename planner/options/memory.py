"""The memory of options: which ones fit, and whether device memory is scarce."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Final

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.memory import dense_parts
from costmodels.pipeline import CostPipeline
from costmodels.shard_work.cells import OptionWork
from costmodels.sharding import ComputeKernel, ShardingOption, ShardingType, Spread
from costmodels.units import format_bytes
from costmodels.workload import Interaction, Workload
from planner.errors import InfeasibleError
from planner.options.table_limits import TableLimits
from planner.problem import Level, PlanningProblem

_CROWDED_RATIO: Final = 0.7
"""If tables take more than this share of device memory, kernels in host memory are listed; if they
take less, tables fit without such kernels."""

_ROUNDING: Final = 1.0 + 1e-12


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableOptions:
    """Options of one table with their work, and the ranks and hosts that its shards may use.

    ``kernels`` are those that constraints leave to each sharding type. ``works[i]`` is the work of
    ``options[i]``, as in :class:`costmodels.shard_work.cells.OptionWork`.
    """

    table: str
    options: tuple[ShardingOption, ...]
    works: tuple[OptionWork, ...]
    kernels: dict[ShardingType, tuple[ComputeKernel, ...]]
    ranks: tuple[int, ...]
    hosts: tuple[int, ...]


def memory_coefficients(pipeline: CostPipeline) -> tuple[FloatArray, FloatArray]:
    """Device and host bytes per unit of each work column; memory is linear in work.

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
    problem: PlanningProblem,
    limits: Sequence[TableLimits],
    table_bytes: Sequence[float],
    device_limits: FloatArray,
) -> bool:
    """Whether device memory is so scarce that tables may not get their fastest option.

    It is if tables take more than :data:`_CROWDED_RATIO` of all ranks together, of the ranks that
    constraints leave to them, or of the rank or host that a rule keeps them on.

    Args:
        problem: has the rules that keep tables together.
        limits: what constraints leave to each table.
        table_bytes: bytes that each table takes at least.
        device_limits: ``[W]`` bytes that devices have for tables.
    """
    if device_limits.min() <= 0 or surely_crowded(table_bytes, device_limits):
        return True
    local = problem.topology.local_world_size
    bytes_on: dict[tuple[int, ...], float] = defaultdict(float)
    for limit, size in zip(limits, table_bytes, strict=True):
        bytes_on[limit.ranks] += size
    places = {ranks: frozenset(ranks) for ranks in bytes_on}
    for ranks, every in places.items():
        inside = sum(bytes_on[p] for p, these in places.items() if these <= every)
        if inside > _CROWDED_RATIO * float(device_limits[list(ranks)].sum()):
            return True
    for group in problem.constraints.together:
        pairs = zip(limits, table_bytes, strict=True)
        together = sum(size for limit, size in pairs if group.matches(limit.table.name))
        ranks_each = 1 if group.level is Level.RANK else local
        if together > _CROWDED_RATIO * float(device_limits.min()) * ranks_each:
            return True
    return False


def surely_crowded(table_bytes: Sequence[float], device_limits: FloatArray) -> bool:
    """Whether tables take more than :data:`_CROWDED_RATIO` of all device memory.

    Args:
        table_bytes: bytes that each table takes at least.
        device_limits: ``[W]`` bytes that devices have for tables.
    """
    return sum(table_bytes) > _CROWDED_RATIO * float(np.maximum(device_limits, 0.0).sum())


def drop_unfit(
    tables: Sequence[TableOptions], pipeline: CostPipeline, device: FloatArray, host: FloatArray
) -> tuple[TableOptions, ...]:
    """The tables without the options that do not fit even on empty devices and hosts.

    Args:
        tables: all options of each table.
        pipeline: knows the limits of memory.
        device: ``[F]`` device bytes per unit of work, from :func:`memory_coefficients`.
        host: ``[F]`` host bytes per unit of work.
    """
    kept: list[TableOptions] = []
    limit, host_limit = pipeline.device_limits.min(), pipeline.host_limits.min()
    for table in tables:
        # All fit if the smallest device holds the largest shard, and the smallest host the largest
        # one of each of its ranks.
        rows = np.concatenate([np.zeros((1, len(device))), *(w.rows for w in table.works)])
        together = (rows @ host).max() * pipeline.topology.local_world_size
        if (rows @ device).max() > limit or together > host_limit:
            pairs = zip(table.options, table.works, strict=True)
            fits = [
                not any(lacking_bytes(o, w @ device, w @ host, table, pipeline)) for o, w in pairs
            ]
            options, works = compress(table.options, fits), compress(table.works, fits)
            table = replace(table, options=tuple(options), works=tuple(works))
        kept.append(table)
    return tuple(kept)


def lacking_bytes(
    option: ShardingOption,
    device: FloatArray,
    host: FloatArray,
    table: TableOptions,
    pipeline: CostPipeline,
) -> tuple[float, float]:
    """Device bytes per rank, and host bytes per host, that an option lacks on empty ranks.

    Args:
        option: the option.
        device: device bytes of its shards: ``[W]`` of uniform options, ``[pieces]`` of pieces on
            ranks, ``[pieces, L]`` of pieces on hosts of L ranks.
        host: host bytes of its shards, in the same shape.
        table: knows which places the table may have.
        pipeline: knows the limits.
    """
    limits, host_limits = pipeline.device_limits * _ROUNDING, pipeline.host_limits * _ROUNDING
    local, ranks, hosts = pipeline.topology.local_world_size, list(table.ranks), list(table.hosts)
    if option.is_uniform:
        per_host = host.reshape(-1, local).sum(axis=-1)
        lacks = (device - limits).max(), (per_host - host_limits).max()
    elif option.spread is Spread.RANKS:
        beside = host_limits[np.array(ranks) // local].max()
        lacks = device.max() - limits[ranks].max(), host.max() - beside
    else:
        on_device = (device[:, None, :] - limits.reshape(-1, local)[hosts]).max(axis=-1)
        on_host = host.sum(axis=-1).max() - host_limits[hosts].max()
        lacks = on_device.min(axis=-1).max(), on_host
    return max(float(lacks[0]), 0.0), max(float(lacks[1]), 0.0)


# ------------------ besides tables
#
# Problems that no plan can solve are refused before options are listed.

_MANY_VECTORS: Final = 256
"""If a dot interaction has at least this many vectors, the error names it as a likely cause."""


def refuse_hopeless(problem: PlanningProblem, pipeline: CostPipeline) -> None:
    """Refuse a problem whose ranks have no room for what they need besides tables.

    Args:
        problem: tables, topology and constraints.
        pipeline: knows the limits of memory.

    Raises:
        InfeasibleError: the message has the bytes, and what to change.
    """
    workload, topology, limits = problem.workload, problem.topology, pipeline.device_limits
    # Without tables every rank has to hold the dense part; with them one rank is enough.
    has_tables = bool(workload.tables)
    missing = -float(limits.max() if has_tables else limits.min())
    if missing <= 0:
        return
    which, most = ("largest", np.max) if has_tables else ("smallest", np.min)
    parts = dense_parts(workload, topology) | {"memory reserve": workload.reserved_bytes}
    needs = [f"{format_bytes(size)} {name}" for name, size in parts.items() if size > 0]
    msg = (
        f"nothing fits: the dense part and the reserve alone exceed "
        f"{'every' if has_tables else 'a'} device by {format_bytes(missing)}"
        f"{' before any table is placed' if has_tables else ''}"
    )
    if type(pipeline).device_bytes is CostPipeline.device_bytes:
        has = format_bytes(float(most(topology.hbm_capacities())))
        msg += f": {', '.join(needs)}, and the {which} device has {has}"
    raise InfeasibleError(msg, shortfall_bytes=missing, advice=_dense_advice(workload))


def _dense_advice(workload: Workload) -> tuple[str, ...]:
    lines = []
    vectors = sum(len(t.features) for t in workload.tables)
    if workload.dense.interaction is Interaction.DOT and vectors >= _MANY_VECTORS:
        pairs = vectors * (vectors - 1) // 2
        lines.append(
            f"a dot interaction of {vectors:,} vectors hands {pairs:,} products to the top MLP: "
            "use interaction cat or dcn, or fewer features"
        )
    lines += filter(None, (layer.remark for layer in workload.dense.layers))
    lines.append("reduce the memory reserve, the batch size or the layers of the dense part")
    lines.append("use devices with more memory")
    return tuple(lines)
