"""Plans key-value tables: virtual tables, whose rows exist once an id is seen, and tables on SSD.

TorchRec plans such tables only if the table's type or a constraint demands it, and so does this
package. There are no measurements of their kernels. They are priced as what is most similar: a
table in host memory with a cache on the device (``fused_uvm_caching``). Where rows are on an SSD
and nowhere else, the time that TorchRec's own estimate gives to the SSD is added, for the share of
rows that the cache lacks. The interval reaches from
"every row is in the cache" to "no row is in the cache"; for rows on an SSD, the latter uses that
speed, too. Device memory is counted as TorchRec counts it. Host and SSD bytes are not counted, as
TorchRec does not count those of virtual tables.

Counts device memory as TorchRec's planner does, for jobs that fit only by that count.

Our own count has more: vectors and gradients that a rank receives, all batches of inputs that a
pipeline holds, and what lookups need for a moment in their backward pass. TorchRec counts for each
shard one batch of inputs and outputs (``calculate_shard_storages`` with ``PipelineType.NONE``, its
default), and keeps room for the dense part and for inputs by its storage reservation. It counts
outputs in the type that the constraint of a table names, or else in the type of its weights
(``EmbeddingStorageEstimator`` of TorchRec 1.8), although modules by default return fp32 for narrow
weights; and it does not see an optimizer that is set among ``fused_params``.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

import numpy as np
from torchrec.distributed.planner import storage_reservations
from torchrec.distributed.planner.constants import HBM_TO_DDR_MEM_BW, KV_CACHING_RATIO, SSD_MEM_BW
from torchrec.distributed.planner.types import ParameterConstraints, StorageReservation
from torchrec.distributed.types import CacheParams

from costmodels.datatypes import FloatArray
from costmodels.estimates import Estimate, IterationEstimate
from costmodels.pipeline import CostPipeline
from costmodels.shard_work.cells import OptionWork
from costmodels.shard_work.work import MEMORY, Memory
from costmodels.sharding import ComputeKernel, Plan, ShardingOption
from costmodels.stages.models import CostModels
from costmodels.topology import Topology
from costmodels.torchrec_estimates import TorchrecMachine, TorchrecShard, TorchrecTable
from costmodels.units import GIB, MIB
from costmodels.workload import Optimizer, Workload
from planner.errors import refuse, refuse_any
from planner.integrations.translate import settings
from planner.integrations.translate.private_names import reserved_sizes
from planner.integrations.translate.reading import KeyValueTable, ModelDescription, TableSource
from planner.torchrec_terms import DDR, HBM, TorchrecPricing

MOST_ROWS: Final = 2**48
"""A table is priced with at most this many rows; virtual tables can have up to 2^63 ids."""

_LEAST_RATIO: Final = 1e-12
_MOST_RATIO: Final = 0.99
_SSD_BYTES_PER_S: Final = SSD_MEM_BW * 1e3
_SSD_SLOWDOWN: Final = HBM_TO_DDR_MEM_BW / SSD_MEM_BW


def key_value_table(source: TableSource, compute_device: str) -> KeyValueTable | None:
    """How a table has to be run, if it is a key-value table; None for other tables.

    A table whose constraint also allows ordinary kernels is an ordinary table, because these
    kernels are faster.

    Args:
        source: the table; ``cache_load_factor`` among the fused parameters of its sharder limits
            the cache.
        compute_device: ``cuda`` or ``cpu``.

    Raises:
        InvalidInputError: TorchRec cannot run the kernels, sharding types, device or buckets.
    """
    config, limit, parameter = source.config, source.limit, source.parameter
    virtual = bool(getattr(config, "use_virtual_table", False))
    asked = [str(k) for k in limit.compute_kernels or ()]
    if not virtual and (not asked or any(k not in settings.KEY_VALUE_KERNELS for k in asked)):
        return None
    wanted, rows = settings.VIRTUAL if virtual else (settings.ON_SSD,), int(parameter.shape[0])
    kernel = next((k for k in asked or wanted if k in wanted), None)
    buckets = getattr(config, "total_num_buckets", None) if virtual else None
    told = {"asked": asked, "kernel": kernel, "device": compute_device}
    told |= {"types": limit.sharding_types, "rows": rows, "buckets": buckets}
    wrong = {
        "kernels of key values": kernel is None,
        "key values on cuda": compute_device != "cuda",
        "types of virtual tables": virtual and "row_wise" not in (told["types"] or ["row_wise"]),
        "rows of buckets": buckets and rows % buckets,
    }
    refuse_any([settings.said(name, **told) for name, is_wrong in wrong.items() if is_wrong])
    params = limit.key_value_params
    cache_bytes = float(((params.max_l1_cache_size if params else None) or 0) * MIB)
    ratio = settings.fused_setting(source.sharder, "cache_load_factor") or KV_CACHING_RATIO
    weight_bytes = math.ceil(rows * ratio * parameter.element_size() * parameter.shape[1])
    return KeyValueTable(
        kernel=str(kernel), cache_bytes=min(cache_bytes, float(weight_bytes)), num_buckets=buckets
    )


def refuse_key_values(found: Mapping[str, KeyValueTable], what: str) -> None:
    """Refuse key-value tables in places where only the tables they are priced as would be known.

    Raises:
        InvalidInputError: there are such tables; the message names the first ones.
    """
    if found:
        refuse(settings.said("key values", what=what, names=[*found][:5]))


def planned_as(
    kept: KeyValueTable, limit: ParameterConstraints, rows_bytes: float, world_size: int
) -> ParameterConstraints:
    """The constraint under which the search sees a key-value table: caching with one load factor.

    Args:
        kept: how the table is run.
        limit: the user's constraint.
        rows_bytes: bytes of all rows with which it is priced.
        world_size: number of ranks, each of which has its own cache for a table cut by rows.
    """
    caches = world_size if kept.is_virtual else 1
    ratio = min(max(caches * kept.cache_bytes / rows_bytes, _LEAST_RATIO), _MOST_RATIO)
    return replace(
        limit,
        compute_kernels=[str(ComputeKernel.FUSED_UVM_CACHING)],
        sharding_types=["row_wise"] if kept.is_virtual else limit.sharding_types,
        cache_params=CacheParams(load_factor=ratio),
    )


class KeyValuePipeline(CostPipeline):
    """Prices plans with key-value tables, or with TorchRec's count of the memory of all others.

    Without either it is :class:`CostPipeline`.
    """

    def __init__(
        self,
        workload: Workload,
        topology: Topology,
        models: CostModels | None = None,
        *,
        model: ModelDescription,
        rating: TorchrecPricing | None = None,
    ) -> None:
        """Keep the arguments of :class:`CostPipeline`, and two more.

        Args:
            workload: the tables.
            topology: the system.
            models: the cost models.
            model: what is known of its tables: which are key-value tables, and whether the cost of
                each table's optimizer is known.
            rating: how TorchRec reads the tables, if memory is to be counted as it does.
        """
        super().__init__(workload, topology, models)
        self.key_values, self.knows_optimizer = model.key_values, model.knows_optimizer
        self._theirs = None if rating is None else rating(workload, topology, self.models)

    @cached_property
    def device_limits(self) -> FloatArray:
        """Bytes for tables on each rank, ``[W]``; by TorchRec's count all that is left."""
        return super().device_limits if self._theirs is None else self._theirs.device_limits

    def options_work(self, options: Sequence[ShardingOption]) -> list[OptionWork]:
        """Work of options; of key-value tables only the cache counts as memory."""
        found = super().options_work(options)
        for i, (option, work) in enumerate(zip(options, found, strict=True)):
            if kept := self.key_values.get(option.table):
                found[i] = replace(work, rows=_only_cache(work.rows, kept))
            elif self._theirs is not None:
                memory = self._theirs.options_work((option,))[0].full
                found[i] = OptionWork.of(_with_memory(work.full, memory))
        return found

    def plan_work(self, plan: Plan) -> FloatArray:
        """Work of a plan, ``[W, columns]``."""
        others = tuple(p for p in plan.placements if p.table not in self.key_values)
        ordinary = Plan(placements=others)
        work = super().plan_work(ordinary)
        if self._theirs is not None:
            work = _with_memory(work, self._theirs.torchrec_work(ordinary))
        for placement in plan.placements:
            if kept := self.key_values.get(placement.table):
                rows = super().plan_work(Plan(placements=(placement,)))
                shards = np.bincount(placement.ranks, minlength=len(rows)).astype(np.float64)
                work = np.add(work, _only_cache(rows, kept, shards[:, None]))
        return work

    def estimate(self, plan: Plan) -> IterationEstimate:
        """One iteration, with an interval from "all rows are cached" to "no row is cached".

        Raises:
            InvalidValueError: the plan is not one of this workload on this many ranks.
        """
        found = super().estimate(plan)
        time = found.time if self.knows_optimizer else self._of_any_optimizer(found.time, plan)
        return replace(found, time=self._of_any_cache(time, plan) if self.key_values else time)

    def _of_any_cache(self, time: Estimate, plan: Plan) -> Estimate:
        """The time with what ranks wait for SSDs, and an interval for any hit rate."""

        def run_as(kernel: ComputeKernel) -> FloatArray:
            """Times of the plan with its key-value tables under another kernel."""
            other: Any = {"kernel": kernel, "cache_load_factor_ratio": None}
            placed = (
                replace(p, **other) if p.table in self.key_values else p for p in plan.placements
            )
            return self.sampled_times(Plan(placements=tuple(placed)))

        cached, missed = run_as(ComputeKernel.FUSED), run_as(ComputeKernel.FUSED_UVM)
        on_ssd = any(k.kernel != settings.VIRTUAL[0] for k in self.key_values.values())
        slowest = cached + (missed - cached) * (_SSD_SLOWDOWN if on_ssd else 1.0)
        ssd_s = self._ssd_s(plan)
        slower = replace(time, time_s=time.time_s + ssd_s, high_s=time.high_s + 2.0 * ssd_s)
        return _widened(slower, cached, slowest)

    def _ssd_s(self, plan: Plan) -> float:
        """Seconds that the slowest rank waits for its SSD, by TorchRec's own estimate.

        TorchRec's planner moves at the rate of an SSD whatever a lookup touches: indices, rows and
        vectors, forward and backward. The share of the rows that the cache lacks counts.
        """
        workload, world_size = self.workload, self.topology.world_size
        machine = replace(
            TorchrecMachine.of(self.topology),
            hbm_bandwidth_bytes_per_s=_SSD_BYTES_PER_S,
            intra_host_bandwidth_bytes_per_s=math.inf,
            inter_host_bandwidth_bytes_per_s=math.inf,
        )
        seconds, batch = np.zeros(world_size), workload.batch_size_per_rank * world_size
        for placed in plan.placements:
            kept = self.key_values.get(placed.table)
            if kept is None or kept.kernel not in (settings.ON_SSD, "ssd_virtual_table"):
                continue  # or there is host memory before the SSD
            table = workload.table(placed.table)
            rows, ids = float(table.num_embeddings), batch * table.pooling_factor
            held = kept.cache_bytes * len(placed.shards) / workload.trained_row_bytes(table)
            missed = table.distribution.expected_unique_misses(ids, min(held, rows))
            share = missed / max(table.distribution.expected_unique_rows(ids), missed, 1.0)
            of = TorchrecTable.of(table, workload), machine, placed.sharding_type
            for shard in placed.shards:
                perf = TorchrecShard(*of, ComputeKernel.FUSED, shard.num_cols).perf()
                seconds[shard.rank] += share * perf.total_s
        return float(seconds.max())

    def _of_any_optimizer(self, time: Estimate, plan: Plan) -> Estimate:
        """The time with an interval for an unknown optimizer.

        It reaches from optimizers without state to ones whose state costs four times as much as
        that of the planned ones.
        """
        bare = tuple(replace(t, optimizer=None) for t in self.workload.tables)
        without = replace(self.workload, optimizer=Optimizer.SGD, tables=bare)
        least = CostPipeline(without, self.topology, self.models).sampled_times(plan)
        added = max(time.time_s - float(np.median(least)), 0.0)
        wide = _widened(time, least, self.sampled_times(plan))
        return replace(wide, high_s=wide.high_s + 3.0 * added)


