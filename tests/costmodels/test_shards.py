"""Shards as columns behave as the tuple of shards they stand for."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.errors import InvalidValueError
from costmodels.sharding import (
    ComputeKernel,
    Plan,
    Shard,
    ShardingType,
    Shards,
    TablePlacement,
    check_tiling,
    row_block_columns,
)
from tests.strategies import make_placement, make_table, make_topology

numbers = st.integers(-3, 12)
shards = st.builds(
    Shard,
    rank=numbers,
    row_offset=numbers,
    num_rows=numbers,
    col_offset=numbers,
    num_cols=numbers,
)


@given(st.lists(shards, max_size=6), st.lists(shards, max_size=6), st.slices(6))
def test_a_sequence_like_the_tuple(one: list[Shard], two: list[Shard], part: slice) -> None:
    found, other = Shards.of(one), Shards.of(two)
    assert tuple(found) == tuple(one)
    assert len(found) == len(one)
    assert [found[i] for i in range(len(one))] == one
    assert tuple(found[part]) == tuple(one[part])
    assert (found == other) == (one == two)
    assert (found == tuple(two)) == (tuple(two) == found) == (one == two)
    assert repr(found) == repr(tuple(one))
    again = pickle.loads(pickle.dumps(found))
    assert again == found
    assert hash(again) == hash(found)
    assert Shards.of(found) is found


def test_one_number_stands_for_every_shard() -> None:
    found = Shards([0, 1, 2], 0, [5, 5, 2], 0, 8)
    written = Shards.of(tuple(found))
    assert found == written
    assert hash(found) == hash(written)
    assert pickle.loads(pickle.dumps(found)) == found
    with pytest.raises(ValueError, match="read-only"):
        found.num_rows[0] = 7


def test_numbers_that_no_table_has_are_refused() -> None:
    huge = Shard(rank=0, row_offset=0, num_rows=2**70, col_offset=0, num_cols=1)
    with pytest.raises(InvalidValueError, match=r"below 2\^62"):
        Shards.of((huge,))


def test_placements_and_plans_are_values() -> None:
    table, topology = make_table(), make_topology()
    placed = make_placement(table, ShardingType.ROW_WISE, topology)
    written = dataclasses.replace(placed, shards=tuple(placed.shards))
    assert placed == written
    assert hash(placed) == hash(written)
    assert {Plan(placements=(placed,)): 1}[Plan(placements=(written,))] == 1
    moved = dataclasses.replace(placed, shards=placed.shards[::-1])
    assert moved != placed
    assert Plan(placements=(placed,)).placement("t0") is placed
    assert [s.num_rows for s in placed.shards] == row_block_columns(10_000, 4)[1].tolist()


# ------------------------------------------------------------------ tilings


def painted(cells: list[Shard], rows: int, cols: int) -> bool:
    """Whether every cell of a table is covered once, by colouring it."""
    count = np.zeros((rows, cols), dtype=int)
    for s in cells:
        if s.num_rows < 0 or s.num_cols < 1:
            return False
        if s.num_rows == 0:
            continue
        if min(s.row_offset, s.col_offset) < 0:
            return False
        if s.row_offset + s.num_rows > rows or s.col_offset + s.num_cols > cols:
            return False
        count[
            s.row_offset : s.row_offset + s.num_rows, s.col_offset : s.col_offset + s.num_cols
        ] += 1
    return bool((count == 1).all())


def rectangles(row: int, rows: int, col: int, cols: int, cuts: list[int]) -> list[Shard]:
    """A tiling by cuts through and through, rows and columns in turn."""
    if not cuts or rows * cols <= 1:
        return [Shard(rank=0, row_offset=row, num_rows=rows, col_offset=col, num_cols=cols)]
    cut, *rest = cuts
    if (cut % 2 and rows > 1) or cols == 1:
        at = 1 + cut % (rows - 1) if rows > 2 else 1
        halves = ((row, at, col, cols), (row + at, rows - at, col, cols))
    else:
        at = 1 + cut % (cols - 1) if cols > 2 else 1
        halves = ((row, rows, col, at), (row, rows, col + at, cols - at))
    return [s for i, half in enumerate(halves) for s in rectangles(*half, rest[i::2])]


small = st.integers(0, 5)
loose = st.builds(
    Shard, rank=st.just(0), row_offset=small, num_rows=small, col_offset=small, num_cols=small
)


@given(
    st.integers(1, 6),
    st.integers(1, 6),
    st.lists(st.integers(0, 40), max_size=8),
    st.lists(st.tuples(st.integers(0, 20), loose), max_size=2),
    st.randoms(use_true_random=False),
)
def test_a_tiling_is_one_that_colours_every_cell_once(
    rows: int, cols: int, cuts: list[int], changes: list[tuple[int, Shard]], random: object
) -> None:
    cells = rectangles(0, rows, 0, cols, cuts)
    for at, shard in changes:
        cells[at % len(cells)] = shard
    random.shuffle(cells)  # type: ignore[attr-defined]
    problem = tiling_problem(cells, rows, cols)
    assert (not problem) == painted(cells, rows, cols), problem


def tiling_problem(cells: list[Shard], rows: int, cols: int) -> str:
    """What is wrong with shards of a table that is not replicated; empty if they tile it."""
    kind, kernel = ShardingType.TABLE_WISE, ComputeKernel.FUSED
    placed = TablePlacement(table="t", sharding_type=kind, kernel=kernel, shards=cells)
    try:
        check_tiling(placed, rows, cols)
    except InvalidValueError as error:
        return str(error)
    return ""


def test_areas_beyond_64_bits_are_counted_exactly() -> None:
    one = Shard(rank=0, row_offset=0, num_rows=2**48, col_offset=0, num_cols=2**14)
    found = tiling_problem([one] * 5, 2**48, 2**14)
    assert found == f"table 't': shards cover {5 * 2**62} cells of {2**62}; they must tile it"
    assert not tiling_problem([one], 2**48, 2**14)
