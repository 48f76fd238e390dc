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
from costmodels.topology import Topology
from costmodels.units import format_bytes
from costmodels.workload import Interaction, Workload
from planner.errors import InfeasibleError
from planner.options.table_limits import HOST_KERNELS, TableLimits, have_host_kernels
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
            fits = [_fits_empty(o, w @ device, w @ host, table, pipeline) for o, w in pairs]
            options, works = compress(table.options, fits), compress(table.works, fits)
            table = replace(table, options=tuple(options), works=tuple(works))
        kept.append(table)
    return tuple(kept)


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


# ------------------ arithmetic
#
# Refuses problems that sums of bytes alone show to have no plan, before options are listed.
#
# There are two sums: what a rank needs besides tables, and what all tables take in their smallest
# form. Both are lower bounds, so that no problem that has a plan is refused.

_SUMS_ROUNDING: Final = 1.0 + 1e-9
_MANY_VECTORS: Final = 256
"""If a dot interaction has at least this many vectors, the error names it as a likely cause."""


def refuse_hopeless(
    problem: PlanningProblem, pipeline: CostPipeline, limits: Sequence[TableLimits]
) -> None:
    """Refuse a problem that no plan can solve, whatever its options are.

    The sums over tables count weights and optimizer state as :class:`CostPipeline` does; where a
    pipeline counts memory in its own way, only the first sum is made.

    Args:
        problem: tables, topology and constraints.
        pipeline: knows the limits of memory.
        limits: what constraints leave to every table.

    Raises:
        InfeasibleError: a sum exceeds its limit; the message says which, with the bytes, and what
            to change.
    """
    limits_bytes = pipeline.device_limits
    # Without tables every rank has to hold the dense part; with them one rank is enough.
    room = limits_bytes.max() if problem.workload.tables else limits_bytes.min()
    if float(room) < 0:
        _refuse_dense(problem, pipeline)
    if not _counts_as_we_do(pipeline):
        return
    _check_totals(limits, problem, pipeline)


def _counts_as_we_do(pipeline: CostPipeline) -> bool:
    kind = type(pipeline)
    own = ("options_work", "option_work", "plan_work", "device_bytes", "host_bytes")
    return all(getattr(kind, name) is getattr(CostPipeline, name) for name in own)


# ------------------------------------------------------------------ besides tables


def _refuse_dense(problem: PlanningProblem, pipeline: CostPipeline) -> None:
    workload, topology = problem.workload, problem.topology
    has_tables = bool(workload.tables)
    limits = pipeline.device_limits
    missing = -float(limits.max() if has_tables else limits.min())
    parts = dense_parts(workload, topology)
    needs = [f"{format_bytes(size)} {name}" for name, size in parts.items() if size > 0]
    if workload.reserved_bytes > 0:
        needs.append(f"{format_bytes(workload.reserved_bytes)} memory reserve")
    msg = (
        f"nothing fits: the dense part and the reserve alone exceed "
        f"{'every' if has_tables else 'a'} device by {format_bytes(missing)}"
        f"{' before any table is placed' if has_tables else ''}"
    )
    if _counts_as_we_do(pipeline):
        capacities = topology.hbm_capacities()
        has = format_bytes(float(capacities.max() if has_tables else capacities.min()))
        which = "largest" if has_tables else "smallest"
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


# ------------------------------------------------------------------ tables


def _check_totals(
    limits: Sequence[TableLimits], problem: PlanningProblem, pipeline: CostPipeline
) -> None:
    """Refuse tables with more bytes than all devices, or than all devices and hosts together.

    If one table alone has more, it is named once its options are listed.
    """
    world = problem.topology.world_size
    on_device = everywhere = largest = 0.0
    for limit in limits:
        kernels = {k for kernels in limit.kernels.values() for k in kernels}
        copies = world if kernels == {ComputeKernel.DENSE} else 1
        size = copies * problem.workload.trained_bytes(limit.table)
        everywhere, largest = everywhere + size, max(largest, size)
        on_device += 0.0 if kernels & set(HOST_KERNELS) else size
    devices = float(np.maximum(pipeline.device_limits, 0.0).sum())
    hosts = float(pipeline.host_limits.sum())
    both = f"device and host memory that {world} ranks and {problem.topology.num_hosts} hosts have"
    for size, has, where in (
        (on_device, devices, f"device memory that {world} ranks have"),
        (everywhere, devices + hosts, both),
    ):
        if size > has * _SUMS_ROUNDING and largest <= has:
            missing = size - has
            what = "the tables" if size == everywhere else "the tables without host kernels"
            msg = (
                f"nothing fits: {what} take {format_bytes(size)} of weights and optimizer state, "
                f"{format_bytes(missing)} more than the {format_bytes(has)} of {where} for tables"
            )
            raise InfeasibleError(
                msg, shortfall_bytes=missing / world, advice=_advice(limits, problem.topology)
            )


def _advice(limits: Sequence[TableLimits], topology: Topology) -> tuple[str, ...]:
    lines = ["use more GPUs, or GPUs with more memory"]
    without = [x.table for x in limits if not _may_use_host(x)]
    if not without:
        lines.append("add host memory")
    elif have_host_kernels(without, topology):
        lines.append("allow the kernels fused_uvm and fused_uvm_caching, which use host memory")
    lines.append("reduce the memory reserve, or the precision of the embeddings")
    return tuple(lines)


def _may_use_host(limit: TableLimits) -> bool:
    return any(k in HOST_KERNELS for kernels in limit.kernels.values() for k in kernels)
