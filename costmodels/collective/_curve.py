"""Tables of time over bytes, made from measured curves, and the model that reads tables or laws.

Measured times are made to rise with the size, repeats of a shape are joined into one table, and the
table is read between its points. All of this is done on logarithms (of seconds and of bytes).
"""

import bisect
import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple, Self

import numpy as np

from costmodels.collective import _law
from costmodels.collective._law import HALVES, RATIO, Group, Law, busiest_factor
from costmodels.collective.base import AbstractCollectiveModel
from costmodels.datatypes import FloatArray
from costmodels.measured.curves import Collective, CollectiveCurve
from costmodels.topology import Topology

_STEPS_PER_INTERVAL: Final = 8
"""Straight pieces between two points of a table. More follow the bend from latency to bandwidth
more closely, and make every reading slower."""
_OLDER_VERSION_WEIGHT: Final = 0.5
"""Each older version of the library counts half as much as the next one: the newest version is what
users run, and the older ones serve as repeats of it."""
_DOUBLINGS_BEYOND: Final = 24
"""A change of the floor is added up to this many doublings, less one, beyond the last point of a
table. Beyond that, time is proportional to bytes again."""
_SHOWS_FLOOR_BYTES: Final = 128 * 1024
"""A curve whose smallest size is above this does not show the floor."""


_Line = tuple[FloatArray, FloatArray]
"""Logarithms of bytes and of seconds."""


class TimeCurve:
    """A table of seconds over bytes on the busiest link, with straight pieces between its corners.

    Above the last point the time is proportional to the bytes, and below the first it is constant.
    """

    def __init__(
        self, log_bytes: FloatArray, log_time: FloatArray, fine: _Line | None = None
    ) -> None:
        """Make a table of points.

        ``corners`` and ``corner_time`` are ``[m]`` logarithms of the bytes between which the table
        is a straight line, and of the seconds there.

        Args:
            log_bytes: ``[n]`` logarithms of bytes; they rise.
            log_time: ``[n]`` logarithms of seconds; they never fall.
            fine: bytes and seconds of the corners, between which the table is straight; None for
                the points with a bend between them (:func:`_refined`).
        """
        self.log_bytes, self.log_time = log_bytes, log_time
        self.corners, self.corner_time = fine or _refined(log_bytes, log_time)

    @classmethod
    def of_line(cls, log_bytes: FloatArray, log_time: FloatArray) -> Self:
        """A table whose points are its corners: straight lines join them."""
        return cls(log_bytes, log_time, (log_bytes, log_time))

    def log_time_at(self, log_bytes: FloatArray) -> FloatArray:
        """``[...]`` logarithms of seconds at logarithms of bytes."""
        inside = np.interp(log_bytes, self.corners, self.corner_time)
        return np.asarray(inside + np.maximum(log_bytes - self.log_bytes[-1], 0.0))

    def time_s(self, num_bytes: FloatArray) -> FloatArray:
        """``[...]`` seconds for bytes on the busiest link."""
        return np.exp(self.log_time_at(np.log(np.maximum(num_bytes, 1.0))))

    @cached_property
    def law(self) -> Law:
        """The floor and the best rate of the table; no time is below bytes / rate."""
        rate = math.exp(float((self.corners - self.corner_time).max()))
        return Law(math.exp(float(self.corner_time[0])), rate)

    @cached_property
    def subadditive(self) -> Self:
        """The greatest table not above this one whose time per byte never rises with size.

        By such a table, two messages never take less time than one message with the bytes of both.
        Measured rates can drop at sizes where a library changes its protocol.
        """
        rate = self.corner_time - self.corners
        least = np.minimum.accumulate(rate)
        if np.array_equal(rate, least):
            return self
        return type(self)(self.log_bytes, self.log_time, (self.corners, self.corners + least))

    def on_link(self, known: Law, law: Law, longer_s: float = 0.0) -> Self:
        """The table on other links.

        Bytes count by the new rate. If the floor grows, its growth is added to the time of every
        size, so that a longer latency lengthens large messages too. If the floor shrinks, the same
        share of the measured floor is taken away from every time, which leaves it above 0.

        Args:
            known: the law of the links that the table holds for.
            law: the law of the other links.
            longer_s: seconds that are added at least.
        """
        wider = math.log(law.rate / known.rate)
        added = max(law.floor_s - known.floor_s, longer_s)
        kept = min(law.floor_s / known.floor_s, 1.0)
        added -= (1.0 - kept) * math.exp(float(self.corner_time[0]))
        beyond = self.corners[-1] + np.log(2.0) * np.arange(1, _DOUBLINGS_BEYOND)
        fine = np.append(self.corners, beyond)
        times = np.log(np.exp(self.log_time_at(fine)) + added)
        return self.of_line(fine + wider, np.maximum.accumulate(times))

    def shifted(self, wider: float, slower: float = 0.0) -> Self:
        """The table with these numbers added to all logarithms of bytes and of seconds."""
        fine = self.corners + wider, self.corner_time + slower
        return type(self)(self.log_bytes + wider, self.log_time + slower, fine)

    def moved(self, law: Law) -> Self:
        """A table of the same shape with the floor and the rate of ``law``."""
        slower = math.log(law.floor_s / self.law.floor_s)
        return self.shifted(slower + math.log(law.rate / self.law.rate), slower)


