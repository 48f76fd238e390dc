"""The shortest iteration that plans can have, if only the maxima of their phases are known.

A search proves a lower bound in two steps. Linear programs bound the longest duration that each
phase has on any rank (:mod:`costmodels.floors.phases`). This module then says how long an iteration
takes at least for given maxima. It prices a made-up rank that has the maximum of every phase, and
of everything else no more than every plan has. This rank is never slower than a real plan, because

- all ranks wait for one another in a collective between the forward and the backward lookup, and
  after each of them. So maxima add up even if they are on different ranks. Where ranks need not
  wait, or wait beside other work (:meth:`IterationFloor.is_one_rank`), each of the two maxima is on
  a made-up rank of its own;
- the rank that is slowest in a lookup makes at least as many fused calls as are counted here
  (:meth:`IterationFloor.num_calls`);
- dense layers run on the fastest device, and nothing slows them down. Where devices or batches
  differ, one more made-up rank has the longest dense part;
- a stage whose duration is not a phase takes as long as it does with nothing to do;
- a phase that covers several steps is counted at the first of them. Where exchanges are
  compressed, the phase of the backward lookup also covers the decoding of gradients before it. It
  is counted at the decoding, because the host may issue the lookup later than that. One more
  made-up rank has the backward lookup without the decoding, counted at the lookup.

Durations that depend on the plan are the leaves of :mod:`costmodels.floors.floor`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.floors import phases
from costmodels.iteration import base, timing
from costmodels.shard_work.wire import BACKWARD, EXCHANGING_TYPES, FORWARD
from costmodels.shard_work.work import CODECS
from costmodels.sharding import SPREAD, ShardingType, Spread
from costmodels.stages.exchanges import INDICES, NUM_EXCHANGES
from costmodels.stages.stage_model import StageModel
from costmodels.uncertainty import UNSCALED

_MOST_ROWS: Final = 7 + NUM_EXCHANGES * 2 * len(EXCHANGING_TYPES)
"""One row for what takes time whatever the leaves are, and one for each leaf: no set of sharding
types has more of them."""
_OWN: Final = np.eye(_MOST_ROWS)[:, :1]
"""One second in the first row, ``[rows, 1]``."""
_ROUNDING: Final = 1e-13
"""Share by which differences of durations are lowered, so that rounding cannot raise a bound."""


Types = frozenset[ShardingType]
"""The sharding types that all the plans of a floor have."""
_Unit = Callable[["Leaf"], FloatArray]
"""Gives one second of a leaf in a row of its own, ``[rows, 1]``."""


class IterationFloor:
    """Makes the :class:`TypeFloor` of each set of sharding types of one workload and system."""

    def __init__(self, stages: StageModel, pipeline: base.TrainingPipeline) -> None:
        """Keep the arguments; floors are made when they are asked for.

        Args:
            stages: prices the stages of an iteration.
            pipeline: puts them in order.
        """
        self._stages = stages
        self._pipeline = pipeline
        self._known: dict[tuple[object, ...], TypeFloor] = {}
        self._known_exchanges: dict[tuple[ShardingType, int, int | None], _Exchange] = {}

    def __getstate__(self) -> dict[str, object]:
        """Leave the known floors out: they hold functions, which cannot go to another process."""
        return {**self.__dict__, "_known": {}, "_known_exchanges": {}}

    def num_calls(self, types: Types) -> int:
        """The least number of fused calls of the rank that is slowest in a lookup.

        Each uniform type loads every rank, so it counts as one call. The slowest rank also has a
        shard of one of the other types, if uniform types load all ranks alike or if there are none:
        without such a shard, it would not be slower than a rank that has one.
        """
        if self._stages.topology.world_size == 1:
            return len(types)
        uniform = sum(SPREAD[t] is Spread.UNIFORM for t in types)
        spread = len(types) - uniform
        speeds = self._stages.speeds
        is_alike = self._stages.exchanges.batch_ratio is None and bool((speeds == speeds[0]).all())
        # Tables of uniform types then give every rank the same lookups.
        is_even = is_alike and ShardingType.ROW_WISE not in types
        return uniform + (1 if spread and (uniform == 0 or is_even) else 0)

    def is_one_rank(self, types: Types) -> bool:
        """Whether one made-up rank may have both the longest forward and backward lookup.

        In a plan these may be lookups of two ranks. One made-up rank stands for both only if the
        second rank cannot be ahead of the first when it begins its backward lookup. It can be ahead
        where the bottom of the dense part runs beside both exchanges of vectors and takes longer
        than they do. The first rank is then late because of its own bottom, and no other rank waits
        for that.
        """
        hides = bool(types - {ShardingType.DATA_PARALLEL}) and self._pipeline.overlaps_bottom
        is_alone = self._stages.topology.world_size == 1
        return phases.lookups_add_up(self._stages, types) and (is_alone or not hides)

    def of(
        self, types: Types, *, fetches: bool, may_replicate: bool = False, more_calls: int = 0
    ) -> TypeFloor:
        """The floor of plans with exactly these types.

        Args:
            types: the sharding types that tables of the plans have.
            fetches: whether a kernel may fetch rows of a cache before the lookup. The time of fetch
                and lookup together is then counted at the fetch, the earlier of the two, on one
                made-up rank; the time of the lookup alone is counted on another one.
            may_replicate: whether some of the plans also replicate tables, whose gradients prolong
                the last all-reduce. Without a dense part only such plans have an all-reduce, so its
                fixed time is then left out of the floor.
            more_calls: fused calls beyond :meth:`num_calls`.
        """
        replicates = ShardingType.DATA_PARALLEL in types
        grows = replicates or may_replicate
        key = (types, fetches, grows, more_calls)
        if key not in self._known:
            early = fetches and self._pipeline.exposes_fetch
            tail = leaf(phases.ALL_REDUCE, phases.tail_floor(self._stages, replicates=replicates))
            calls, slow = self._calls(types, early=early)
            own = self._stages.least_times(calls + more_calls, slow=slow)
            leaves: list[Leaf] = []

            def one_second(opened: Leaf) -> FloatArray:
                """A second for this leaf alone, in a row of its own: ``[rows, 1]``."""
                leaves.append(opened)
                return np.eye(_MOST_ROWS)[:, len(leaves), None]

            tail_leaf = tail if grows else None
            times = self._times(types, one_second, own, fetches=fetches, tail=tail_leaf)
            program, shape = self._pipeline.program(times), (_MOST_ROWS, len(calls))
            rows = [np.broadcast_to(s.duration_s, shape) for s in program.steps]
            self._known[key] = TypeFloor(tuple(leaves), program, np.array(rows))
        return self._known[key]

    def further_call_s(self, types: Types, *, fetches: bool) -> tuple[float, float, float]:
        """Seconds by which one more fused call prolongs the lookups.

        The device runs the kernels of the call in both directions. The host must also issue the
        forward call: where the lookup waits for the host and nothing else, it starts that much
        later. On a single rank there is no such time.

        Returns:
            Seconds of the forward lookup, of the backward lookup, and of the forward lookup on the
            made-up rank that has it without a fetch.
        """
        if self._stages.topology.world_size == 1:
            return 0.0, 0.0, 0.0
        few, many = (self.of(types, fetches=fetches, more_calls=n).lookups() for n in (0, 1))
        device_s, backward_s, host_s = (b - a for a, b in zip(few[0], many[0], strict=True))
        pairs = zip(few[1], many[1], strict=True)
        forward_s, alone_s = (device_s + (host_s if a and b else 0.0) for a, b in pairs)
        kept = 1.0 - _ROUNDING
        return forward_s * kept, backward_s * kept, alone_s * kept

    # -- leaves -----------------------------------------------------------------------------------

    def _exchange(self, kind: ShardingType, which: int, way: int | None) -> _Exchange:
        """One exchange of one type; it is the same for every set of types, so it is kept.

        Where exchanges are compressed, the forward and the backward one (``way``) are separate
        exchanges that depend on the same phase.
        """
        known = self._known_exchanges.get((kind, which, way))
        if known is not None:
            return known
        family, wire = EXCHANGING_TYPES.index(kind), self._stages.exchanges.wire
        share = 1.0
        if way is not None and wire is not None:
            share = float(wire.least_shares[family, which, way])
        duration_s = phases.exchange_floor(self._stages, family, which, share)
        none_s, second_s = duration_s(np.array([0.0, 1.0])).tolist()
        phase = phases.exchange_phase(kind, which)
        grows = leaf(phase, duration_s, share) if second_s > none_s else None
        known = self._known_exchanges[kind, which, way] = none_s, grows
        return known

    def _calls(self, types: Types, *, early: bool) -> tuple[FloatArray, int | None]:
        """The made-up ranks, in this order, by their numbers of fused calls.

        1. The rank that is slowest in lookups.
        2. Where one rank may not have both lookups (:meth:`is_one_rank`): the rank that is slowest
           in the backward lookup.
        3. Where the slowest rank may have no shard of the types that are only on some ranks: a rank
           that has such a shard, and so one more call for its host to issue.
        4. Where devices or batches differ: the rank with the longest dense part and nothing to look
           up; all ranks wait for it between two exchanges.
        5. Where exchanges are compressed: the slowest rank in the backward lookup alone.
        6. With ``early``: the slowest rank in the forward lookup alone.

        Returns:
            The calls of each rank ``[R]``, and the position of rank 4, None if there is none.
        """
        slowest = self.num_calls(types)
        uniform = sum(SPREAD[t] is Spread.UNIFORM for t in types)
        other = [] if self.is_one_rank(types) else [float(slowest)]
        other += [uniform + 1.0] if slowest == uniform < len(types) else []
        num_alone = early + (self._stages.codecs is not None)
        slow = None if self._stages.slowest_dense is None else 1 + len(other)
        idle = [] if slow is None else [0.0]
        return np.array([float(slowest), *other, *idle, *[float(slowest)] * num_alone]), slow

    def _families(self, types: Types, opened: _Unit) -> tuple[base.FamilyTimes, ...]:
        """The exchanges of the types; arguments are those of :meth:`_times`."""
        ways = (None,) if self._stages.exchanges.wire is None else (FORWARD, BACKWARD)

        def exchanged(kind: ShardingType, which: int, way: int | None) -> FloatArray:
            fixed_s, grows = self._exchange(kind, which, way)
            return fixed_s * _OWN if grows is None else opened(grows)

        families = []
        for kind in (kind for kind in EXCHANGING_TYPES if kind in types):
            run = self._stages.exchanges.output_exchanges(kind)
            each = [[exchanged(kind, which, way) for way in ways] for which in run]
            forward_s, *gradients_s = zip(*each, strict=True)
            families.append(
                base.FamilyTimes(
                    name=kind.value,
                    input_s=exchanged(kind, INDICES, None),
                    outputs_s=tuple(("exchange", seconds) for seconds in forward_s),
                    gradients_s=gradients_s[0] if gradients_s else None,
                )
            )
        return tuple(families)

    def _times(
        self, types: Types, opened: _Unit, own: base.StageTimes, *, fetches: bool, tail: Leaf | None
    ) -> base.StageTimes:
        """Stage times of the made-up ranks: a row of durations without leaves, and one for each.

        The durations that depend on the plan are both lookups, every exchange whose time grows with
        its bytes, and the last all-reduce if it grows. With ``fetches`` there is one more: the
        forward lookup without the fetch before it, or the fetch that runs beside everything,
        depending on the pipeline. Where exchanges are compressed, the last one is the backward
        lookup without the decoding before it.

        Args:
            types: of the plans.
            opened: it is called in the order of leaves.
            own: the stage times of the ranks without the leaves.
            fetches: a cache may be filled. Where the iteration waits for that, fetch and forward
                lookup are counted at the fetch, and the lookup alone on another rank.
            tail: the last all-reduce if it grows.
        """
        ranks = np.arange(own.lookup_forward_s.shape[-1])
        updating = ranks == (0 if self.is_one_rank(types) else 1)
        forward, backward = (
            opened(Leaf(phase=p)) * at for p, at in enumerate((ranks == 0, updating))
        )
        families = self._families(types, opened)
        least_s = phases.tail_floor(self._stages, replicates=False)(np.zeros(1)) * _OWN
        reduced_s = least_s if tail is None else opened(tail)
        early = fetches and self._pipeline.exposes_fetch
        alone, beside = forward, np.zeros_like(forward)
        if early:
            alone = opened(Leaf(phase=phases.FORWARD_ALONE)) * (ranks == ranks[-1])
        elif fetches:
            beside = opened(Leaf(phase=phases.FETCH)) * (ranks == 0)
        model, codecs, updated = self._stages.codecs, None, backward
        if model is not None:
            fastest = np.full(ranks.size, self._stages.speeds.max())
            made = model.times(np.zeros((ranks.size, CODECS + 2)), families, fastest, UNSCALED)
            codecs = {name: s if name == "host" else s * _OWN for name, s in made.items()}
            codecs["gradient dequantize"] = codecs["gradient dequantize"] + backward
            updated = opened(Leaf(phase=phases.BACKWARD_ALONE)) * (ranks == ranks[-1] - early)
        own = _in_own_row(own)
        return replace(
            own,
            codecs_s=codecs,
            lookup_forward_s=own.lookup_forward_s + alone,
            lookup_backward_s=own.lookup_backward_s + updated,
            cache_fetch_s=forward if early else beside,
            families=families,
            tail_bucket_s=reduced_s,
        )


def _in_own_row(times: base.StageTimes) -> base.StageTimes:
    """The stages with their durations in the first row, and none in those of leaves."""

    def placed(value: Any) -> Any:
        """One duration, several, or one that is not there."""
        if isinstance(value, tuple):
            return tuple(placed(part) for part in value)
        return None if value is None else value * _OWN

    names = {f.name for f in fields(times) if f.name.endswith("_s") and "host" not in f.name}
    return replace(times, **{n: placed(getattr(times, n)) for n in names - {"floor_s"}})


_Exchange = tuple[float, "Leaf | None"]
"""Seconds of an exchange with nothing to send, and its duration; None if that is never longer."""


# ------------------ type floor
#
# The shortest iteration of all plans with one set of sharding types, and its chains of steps.
#
# A few made-up ranks run the steps of an iteration. Some durations are left open: the *leaves*.
# Each leaf depends on the plan through one phase. For given leaves, the iteration takes as long as
# the longest chain of steps that wait for one another. A chain that is longest for some leaves is
# still a lower bound for any other leaves, because an iteration takes at least as long as each of
# its chains. So every chain gives a lower bound that is linear in the leaves.

_FOREVER_S: Final = 1e6
"""Seconds of a leaf that takes longer than everything else in an iteration."""
_SHRINK: Final = 0.97
"""Slope of the line under a leaf, over the slope of its growing part. It is a little below 1, so
that one line with a positive constant lies below the leaf at every size."""
_PHASES_S: Final = np.concatenate([[0.0], np.geomspace(1e-9, 1e4, 105)])
"""Phase durations, each about a third larger than the one before, at which leaves are compared with
their lines first."""
_SPLITS: Final = 5
"""How often the intervals between these are halved where a line may come close to its leaf; points
are 0.9 % apart then."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Leaf:
    """One duration that depends on the plan; by default it is the phase itself.

    Attributes:
        phase: index of the phase that it depends on.
        is_line: whether the duration is equal to its line.
        duration_s: the least duration for a given maximum of the phase.
        constant_s, slope_ratio: the line ``constant_s + slope_ratio * phase``, which is never above
            the duration.
    """

    phase: int
    is_line: bool = True
    duration_s: phases.Seconds = np.asarray
    constant_s: float = 0.0
    slope_ratio: float = 1.0


