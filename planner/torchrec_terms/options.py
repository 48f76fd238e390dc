"""Every option that TorchRec's enumerator would try, priced as columns of numbers.

With kernels in host memory these are about a hundred options for each table. As arrays, all of them
are priced in milliseconds. Only the few that can be in a good plan are made into options with work.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Self

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray, IntArray
from costmodels.shard_work.cells import OptionWork
from costmodels.sharding import SPREAD, ComputeKernel, ShardingOption, ShardingType, Spread
from costmodels.torchrec_estimates import TorchrecTable, shard_perf, shard_storage
from planner.errors import InvalidInputError
from planner.options.cuts import ColumnSplit, table_cuts
from planner.options.enumeration import Listing, TableOptions, kernel_choices, listed_names
from planner.options.table_limits import table_limits
from planner.problem import PlanningProblem
from planner.space.evaluation import FITTING, SearchSpace
from planner.space.objective import AbstractNamedObjective, Cut, JudgedWork, MakePipeline
from planner.torchrec_terms.pipeline import DDR, TIMES, TorchrecPipeline, TorchrecPricing

# ------------------ options
#
# Every option that TorchRec's enumerator would try, priced as columns of numbers.
#
# With kernels in host memory these are about a hundred options for each table. As arrays, all of
# them are priced in milliseconds. Only the few that can be in a good plan are made into options
# with work.

Kind = tuple[ShardingType, ComputeKernel, float | None]
"""Sharding type, kernel and cache load factor."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OptionColumns:
    """Seconds and bytes of each option, ``[n]``; the options of a table are neighbours.

    Attributes:
        total_s, largest_s: seconds of all shards together, and of the slowest one.
        device_bytes, fullest_bytes: device bytes of all shards together, and of the largest one.
        host_bytes: host bytes of the largest shard.
    """

    total_s: FloatArray
    largest_s: FloatArray
    device_bytes: FloatArray
    fullest_bytes: FloatArray
    host_bytes: FloatArray

    @staticmethod
    def empty(count: int) -> OptionColumns:
        """Columns of zeros for ``count`` options."""
        columns = np.zeros((5, count))
        return OptionColumns(
            total_s=columns[0],
            largest_s=columns[1],
            device_bytes=columns[2],
            fullest_bytes=columns[3],
            host_bytes=columns[4],
        )


