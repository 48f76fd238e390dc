"""Makes the tables of different collectives and of different numbers of domains fit together.

The *halves* of an all-reduce are a reduce-scatter and an all-gather of the same buffer. Tables are
changed so that two rules hold, from whichever curves they come:

- No collective is faster over more domains: its table is raised to that of fewer domains.
- Inside a domain, both halves together take 0.8 to 1.3 times as long as the all-reduce. This is not
  asked of three tables that come from one source in one shape: they keep the ratio that was
  measured, which is 1.0 to 1.5 on eight GPUs of a host and up to 1.9 on two. Nor is it asked over
  several domains. An all-reduce runs along a tree there and its halves around rings, so that small
  halves take up to 2.8 times as long as the all-reduce over two hosts, and 130 times over 540.

A *family* is a set of collectives whose tables have to fit together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from costmodels.collective._curve import TimeCurve
from costmodels.collective._law import RATIO, Group, busiest_factor
from costmodels.datatypes import FloatArray
from costmodels.measured.curves import Collective, CollectiveCurve

HALVES: Final = (Collective.REDUCE_SCATTER, Collective.ALL_GATHER)
"""The collectives that together do what an all-reduce does."""
RINGS: Final = (*HALVES, Collective.ALL_REDUCE)
"""The family of an all-reduce and its halves."""


class Found(NamedTuple):
    """The time of one collective as a table, and the curves that it comes from.

    Attributes:
        table: seconds over bytes on the busiest link.
        curves: the measured curves that the table was made from.
        same_shape: whether these curves are of this collective, and of the ranks and domains asked
            for.
        other_links: whether the table was rescaled to other links than the curves were measured on.
    """

    table: TimeCurve
    curves: tuple[CollectiveCurve, ...]
    same_shape: bool
    other_links: bool = False


Family = dict[Collective, Found]
"""The tables of a family; collectives that nothing is known of are missing."""


def completed(found: Family, group: Group) -> Family:
    """The family with an all-reduce made from its halves, or halves made from an all-reduce.

    Args:
        found: the tables of the family :data:`RINGS` that come from curves.
        group: the ranks that take part.
    """
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
    """The family with both halves together at 0.8 to 1.3 times the all-reduce, inside a domain.

    If only the all-reduce, or only a half, was measured on this system in this shape, the other
    side is changed. If both were or neither was, each side is changed by half of the difference.

    Args:
        found: the tables of the family :data:`RINGS`.
        group: the ranks that take part.
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
    """The family with no table below that of fewer domains; halves still agree with the all-reduce.

    Args:
        found: the tables in ``group``.
        group: the ranks that take part.
        fewer: the tables in ``fewer_group``.
        fewer_group: ranks in fewer domains, or on fewer hosts of one domain.
    """
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
    """The tables for a number of domains between two others, whose log times are mixed.

    Args:
        low: the tables over fewer domains.
        high: the tables over more domains.
        groups: the group of ``low``, the one that is asked for, and the group of ``high``.
        part: weight of ``high``, from 0 to 1.
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
    """Whether all three tables are known, inside a domain, and come from different sources."""
    if group.domains > 1 or len(found) < len(RINGS):
        return False
    priorities = {c.priority for f in found.values() for c in f.curves}
    sources = [{c.source for c in f.curves} for f in found.values()]
    return len(priorities) > 1 or not set.intersection(*sources)


def _is_own(found: Found) -> bool:
    """Whether a table was measured on this system in this shape."""
    return found.same_shape and all(c.priority == 0 for c in found.curves)


def _changed(
    found: Family,
    group: Group,
    grid: FloatArray,
    times: Mapping[Collective, FloatArray],
    changed: Mapping[Collective, FloatArray],
) -> Family:
    """The family with the changed times; tables whose times are as before stay the same objects.

    Args:
        found: the tables before.
        group: the ranks that take part.
        grid: logarithms of the sizes at which times are given.
        times: logarithms of the times before, for each collective of the family.
        changed: logarithms of the times after.
    """
    return {
        c: f
        if np.array_equal(times[c], changed[c])
        else f._replace(table=_table(c, group, grid, changed[c]))
        for c, f in found.items()
    }


def _on_sizes(found: Family, group: Group) -> tuple[FloatArray, dict[Collective, FloatArray]]:
    """Logarithms of the sizes at which any table has a corner, and of all tables' times there."""
    grid = np.unique(np.concatenate([_log_sizes(f, c, group) for c, f in found.items()]))
    return grid, {c: _at(f.table, c, group, grid) for c, f in found.items()}


def _log_sizes(found: Found, collective: Collective, group: Group) -> FloatArray:
    """Logarithms of the sizes at which a table has corners."""
    return found.table.corners - math.log(busiest_factor(collective, group))


def _at(
    table: TimeCurve, collective: Collective, group: Group, log_sizes: FloatArray
) -> FloatArray:
    """Logarithms of the seconds of a table at logarithms of sizes."""
    return table.log_time_at(log_sizes + math.log(busiest_factor(collective, group)))


def _table(
    collective: Collective, group: Group, log_sizes: FloatArray, log_time: FloatArray
) -> TimeCurve:
    """The table with these logarithms of seconds at logarithms of sizes, made to rise."""
    log_bytes = log_sizes + math.log(busiest_factor(collective, group))
    return TimeCurve.of_line(log_bytes, np.maximum.accumulate(log_time))
