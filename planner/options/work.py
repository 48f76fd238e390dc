"""The work of all options, counted for many tables in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from costmodels.pipeline import CostPipeline
from costmodels.shard_work.option_work import OptionWork
from costmodels.sharding import ShardingOption
from planner.errors import StoppedError

__all__ = ["ListingProgress", "OptionWork", "priced"]

ListingProgress = Callable[[int, int], None]
"""Called with how many of how many tables are done."""

_AT_ONCE: Final = 4096
"""How many options are counted in one call; more would take gigabytes if all ranks differ."""


def priced(
    pipeline: CostPipeline,
    options: Sequence[Sequence[ShardingOption]],
    *,
    progress: ListingProgress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> list[tuple[OptionWork, ...]]:
    """Count the work of every option of every table.

    Args:
        pipeline: counts the work.
        options: the options of each table.
        progress: called after each part with the number of tables done and of all tables.
        should_stop: called before each part; True ends the counting.

    Raises:
        StoppedError: ``should_stop`` was True.
    """
    works: list[tuple[OptionWork, ...]] = []
    for part in _parts(options):
        if should_stop is not None and should_stop():
            msg = f"stopped while options of tables were listed, {len(works):,} of {len(options):,}"
            raise StoppedError(msg)
        found = iter(pipeline.options_work([o for table in part for o in table]))
        works += [tuple(next(found) for _ in table) for table in part]
        if progress is not None:
            progress(len(works), len(options))
    return works


def _parts(options: Sequence[Sequence[ShardingOption]]) -> Iterator[list[Sequence[ShardingOption]]]:
    """Parts of neighbouring tables, each with about :data:`_AT_ONCE` options."""
    part: list[Sequence[ShardingOption]] = []
    count = 0
    for table in options:
        part.append(table)
        count += len(table)
        if count >= _AT_ONCE:
            yield part
            part, count = [], 0
    if part:
        yield part
