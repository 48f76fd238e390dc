"""The shards of options and plans as columns of numbers; shards that are alike are kept once."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, NamedTuple, Self
from zlib import crc32

import numpy as np

from costmodels import sharding
from costmodels.datatypes import FloatArray, IntArray, changes, distinct
from costmodels.errors import require
from costmodels.lookup.base import KERNELS, Shards, TableColumns
from costmodels.sharding import BY_HOSTS, Plan, ShardingOption, ShardingType, Spread, TableTerms
from costmodels.topology import Topology, batch_ratios
from costmodels.workload import Table, Workload

_Block = tuple[int, int, float, float]
"""Offset and number of the rows of a block, its share of accesses, or :data:`_OF_LAW`, and
``batch_ratio`` of :class:`Cells`."""
_Shape = tuple[int, ...]
"""How many neighbouring row blocks each of the different blocks stands for."""
_OF_LAW: Final = -1.0
"""In the place of a share of accesses that the law of the table says."""

TYPES: Final = tuple(ShardingType)
"""Sharding types by the numbers that stand for them in cells."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cells(Shards):
    """Different shards, as columns ``[n]``.

    ``row_offset`` is 0 for tables whose ids are hashed, where it changes nothing.

    Attributes:
        family: the sharding type whose collectives the shard uses, as a position in ``TYPES``.
        access_ratio: share of the table's accesses that fall on the rows, where ids are hashed and
            rows are cut: more than the even share for the part with the hottest row. Below 0 if
            the law of the table says it.
        batch_ratio: samples of the shard's rank over the mean of all ranks, for replicated tables,
            whose ranks look up only their own samples; 1 for others.
    """

    family: IntArray
    access_ratio: FloatArray
    batch_ratio: FloatArray


# ------------------------------------------------------------------ options


class Layout(NamedTuple):
    """How an option is cut.

    Attributes:
        blocks: the different row blocks.
        widths: the different widths of column pieces.
        where: for each shard the number of its pair of a width and a block, which is the position
            of the width times the number of blocks plus the position of the block. Shaped ``[W]``,
            ``[pieces]`` or ``[pieces, L]``, as in
            :class:`costmodels.shard_work.cells.OptionWork`.
    """

    blocks: tuple[_Block, ...]
    widths: tuple[int, ...]
    where: IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Runs:
    """Runs of equal shards of a plan on neighbouring ranks, as columns ``[n]``.

    Run i is ``cells[cell[i]]`` on ranks ``first[i] .. first[i] + length[i] - 1``, and belongs to
    placement number ``placement[i]``.
    """

    cells: Cells
    placement: IntArray
    cell: IntArray
    first: IntArray
    length: IntArray


