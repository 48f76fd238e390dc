"""Plans judged as TorchRec judges them: by its estimates, over its options, with its ratings.

:class:`TorchrecPipeline` counts work in TorchRec's estimates, so that every search can minimise
TorchRec's ratings. :func:`torchrec_space` is the space of plans for them: every option that can be
part of the best plan.

A bound has to hold over all options that TorchRec's enumerator would try. With kernels in host
memory these are about a hundred for each table. Most of them are ruled out here, before a search
begins, by comparing a lower bound with the value of a plan that is quick to find.

TorchRec's two objectives are sums of maxima over ranks. Each is a weighted sum over columns of the
work of :class:`TorchrecPipeline`, of which the largest rank counts. The phases are these columns
themselves, so that cuts have no error.

The bound: for an option, let ``c`` be the seconds of all its shards and ``b`` their device bytes.
Let ``B`` be the device bytes of all W ranks together, and ``y >= 0`` any price of a byte, in
seconds. The value of a plan, as TorchRec's rating or as its critical path, is then at least

- ``L(y) = (sum over tables of the least c + y b, minus y B) / W``. The value is at least the mean
  of ``c`` over ranks, and the bytes of a plan that fits are at most ``B`` (weak duality);
- the seconds of any single shard.

An option is therefore in no plan better than a known one of value v if its ``c + y b`` is more than
``W (v - L(y))`` above the least of its table, or if one of its shards takes longer than v. The
options that are left include all those of the known plan, and of every plan that is as good.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Final

import numpy as np

from costmodels import sharding
from costmodels import torchrec_estimates as estimates
from costmodels.datatypes import BoolArray, FloatArray, IntArray
from costmodels.memory import by_host
from costmodels.pipeline import CostPipeline
from costmodels.shard_work.cells import OptionWork
from costmodels.stages.models import CostModels
from costmodels.topology import Topology
from costmodels.workload import Workload
from planner.errors import refuse
from planner.options.enumeration import enumerate_options
from planner.options.torchrec_rules import block_rows
from planner.problem import PlanningProblem
from planner.search.common.linear import LinearModel
from planner.search.construct.placer import place_options
from planner.space.evaluation import FITTING, ROUNDED, ROUNDING, Assignment, SearchSpace
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
        return by_host(np.array(self.machine.ddr_limits_bytes), self.topology)

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
        widths = option.column_widths
        if spread is sharding.Spread.UNIFORM:
            widths = (table.embedding_dim,)
        ranks, local = self.topology.world_size, self.topology.local_world_size
        sizes = block_rows(option.sharding_type, table.num_embeddings, ranks, local)
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
        perf, row = self._perfs[key], np.zeros(self.num_features)
        row[HBM], row[DDR] = shard.storage(rows)
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


# ------------------ the space

_POWER: Final = 16.0
_CEILINGS: Final = (1.0, 0.7, 0.5, 0.35, 0.25)
"""Quick plans avoid shards that take longer than this share of the mean load of a rank."""
_DEARER: Final = (1.0, 1.02, 1.1, 1.5, 4.0, 30.0)
"""Quick plans are made at these prices of a byte, until one fits; as multiples of the price at
which the bound is highest."""
_SHARES: Final = (0.0, 0.1, 1.0, 10.0)
"""The prices if the bound is highest at price 0: what filling all devices costs, divided by the
seconds of all shards at price 0."""
_CLOSE: Final = 1.003
"""A quick plan is good enough if its value is at most this many times the bound."""


def torchrec_space(
    problem: PlanningProblem, pipeline: TorchrecPipeline, *, every_kernel: bool = False
) -> SearchSpace:
    """The space of every option that can be part of a plan at least as good as a quick one.

    If rules couple tables, or no plan can fit, no option is ruled out in this way.

    Args:
        problem: workload, system and constraints.
        pipeline: counts work in TorchRec's estimates, for one of its objectives.
        every_kernel: as in :func:`planner.options.enumeration.enumerate_options`.

    Raises:
        InvalidInputError: in the cases of :func:`planner.options.enumeration.enumerate_options`.
    """
    listing = enumerate_options(problem, pipeline, every_kernel=every_kernel)
    space = SearchSpace(problem, pipeline, listing)
    if problem.has_rules or not all(t.options for t in space.tables):
        return space
    return _Pruning(space, pipeline).left() or space


_Quick = tuple[float, SearchSpace, Assignment]
"""The value of a plan, the space whose options it numbers, and the plan."""


class _Pruning:
    """Rules options out by comparing a quick plan with the bound ``L(y)`` of the module."""

    def __init__(self, space: SearchSpace, pipeline: TorchrecPipeline) -> None:
        self._space = space
        self._ranks = space.world_size
        # At least one byte, because prices are divided by it; more room only weakens the bound.
        self._room = max(float(pipeline.device_limits.sum()), 1.0)
        self._total_s = self._ranks * space.mean_work[:, TIMES:].sum(axis=1)
        self._largest_s, host = (
            np.maximum.reduceat(values, space.pool_first)
            for values in (space.pool[:, TIMES:].sum(axis=1), space.pool[:, DDR])
        )
        self._bytes = self._ranks * space.mean_work[:, HBM]
        self._fits = host <= max(pipeline.machine.ddr_limits_bytes)

    def left(self) -> SearchSpace | None:
        """The space of options that are not ruled out; None if no plan can fit.

        If no quick plan is found, its value is infinite, and every option is left.
        """
        if not np.logical_or.reduceat(self._fits, self._space.first[:-1]).all():
            return None
        price = self._best_price()
        if price is None:
            return None
        found = self._quick_plan(price)
        known = math.inf if found is None else found[0]
        keep = self._largest_s <= known * ROUNDING
        for y in {0.0, price}:
            prices = self._priced(y)
            slack = self._ranks * (known * ROUNDING - self._bound(y))
            keep &= prices - np.repeat(self._least(prices), np.diff(self._space.first)) <= slack
        space = self._chosen(keep)
        if found is not None:
            _, other, plan = found  # numbered as the options of another space
            pairs = zip(space.tables, other.tables, plan.options, strict=True)
            options = (mine.options.index(theirs.options[i]) for mine, theirs, i in pairs)
            space.known = replace(plan, options=tuple(options))
        return space

    def _chosen(self, keep: BoolArray) -> SearchSpace:
        """The space of the options for which ``keep [n]`` is True."""
        whole = self._space
        each = np.split(keep, whole.first[1:-1])
        tables = tuple(t.only(own.tolist()) for t, own in zip(whole.tables, each, strict=True))
        listing = replace(whole.listing, tables=tables, is_pruned=not keep.all())
        return SearchSpace(whole.problem, whole.pipeline, listing)

    def _least(self, values: FloatArray) -> FloatArray:
        """``[T]`` the least of ``values [n]`` over the options of each table."""
        return np.minimum.reduceat(values, self._space.first[:-1])

    def _priced(self, price: float) -> FloatArray:
        """``c + y b`` of each option."""
        return np.asarray(self._total_s + price * self._bytes)

    def _bound(self, price: float) -> float:
        """``L(y)`` in seconds."""
        least = float(self._least(self._priced(price)).sum())
        return (least - price * self._room) / self._ranks

    def _cheapest(self, price: float, largest_s: float = math.inf) -> IntArray:
        """``[T]`` number of each table's cheapest option among those that fit on a device.

        An option with a shard of more than ``largest_s`` seconds is taken only if no other fits.
        """
        prices = self._priced(price)
        far = float(prices.max()) * len(prices) + 1.0
        shown = np.where(self._largest_s <= largest_s, prices, prices + far)
        shown = np.where(self._fits, shown, np.inf)
        return self._space.least_options(shown)

    def _best_price(self) -> float | None:
        """Seconds per byte at which ``L`` is greatest; None if the smallest options do not fit.

        ``L`` is concave. It rises with the price as long as the cheapest options take more bytes
        than there are, and falls from there on, so that bisection finds the price.
        """
        from scipy.optimize import bisect  # which takes long to load

        def lacking(rows: IntArray) -> float:
            return float(self._bytes[rows].sum()) - self._room

        if lacking(self._space.least_options(np.where(self._fits, self._bytes, np.inf))) > 0:
            return None
        if lacking(self._cheapest(0.0)) <= 0:
            return 0.0
        high = self._bound(0.0) / self._room
        while lacking(self._cheapest(high)) > 0:
            high *= 4.0
        step = ROUNDED * high
        return step + float(
            bisect(lambda price: lacking(self._cheapest(price)), 0.0, high, xtol=step)
        )

    def _quick_plan(self, price: float) -> _Quick | None:
        """The best of some plans that are quick to make; None if none fits."""
        best, bound = None, self._bound(price)
        for tried in self._prices(price):
            mean = max(self._bound(tried), bound)
            choices = [self._cheapest(tried, ceiling * mean) for ceiling in _CEILINGS]
            keep = np.zeros(len(self._total_s), dtype=bool)
            keep[np.concatenate(choices)] = True
            space = self._chosen(keep)
            if len(space.options) < keep.sum():
                continue
            model = LinearModel(space, ColumnMaxima(space))
            number = np.cumsum(keep) - 1
            for choice in choices:
                made = _placed(model, number[choice] - space.first[:-1])
                if made is not None and (best is None or made[0] < best[0]):
                    best = made
                if best is not None and best[0] <= _CLOSE * bound:
                    return best
            if best is not None:
                break
        return best

    def _prices(self, price: float) -> Iterator[float]:
        """Prices of a byte at which quick plans are made, the least first."""
        full = self._bound(0.0) * self._ranks / self._room
        if price > 0:
            yield from (factor * price for factor in _DEARER)
        else:
            yield from (share * full for share in _SHARES)


def _placed(model: LinearModel, choice: IntArray) -> _Quick | None:
    space = model.space
    plan = place_options(model, choice, _POWER)
    work = space.work(plan)
    fits = space.overflow_ratio(work) <= 0 and space.keeps_rules(plan)
    return (float(model.objective.values(work)), space, plan) if fits else None


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
