"""Refuses problems that sums of bytes alone show to have no plan, before options are listed.

There are two sums: what a rank needs besides tables, and what all tables take in their smallest
form. Both are lower bounds, so that no problem that has a plan is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from costmodels.memory import dense_parts
from costmodels.pipeline import CostPipeline
from costmodels.sharding import ComputeKernel
from costmodels.topology import Topology
from costmodels.units import format_bytes
from costmodels.workload import Interaction, Workload
from planner.errors import InfeasibleError
from planner.options.table_limits import HOST_KERNELS, TableLimits, have_host_kernels
from planner.problem import PlanningProblem

_ROUNDING: Final = 1.0 + 1e-9
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
    """Refuse tables with more bytes than all devices, or than all devices and hosts together."""
    world = problem.topology.world_size
    on_device = everywhere = 0.0
    for limit in limits:
        kernels = {k for kernels in limit.kernels.values() for k in kernels}
        copies = world if kernels == {ComputeKernel.DENSE} else 1
        size = copies * problem.workload.trained_bytes(limit.table)
        everywhere += size
        on_device += 0.0 if kernels & set(HOST_KERNELS) else size
    devices = float(np.maximum(pipeline.device_limits, 0.0).sum())
    hosts = float(pipeline.host_limits.sum())
    both = f"device and host memory that {world} ranks and {problem.topology.num_hosts} hosts have"
    for size, has, where in (
        (on_device, devices, f"device memory that {world} ranks have"),
        (everywhere, devices + hosts, both),
    ):
        if size > has * _ROUNDING:
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
