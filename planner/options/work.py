"""Work of options as the search sees it: priced for many tables at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from costmodels.pipeline import CostPipeline
from costmodels.shard_work.option_work import OptionWork
from costmodels.sharding import ShardingOption
from planner.errors import StoppedError

__all__ = ["ListingProgress", "OptionWork", "priced"]

ListingProgress = Callable[[int, int], None]
"""Told how many of how many tables are priced."""

_AT_ONCE: Final = 4096
"""Options priced at a time; more would take gigabytes where no two ranks are alike."""


def priced(
    pipeline: CostPipeline,
    options: Sequence[Sequence[ShardingOption]],
    *,
    progress: ListingProgress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> list[tuple[OptionWork, ...]]:
    """The work of every option of every table.

    Args:
        pipeline: prices them.
        options: of each table.
        progress: told of tables done and tables in all, after each part.
        should_stop: asked before each part.

    Raises:
        StoppedError: ``should_stop`` said so.
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
    """Neighbouring tables with so many options together."""
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