def joined(curves: Sequence[CollectiveCurve], factor: float, floor_s: float) -> TimeCurve:
    """One table from repeats of a shape: their weighted geometric mean at every measured size.

    Newer versions of the library have more weight.

    Args:
        curves: curves of one collective in one shape.
        factor: bytes on the busiest link per byte of size.
        floor_s: seconds without bytes, where no curve shows them.
    """
    log_sizes = np.unique(np.log(np.concatenate([c.size_bytes for c in curves])))
    total, weights = np.zeros_like(log_sizes), np.zeros_like(log_sizes)
    for curve, weight in zip(curves, _weights(curves), strict=True):
        own_sizes, own_times = np.log(curve.size_bytes), cleaned(np.log(curve.time_s))
        covered = (log_sizes >= own_sizes[0]) & (log_sizes <= own_sizes[-1])
        times = TimeCurve(own_sizes, own_times).log_time_at(log_sizes)
        total += covered * weight * times
        weights += covered * weight
    return with_floor(TimeCurve(log_sizes + math.log(factor), _isotonic(total / weights)), floor_s)


def with_floor(table: TimeCurve, floor_s: float) -> TimeCurve:
    """A table that is continued to smaller sizes if its first point is too large to show the floor.

    The new part follows the law with q = 0.6 and ends at the first point of the table.

    Args:
        table: the table.
        floor_s: seconds without bytes.
    """
    first_bytes, first_time = float(table.log_bytes[0]), float(table.log_time[0])
    floor_s = min(floor_s, math.exp(first_time))
    if first_bytes <= math.log(_SHOWS_FLOOR_BYTES):
        return table
    law = Law(floor_s, table.law.rate)
    below = np.log(2.0) * np.arange(math.ceil(first_bytes / math.log(2.0)) - 1)
    at_first = math.log(float(law.time_s(np.exp(np.array(first_bytes)))))
    floor = math.log(floor_s)
    rise = max((first_time - floor) / max(at_first - floor, 1e-9), 0.0)
    times = floor + (np.log(law.time_s(np.exp(below))) - floor) * rise
    lower = TimeCurve(np.append(below, first_bytes), np.append(times, first_time))
    log_bytes, log_time, corners, corner_time = (
        np.append(getattr(lower, name)[:-1], getattr(table, name))
        for name in ("log_bytes", "log_time", "corners", "corner_time")
    )
    return TimeCurve(log_bytes, log_time, (corners, corner_time))


def between(
    tables: dict[int, TimeCurve], collective: Collective, ranks: int, mesh: int = 0
) -> TimeCurve:
    """The table for a number of ranks that was not measured, inside one domain.

    Between two measured numbers, the floor is a power of the number of ranks, and the logarithm of
    the rate is linear in 1 / ranks, so that the rate levels off. Above the largest measured number
    the floor grows as the law says. The shape between floor and rate is mixed from the tables of
    the two nearest numbers.

    Args:
        tables: the tables by number of ranks; at least one.
        collective: the collective.
        ranks: the number of ranks that is asked for.
        mesh: how many ranks of a host are joined pairwise; 0 for ranks on a switch.
    """
    known = sorted(tables)
    upper = min(max(bisect.bisect_right(known, ranks), 1), len(known) - 1)
    high = tables[known[upper]]
    wanted = np.array(_law.fabric_scale(collective, ranks, mesh))
    floor_growth, rate_growth = wanted / _law.fabric_scale(collective, known[upper], mesh)
    if len(known) == 1:
        return high.moved(Law(high.law.floor_s * floor_growth, high.law.rate * rate_growth))
    below, above = known[upper - 1], known[upper]
    low = tables[below]
    by_log = math.log(ranks / below) / math.log(above / below)
    by_inverse = (1 / ranks - 1 / below) / (1 / above - 1 / below)
    floor = low.law.floor_s * (high.law.floor_s / low.law.floor_s) ** by_log
    if ranks > above:
        floor = high.law.floor_s * floor_growth
    law = Law(floor, low.law.rate * (high.law.rate / low.law.rate) ** by_inverse)
    part, ends = min(max(by_log, 0.0), 1.0), (low.moved(law), high.moved(law))
    grid = np.unique(np.concatenate([table.log_bytes for table in ends]))
    first, second = (table.log_time_at(grid) for table in ends)
    return TimeCurve(grid, _isotonic((1 - part) * first + part * second))


