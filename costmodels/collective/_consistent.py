"""What holds between collectives, whichever curves they come from.

- More domains make nothing faster: a table is raised to that of fewer domains.
- Inside a domain a reduce-scatter and an all-gather together take 0.8 to 1.3 times the all-reduce
  of the same buffer, where the three rest on different curves or on none. Curves of one source in
  one shape keep the ratio that was measured there: 1.0 to 1.5 on eight GPUs of a host, up to 1.9 on
  two. Over several domains nothing of the kind holds: an all-reduce is a tree there and its halves
  are rings, which take up to 2.8 times as long over two hosts and 130 times over 540, where small.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from costmodels.collective._curve import TimeCurve
from costmodels.collective._law import RATIO, Group, busiest_factor
from costmodels.collective.base import Collective, CollectiveCurve
from costmodels.datatypes import FloatArray

HALVES: Final = (Collective.REDUCE_SCATTER, Collective.ALL_GATHER)
RINGS: Final = (*HALVES, Collective.ALL_REDUCE)


class Found(NamedTuple):
    """A table over bytes on the busiest link, and what it rests on."""

    table: TimeCurve
    curves: tuple[CollectiveCurve, ...]
    same_shape: bool
    other_links: bool = False


Family = dict[Collective, Found]


def completed(found: Family, group: Group) -> Family:
    """With an all-reduce from its halves, or halves from an all-reduce, where one was missing."""
    halves = [found[c] for c in HALVES if c in found]
    whole = found.get(Collective.ALL_REDUCE)
    if halves and whole is None:
        grid, times = _on_sizes(found, group)
        total = np.logaddexp(*(times[c] for c in HALVES))
        table = _table(Collective.ALL_REDUCE, group, grid, total)
        return {**found, Collective.ALL_REDUCE: halves[0]._replace(table=table, same_shape=False)}
    if whole is not None and not halves:
        grid, times = _on_sizes(found, group)
        half = times[Collective.ALL_REDUCE] - math.log(2.0)
        return found | {
            c: whole._replace(table=_table(c, group, grid, half), same_shape=False) for c in HALVES
        }
    return found


def agreed(found: Family, group: Group) -> Family:
    """Inside a domain, with reduce-scatter and all-gather at 0.8 to 1.3 times the all-reduce.

    The side that was measured on this system in this shape stays; where both were or neither was,
    each moves half of the way.
    """
    if not _must_agree(found, group):
        return found
    strong = _is_own(found[Collective.ALL_REDUCE])
    halves = any(_is_own(found[c]) for c in HALVES)
    stays = 0.5 if strong == halves else float(strong)
    grid, times = _on_sizes(found, group)
    whole = times[Collective.ALL_REDUCE]
    total = np.logaddexp(*(times[c] for c in HALVES))
    wanted = np.clip(total - whole, *np.log(RATIO))
    moved = (1.0 - stays) * (total - whole - wanted)
    low, high = (math.log(0.5 * r) for r in RATIO)
    changed = {Collective.ALL_REDUCE: whole + moved}
    for half in HALVES:
        changed[half] = np.clip(times[half], whole + moved + low, whole + moved + high)
    return _changed(found, group, grid, times, changed)


def risen(found: Family, group: Group, fewer: Family, fewer_group: Group) -> Family:
    """No faster than over fewer domains or hosts; what agreed with an all-reduce still does."""
    shared = {c: f for c, f in found.items() if c in fewer}
    if not shared:
        return found
    grid = np.unique(
        np.concatenate(
            [_log_sizes(f, c, group) for c, f in shared.items()]
            + [_log_sizes(fewer[c], c, fewer_group) for c in shared]
        )
    )
    times = {c: _at(f.table, c, group, grid) for c, f in found.items()}
    raised = dict(times)
    for c in shared:
        raised[c] = np.maximum(times[c], _at(fewer[c].table, c, fewer_group, grid))
    if _must_agree(found, group):
        total = np.logaddexp(*(raised[c] for c in HALVES))
        whole = np.maximum(raised[Collective.ALL_REDUCE], total - math.log(RATIO[1]))
        raised[Collective.ALL_REDUCE] = whole
        for half in HALVES:
            raised[half] = np.maximum(raised[half], whole + math.log(0.5 * RATIO[0]))
    return _changed(found, group, grid, times, raised)


def mixed(low: Family, high: Family, groups: tuple[Group, Group, Group], part: float) -> Family:
    """A number of domains between two others.

    Args:
        low: times over fewer domains.
        high: times over more.
        groups: of ``low``, the one wanted, and of ``high``.
        part: 0 at ``low``, 1 at ``high``.
    """
    fewer, wanted, more = groups
    both: Family = {}
    for c in low.keys() & high.keys():
        grid = np.union1d(_log_sizes(low[c], c, fewer), _log_sizes(high[c], c, more))
        below, above = _at(low[c].table, c, fewer, grid), _at(high[c].table, c, more, grid)
        table = _table(c, wanted, grid, (1.0 - part) * below + part * above)
        both[c] = high[c]._replace(table=table, same_shape=False)
    return both


def _must_agree(found: Mapping[Collective, Found], group: Group) -> bool:
    """Whether an all-reduce and its halves, inside a domain, rest on different sources."""
    if group.domains > 1 or len(found) < len(RINGS):
        return False
    priorities = {c.priority for f in found.values() for c in f.curves}
    sources = [{c.source for c in f.curves} for f in found.values()]
    return len(priorities) > 1 or not set.intersection(*sources)


def _is_own(found: Found) -> bool:
    """Whether it was measured on this system in this shape."""
    return found.same_shape and all(c.priority == 0 for c in found.curves)


def _changed(
    found: Family,
    group: Group,
    grid: FloatArray,
    times: Mapping[Collective, FloatArray],
    changed: Mapping[Collective, FloatArray],
) -> Family:
    """Tables of the changed times; those that are as before stay the same objects."""
    return {
        c: f
        if np.array_equal(times[c], changed[c])
        else f._replace(table=_table(c, group, grid, changed[c]))
        for c, f in found.items()
    }


def _on_sizes(found: Family, group: Group) -> tuple[FloatArray, dict[Collective, FloatArray]]:
    """All corners as logarithms of sizes, and the logarithms of the times there."""
    grid = np.unique(np.concatenate([_log_sizes(f, c, group) for c, f in found.items()]))
    return grid, {c: _at(f.table, c, group, grid) for c, f in found.items()}


def _log_sizes(found: Found, collective: Collective, group: Group) -> FloatArray:
    return found.table.corners - math.log(busiest_factor(collective, group))


def _at(
    table: TimeCurve, collective: Collective, group: Group, log_sizes: FloatArray
) -> FloatArray:
    return table.log_time_at(log_sizes + math.log(busiest_factor(collective, group)))


def _table(
    collective: Collective, group: Group, log_sizes: FloatArray, log_time: FloatArray
) -> TimeCurve:
    log_bytes = log_sizes + math.log(busiest_factor(collective, group))
    return TimeCurve.of_line(log_bytes, np.maximum.accumulate(log_time))
