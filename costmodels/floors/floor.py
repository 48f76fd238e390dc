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

Durations that depend on the plan are the leaves of :mod:`costmodels.floors.type_floor`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.floors.phases import (
    ALL_REDUCE,
    BACKWARD_ALONE,
    FETCH,
    FORWARD_ALONE,
    INDICES,
    exchange_floor,
    exchange_phase,
    lookups_add_up,
    tail_floor,
)
from costmodels.floors.type_floor import Leaf, TypeFloor, leaf, line
from costmodels.iteration.base import (
    LOOKUP_BACKWARD,
    LOOKUP_FORWARD,
    FamilyTimes,
    StageTimes,
)
from costmodels.iteration.pipelines import TrainingPipeline
from costmodels.shard_work.wire import BACKWARD, EXCHANGING_TYPES, FORWARD
from costmodels.sharding import SPREAD, ShardingType, Spread
from costmodels.stages.stage_model import StageModel


def no_times(times: StageTimes) -> StageTimes:
    """The same stages without any duration, so that a program consists of leaves alone."""
    none = np.zeros_like(times.lookup_forward_s)

    def emptied(value: Any) -> Any:
        """No duration in the place of one, of several, or of one that is not there."""
        if isinstance(value, tuple):
            return (none,) * len(value)
        return None if value is None else none

    names = (f.name for f in fields(times) if f.name.endswith("_s"))
    nothing = {name: emptied(getattr(times, name)) for name in names} | {"floor_s": 0.0}
    return replace(times, families=(), codecs=None, overlap_slowdown_ratio=0.0, **nothing)


_ROUNDING: Final = 1e-13
"""Share by which differences of durations are lowered, so that rounding cannot raise a bound."""


