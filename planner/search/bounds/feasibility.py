"""Proofs that no plan fits into memory, with the missing bytes and with what would help."""

from typing import Final, NoReturn

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.units import format_bytes
from planner.errors import InfeasibleError
from planner.options import table_limits
from planner.search.construct.greedy import list_greedy, size_cost
from planner.space.evaluation import ROUNDING, SearchSpace

_MIXES: Final = np.linspace(0.0, 1.0, 201)
"""Weights of device memory, from 0 to 1, at which the weighted bytes of all tables are compared
with the weighted capacity; host memory has the rest of the weight. More of them prove a little
more."""
_SHARING: Final = 8
"""Most large shards on one rank for which counting them may prove that no plan fits. More shards on
a rank are so small that the bytes of all tables together say about the same."""


def require_feasible(space: SearchSpace) -> None:
    """Refuse a problem of which it can be proven quickly that no plan fits.

    There are three proofs: no option of some table fits on empty devices; all tables together need
    more bytes than all devices and hosts have, however the options mix the two memories; or there
    are so many large shards that two (or three, and so on) of them have to share a rank, where they
    do not fit together.

    Raises:
        InfeasibleError: with the missing bytes per rank.
    """
    for listed, fitting in zip(space.listing.tables, space.tables, strict=True):
        if not fitting.options:
            _too_large(space, listed)
    _check_totals(space)
    _check_large_shards(space)


def least_excess_bytes(space: SearchSpace) -> float:
    """Bytes by which the fullest rank is over its memory if whole tables are balanced by size.

    Bytes of host memory count as the mean over the ranks of the host.
    """
    sizes = np.array([size_cost(t) for t in space.problem.workload.tables])
    work = space.work(list_greedy(space, sizes))
    device = (work @ space.device - space.pipeline.device_limits).max()
    host = (work @ space.host).reshape(space.num_hosts, -1).sum(axis=-1)
    excess = (host - space.pipeline.host_limits).max() / space.local_world_size
    return max(float(device), float(excess), 0.0)


def _too_large(space: SearchSpace, table: table_limits.TableOptions) -> None:
    """Refuse a problem with a table of which no option fits anywhere.

    The message is about the option that lacks the fewest bytes per rank.
    """
    local = space.local_world_size
    found = [
        table_limits.lacking_bytes(
            option, work @ space.device, work @ space.host, table, space.pipeline
        )
        for option, work in zip(table.options, table.works, strict=True)
    ]
    device, host = min(found, key=lambda m: (max(m[0], m[1] / local), m[0] + m[1] / local))
    ranks = list(table.ranks) or list(range(space.world_size))
    limit = float(space.pipeline.device_limits[ranks].max())
    host_limit = float(space.pipeline.host_limits.max())
    lacks = []
    if device > 0 or host <= 0:
        lacks.append(
            f"the device memory of an empty rank ({format_bytes(limit)}) by at least "
            f"{format_bytes(device)}"
        )
    if host > 0:
        lacks.append(
            f"the host memory of an empty host ({format_bytes(host_limit)}) by at least "
            f"{format_bytes(host)}"
        )
    text = (
        f"table {table.table.name!r} exceeds {' and '.join(lacks)} in the best of its "
        f"{len(table.options)} options"
    )
    _refuse(text, max(device, host / local), space, table)


def _check_totals(space: SearchSpace) -> None:
    """Refuse a problem whose tables need more bytes than there is memory.

    For every weighting of device and host memory, the least weighted bytes of each table have to
    add up to no more than the weighted capacity (by duality of linear programs).
    """
    limits, host_limits = space.pipeline.device_limits, space.pipeline.host_limits
    device_capacity = max(float(np.maximum(limits, 0.0).sum()), 1.0) * ROUNDING
    host_capacity = max(float(host_limits.sum()), 1.0) * ROUNDING
    device = space.mean_work @ space.device * space.world_size / device_capacity
    host = space.mean_work @ space.host * space.world_size / host_capacity
    totals = [
        float(np.minimum.reduceat(m * device + (1.0 - m) * host, space.first[:-1]).sum())
        for m in _MIXES
    ]
    if totals[0] > 1.0:
        missing = (totals[0] - 1.0) * host_capacity / space.num_hosts
        has = format_bytes(host_capacity / space.num_hosts)
        text = (
            f"host memory is {format_bytes(missing)} short on each of "
            f"{space.num_hosts} hosts, which have {has}; no option that fits a device needs less"
        )
        _refuse(text, missing / space.local_world_size, space)
    worst = max((t - 1.0) / m for t, m in zip(totals[1:], _MIXES[1:], strict=True))
    if worst > 0:
        missing = worst * device_capacity / space.world_size
        has = format_bytes(device_capacity / space.world_size)
        text = (
            f"device memory is {format_bytes(missing)} short on each of "
            f"{space.world_size} ranks, which have {has} for embeddings"
            f"{', even with all host memory used' if host.any() else ''}"
        )
        _refuse(text, missing, space)


def _check_large_shards(space: SearchSpace) -> None:
    """Refuse a problem with more large shards than ranks have room for.

    Each table puts a shard of at least a certain size on some rank. Of ``q W + 1`` such shards, W
    ranks cannot all have q or fewer: some rank gets ``q + 1`` of them.
    """
    largest = space.largest_device
    least = np.minimum.reduceat(largest, space.first[:-1])
    sizes: FloatArray = np.sort(least)[::-1]
    limit = float(space.pipeline.device_limits.max())
    for shared in range(1, _SHARING + 1):
        at = shared * space.world_size
        if at >= len(sizes):
            return
        missing = (shared + 1) * float(sizes[at]) - limit * ROUNDING
        if missing > 0:
            size = format_bytes(float(sizes[at]))
            text = (
                f"{at + 1} tables put {size} or more on some rank each, so one of "
                f"{space.world_size} ranks gets {shared + 1} of them and is "
                f"{format_bytes(missing)} over its {format_bytes(limit)}"
            )
            _refuse(text, missing, space)


def _refuse(
    text: str, missing: float, space: SearchSpace, table: table_limits.TableOptions | None = None
) -> NoReturn:
    """Refuse the problem with advice on what would help: for one table, or for all of them."""
    lines = ["use more GPUs, or GPUs with more memory"]
    tables = space.listing.tables if table is None else (table,)
    if any(o.kernel in table_limits.HOST_KERNELS for t in tables for o in t.options):
        lines.append("add host memory")
    elif table_limits.have_host_kernels([t.table for t in tables], space.problem.topology):
        lines.append("allow the kernels fused_uvm and fused_uvm_caching, which use host memory")
    if not all(any(o.is_uniform for o in t.options) for t in tables):
        lines.append("allow row_wise or table_row_wise sharding, which split rows")
    if not all(any(len(o.column_widths) > 1 for o in t.options) for t in tables):
        lines.append("allow column_wise sharding or a smaller minimum column width")
    lines.append("reduce the batch size, the memory reserve, or the embedding precision")
    message = f"nothing fits: {text}"
    raise InfeasibleError(message, shortfall_bytes=missing, advice=tuple(lines))