def leaf(phase: int, duration_s: phases.Seconds, share_ratio: float = 1.0) -> Leaf:
    """A leaf with a straight line that is never above its duration.

    The slope of the line is fixed. Its constant is the least distance between the duration and a
    line of this slope through 0, over all phases (:func:`_least_room`). Beyond the last phase that
    is looked at, the line is below ``share_ratio`` times the phase, and durations never are.

    Args:
        phase: index of the phase that the duration depends on.
        duration_s: from the phase to the duration; it never falls.
        share_ratio: the least duration over the phase, for long phases.
    """
    last_s, slope = share_ratio * float(_PHASES_S[-1]), share_ratio * _SHRINK
    constant_s = max(0.0, min(_least_room(duration_s, slope), (1.0 - _SHRINK) * last_s))
    return Leaf(
        phase=phase, is_line=False, duration_s=duration_s, constant_s=constant_s, slope_ratio=slope
    )


def _least_room(duration_s: phases.Seconds, slope: float) -> float:
    """A lower bound, over all phases, on the duration minus ``slope`` times the phase (the *room*).

    In an interval the room is at least the duration at its lower end minus ``slope`` times its
    upper end. Only intervals whose bound is below the least room seen at any point are halved
    further; none is left to halve where a phase adds less to a duration than its last digit.
    """
    low_s, high_s = _PHASES_S[:-1], _PHASES_S[1:]
    at_low_s = duration_s(low_s)
    proven = np.inf
    for _ in range(_SPLITS):
        room, reached = at_low_s - slope * high_s, at_low_s - slope * low_s
        open_ = room < reached.min(initial=np.inf)
        proven = min(proven, float(room[~open_].min(initial=np.inf)))
        low_s, high_s, at_low_s = low_s[open_], high_s[open_], at_low_s[open_]
        middle_s = np.where(low_s > 0, np.sqrt(low_s * high_s), 0.5 * high_s)
        at_middle_s = duration_s(middle_s)
        low_s = np.concatenate([low_s, middle_s])
        high_s = np.concatenate([middle_s, high_s])
        at_low_s = np.concatenate([at_low_s, at_middle_s])
    return min(proven, float((at_low_s - slope * high_s).min(initial=np.inf)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Path:
    """One chain of steps, which takes ``constant_s + counts @ leaves`` seconds.

    Attributes:
        constant_s: seconds of the chain that are not in leaves.
        counts: ``[L]`` how often each leaf is on the chain.
    """

    constant_s: float
    counts: FloatArray


class TypeFloor:
    """A lower bound on plans that use one set of sharding types, as a program of made-up ranks.

    Attributes:
        leaves: the durations that depend on the plan.
        phases: ``[L]`` the phase of each leaf.
    """

    def __init__(
        self, leaves: tuple[Leaf, ...], program: base.Program, durations_s: FloatArray
    ) -> None:
        """Keep the parts.

        Args:
            leaves: the durations that depend on the plan.
            program: the steps of the made-up ranks.
            durations_s: ``[steps, rows, R]`` how long each step takes with all leaves at zero, then
                how often each leaf is part of it.
        """
        self.leaves = leaves
        self.phases = np.array([leaf.phase for leaf in leaves], dtype=np.int64)
        self._steps, self._floor_s = program.steps, program.floor_s
        self._own_s = durations_s[:, 0]
        self._counts = np.array([rows[1 : len(leaves) + 1].T for rows in durations_s])
        ranks = durations_s.shape[-1]
        self._host_s = np.array([np.broadcast_to(s.host_s, ranks) for s in program.steps])

    def leaf_seconds(self, maxima: FloatArray) -> FloatArray:
        """Durations ``[N, L]`` of the leaves, from the maxima ``[N, L]`` of their phases."""
        columns = [leaf.duration_s(maxima[:, i]) for i, leaf in enumerate(self.leaves)]
        return np.stack(columns, axis=-1)

    def lines(self, maxima: FloatArray) -> FloatArray:
        """Lower bounds ``[L]`` of the leaves by their lines, from maxima ``[L]`` of the phases."""
        pairs = [(leaf.constant_s, leaf.slope_ratio) for leaf in self.leaves]
        constants_s, slopes = np.array(pairs).T
        return np.asarray(constants_s + slopes * maxima)

    def seconds(self, leaves: FloatArray) -> FloatArray:
        """Shortest iterations ``[N]`` for leaves ``[N, L]``."""
        durations = [s + leaves @ c.T for s, c in zip(self._own_s, self._counts, strict=True)]
        shape = len(leaves), self._own_s.shape[1]
        return np.maximum(timing.run(self._steps, durations, shape).iteration_time_s, self._floor_s)

    def longest_path(self, leaves: FloatArray) -> Path:
        """The chain of steps that takes longest if the leaves take ``[L]`` seconds."""
        walk = self._simulated(leaves)
        counts, constant_s = np.zeros(len(self.leaves)), 0.0
        if walk.iteration_time_s <= self._floor_s:
            return Path(constant_s=self._floor_s, counts=counts)
        # Walk back from the step that ends last, and add up what the steps on the way take. A rank
        # that is early at a collective goes on with what the late rank waited for.
        step, node = len(self._steps) - 1, walk.last
        rank = int(walk.issued_s[-1].argmax()) if node is None else node[0]
        while node is not None or step >= 0:
            if node is not None:
                rank, step = node
                counts += self._counts[step, rank]
                constant_s += float(self._own_s[step, rank])
                node = walk.released_by(node)
                if node is not None and node[1] == step:
                    rank, node = node[0], walk.released_by(node)
                continue
            constant_s += float(self._host_s[step, rank])
            step -= 1
            if step >= 0 and self._steps[step].blocks_host:
                waited = walk.finish_s[step, rank] > walk.issued_s[step, rank]
                node = (rank, step) if waited else None
        return Path(constant_s=constant_s * (1.0 - _ROUNDING), counts=counts)

    def _simulated(self, leaves: FloatArray) -> timing.Simulation:
        """What each step waited for."""
        durations, ranks = self._own_s + self._counts @ leaves, self._own_s.shape[1]
        found = timing.run(self._steps, list(durations), (ranks,))
        return timing.Simulation(self._steps, found)

    def lookups(self) -> tuple[tuple[float, float, float], tuple[bool, bool]]:
        """What the lookups take on the first rank without leaves, and whether they wait for a host.

        Returns:
            Seconds of the forward and of the backward lookup, and those in which the host issues
            the former; whether the forward lookup of the first and of the last rank waits for its
            host alone, however long the leaves are.
        """
        names = [step.name for step in self._steps]
        forward, backward = map(names.index, (base.LOOKUP_FORWARD, base.LOOKUP_BACKWARD))
        walk = self._simulated(np.full(len(self.leaves), _FOREVER_S))
        first, last = (
            walk.released_by((rank, forward)) is None for rank in (0, self._own_s.shape[1] - 1)
        )
        own_s, host_s = self._own_s[:, 0].tolist(), self._host_s[:, 0].tolist()
        return (own_s[forward], own_s[backward], host_s[forward]), (first, last)