class OptionCells:
    """Makes the cells of options before they are placed, and of plans, on one topology."""

    def __init__(self, workload: Workload, topology: Topology, columns: TableColumns) -> None:
        """Keep the arguments; ``columns`` are those of the workload's tables."""
        self._columns = columns
        self._position = {t.name: i for i, t in enumerate(columns.tables)}
        self._world_size = topology.world_size
        hosts = dict.fromkeys(BY_HOSTS, topology.local_world_size)
        self._parts = {ShardingType.ROW_WISE: topology.world_size, **hosts}
        ratios = batch_ratios(workload, topology)
        self._batch_ratio = np.ones(topology.world_size) if ratios is None else ratios
        starts = np.flatnonzero(changes(self._batch_ratio))
        runs = tuple(np.diff(starts, append=topology.world_size).tolist())
        self._copies: tuple[list[float], _Shape] = self._batch_ratio[starts].tolist(), runs

    def of(self, options: Sequence[ShardingOption]) -> tuple[Cells, list[Layout]]:
        """The cells of many options, one option after the other, and how each option is cut.

        An option has one cell for each pair of a width and a block of its layout.
        """
        layouts = [self._layout(option) for option in options]
        parts = [(*block, width) for x in layouts for width in x.widths for block in x.blocks]
        offset, rows, share, batch, width = np.array(parts, dtype=float).reshape(-1, 5).T
        counts = [len(x.blocks) * len(x.widths) for x in layouts]
        cells = self._made(
            options,
            [option.sharding_type for option in options],
            np.repeat(np.arange(len(options)), counts),
            row_offset=offset.astype(np.int64),
            num_rows=rows.astype(np.int64),
            num_cols=width.astype(np.int64),
            access_ratio=share,
            batch_ratio=batch,
        )
        return cells, layouts

    def _made(
        self, cuts: Sequence[TableTerms], types: Sequence[ShardingType], of: IntArray, **shard: Any
    ) -> Cells:
        """Cells of shards, each of which belongs to the option or placement ``of``."""
        table = np.array([self._position[cut.table] for cut in cuts], dtype=np.int64)
        family = np.array([TYPES.index(kind) for kind in types], dtype=np.int64)
        kernel = np.array([_KERNEL_CODES[cut.kernel] for cut in cuts], dtype=np.int64)
        ratio = np.array([cut.cache_load_factor_ratio or 0.0 for cut in cuts])[of]
        kinds: dict[str, Any] = {"table": table[of], "family": family[of], "kernel": kernel[of]}
        return Cells(**kinds, cache_load_factor_ratio=ratio, **shard)

    def _layout(self, option: ShardingOption) -> Layout:
        """How one option is cut."""
        at, parts = self._position[option.table], self._parts.get(option.sharding_type)
        table, widths = self._columns.tables[at], option.column_widths
        if parts is not None:
            is_scattered = bool(self._columns.is_scattered[at])
            blocks, shape = _row_runs(table, parts, is_scattered=is_scattered)
        else:
            ratios, shape = self._copies if option.is_uniform else ([1.0], (1,))
            blocks = tuple((0, table.num_embeddings, _OF_LAW, ratio) for ratio in ratios)
        if option.is_uniform:
            widths = (sum(widths),)
        where = _where(widths, shape, option.spread)
        return Layout(blocks, tuple(dict.fromkeys(widths)), where)

    def runs_of(self, plan: Plan) -> Runs:
        """The shards of a plan as runs.

        Raises:
            InvalidValueError: a shard is on a rank that does not exist.
        """
        placements, columns, world_size = plan.placements, self._columns, self._world_size
        shards = [p.cells for p in placements]
        families = [self._family(p.sharding_type, p.cells.rank) for p in placements]
        tables = np.array([self._position[p.table] for p in placements], dtype=np.int64)
        copies = [p.sharding_type is ShardingType.DATA_PARALLEL for p in placements]
        of = np.repeat(np.arange(len(shards)), [len(s) for s in shards])
        rank, offset, rows, cols = (
            np.concatenate([getattr(s, name) for s in shards]) if shards else np.zeros(0, np.int64)
            for name in ("rank", "row_offset", "num_rows", "num_cols")
        )
        outside = rank[(rank < 0) | (rank >= world_size)]
        require(not len(outside), f"ranks {outside[:5].tolist()} are outside 0..{world_size - 1}")
        access = self._access_ratios(tables, of, offset, rows)
        offset = np.where(columns.is_scattered[tables[of]], 0, offset)
        own = np.where(np.array(copies, dtype=bool)[of], self._batch_ratio[rank], 1.0)
        keys = (of, offset, rows, cols, own, access)
        # A new run starts where a key changes, or where the rank is not the one after the last.
        starts = np.flatnonzero(changes(*keys, rank - np.arange(len(rank))))
        ends = np.append(starts[1:], len(rank))
        some, cell = distinct(*(key[starts] for key in keys))
        chosen = starts[some]
        cells = self._made(
            placements,
            families,
            of[chosen],
            row_offset=offset[chosen],
            num_rows=rows[chosen],
            num_cols=cols[chosen],
            access_ratio=access[chosen],
            batch_ratio=own[chosen],
        )
        return Runs(
            cells=cells, placement=of[starts], cell=cell, first=rank[starts], length=ends - starts
        )

    def _access_ratios(
        self, table: IntArray, of: IntArray, offset: IntArray, rows: IntArray
    ) -> FloatArray:
        """``access_ratio`` of :class:`Cells` for each shard of a plan, ``[shards]``.

        Args:
            table: ``[placements]`` position of the table of each placement.
            of: ``[shards]`` the placement of each shard.
            offset: ``[shards]`` first row.
            rows: ``[shards]`` rows.
        """
        size, columns = np.zeros(len(table), dtype=np.int64), self._columns
        np.maximum.at(size, of, rows)
        cut = columns.is_scattered[table] & (size < columns.num_embeddings[table]) & (size > 0)
        found = np.full(len(of), _OF_LAW)
        begins = np.searchsorted(of, np.arange(len(table) + 1))
        for i in np.flatnonzero(cut).tolist():
            here = slice(begins[i], begins[i + 1])
            found[here] = _hashed_ratios(columns.tables[table[i]], offset[here], rows[here])
        return found

    def _family(self, kind: ShardingType, ranks: IntArray) -> ShardingType:
        """The sharding type whose collectives a placement on these ranks uses.

        A table that is cut by rows over only *some* ranks (which HugeCTR can run, TorchRec cannot)
        sends its partial sums to their destination as table-wise shards do.
        """
        parts = self._parts.get(kind)
        if parts is None or not len(ranks):
            return kind
        if len(ranks) % parts or (kind is ShardingType.ROW_WISE and len(ranks) != parts):
            return ShardingType.TABLE_WISE
        first = ranks[::parts, None]
        in_order = (ranks.reshape(-1, parts) - np.arange(parts) == first).all()
        return kind if in_order and not (first % parts).any() else ShardingType.TABLE_WISE


