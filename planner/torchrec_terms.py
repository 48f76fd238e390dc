"""Plans judged as TorchRec judges them: by its estimates, over its options, with its ratings.

:class:`TorchrecPipeline` counts work in TorchRec's estimates, so that every search can minimise
TorchRec's ratings.

TorchRec's two objectives are sums of maxima over ranks. Each is a weighted sum over columns of the
work of :class:`TorchrecPipeline`, of which the largest rank counts. The phases are these columns
themselves, so that cuts have no error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Final, Self

import numpy as np

from costmodels import sharding
from costmodels import torchrec_estimates as estimates
from costmodels.datatypes import FloatArray
from costmodels.memory import by_host
from costmodels.pipeline import CostPipeline
from costmodels.shard_work.cells import OptionWork
from costmodels.stages.models import CostModels
from costmodels.topology import Topology
from costmodels.workload import Workload
from planner.errors import refuse
from planner.space.evaluation import FITTING, SearchSpace
from planner.space.objective import AbstractNamedObjective, Cut, JudgedWork, MakePipeline

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

_KINDS: Final = tuple(
    t for t in sharding.ShardingType if sharding.SPREAD[t] is not sharding.Spread.UNIFORM
)


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
    machine: estimates.TorchrecMachine | None = None
    inputs: tuple[tuple[str, estimates.TorchrecInputs], ...] = ()

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
        own = estimates.TorchrecMachine.of(topology, torchrec_figures=asked.torchrec_figures)
        names = ("hbm_capacity_by_rank_bytes", "ddr_limits_bytes")
        memory = {name: getattr(own, name) for name in names}
        self.machine = replace(asked.machine or own, **memory)
        self.torchrec_tables = {
            t.name: estimates.TorchrecTable.of(t, workload) for t in workload.tables
        }
        for name, inputs in asked.inputs:
            self.torchrec_tables[name] = replace(self.torchrec_tables[name], inputs=inputs)
        self._tables = {t.name: t for t in workload.tables}
        modules = list(dict.fromkeys(t.module for t in workload.tables))
        self._modules = {module: i for i, module in enumerate(modules)}
        groups = len(modules) * len(_KINDS)
        self.num_features = COMMS + 2 * groups if asked.by_phase else TIMES + 1
        self._perfs: dict[tuple[object, ...], estimates.ShardPerf] = {}

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
        return by_host(limits, self.topology)

    def device_bytes(self, work: FloatArray) -> FloatArray:
        """TorchRec's HBM of each rank, ``[..., W]``."""
        return np.asarray(work[..., HBM])

    def host_bytes(self, work: FloatArray) -> FloatArray:
        """TorchRec's DDR of the ranks of each host, ``[..., H]``."""
        return by_host(work[..., DDR], self.topology)

    @property
    def alike_types(self) -> tuple[tuple[sharding.ShardingType, ...], ...]:
        """Groups of types that TorchRec prices alike for the same shards.

        On hosts of one rank, TorchRec prices ``table_row_wise`` unlike a whole table on that rank.
        """
        hosts = sharding.BY_HOSTS[::-1]
        is_one_host = self.topology.num_hosts == 1
        return sharding.ON_RANKS, (sharding.ShardingType.ROW_WISE, *hosts) if is_one_host else hosts

    def options_work(self, options: Sequence[sharding.ShardingOption]) -> list[OptionWork]:
        """Work of options before they are placed."""
        return [OptionWork.of(self._option_work(option)) for option in options]

    def _option_work(self, option: sharding.ShardingOption) -> FloatArray:
        """Work of an option: ``[W, F]``, ``[pieces, F]`` or ``[pieces, L, F]`` for its spread."""
        table, spread = self._tables[option.table], option.spread
        rows, widths = table.num_embeddings, option.column_widths
        if spread is sharding.Spread.UNIFORM:
            widths = (table.embedding_dim,)
        ranks, hosts = self.topology.world_size, self.topology.local_world_size
        parts = {sharding.Spread.UNIFORM: ranks, sharding.Spread.HOSTS: hosts}.get(spread, 1)
        sizes = [rows] * parts
        if option.sharding_type is not sharding.ShardingType.DATA_PARALLEL:
            sizes = [size for _, size in sharding.row_blocks(rows, parts)]
        known = {(n, w): self._row(option, n, w) for n in set(sizes) for w in set(widths)}
        work = np.array([[known[size, width] for size in sizes] for width in widths])
        if spread is sharding.Spread.HOSTS:
            return work
        return np.asarray(work[0] if spread is sharding.Spread.UNIFORM else work[:, 0])

    def torchrec_work(self, plan: sharding.Plan) -> FloatArray:
        """Work of a plan in TorchRec's estimates, as searches see it, ``[W, num_features]``.

        :meth:`plan_work` counts in this package's own columns, which reports use.
        """
        work = np.zeros((self.topology.world_size, self.num_features))
        for placed in plan.placements:
            for shard in placed.shards:
                work[shard.rank] += self._row(placed, shard.num_rows, shard.num_cols)
        return work

    def _row(
        self, option: sharding.ShardingOption | sharding.TablePlacement, rows: int, width: int
    ) -> FloatArray:
        table, kind, kernel = self._tables[option.table], option.sharding_type, option.kernel
        of = kind, kernel, width, option.cache_load_factor_ratio
        shard = estimates.TorchrecShard(self.torchrec_tables[option.table], self.machine, *of)
        key = option.table, *of
        if key not in self._perfs:
            self._perfs[key] = shard.perf()
        perf, storage = self._perfs[key], shard.storage(rows)
        row = np.zeros(self.num_features)
        row[HBM], row[DDR] = storage.hbm_bytes, storage.ddr_bytes
        if not self.asked.by_phase:
            row[TIMES] = perf.total_s
            return row
        row[FORWARD], row[BACKWARD] = perf.fwd_compute_s, perf.bwd_compute_s
        if sharding.SPREAD[kind] is sharding.Spread.UNIFORM:
            row[UNIFORM_COMMS] = perf.fwd_comms_s + perf.bwd_comms_s
            return row
        group = self._modules[table.module] * len(_KINDS) + _KINDS.index(kind)
        row[COMMS + 2 * group], row[COMMS + 2 * group + 1] = perf.fwd_comms_s, perf.bwd_comms_s
        return row