@functools.cache
def left_out_residuals(curve: CollectiveCurve) -> tuple[FloatArray, FloatArray]:
    """How well each inner point of a curve is predicted from all its other points.

    Returns:
        ``(sizes, residuals)``, ``[n]`` each: the sizes of the inner points in bytes, and
        ln(predicted / measured) of their times.
    """
    log_sizes, raw = np.log(curve.size_bytes), np.log(curve.time_s)
    inner = range(1, len(raw) - 1)
    residuals = []
    for i in inner:
        rest = np.delete(np.arange(len(raw)), i)
        table = TimeCurve(log_sizes[rest], cleaned(raw[rest]))
        residuals.append(float(table.log_time_at(log_sizes[i : i + 1])[0]) - raw[i])
    return np.array([curve.size_bytes[i] for i in inner]), np.array(residuals)


def cleaned(log_time: FloatArray) -> FloatArray:
    """Logarithms of times, made to rise with the size.

    First each time is replaced by the median of it and its two neighbours, which removes single
    spikes. Then isotonic regression makes the times rise.

    Args:
        log_time: ``[n]`` logarithms of measured seconds, in the order of sizes.
    """
    if len(log_time) < 3:
        return _isotonic(log_time)
    windows = np.stack([log_time[:-2], log_time[1:-1], log_time[2:]])
    smooth = log_time.copy()
    smooth[1:-1] = np.median(windows, axis=0)
    smooth[0] = min(log_time[0], float(np.median(log_time[:3])))
    return _isotonic(smooth)


def _weights(curves: Sequence[CollectiveCurve]) -> list[float]:
    """The weight of each curve: 1 for the newest and for unknown versions, half for each older."""
    versions = [_version(c.version) for c in curves]
    newest_first = sorted({*versions} - {()}, reverse=True)
    return [_OLDER_VERSION_WEIGHT ** newest_first.index(v) if v else 1.0 for v in versions]


def _version(text: str) -> tuple[int, ...]:
    """A version such as ``2.18.3`` as numbers; empty if it has other parts than numbers."""
    parts = text.split(".")
    return tuple(int(p) for p in parts) if all(p.isdecimal() for p in parts) else ()


def _isotonic(values: FloatArray) -> FloatArray:
    """The non-decreasing numbers nearest to the given ones in squares (pool adjacent violators)."""
    means: list[float] = []
    counts: list[int] = []
    for value in values:
        means.append(float(value))
        counts.append(1)
        while len(means) > 1 and means[-2] > means[-1]:
            count = counts[-2] + counts[-1]
            mean = (means[-2] * counts[-2] + means[-1] * counts[-1]) / count
            means[-2:], counts[-2:] = [mean], [count]
    return np.repeat(means, counts)


def _refined(x: FloatArray, y: FloatArray) -> _Line:
    """The points of a table with further points between them.

    Alpha-beta with the first time as latency and the best rate as bandwidth guides the new points:
    the logarithm of measured over alpha-beta is interpolated linearly between two points. This
    bends the curve where latency gives way to bandwidth. New points are kept between the times of
    the points on both sides.

    Args:
        x: ``[n]`` logarithms of bytes.
        y: ``[n]`` logarithms of seconds.
    """
    floor_s, rate = math.exp(float(y[0])), math.exp(float((x - y).max()))
    part = np.arange(_STEPS_PER_INTERVAL) / _STEPS_PER_INTERVAL
    fine = (x[:-1, None] + np.diff(x)[:, None] * part).ravel()
    guide = np.log(floor_s + np.exp(fine) / rate)
    above = y - np.log(floor_s + np.exp(x) / rate)
    raw = (guide + np.interp(fine, x, above)).reshape(-1, _STEPS_PER_INTERVAL)
    inside = np.clip(raw, y[:-1, None], y[1:, None]).ravel()
    return np.append(fine, x[-1]), np.maximum.accumulate(np.append(inside, y[-1]))


