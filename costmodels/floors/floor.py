"""The shortest iteration that plans can have, from nothing but the maxima of their phases.

A search proves a lower bound in two steps. Linear programs bound the largest value that each phase
has on any rank (:mod:`costmodels.floors.phases`); this module says how long an iteration takes at
least once those maxima are known. It prices a made-up rank that has the maximum of every phase and
no more of anything else than every plan has. That rank is never slower than a real plan, because

- between the forward and the backward lookup, and behind each of them, all ranks wait for one
  another in a collective, so maxima that lie on different ranks add up all the same. Where they
  need not wait, or wait beside other work (:meth:`IterationFloor.is_one_rank`), each of the two
  maxima is on a made-up rank of its own;
- the rank that is slowest in a lookup makes at least as many fused calls as are counted here
  (:meth:`IterationFloor.num_calls`);
- dense layers run on the fastest device, and communication does not slow compute. Where devices or
  batches differ, a made-up rank of its own has the dense part that takes longest;
- every stage whose duration is no phase takes what it takes with nothing to do;
- what a phase holds of several steps is counted at the first of them. Where gradients are decoded
  before the backward lookup, that is the decoding: the host may issue the lookup only after it. A
  made-up rank of its own looks up backward without decoding, which is what follows that issue.

Durations that depend on the plan are the leaves of :mod:`costmodels.floors.type_floor`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodels.floors.exchange_floor import (
    INDICES,
    exchange_floor,
    tail_floor,
)
from costmodels.floors.leaves import leaf, line
from costmodels.floors.phases import (
    ALL_REDUCE,
    BACKWARD_ALONE,
    FETCH,
    FORWARD_ALONE,
    exchange_phase,
    lookups_add_up,
)
from costmodels.floors.type_floor import Leaf, TypeFloor
from costmodels.iteration.base import (
    LOOKUP_BACKWARD,
    LOOKUP_FORWARD,
    AbstractPipeline,
    CodecTimes,
    FamilyTimes,
    FloatArray,
    StageTimes,
)
from costmodels.shard_work.wire import BACKWARD, FORWARD
from costmodels.shard_work.work import EXCHANGING_TYPES
from costmodels.sharding import SPREAD, ShardingType, Spread
from costmodels.stages.stage_model import StageModel

_ROUNDING: Final = 1e-13
"""Share taken off differences of durations."""


class IterationFloor:
    """Makes the :class:`TypeFloor` of each set of sharding types of one workload and system."""

    def __init__(self, stages: StageModel, pipeline: AbstractPipeline) -> None:
        """Keep both; nothing is computed yet.

        Args:
            stages: prices stages.
            pipeline: orders them.
        """
        self._stages = stages
        self._pipeline = pipeline
        self._known: dict[tuple[frozenset[ShardingType], bool, bool, int], TypeFloor] = {}
        self._known_exchanges: dict[tuple[ShardingType, int, int | None], _Exchange] = {}

    def __getstate__(self) -> dict[str, object]:
        """Floors are made again by another process: their durations are functions of this one."""
        return {**self.__dict__, "_known": {}, "_known_exchanges": {}}

    def num_calls(self, types: frozenset[ShardingType]) -> int:
        """Fused calls that the rank which is slowest in a lookup makes at least.

        Each uniform type loads every rank. Of the other types the slowest rank has a shard as well,
        where uniform types load all ranks alike or there are none: a rank without such a shard
        would be as slow as the ranks that have nothing else, so that one with a shard is no faster.
        """
        if self._stages.topology.world_size == 1:
            return len(types)
        uniform = sum(SPREAD[t] is Spread.UNIFORM for t in types)
        spread = len(types) - uniform
        return uniform + (1 if spread and (uniform == 0 or self.is_even(types)) else 0)

    def is_even(self, types: frozenset[ShardingType]) -> bool:
        """Whether tables of uniform types load all ranks alike."""
        speeds = self._stages.speeds
        alike = self._stages.exchanges.batch_ratio is None and bool((speeds == speeds[0]).all())
        return alike and ShardingType.ROW_WISE not in types

    def is_one_rank(self, types: frozenset[ShardingType]) -> bool:
        """Whether one made-up rank may have the longest lookup of both directions.

        Each may be that of another rank. The two stand for one rank only if the second rank cannot
        be ahead of the first when it begins its backward lookup. It can be ahead where the bottom
        of the dense part runs beside both exchanges of vectors and takes longer than they do: the
        first rank is then late because of its own bottom, for which no other rank waits.
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
            types: the sharding types that some table has.
            fetches: whether a kernel may fetch rows of a cache before the lookup; the time of both
                is then counted at the fetch, the earlier of the two, on the rank where it is most,
                and that of the lookup at the lookup, on the rank where that is most.
            may_replicate: whether some plans replicate tables beside that. Their gradients then
                prolong the last all-reduce. Without a dense part only those plans have one, so
                what it takes whatever its size is left out of the floor.
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
            unit = self._times(types, each, _nothing(own), fetches=fetches, grows=grows, empty=True)
            steps = self._pipeline.program(unit).steps
            counts = [np.broadcast_to(step.duration_s, (size, ranks)).T for step in steps]
            program = self._pipeline.program(made)
            self._known[key] = TypeFloor(leaves, program, np.array(counts))
        return self._known[key]

    def further_call_s(
        self, types: frozenset[ShardingType], *, fetches: bool
    ) -> tuple[float, float, float]:
        """Seconds by which one more fused call prolongs the lookups: forward, backward, and alone.

        The device runs the kernels of a call in both directions. The host issues the forward one
        before that starts: where the lookup waits for the host and nothing else, it starts that
        much later. The third is for the rank whose forward lookup without a fetch is counted.
        Nothing on a single rank.
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

        Where they are compressed, forward and backward are exchanges of their own with one phase.
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
        """One of them; the same for every set of types."""
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
        """Both lookups, every exchange that grows, and the last all-reduce where that ``grows``.

        With ``fetches``, the forward lookup also without what is fetched before it, or what is
        fetched beside everything, whichever the pipeline has; where exchanges are compressed, the
        backward lookup also without the decoding before it.
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
        """Fused calls of the made-up ranks, and which of them has the longest dense part, if any.

        They are the rank that is slowest in lookups, and one with a shard it may not have.

        Where the slowest rank may have no shard of the types that are on some ranks only, another
        rank has, and with it a call more for its host to issue. Where no one rank may have both
        lookups (:meth:`is_one_rank`), the second rank is the slowest in the backward lookup. Where
        exchanges are compressed, a further one is the slowest in the backward lookup alone. With
        ``early`` the last one is the slowest in the forward lookup alone. Where devices or batches
        differ, another rank has the dense part that takes longest, and nothing to look up: all
        ranks wait for it between two exchanges.
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
            leaves: ``[N, L]`` seconds.
            own: what the ranks take beside the leaves.
            fetches: a cache may be filled. Where the iteration waits for that, the forward lookup
                is counted at the fetch, and again without it.
            grows: the last all-reduce is a leaf.
            empty: exchanges that are no leaves take no time, either.
        """
        columns = iter(np.moveaxis(leaves, -1, 0)[..., None])
        ranks = np.arange(own.lookup_forward_s.shape[-1])
        updating = ranks == (0 if self.is_one_rank(types) else 1)
        forward, backward = next(columns) * (ranks == 0), next(columns) * updating
        families: dict[str, FamilyTimes] = {}
        for exchange in self._exchanges(types):
            fixed_s = np.array([0.0 if empty else exchange.fixed_s])
            seconds = fixed_s if exchange.leaf is None else next(columns)
            known = families.setdefault(exchange.kind.value, _absent(exchange.kind))
            if exchange.which == INDICES:
                families[known.name] = replace(known, input_s=seconds)
            elif exchange.is_gradient:
                gradients = (*(known.gradients_s or ()), seconds)
                families[known.name] = replace(known, gradients_s=gradients)
            else:
                outputs = (*known.outputs_s, ("exchange", seconds))
                families[known.name] = replace(known, outputs_s=outputs)
        tail_s = tail_floor(self._stages, replicates=False)(np.zeros(1)) * (0.0 if empty else 1.0)
        reduced_s = next(columns) if grows else tail_s
        early = fetches and self._pipeline.exposes_fetch
        alone = next(columns) * (ranks == ranks[-1]) if early else forward
        beside = next(columns) * (ranks == 0) if fetches and not early else np.zeros_like(forward)
        codecs, updated = self._codecs(types, ranks.size, empty=empty), backward
        if codecs is not None:
            decoded_s = codecs.dequantize_gradient_s + backward
            codecs = replace(codecs, dequantize_gradient_s=decoded_s)
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

    def _codecs(
        self, types: frozenset[ShardingType], size: int, *, empty: bool
    ) -> CodecTimes | None:
        """Codecs of the made-up ranks; those for their own shards are part of the lookups."""
        codecs = self._stages.codecs
        if codecs is None:
            return None
        fastest = float(self._stages.speeds.max())
        return codecs.least(frozenset() if empty else types, fastest, size)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Exchange:
    """One exchange of one sharding type.

    ``is_gradient`` says that it is the backward one, of exchanges that have two. ``fixed_s`` is
    what it takes with nothing to send. ``leaf`` is None where it never takes longer.
    """

    kind: ShardingType
    which: int
    is_gradient: bool
    fixed_s: float
    leaf: Leaf | None


def _absent(kind: ShardingType) -> FamilyTimes:
    """The collectives of a sharding type, still without any duration."""
    present = np.ones((1, 1), dtype=bool)
    return FamilyTimes(name=kind.value, present=present, input_s=np.zeros(1), outputs_s=())


def _nothing(times: StageTimes) -> StageTimes:
    """The same stages, all of no duration, so that a program of leaves alone remains."""
    none = np.zeros_like(times.lookup_forward_s)
    return StageTimes(
        bottom_forward_s=none,
        top_forward_s=none,
        top_backward_s=none,
        bottom_backward_s=none,
        optimizer_s=none,
        lookup_forward_s=none,
        lookup_backward_s=none,
        cache_fetch_s=none,
        families=(),
        input_splits_s=none,
        bucket_s=(none,) * len(times.bucket_s),
        tail_bucket_s=none,
        bottom_host_s=none,
        top_host_s=none,
        lookup_host_s=none,
        collective_host_s=none,
        dense_names=times.dense_names,
        overlap_slowdown_ratio=0.0,
        floor_s=0.0,
        single_stream=times.single_stream,
        piece_ratio=times.piece_ratio,
        gather_s=(none,) * len(times.gather_s),
        earlier_s=None if times.earlier_s is None else none,
    )
