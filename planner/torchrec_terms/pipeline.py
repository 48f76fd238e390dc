"""Counts work in TorchRec's estimates, so that every search can minimise TorchRec's ratings."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.pipeline import CostPipeline
from costmodels.sharding import SPREAD, Plan, ShardingOption, ShardingType, Spread, row_blocks
from costmodels.stages.models import CostModels
from costmodels.topology import Topology
from costmodels.torchrec_estimates import (
    ShardPerf,
    TorchrecInputs,
    TorchrecMachine,
    TorchrecTable,
    shard_perf,
    shard_storage,
)
from costmodels.workload import Workload

HBM: Final = 0
DDR: Final = 1
TIMES: Final = 2
"""The first column of seconds."""
FORWARD: Final = TIMES
BACKWARD: Final = TIMES + 1
UNIFORM_COMMS: Final = TIMES + 2
"""Both exchanges of the types that load all ranks. The rank with the most of one of them has the
most of all, so that the largest sum is the sum of the largest, and one column is enough."""
COMMS: Final = TIMES + 3
"""The first column of the other exchanges: forward and backward of each module and type."""

_KINDS: Final = tuple(t for t in ShardingType if SPREAD[t] is not Spread.UNIFORM)


@dataclass(frozen=True, slots=True)
class TorchrecPricing:
    """Makes a :class:`TorchrecPipeline`.

    Attributes:
        by_phase: whether the phases of TorchRec's critical path have columns of their own.
        torchrec_figures: whether to use TorchRec's default bandwidths and memories, not the
            system's.
        is_reserved: whether a storage reservation has already been taken off the system's memory.
            Then only the workload's ``reserved_bytes`` are taken off; otherwise TorchRec's default
            reservation is.
        machine: bandwidths and groups of TorchRec's topology, which replace those of the system;
            memories are always the system's.
        inputs: TorchRec's counts of the inputs of some tables, by name; tables that are not named
            have those of the workload.
    """

    by_phase: bool = False
    torchrec_figures: bool = False
    is_reserved: bool = False
    machine: TorchrecMachine | None = None
    inputs: tuple[tuple[str, TorchrecInputs], ...] = ()

    def __call__(
        self, workload: Workload, topology: Topology, models: CostModels | None = None
    ) -> TorchrecPipeline:
        """The pipeline of a workload on a system."""
        return TorchrecPipeline(workload, topology, models, self)


class TorchrecPipeline(CostPipeline):
    """Counts the work of a search in TorchRec's estimates; reports still use this package's own.

    The columns of work are device bytes, host bytes, and seconds. There is one column of seconds,
    or, with ``by_phase``, columns for forward compute, backward compute, and the forward and
    backward exchange of each module and sharding type. The limits on memory are what TorchRec's
    planner leaves for tables.
    """

    def __init__(
        self,
        workload: Workload,
        topology: Topology,
        models: CostModels | None,
        asked: TorchrecPricing,
    ) -> None:
        """Read the tables as TorchRec's estimators do.

        Args:
            workload: the tables.
            topology: the system.
            models: the models that price the plans that are found.
            asked: what to count, and by which figures.
        """
        super().__init__(workload, topology, models)
        self.asked = asked
        own = TorchrecMachine.of(topology, torchrec_figures=asked.torchrec_figures)
        self.machine = own if asked.machine is None else own.moved_to(asked.machine)
        self.torchrec_tables = {t.name: TorchrecTable.of(t, workload) for t in workload.tables}
        for name, inputs in asked.inputs:
            self.torchrec_tables[name] = inputs.read(self.torchrec_tables[name])
        self._tables = {t.name: t for t in workload.tables}
        modules = list(dict.fromkeys(t.module for t in workload.tables))
        self._modules = {module: i for i, module in enumerate(modules)}
        groups = len(modules) * len(_KINDS)
        self.num_features = COMMS + 2 * groups if asked.by_phase else TIMES + 1
        self._perfs: dict[tuple[object, ...], ShardPerf] = {}

    @cached_property
    def device_limits(self) -> FloatArray:
        """Device bytes that TorchRec's planner leaves for tables, ``[W]``."""
        if self.asked.is_reserved:
            return self.topology.hbm_capacities() - self.workload.reserved_bytes
        return np.array(self.machine.device_limits_bytes(self.workload))

    @cached_property
    def host_limits(self) -> FloatArray:
        """Host bytes of all ranks of each host together, ``[H]``; TorchRec limits each rank."""
        limits = np.array(self.machine.ddr_limits_bytes)
        return np.asarray(limits.reshape(self.topology.num_hosts, -1).sum(axis=-1))

    def device_bytes(self, work: FloatArray) -> FloatArray:
        """TorchRec's HBM of each rank, ``[..., W]``."""
        return np.asarray(work[..., HBM])

    def host_bytes(self, work: FloatArray) -> FloatArray:
        """TorchRec's DDR of the ranks of each host, ``[..., H]``."""
        ddr = work[..., DDR]
        shape = (*ddr.shape[:-1], self.topology.num_hosts, self.topology.local_world_size)
        return np.asarray(ddr.reshape(shape).sum(axis=-1))

    @property
    def alike_types(self) -> tuple[tuple[ShardingType, ...], ...]:
        """Groups of types that TorchRec prices alike for the same shards.

        On hosts of one rank, TorchRec prices ``table_row_wise`` unlike a whole table on that rank.
        """
        ranks = (
            ShardingType.COLUMN_WISE,
            ShardingType.TABLE_WISE,
            ShardingType.TABLE_COLUMN_WISE,
        )
        hosts = (ShardingType.GRID_SHARD, ShardingType.TABLE_ROW_WISE)
        if self.topology.num_hosts == 1:
            return ranks, (ShardingType.ROW_WISE, *hosts)
        return ranks, hosts

    def option_work(self, option: ShardingOption) -> FloatArray:
        """Work of an option: ``[W, F]``, ``[pieces, F]`` or ``[pieces, L, F]`` for its spread."""
        table, spread = self._tables[option.table], option.spread
        rows, widths = table.num_embeddings, option.column_widths
        if spread is Spread.UNIFORM:
            widths = (table.embedding_dim,)
        parts = {
            Spread.UNIFORM: self.topology.world_size,
            Spread.HOSTS: self.topology.local_world_size,
            Spread.RANKS: 1,
        }[spread]
        sizes = [size for _, size in row_blocks(rows, parts)]
        if option.sharding_type is ShardingType.DATA_PARALLEL:
            sizes = [rows] * parts
        known = {(n, w): self._row(option, n, w) for n in set(sizes) for w in set(widths)}
        work = np.array([[known[size, width] for size in sizes] for width in widths])
        if spread is Spread.HOSTS:
            return work
        return np.asarray(work[0] if spread is Spread.UNIFORM else work[:, 0])

    def torchrec_work(self, plan: Plan) -> FloatArray:
        """Work of a plan in TorchRec's estimates, as searches see it, ``[W, num_features]``.

        :meth:`plan_work` counts in this package's own columns, which reports use.
        """
        work = np.zeros((self.topology.world_size, self.num_features))
        for placement in plan.placements:
            for shard in placement.shards:
                option = ShardingOption(
                    table=placement.table,
                    sharding_type=placement.sharding_type,
                    kernel=placement.kernel,
                    column_widths=(shard.num_cols,),
                    cache_load_factor_ratio=placement.cache_load_factor_ratio,
                )
                work[shard.rank] += self._row(option, shard.num_rows, shard.num_cols)
        return work

    def _row(self, option: ShardingOption, rows: int, width: int) -> FloatArray:
        table, read = self._tables[option.table], self.torchrec_tables[option.table]
        perf, factor = self._perf(option, width), option.cache_load_factor_ratio
        storage = shard_storage(
            read,
            self.machine,
            option.sharding_type,
            option.kernel,
            num_rows=rows,
            num_cols=width,
            cache_load_factor_ratio=factor,
        )
        row = np.zeros(self.num_features)
        row[HBM], row[DDR] = storage.hbm_bytes, storage.ddr_bytes
        if not self.asked.by_phase:
            row[TIMES] = perf.total_s
            return row
        row[FORWARD], row[BACKWARD] = perf.fwd_compute_s, perf.bwd_compute_s
        if option.is_uniform:
            row[UNIFORM_COMMS] = perf.fwd_comms_s + perf.bwd_comms_s
            return row
        group = self._modules[table.module] * len(_KINDS) + _KINDS.index(option.sharding_type)
        row[COMMS + 2 * group], row[COMMS + 2 * group + 1] = perf.fwd_comms_s, perf.bwd_comms_s
        return row

    def _perf(self, option: ShardingOption, width: int) -> ShardPerf:
        key = (
            option.table,
            option.sharding_type,
            option.kernel,
            option.cache_load_factor_ratio,
            width,
        )
        if key not in self._perfs:
            self._perfs[key] = shard_perf(
                self.torchrec_tables[option.table],
                self.machine,
                option.sharding_type,
                option.kernel,
                num_cols=width,
                cache_load_factor_ratio=option.cache_load_factor_ratio,
            )
        return self._perfs[key]