class EveryOption:
    """All options of a problem without rules between tables, in the workload's order.

    Attributes:
        first: ``[T + 1]`` number of the first option of each table.
        columns: seconds and bytes of each option.
    """

    def __init__(self, problem: PlanningProblem, pipeline: TorchrecPipeline) -> None:
        """List and price the options.

        Raises:
            InvalidInputError: in the cases of :func:`planner.options.table_limits.table_limits`.
        """
        self._pipeline = pipeline
        self._limits = table_limits(problem)
        self._names = listed_names(pipeline, self._limits)
        self._rows: list[tuple[int, ColumnSplit, Kind]] = []
        counts = []
        for t, limit in enumerate(self._limits):
            before = len(self._rows)
            kinds = {s: [(s, *k) for k in kernel_choices(limit, s)] for s in limit.kernels}
            for cut in table_cuts(problem, limit, self._names, every=True):
                self._rows += [(t, cut, kind) for kind in kinds[cut[0]]]
            counts.append(len(self._rows) - before)
        self.first: IntArray = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        most = np.arange(max(counts))
        inside = most < np.array(counts)[:, None]
        self._places = np.where(inside, self.first[:-1, None] + most, len(self._rows))
        self.columns = self._price()

    def chosen(self, keep: BoolArray) -> Listing:
        """The options for which ``keep [n]`` is True, with their work."""
        spans = enumerate(itertools.pairwise(self.first.tolist()))
        tables = tuple(self._table(t, np.flatnonzero(keep[a:b]) + a) for t, (a, b) in spans)
        return Listing(tables=tables, names=self._names, is_pruned=not keep.all())

    def each_table(self, values: FloatArray) -> FloatArray:
        """For each option the least of ``values [n]`` over all options of its table, ``[n]``."""
        least = np.minimum.reduceat(values, self.first[:-1])
        return np.asarray(np.repeat(least, np.diff(self.first)))

    def cheapest(self, values: FloatArray) -> IntArray:
        """``[T]`` number of the option with the least value of each table; the first in a tie."""
        return np.asarray(
            self._places[
                np.arange(len(self._places)),
                np.argmin(np.append(values, np.inf)[self._places], axis=1),
            ]
        )

    def _table(self, index: int, rows: IntArray) -> TableOptions:
        limit = self._limits[index]
        options = tuple(
            ShardingOption(
                table=limit.table.name,
                sharding_type=cut[0],
                kernel=kind[1],
                column_widths=cut[1],
                cache_load_factor_ratio=kind[2],
            )
            for _, cut, kind in (self._rows[i] for i in rows)
        )
        return TableOptions(
            table=limit.table.name,
            options=options,
            works=tuple(OptionWork.of(self._pipeline.option_work(o)) for o in options),
            ranks=limit.ranks,
            hosts=limit.hosts,
        )

    # -- prices -----------------------------------------------------------------------------------

    def _price(self) -> OptionColumns:
        """Price all options of one sharding type and kernel in one call.

        The pieces of a cut have at most two widths, which are priced one after the other.
        """
        tables = self._pipeline.torchrec_tables
        names = [limit.table.name for limit in self._limits]
        every = TorchrecTable.stacked([tables[name] for name in names])
        groups: dict[Kind, list[int]] = {}
        for i, (_, _, kind) in enumerate(self._rows):
            groups.setdefault(kind, []).append(i)
        columns = OptionColumns.empty(len(self._rows))
        for kind, rows in groups.items():
            read = every.take([self._rows[i][0] for i in rows])
            widths = [self._rows[i][1][1] for i in rows]
            wide = np.array([w[0] for w in widths], dtype=np.float64)
            narrow = np.array([w[-1] for w in widths], dtype=np.float64)
            num_wide = np.array([w.count(w[0]) for w in widths], dtype=np.float64)
            num_narrow = np.array([len(w) for w in widths]) - num_wide
            where = np.array(rows)
            self._add(columns, where, kind, read, wide, num_wide)
            if num_narrow.any():
                self._add(columns, where, kind, read, narrow, num_narrow)
        return columns

    def _add(
        self,
        columns: OptionColumns,
        where: IntArray,
        kind: Kind,
        read: TorchrecTable,
        width: FloatArray,
        count: FloatArray,
    ) -> None:
        """Add ``count`` pieces of ``width`` columns to the sums of each option in ``where``."""
        sharding_type, kernel, factor = kind
        machine = self._pipeline.machine
        topology = self._pipeline.topology
        copies = {
            Spread.UNIFORM: topology.world_size,
            Spread.HOSTS: topology.local_world_size,
            Spread.RANKS: 1,
        }[SPREAD[sharding_type]]
        perf = shard_perf(
            read, machine, sharding_type, kernel, num_cols=width, cache_load_factor_ratio=factor
        )
        used = count > 0
        columns.total_s[where] += copies * count * perf.total_s
        columns.largest_s[where] = np.maximum(columns.largest_s[where], used * perf.total_s)
        rows = np.asarray(read.num_embeddings)
        replicated = sharding_type is ShardingType.DATA_PARALLEL
        block = rows if replicated else np.ceil(rows / copies)
        num_blocks = np.full(len(rows), copies) if replicated else np.floor(rows / block)
        rest = np.zeros(len(rows)) if replicated else rows - num_blocks * block
        for size, number in ((block, num_blocks), (rest, 1.0 * (rest > 0))):
            storage = shard_storage(
                read,
                machine,
                sharding_type,
                kernel,
                num_rows=size,
                num_cols=width,
                cache_load_factor_ratio=factor,
            )
            some = used * (number > 0)
            columns.device_bytes[where] += number * count * storage.hbm_bytes
            for column, values in (
                (columns.fullest_bytes, storage.hbm_bytes),
                (columns.host_bytes, storage.ddr_bytes),
            ):
                column[where] = np.maximum(column[where], some * values)


# ------------------ maxima
#
# What TorchRec's two objectives have in common: they are sums of maxima over ranks.
#
# Each is a weighted sum over columns of the work of
# :class:`planner.torchrec_terms.pipeline.TorchrecPipeline`, of which the largest rank counts. The
# phases are these columns themselves, so that cuts have no error.

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
            msg = (
                f"objective {self.name!r} needs work counted in TorchRec's estimates; plan with "
                f"'shardplan plan --objective {self.name}' or planner.api.plan"
            )
            raise InvalidInputError(msg)
        if pipeline.workload.batch_share_ratio:
            msg = (
                f"batch_shares contradict objective {self.name!r}: TorchRec's planner knows one "
                "batch size for all ranks; remove one of them"
            )
            raise InvalidInputError(msg)
        self._ddr_limits = np.array(pipeline.machine.ddr_limits_bytes) * FITTING
        self._columns, self._weights = _phases(space.pool[..., TIMES:])
        self._gradient = np.zeros((len(self._columns), pipeline.num_features))
        self._gradient[np.arange(len(self._columns)), TIMES + self._columns] = 1.0

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