class IterationFloor:
    """Makes the :class:`TypeFloor` of each set of sharding types of one workload and system."""

    def __init__(self, stages: StageModel, pipeline: TrainingPipeline) -> None:
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

    def num_calls(self, types: frozenset[ShardingType]) -> int:
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

    def is_one_rank(self, types: frozenset[ShardingType]) -> bool:
        """Whether one made-up rank may have both the longest forward and backward lookup.

        In a plan these may be lookups of two ranks. One made-up rank stands for both only if the
        second rank cannot be ahead of the first when it begins its backward lookup. It can be ahead
        where the bottom of the dense part runs beside both exchanges of vectors and takes longer
        than they do. The first rank is then late because of its own bottom, and no other rank waits
        for that.
        """
        hides = bool(types - {ShardingType.DATA_PARALLEL}) and self._pipeline.overlaps_bottom
        is_alone = self._stages.topology.world_size == 1
        return lookups_add_up(self._stages, types) and (is_alone or not hides)

    def of(
        self,
        types: frozenset[ShardingType],
        *,
        fetches: bool,
        may_replicate: bool = False,
        more_calls: int = 0,
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
            leaves = self._leaves(types, fetches=fetches, grows=grows)
            calls, slow = self._calls(types, early=early)
            size, ranks = len(leaves), len(calls)
            own = self._stages.least_times(calls + more_calls, slow=slow)
            none, each = np.zeros((1, size)), np.eye(size)
            made = self._times(types, none, own, fetches=fetches, grows=grows, empty=False)
            unit = self._times(types, each, no_times(own), fetches=fetches, grows=grows, empty=True)
            steps = self._pipeline.program(unit).steps
            counts = [np.broadcast_to(step.duration_s, (size, ranks)).T for step in steps]
            program = self._pipeline.program(made)
            self._known[key] = TypeFloor(leaves, program, np.array(counts))
        return self._known[key]

    def further_call_s(
        self, types: frozenset[ShardingType], *, fetches: bool
    ) -> tuple[float, float, float]:
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
        few = self.of(types, fetches=fetches)
        many = self.of(types, fetches=fetches, more_calls=1)
        device_s = many.own_s(LOOKUP_FORWARD) - few.own_s(LOOKUP_FORWARD)
        backward_s = many.own_s(LOOKUP_BACKWARD) - few.own_s(LOOKUP_BACKWARD)
        host_s = many.issue_s(LOOKUP_FORWARD) - few.issue_s(LOOKUP_FORWARD)
        forward_s, alone_s = (
            device_s + (host_s if few.waits_for_host(*at) and many.waits_for_host(*at) else 0.0)
            for at in ((LOOKUP_FORWARD, 0), (LOOKUP_FORWARD, -1))
        )
        kept = 1.0 - _ROUNDING
        return forward_s * kept, backward_s * kept, alone_s * kept

    # -- leaves -----------------------------------------------------------------------------------

    def _exchanges(self, types: frozenset[ShardingType]) -> list[_Exchange]:
        """The exchanges of the types, in the order of their phases.

        Where exchanges are compressed, the forward and the backward one are separate exchanges that
        depend on the same phase.
        """
        ways = (None,) if self._stages.exchanges.wire is None else (FORWARD, BACKWARD)
        return [
            self._exchange(kind, which, way)
            for kind in EXCHANGING_TYPES
            if kind in types
            for which in (*self._stages.exchanges.output_exchanges(kind), INDICES)
            for way in (ways if which != INDICES else (None,))
        ]

    def _exchange(self, kind: ShardingType, which: int, way: int | None) -> _Exchange:
        """One exchange of one type; it is the same for every set of types, so it is kept."""
        known = self._known_exchanges.get((kind, which, way))
        if known is not None:
            return known
        family, wire = EXCHANGING_TYPES.index(kind), self._stages.exchanges.wire
        share = 1.0
        if way is not None and wire is not None:
            share = float(wire.least_shares[family, which, way])
        phase = exchange_phase(kind, which)
        duration_s = exchange_floor(self._stages, family, which, share)
        ends = duration_s(np.array([0.0, 1.0]))
        known = self._known_exchanges[kind, which, way] = _Exchange(
            kind=kind,
            which=which,
            is_gradient=way == BACKWARD,
            fixed_s=float(ends[0]),
            leaf=leaf(phase, duration_s, share) if ends[1] > ends[0] else None,
        )
        return known

    def _leaves(
        self, types: frozenset[ShardingType], *, fetches: bool, grows: bool
    ) -> tuple[Leaf, ...]:
        """The durations that depend on the plan.

        They are both lookups, every exchange whose time grows with its bytes, and the last
        all-reduce if it ``grows``. With ``fetches`` there is one more: the forward lookup without
        the fetch before it, or the fetch that runs beside everything, depending on the pipeline.
        Where exchanges are compressed, the last one is the backward lookup without the decoding
        before it. The order is that in which :meth:`_times` uses them.
        """
        found = [line(0), line(1)]
        found += [e.leaf for e in self._exchanges(types) if e.leaf is not None]
        if grows:
            replicates = ShardingType.DATA_PARALLEL in types
            found.append(leaf(ALL_REDUCE, tail_floor(self._stages, replicates=replicates)))
        if fetches:
            found.append(line(FORWARD_ALONE if self._pipeline.exposes_fetch else FETCH))
        if self._stages.codecs is not None:
            found.append(line(BACKWARD_ALONE))
        return tuple(found)

    def _calls(
        self, types: frozenset[ShardingType], *, early: bool
    ) -> tuple[FloatArray, int | None]:
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

    def _times(
        self,
        types: frozenset[ShardingType],
        leaves: FloatArray,
        own: StageTimes,
        *,
        fetches: bool,
        grows: bool,
        empty: bool,
    ) -> StageTimes:
        """Stage times of the made-up ranks.

        Args:
            types: of the plans.
            leaves: ``[N, L]`` seconds, in the order of :meth:`_leaves`.
            own: the stage times of the ranks without the leaves.
            fetches: a cache may be filled. Where the iteration waits for that, fetch and forward
                lookup are counted at the fetch, and the lookup alone on another rank.
            grows: the last all-reduce is a leaf.
            empty: exchanges that are not leaves take no time either.
        """
        columns = iter(np.moveaxis(leaves, -1, 0)[..., None])
        ranks = np.arange(own.lookup_forward_s.shape[-1])
        updating = ranks == (0 if self.is_one_rank(types) else 1)
        forward, backward = next(columns) * (ranks == 0), next(columns) * updating
        families: dict[str, FamilyTimes] = {}
        for exchange in self._exchanges(types):
            fixed_s = np.array([0.0 if empty else exchange.fixed_s])
            seconds = fixed_s if exchange.leaf is None else next(columns)
            name = exchange.kind.value
            absent = FamilyTimes(name=name, present=None, input_s=np.zeros(1), outputs_s=())
            known = families.get(name, absent)
            if exchange.which == INDICES:
                families[name] = replace(known, input_s=seconds)
            elif exchange.is_gradient:
                gradients = (*(known.gradients_s or ()), seconds)
                families[name] = replace(known, gradients_s=gradients)
            else:
                outputs = (*known.outputs_s, ("exchange", seconds))
                families[name] = replace(known, outputs_s=outputs)
        least_s = tail_floor(self._stages, replicates=False)(np.zeros(1)) * (not empty)
        reduced_s = next(columns) if grows else least_s
        early = fetches and self._pipeline.exposes_fetch
        alone = next(columns) * (ranks == ranks[-1]) if early else forward
        beside = next(columns) * (ranks == 0) if fetches and not early else np.zeros_like(forward)
        model, codecs, updated = self._stages.codecs, None, backward
        if model is not None:
            present, fastest = frozenset() if empty else types, float(self._stages.speeds.max())
            made = model.least(present, fastest, ranks.size)
            codecs = replace(made, gradient_dequantize_s=made.gradient_dequantize_s + backward)
            updated = next(columns) * (ranks == ranks[-1] - early)
        return replace(
            own,
            codecs=codecs,
            lookup_forward_s=own.lookup_forward_s + alone,
            lookup_backward_s=own.lookup_backward_s + updated,
            cache_fetch_s=forward if early else beside,
            families=tuple(families.values()),
            tail_bucket_s=reduced_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Exchange:
    """One exchange of one sharding type.

    Attributes:
        kind: the sharding type.
        which: which of its exchanges.
        is_gradient: whether it is the backward one; only where both directions are apart.
        fixed_s: seconds with nothing to send.
        leaf: its duration; None if it never takes longer than ``fixed_s``.
    """

    kind: ShardingType
    which: int
    is_gradient: bool
    fixed_s: float
    leaf: Leaf | None