def _widened(time: Estimate, lowest: FloatArray, highest: FloatArray) -> Estimate:
    """An estimate whose interval holds 90 % of the samples of two others."""
    low, high = float(np.quantile(lowest, 0.05)), float(np.quantile(highest, 0.95))
    return replace(time, low_s=min(time.low_s, low), high_s=max(time.high_s, high))


def _only_cache(
    work: FloatArray, kept: KeyValueTable, shards: FloatArray | float = 1.0
) -> FloatArray:
    changed = work.copy()
    changed[..., MEMORY + Memory.HOST] = 0.0
    changed[..., [MEMORY + Memory.CACHE]] = kept.cache_bytes * shards
    return changed


MARGIN_RATIO: Final = 0.15
"""Share of device memory kept free if no storage reservation is given (as in TorchRec 1.8)."""


def _with_memory(work: FloatArray, theirs: FloatArray) -> FloatArray:
    """The work with the bytes of TorchRec's estimates in the place of ours."""
    changed = work.copy()
    changed[..., MEMORY : MEMORY + len(Memory)] = 0.0
    changed[..., MEMORY + Memory.WEIGHTS] = theirs[..., HBM]
    changed[..., MEMORY + Memory.HOST] = theirs[..., DDR]
    return changed


def default_reservation() -> StorageReservation:
    """The reservation that TorchRec's planner uses by default; context hashes depend on it.

    Its warning that advises to choose another one is suppressed, because no user has chosen it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return storage_reservations.HeuristicalStorageReservation(percentage=MARGIN_RATIO)


class LeftToOurCount(storage_reservations.FixedPercentageStorageReservation):
    """Keeps nothing, because our ledger counts what is not a table; for users who chose none."""

    def __init__(self) -> None:
        super().__init__(percentage=0.0)


def described(reservation: StorageReservation) -> str:
    """A storage reservation in words, with its size if it is known."""
    name = type(reservation).__name__
    absolute, percentage = reserved_sizes(reservation)
    if absolute is not None:
        return f"{name}: {absolute / GIB:.3g} GB per device"  # as TorchRec prints it
    return name if percentage is None else f"{name}: {percentage:.0%} of each device"