# ------------------ consistent tables
#
# Makes the tables of different collectives and of different numbers of domains fit together.
#
# The *halves* of an all-reduce are a reduce-scatter and an all-gather of the same buffer. Tables
# are changed so that two rules hold, from whichever curves they come:
#
# - No collective is faster over more domains: its table is raised to that of fewer domains.
# - Inside a domain, both halves together take 0.8 to 1.3 times as long as the all-reduce. This is
#   not asked of three tables that come from one source in one shape: they keep the ratio that was
#   measured, which is 1.0 to 1.5 on eight GPUs of a host and up to 1.9 on two. Nor is it asked
#   over several domains. An all-reduce runs along a tree there and its halves around rings, so
#   that small halves take up to 2.8 times as long as the all-reduce over two hosts, and 130 times
#   over 540.
#
# A *family* is a set of collectives whose tables have to fit together.

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
    halves, whole = [found[c] for c in HALVES if c in found], found.get(Collective.ALL_REDUCE)
    if bool(halves) is (whole is not None):
        return found
    grid, (times,) = _on_sizes((found, group))
    if whole is not None:
        made = dict.fromkeys(HALVES, times[Collective.ALL_REDUCE] - math.log(2.0))
    else:
        made = {Collective.ALL_REDUCE: np.logaddexp(*(times[c] for c in HALVES))}
    like = (whole or halves[0])._replace(same_shape=False)
    return found | {c: like._replace(table=_table(c, group, grid, t)) for c, t in made.items()}


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
    grid, (times,) = _on_sizes((found, group))
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
    shared = found.keys() & fewer.keys()
    if not shared:
        return found
    grid, (times, below) = _on_sizes((found, group), ({c: fewer[c] for c in shared}, fewer_group))
    raised = times | {c: np.maximum(times[c], below[c]) for c in shared}
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
        grid, (below, above) = _on_sizes(({c: low[c]}, fewer), ({c: high[c]}, more))
        table = _table(c, wanted, grid, (1.0 - part) * below[c] + part * above[c])
        both[c] = high[c]._replace(table=table, same_shape=False)
    return both


def _must_agree(found: Family, group: Group) -> bool:
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
    times: dict[Collective, FloatArray],
    changed: dict[Collective, FloatArray],
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


def _on_sizes(
    *families: tuple[Family, Group],
) -> tuple[FloatArray, list[dict[Collective, FloatArray]]]:
    """Logarithms of the sizes at which any table has a corner, and of all tables' times there.

    Args:
        families: tables, each with the ranks that take part.
    """
    sized = [
        {c: f.table.shifted(-math.log(busiest_factor(c, group))) for c, f in family.items()}
        for family, group in families
    ]
    grid = np.unique(np.concatenate([t.corners for tables in sized for t in tables.values()]))
    return grid, [{c: t.log_time_at(grid) for c, t in tables.items()} for tables in sized]


def _table(
    collective: Collective, group: Group, log_sizes: FloatArray, log_time: FloatArray
) -> TimeCurve:
    """The table with these logarithms of seconds at logarithms of sizes, made to rise."""
    log_bytes = log_sizes + math.log(busiest_factor(collective, group))
    return TimeCurve.of_line(log_bytes, np.maximum.accumulate(log_time))


# ------------------ model

Timed = Law | TimeCurve
"""Seconds over bytes on the busiest link: by the law of links, or as measured."""