_SAME_RATIO: Final = 1e-12


class ColumnMaxima(AbstractNamedObjective):
    """``sum_k weight[k] max_r work[r, column k]``; infinite if the DDR of a rank is overfull.

    Searches check host memory for each host, which is weaker than TorchRec's limit for each rank,
    so that this objective checks the latter.
    """

    name = "torchrec"
    unit = "s"
    asks_models = False
    by_phase: ClassVar[bool]
    """Whether forward compute, backward compute and exchanges have columns of their own."""

    @classmethod
    def of(cls, space: SearchSpace | JudgedWork) -> Self:
        """The objective over the columns that differ between options of the space."""
        return cls(space)

    @classmethod
    def priced_by(cls, make_pipeline: MakePipeline) -> MakePipeline:
        """What makes a pipeline with TorchRec's estimates; the caller's own if it is one."""
        known = make_pipeline if isinstance(make_pipeline, TorchrecPricing) else TorchrecPricing()
        return replace(known, by_phase=cls.by_phase)

    def __init__(self, space: SearchSpace | JudgedWork) -> None:
        """Choose the columns; one that is a multiple of another on all shards joins its phase.

        Raises:
            InvalidInputError: the work is not in TorchRec's estimates.
        """
        pipeline = space.pipeline
        if not isinstance(pipeline, TorchrecPipeline):
            refuse(
                f"objective {self.name!r} needs work counted in TorchRec's estimates; plan with "
                f"'shardplan plan --objective {self.name}' or planner.api.plan"
            )
        if pipeline.workload.batch_share_ratio:
            refuse(
                f"batch_shares contradict objective {self.name!r}: TorchRec's planner knows one "
                "batch size for all ranks; remove one of them"
            )
        self._ddr_limits = np.array(pipeline.machine.ddr_limits_bytes) * FITTING
        self._columns, self._weights = _phases(space.pool[..., TIMES:])
        self._gradient: FloatArray = np.eye(pipeline.num_features)[TIMES + self._columns]

    @property
    def weights(self) -> FloatArray:
        """``[K]`` how often the largest rank of each column counts."""
        return self._weights

    def values(self, work: FloatArray) -> FloatArray:
        """``[...]`` seconds of each plan."""
        largest = work[..., TIMES + self._columns].max(axis=-2) @ self._weights
        fits = (work[..., DDR] <= self._ddr_limits).all(axis=-1)
        return np.asarray(np.where(fits, largest, np.inf))

    def gradient(self, row: FloatArray) -> FloatArray:
        """``[K, F]``: the same everywhere, because columns are linear in work."""
        del row
        return self._gradient

    @property
    def prices(self) -> FloatArray:
        """``[F]`` the sum of all columns by weight."""
        return np.asarray(self._weights @ self._gradient)

    def always(self) -> Cut:
        """A cut that is exact: the value is the weighted sum of the largest phases."""
        return Cut(base=0.0, slopes=self._weights)


def _phases(times: FloatArray) -> tuple[np.ndarray, FloatArray]:
    """The columns to use, with their weights; columns that are multiples of another are merged."""
    kept: list[int] = []
    weights: list[float] = []
    for column in np.flatnonzero(times.any(axis=0)):
        values = times[:, column]
        for i, known in enumerate(kept):
            ratio = float(values.max() / times[:, known].max())
            if np.allclose(values, ratio * times[:, known], rtol=_SAME_RATIO, atol=0.0):
                weights[i] += ratio
                break
        else:
            kept.append(int(column))
            weights.append(1.0)
    if not kept:
        return np.zeros(1, dtype=np.int64), np.ones(1)
    return np.array(kept, dtype=np.int64), np.array(weights)