_KERNEL_CODES: Final = {kernel: i for i, kernel in enumerate(KERNELS)}
"""Position of each kernel in ``KERNELS``."""
MOST_HASHED: Final = 5
"""Most blocks of a table of hashed ids: whole ones beside the hottest one, cut, and empty. Where an
option has more, neighbouring blocks may cost the same although they differ."""
_UNEVEN_RATIO: Final = 0.002
"""Excess of the hottest part over the even share, up to which all parts count as equal."""


@lru_cache(maxsize=65536)
def _excess_ratio(table: Table, size: int) -> float:
    """What the hottest of blocks of ``size`` rows gets above the even share of accesses."""
    parts = -(-table.num_embeddings // size)
    excess = table.distribution.hottest_share(parts) - 1.0 / parts
    return excess if excess * parts > _UNEVEN_RATIO else 0.0


def _hashed_ratios(table: Table, offset: IntArray, rows: IntArray) -> FloatArray:
    """Shares (0..1) of a table's accesses that fall on blocks of its rows, whose ids are hashed.

    Nobody knows the id of the hottest row before, since it is the hash that decides. The name of
    the table decides it here, so that the hottest rows of several tables are on one rank as often
    as by chance.

    Args:
        table: the table.
        offset: ``[n]`` first row of each block.
        rows: ``[n]`` rows of each block; blocks are as large as the largest, but for the last.
    """
    total, excess = table.num_embeddings, _excess_ratio(table, int(rows.max()))
    if not excess:
        return rows / total
    row = crc32(table.name.encode()) % total
    hot = (offset <= row) & (row < offset + rows)
    hot_rows = int(rows[hot].max(initial=0))
    hottest = min(1.0, hot_rows / total + excess)
    return np.where(hot, hottest, (1.0 - hottest) * rows / (total - hot_rows))


@lru_cache(maxsize=65536)
def _row_runs(table: Table, parts: int, *, is_scattered: bool) -> tuple[tuple[_Block, ...], _Shape]:
    """The row blocks of a table, and how many neighbouring parts each stands for.

    Of a table of hashed ids, sizes matter, and which block has the hottest row.
    """
    offset, rows = sharding.row_block_columns(table.num_embeddings, parts)
    ratios = np.full(parts, _OF_LAW)
    if is_scattered:
        ratios, offset = _hashed_ratios(table, offset, rows), np.zeros(parts, dtype=np.int64)
    starts = np.flatnonzero(changes(offset, rows, ratios))
    blocks = zip(*(column[starts].tolist() for column in (offset, rows, ratios)), strict=True)
    return tuple((*block, 1.0) for block in blocks), tuple(np.diff(starts, append=parts).tolist())


@lru_cache(maxsize=4096)
def _where(widths: tuple[int, ...], shape: _Shape, spread: Spread) -> IntArray:
    """``where`` of :class:`Layout`; read-only, because options share it."""
    known = {width: i for i, width in enumerate(dict.fromkeys(widths))}
    piece = np.array([known[width] for width in widths], dtype=np.int64)
    found = piece[:, None] * len(shape) + np.repeat(np.arange(len(shape)), shape)
    if spread is not Spread.HOSTS:
        found = found[0] if spread is Spread.UNIFORM else found[:, 0]
    found.flags.writeable = False
    return found


_AT_ONCE: Final = 32_768
"""Rows that are multiplied in one call. All rows at once would need a second copy of them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OptionWork:
    """Work of an option before it is placed: ``rows[index]``.

    For spread uniform it is ``[W, columns]``: what each rank gets. For spread ranks ``[pieces,
    columns]``: what the rank that is chosen for a piece gets. For spread hosts ``[pieces, L,
    columns]``: what the L ranks of the chosen host get.

    Attributes:
        rows: ``[distinct, F]``, in the order in which ``index`` first names them.
        index: ``[W]``, ``[pieces]`` or ``[pieces, L]``, depending on the option's spread. Options
            share it, so it is read-only.
    """

    rows: FloatArray
    index: IntArray

    @classmethod
    def of(cls, work: FloatArray) -> Self:
        """From work ``[..., F]``; neighbouring rows that are equal become one."""
        return cls(
            rows=work.reshape(-1, work.shape[-1]),
            index=np.arange(np.prod(work.shape[:-1])).reshape(work.shape[:-1]),
        ).merged()

    @property
    def full(self) -> FloatArray:
        """The work with every row, ``[..., F]``."""
        return np.asarray(self.rows[self.index])

    def merged(self) -> Self:
        """The same work; rows that are equal to the row before them are joined with it."""
        new = np.ones(len(self.rows), dtype=bool)
        new[1:] = (self.rows[1:] != self.rows[:-1]).any(axis=-1)
        if new.all():
            return self
        return replace(self, rows=self.rows[new], index=(np.cumsum(new) - 1)[self.index])

    def __matmul__(self, coefficients: FloatArray) -> FloatArray:
        """The product of the work with coefficients ``[F]``, shaped like ``index``."""
        return np.asarray((self.rows @ coefficients)[self.index])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorkPool:
    """The rows of many options, one option after the other.

    Attributes:
        rows: ``[M, F]`` of all options.
        first: ``[n]`` the first row of each option.
        index: for each option which row is where, shaped like the option's own index.
        counts: ``[M]`` how often an option has a row.
    """

    rows: FloatArray
    first: IntArray
    index: tuple[IntArray, ...]
    counts: IntArray

    @classmethod
    def of(cls, works: Sequence[OptionWork], num_features: int) -> Self:
        """Put the rows of ``works`` one after the other."""
        if not works:
            none = np.zeros(0, dtype=np.int64)
            return cls(rows=np.zeros((0, num_features)), first=none, index=(), counts=none)
        sizes = np.array([len(work.rows) for work in works], dtype=np.int64)
        first = np.cumsum(sizes) - sizes
        lengths = np.array([work.index.size for work in works], dtype=np.int64)
        flat = np.concatenate([work.index.ravel() for work in works])
        flat += np.repeat(first, lengths)
        ends = np.cumsum(lengths)
        spans = zip((ends - lengths).tolist(), ends.tolist(), works, strict=True)
        return cls(
            rows=np.concatenate([work.rows for work in works]),
            first=first,
            index=tuple(flat[a:b].reshape(work.index.shape) for a, b, work in spans),
            counts=np.bincount(flat, minlength=int(sizes.sum())),
        )

    def summed(self) -> FloatArray:
        """The work of each option, summed over all its ranks, ``[n, F]``."""
        total = np.zeros((len(self.first), self.rows.shape[1]))
        ends = np.append(self.first[1:], len(self.rows))
        for part in np.array_split(np.arange(len(total)), len(self.rows) // _AT_ONCE + 1):
            if len(part):
                begin, end = self.first[part[0]], ends[part[-1]]
                weighted = self.rows[begin:end] * self.counts[begin:end, None]
                total[part] = np.add.reduceat(weighted, self.first[part] - begin, axis=0)
        return total