@dataclass(frozen=True, slots=True)
class LinkModel(AbstractCollectiveModel):
    """The model ``ramp``, with what a model that knows better times replaces.

    The growing part of a collective is bytes over the best rate of the busiest link.
    """

    def timed(self, kind: Collective, topology: Topology, *, within_host: bool = False) -> Timed:
        """The time of a collective over all ranks, or over those of one host."""
        return _law.law_of(kind, _law.group_of(topology, within_host=within_host))

    def exchanged(
        self, send: FloatArray, topology: Topology
    ) -> tuple[Timed | None, Timed | None, float]:
        """The time of an all-to-all on the fabric and on the network, which work side by side.

        A time is None if the group does not use these links, or if nothing tells their time. The
        third are the seconds that messages of any size take longer on the fabric.

        Args:
            send: ``[..., R, NUM_LEVELS]`` bytes, as in :meth:`all_to_all`.
            topology: the system.
        """
        group, kind = _law.group_of_peers(send, topology), Collective.ALL_TO_ALL
        inside = _law.law_of(kind, group.within_domain) if group.per_domain > 1 else None
        across = _law.law_of(kind, group) if group.domains > 1 else None
        return inside, across, group.network_latency_s * (group.domains > 1)

    def fixed_s(self, topology: Topology, *, ranks: int, across_hosts: bool) -> float:
        """Seconds of an empty all-to-all."""
        if ranks <= 1:
            return 0.0
        within = not across_hosts and ranks == topology.local_world_size
        return self.timed(Collective.ALL_TO_ALL, topology, within_host=within).law.floor_s

    def all_to_all(self, send: FloatArray, receive: FloatArray, topology: Topology) -> FloatArray:
        """Bytes over the best rates of fabric and network."""
        seconds = np.zeros(send.shape[:-1])
        for timed, num_bytes, _ in self._sides(send, receive, topology):
            seconds = np.maximum(seconds, num_bytes / timed.law.rate)
        return seconds

    def all_to_all_s(self, send: FloatArray, receive: FloatArray, topology: Topology) -> FloatArray:
        """The slower of fabric and network at the bytes of each rank."""
        seconds = np.zeros(send.shape[:-1])
        for timed, num_bytes, longer_s in self._sides(send, receive, topology):
            seconds = np.maximum(seconds, timed.time_s(num_bytes) + longer_s)
        return seconds

    def _sides(
        self, send: FloatArray, receive: FloatArray, topology: Topology
    ) -> Iterator[tuple[Timed, FloatArray, float]]:
        """Time, bytes and further seconds of fabric and network, if the group uses them."""
        inside, across, longer_s = self.exchanged(send, topology)
        sizes = _law.busiest_bytes(send, receive, topology, _law.group_of_peers(send, topology))
        for timed, num_bytes, more_s in zip((inside, across), sizes, (longer_s, 0.0), strict=True):
            if timed is not None:
                yield timed, num_bytes, more_s

    def reduce_scatter(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool
    ) -> FloatArray:
        """Bytes over the better of the best rates of reduce-scatter and all-gather."""
        return self._grown(HALVES, num_bytes, topology, within_host=within_host)

    def all_reduce(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool = False
    ) -> FloatArray:
        """Bytes over the best rate of an all-reduce."""
        return self._grown((Collective.ALL_REDUCE,), num_bytes, topology, within_host=within_host)

    def _grown(
        self,
        kinds: Sequence[Collective],
        num_bytes: FloatArray,
        topology: Topology,
        *,
        within_host: bool,
    ) -> FloatArray:
        rate = max(self.timed(k, topology, within_host=within_host).law.rate for k in kinds)
        ranks = _law.group_of(topology, within_host=within_host).ranks
        return np.asarray(num_bytes * (_law.bus_factor(kinds[0], ranks) / rate))

    def buffer_s(
        self, kind: Collective, num_bytes: FloatArray, topology: Topology, *, within_host: bool
    ) -> FloatArray:
        """No less than inside one domain, where both halves of an all-reduce agree with it.

        A ring over a single domain takes at least two fifths of the all-reduce of the same buffer,
        and the all-reduce at least 1 / 1.3 times as long as the reduce-scatter and the all-gather.
        """
        group, whole = _law.group_of(topology, within_host=within_host), Collective.ALL_REDUCE
        is_whole = kind is whole
        own, other = (whole, HALVES[0]) if is_whole else (HALVES[0], whole)
        own_s = _least_s(own, num_bytes, group)
        if group.domains > 1:
            return own_s
        least_ratio = 2.0 / RATIO[1] if is_whole else 0.5 * RATIO[0]
        return np.maximum(own_s, least_ratio * _least_s(other, num_bytes, group))

    def subadditive(self) -> AbstractCollectiveModel:
        """The model itself, because under its laws the time per byte never rises with size."""
        return self


def _least_s(collective: Collective, num_bytes: FloatArray, group: Group) -> FloatArray:
    """Seconds ``[...]`` of buffers in a group; no less than inside one domain."""
    parts = [part for part in (group.within_domain, group) if part.ranks > 1]
    times = (
        _law.law_of(collective, p).time_s(num_bytes * _law.bus_factor(collective, p.ranks))
        for p in parts
    )
    return functools.reduce(np.maximum, times, np.zeros_like(num_bytes))
