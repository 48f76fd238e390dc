"""Ruin and recreate: takes tables out where ranks are fullest, and puts each back where it is best.

A step that makes the plan worse is accepted with a probability that depends on a temperature, as in
simulated annealing. Other steps share out the pieces of two ranks or of two hosts: putting back one
table after the other cannot exchange several pieces for several others. Two ranks with n pieces
have 2^n ways to share them out, which is few enough to price all of them at once. Each kind of step
gets turns in proportion to what it has gained.

Steps make up cycles, which go from cheap plans to balanced ones. Loads are easiest to balance with
many small pieces; but these cost more in total. Options that cost little in total leave a few ranks
far above the mean. Therefore a cycle has several stages. The first one gives much weight to the
mean over ranks and has a soft maximum (a low power of the norm, see ``partial_plan.py``). The last
one gives hardly any weight to the mean and has a hard maximum. The objective itself prices the best
plans of a cycle.

References: Schrimpf et al., Record breaking optimization results using the ruin and recreate
principle, Journal of Computational Physics 159 (2000). Ropke, Pisinger, An adaptive large
neighborhood search heuristic for the pickup and delivery problem with time windows, Transportation
Science 40 (2006), for the turns.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray, IntArray
from costmodels.sharding import Spread
from planner.search.base import Record
from planner.search.bounds.bound_program import Relaxation, TypeSet, uses
from planner.search.bounds.proofs import Proofs
from planner.search.common.linear import LinearModel
from planner.search.common.schedule import USUAL
from planner.search.construct.partial_plan import HARD, PartialPlan, grouped
from planner.search.construct.placer import PriceSearch, explore
from planner.space.effort import Meter, insertion_s, sharing_s
from planner.space.evaluation import ROUNDED, Assignment, SearchSpace
from planner.space.objective import Cut

_MOST_ENTRIES: Final = 2**15
"""Most loads that are computed, over all ways to share pieces out. One more piece doubles it."""
_LEAST_PIECES, _MOST_PIECES = 4, 11
"""Most pieces that are shared out lie between these two, depending on how many loads each has. Of
more pieces, so many are drawn."""


def share_out(
    field: PartialPlan,
    places: tuple[int, int],
    spread: Spread,
    rng: "np.random.Generator",
    meter: Meter,
) -> bool:
    """Share out the pieces of two ranks or hosts in the best way by the smooth objective.

    Tables keep their options, and pieces that may not be on both stay. Rules that couple tables are
    not looked at.

    Args:
        field: a plan, which is changed if there is a better way.
        places: the two ranks or hosts.
        spread: whether pieces on ranks or pieces on hosts are shared out.
        rng: draws pieces, where there are too many.
        meter: is told of the work done.

    Returns:
        Whether there was a better way.
    """
    pieces = [(*p, k) for k in (0, 1) for p in _movable(field, places[k], places[1 - k], spread)]
    ranks = np.array(places) if spread is Spread.RANKS else field.space.host_ranks(places)
    ranks = ranks.reshape(2, -1)
    entries = ranks.size * len(field.loads)
    most = min(max(int(np.log2(_MOST_ENTRIES / entries)), _LEAST_PIECES), _MOST_PIECES)
    if len(pieces) > most:
        pieces = [pieces[i] for i in rng.permutation(len(pieces))[:most]]
    if not pieces:
        return False
    meter.spend(sharing_s(entries << len(pieces)))
    rows = np.array([row for _, _, row, _ in pieces]).reshape(len(pieces), -1)
    there = np.array([k for _, _, _, k in pieces])
    values = field.values_with(ranks.ravel(), _shared(field, ranks, field.columns[rows], there))
    way = int(np.argmin(values))
    if values[way] >= field.smooth * (1 - ROUNDED):
        return False
    moved: dict[int, list[int]] = {}
    for i, (table, piece, _, _) in enumerate(pieces):
        new = moved.setdefault(table, list(field.places[table]))
        new[piece] = places[(way >> i) & 1]
    field.change({table: (field.options[table], tuple(new)) for table, new in moved.items()})
    return True


def _movable(
    field: PartialPlan, place: int, other: int, spread: Spread
) -> list[tuple[int, int, IntArray]]:
    """Table, number and rows of work of each piece on ``place`` that may also be on ``other``.

    Pieces that must keep apart from others stay where they are; so do pieces that must share a host
    with others, where the two ranks are on two hosts.
    """
    space, local = field.space, field.space.local_world_size
    on_ranks = spread is Spread.RANKS
    same_host = on_ranks and place // local == other // local
    found: list[tuple[int, int, IntArray]] = []
    for table in sorted(field.on_rank[place if on_ranks else place * local]):
        flat = int(space.first[table]) + field.options[table]
        option = space.options[flat]
        stays = option.keeps_pieces_apart or (option.keeps_pieces_on_host and not same_host)
        if option.spread is not spread or stays or not space.allowed(table, spread)[other]:
            continue
        pieces = zip(field.places[table], space.rows[flat], strict=True)
        found += [(table, i, rows) for i, (at, rows) in enumerate(pieces) if at == place]
    return found


def _shared(field: PartialPlan, ranks: IntArray, rows: FloatArray, there: IntArray) -> FloatArray:
    """Loads of the ranks of two places for each way to share out pieces.

    Args:
        field: the plan.
        ranks: ``[2, L]`` ranks of the two places.
        rows: ``[n, L, P + 2]`` loads of each piece on the fastest device.
        there: ``[n]`` which of the two places each piece is on.

    Returns:
        ``[P + 2, 2 L, 2^n]``; bit i of a way says which of the places gets piece i.
    """
    model = field.model
    second = np.zeros((1, *rows.shape[1:]))
    for row in rows:
        second = np.concatenate([second, second + row])
    loads = np.empty((rows.shape[2], *ranks.shape, len(second)))
    for k, part in enumerate((rows.sum(axis=0) - second, second)):
        own = field.loads[:, ranks[k]].T - model.at(rows[there == k].sum(axis=0), ranks[k])
        loads[:, k] = (own + model.at(part, ranks[k])).transpose(2, 1, 0)
    return np.maximum(loads, 0.0, out=loads).reshape(len(loads), ranks.size, -1)


_BLINK: Final = 0.03
"""Share of ranks that the insertions of a step leave alone if they can. So the same tables, taken
out again, may be put back in other places; with a larger share they are put back worse."""
_HOT: Final = 0.7
"""Share of steps that take tables out of a rank which is drawn by its part in the objective. The
other steps take tables out anywhere."""
_MOST_RUINED: Final = 5
"""Most tables that a step takes out. With more of them more tables can change places together, and
each step takes longer."""
_LEAST_RUINS: Final = 0.2
_LEAST_TURNS: Final = 0.05
"""Least share of steps that ruin and recreate, and of each other kind. Only the former change the
options of tables, so that they must not die out; and each kind may gain again later."""
_REMEMBERED: Final = 0.98
"""By this factor gains and work count less with each further step of their kind."""
_AT_FIRST: Final = 1e-5, 5e-3
"""Gain, as a share of the objective, and nominal seconds that each kind begins with."""


_HOT_RATIO: Final = 1e-4
_COLD_RATIO: Final = 1e-6
"""Temperature at the beginning and at the end of each stage, as a share of the objective. Hotter
stages leave poor plans more easily, colder ones keep good ones."""


class Turns:
    """Which of several kinds of steps comes next, by what each has gained per nominal second.

    Args:
        kinds: number of kinds.
        rng: draws the kind.
    """

    def __init__(self, kinds: int, rng: "np.random.Generator") -> None:
        """Begin with equal turns."""
        self._rng = rng
        self._gained, self._work_s = (np.full(kinds, value) for value in _AT_FIRST)
        self._least = np.full(kinds, _LEAST_TURNS)
        self._least[0] = _LEAST_RUINS

    def draw(self) -> int:
        """The kind of the next step."""
        rates = self._gained / self._work_s
        total = float(rates.sum())
        shares = rates / total if total > 0 else np.full(len(rates), 1.0 / len(rates))
        shares = self._least + (1.0 - self._least.sum()) * shares
        return int(self._rng.choice(len(shares), p=shares))

    def count(self, kind: int, gain_ratio: float, work_s: float) -> None:
        """Note a step.

        Args:
            kind: of the step.
            gain_ratio: by how much the best plan got better, as a share of its objective.
            work_s: nominal seconds of the step.
        """
        self._gained[kind] = self._gained[kind] * _REMEMBERED + gain_ratio
        self._work_s[kind] = self._work_s[kind] * _REMEMBERED + work_s


STAGES: Final = (
    (32, 4.0, 10.0),
    (64, 2.0, 30.0),
    (128, 1.0, HARD),
    (128, 0.5, HARD),
    (128, 0.2, HARD),
    (128, 0.05, HARD),
)
"""Power of the norm, weight of the mean over ranks (thrift), and penalty of overfull memory in each
stage of a cycle. With a small penalty plans may be overfull on the way to better ones (strategic
oscillation: Glover, Decision Sciences 8 (1977))."""
LATE_STAGES: Final = STAGES[2:]
"""Stages of a cycle that begins with a good plan, which the first stages would spoil."""
_CLOSE: Final = 1.002
"""Plans are priced by the objective if their minorant is within this factor of the least one of the
cycle: the objective may order such plans otherwise. Each price takes time from the walk."""
_CHEAP: Final = 50_000
"""Tables times ranks above which only plans with a smaller minorant than all before are priced,
because pricing takes long there."""
_BATCH: Final = 16
"""Plans that are priced together, which takes less time than one by one."""
_HOT_RANKS: Final = 3
"""Times that the minorant gets tangents at the fullest rank of each phase. More tangents bring it
closer to the objective, and every insertion takes longer."""
_LEAST_SCALE: Final = 0.02
"""Least scale of a phase, as a share of the longest phase. Otherwise tiny phases would count like
long ones."""


class Cycle:
    """Walks from plan to plan, from one stage to the next.

    Args:
        record: is offered the plans that are priced.
        start: the plan to begin with.
        cuts: cuts of the objective that hold for all ``allowed`` options.
        allowed: ``[n]`` True for options that are worth trying; those of the start are too.
        rng: of all random choices.
    """

    def __init__(
        self,
        record: Record,
        start: Assignment,
        cuts: Sequence[Cut],
        allowed: BoolArray,
        rng: "np.random.Generator",
    ) -> None:
        """Take tangents at the ranks that have the longest phases at the start."""
        self.record, self.rng, self._start = record, rng, start
        self.space = space = record.evaluate.space
        self._meter = record.evaluate.meter
        self.model = LinearModel(space, record.evaluate.objective)
        self.model.use_cuts(cuts)
        work = space.work(start)
        for _ in range(_HOT_RANKS):
            phases = self.model.phase_maxima(self.model.loads(work))
            for rank in dict.fromkeys(int(r) for r in np.argmax(phases, axis=0)):
                self.model.add_tangents(work[rank])
        kept = allowed.copy()
        kept[space.first[:-1] + start.options] = True
        each = np.split(kept, space.first[1:-1])
        self.choices = [grouped(space, t, np.flatnonzero(own)) for t, own in enumerate(each)]
        self._insertion_s = insertion_s(space.world_size * (self.model.num_tangents + 2))
        self._shared = [Spread.RANKS] * (space.world_size > 1 and not space.rules)
        if self._shared and space.num_hosts > 1 and space.is_on_hosts.any():
            self._shared.append(Spread.HOSTS)
        self._turns = Turns(1 + len(self._shared), rng)
        self._close = _CLOSE if space.num_tables * space.world_size <= _CHEAP else 1 - 1e-6
        self._queue: list[Assignment] = []
        self._minorant = np.inf

    def run(self, steps: int, stages: Sequence[tuple[int, float, float]] = STAGES) -> None:
        """Go through the stages.

        Args:
            steps: number of steps in each stage.
            stages: power of the norm, weight of the mean and penalty of each stage.
        """
        current = self._start
        for power, thrift, penalty in stages:
            if self.record.stopped:
                break
            loads = self.model.loads(self.space.work(current))
            peaks = self.model.phase_maxima(loads.max(axis=0))
            scale = np.maximum(peaks, _LEAST_SCALE * float(peaks.max()))
            field = PartialPlan(self.model, scale, power, thrift, penalty)
            field.load(current)
            self.walk(field, steps)
            current = field.assignment
        self._price()

    def walk(self, field: PartialPlan, steps: int) -> None:
        """Ruin and recreate step by step.

        Args:
            field: the plan to begin with, which is changed.
            steps: number of steps; the temperature falls by the same factor from step to step.
        """
        current = best = field.smooth
        for step in range(steps):
            if self.record.stopped:
                return
            kind, before_s = self._turns.draw(), self._meter.spent_s
            if kind == 0:
                share = step / max(steps - 1, 1)
                heat_ratio = _HOT_RATIO * (_COLD_RATIO / _HOT_RATIO) ** share
                changed = self._ruin_and_recreate(field, current, heat_ratio)
            else:
                changed = self._share_out(field, self._shared[kind - 1])
            if changed:
                current = field.smooth
                self._watch(field)
            gain_ratio = max(best - current, 0.0) / best if best > 0 else 0.0
            self._turns.count(kind, gain_ratio, self._meter.spent_s - before_s)
            best = min(best, current)

    def _share_out(self, field: PartialPlan, spread: Spread) -> bool:
        """Share out the pieces of a rank (or host) and another one; whether that is better.

        The first one is drawn by its part in the objective.
        """
        on_ranks = spread is Spread.RANKS
        count = self.space.world_size if on_ranks else self.space.num_hosts
        rank = int(self.rng.choice(self.space.world_size, p=field.heat()))
        place = rank if on_ranks else rank // self.space.local_world_size
        other = (place + int(self.rng.integers(1, count))) % count
        return share_out(field, (place, other), spread, self.rng, self._meter)

    def _ruin_and_recreate(self, field: PartialPlan, current: float, temperature: float) -> bool:
        """Take tables out and put them back; whether the outcome is accepted. If not, undo it.

        Args:
            field: the plan.
            current: its smooth objective.
            temperature: as a share of the objective.
        """
        loads = field.loads.copy()
        ruined = self._ruin(field)
        old = {t: (field.options[t], field.places[t]) for t in ruined}
        field.change(dict.fromkeys(ruined))
        complete = self._recreate(field, ruined)
        luck = -np.log(max(self.rng.random(), 1e-12))
        better = field.smooth < current + temperature * current * luck
        rules = self.space.rules
        if complete and better and (not rules or self.space.keeps_rules(field.assignment)):
            return True
        field.change(old, loads)
        return False

    def _recreate(self, field: PartialPlan, tables: list[int]) -> bool:
        """Put tables back one by one, each where it is best; False if one fits nowhere."""
        blocked = self.rng.random(self.space.world_size) < _BLINK
        for table in tables:
            self._meter.spend(self._insertion_s)
            best = field.best_insertion(table, self.choices[table], blocked)
            if best is None or not np.isfinite(best[0]):
                return False
            field.change({table: best[1]})
        return True

    def _ruin(self, field: PartialPlan) -> list[int]:
        """Choose the tables to take out: mostly some of one rank, and as many from anywhere."""
        count = int(self.rng.integers(1, min(_MOST_RUINED, self.space.num_tables) + 1))
        chosen: list[int] = []
        if self.rng.random() < _HOT:
            rank = int(self.rng.choice(self.space.world_size, p=field.heat()))
            there = sorted(field.on_rank[rank])
            self.rng.shuffle(there)
            chosen = there[: max(1, count // 2)]
        while len(chosen) < count:
            table = int(self.rng.integers(self.space.num_tables))
            if table not in chosen:
                chosen.append(table)
        self.rng.shuffle(chosen)
        return chosen

    def _watch(self, field: PartialPlan) -> None:
        """Put a plan into the queue of those to be priced, if its minorant is small enough."""
        value = field.minorant
        if value < self._minorant * self._close:
            self._queue.append(field.assignment)
            self._minorant = min(self._minorant, value)
            if len(self._queue) >= _BATCH:
                self._price()

    def _price(self) -> None:
        """Price the plans in the queue by the objective, and keep the best one."""
        if not self._queue:
            return
        works = np.stack([self.space.work(a) for a in self._queue])
        values = self.record.evaluate.values(works)
        at = int(np.argmin(values))
        self.record.keep_if_good(self._queue[at], float(values[at]), "ruin and recreate")
        self._queue = []


# ------------------ the methods that find better plans once there is one: cycles, and samp

_PUT_BACK: Final = 2.5
"""Tables that a step of a cycle is taken to put back when its length is planned. A step takes out
one to five tables, and puts back fewer of them if one fits nowhere. Sharing out pieces takes no
longer."""


_PROMISING: Final = 1.05
"""Factor on the objective of the best plan, up to which a first cycle begins with the best start of
a set of sharding types. Cycles from worse starts hardly ever come near the best plan: with 100
tables on 64 ranks they took half of all work for nothing."""
_SAMPLED: Final = 2
"""Plans from sampled prices that cycles begin with, where the effort is more than usual."""


class Improver:
    """Improves the plans of one search.

    Each method takes an *effort*: 1 is its usual amount of work.

    Args:
        record: is offered every plan.
        proofs: have the bounds; the relaxation of each set of sharding types changes on the way.
        rng: of all random choices.
    """

    def __init__(self, record: Record, proofs: Proofs, rng: "np.random.Generator") -> None:
        """Improve nothing yet."""
        self._space, self._record, self._rng = record.evaluate.space, record, rng
        self._bounds, self._relaxed = proofs.bounds, proofs.relaxed
        self._model: LinearModel = proofs.bounds.model
        self._prices: dict[tuple[TypeSet | None, int], PriceSearch] = {}

    @property
    def done(self) -> bool:
        """Whether the search has to end, or the best plan is proven optimal."""
        return self._record.stopped or self._record.proven

    def forget(self) -> None:
        """Forget the sampled prices, so that others are found."""
        self._prices = {}

    def cycle(
        self, start: Assignment, effort: float, *, late: bool = False, most_s: float = math.inf
    ) -> None:
        """Run a cycle of ruin and recreate.

        Args:
            start: the plan to begin with.
            effort: of the cycle.
            late: whether to leave out the first stages, which would spoil a good plan.
            most_s: nominal seconds; the cycle has fewer steps if it would take longer.
        """
        stages = LATE_STAGES if late else STAGES
        entries = self._space.world_size * (self._model.num_tangents + 2)
        step_s = _PUT_BACK * insertion_s(entries) * len(stages)
        steps = int(min(effort * USUAL.steps(self._space.num_tables), most_s / step_s))
        if steps < 1 or self.done:
            return
        types = self._types(start)
        known = self._relaxed.values()
        allowed = allowed_options(self._space, known, self._record.value) & uses(types, self._space)
        cuts = self._bounds.cuts.get(types, [])
        Cycle(self._record, start, cuts, allowed, self._rng).run(steps, stages)

    def around(self, effort: float) -> None:
        """Run a cycle that begins with the best plan."""
        if self._record.best is not None:
            self.cycle(self._record.best, effort, late=True)

    def explore(self, effort: float) -> None:
        """Make plans at sampled prices of the phases, and run cycles from the best of them.

        They have the sharding types of the best plan, and of the sets of types with the least
        bounds: good plans of other types are hardly reached by changes of a few tables.
        """
        best = self._record.best
        if best is None or self.done:
            return
        count = max(int(effort * USUAL.samples), 1)
        least = min(self._relaxed.values(), key=lambda r: r.bound)
        own = self._relaxed.get(self._types(best)) or least
        others = sorted((r for r in self._relaxed.values() if r is not own), key=lambda r: r.bound)
        found: list[Assignment] = []
        for relaxation in (own, *others[: USUAL.starts - 1]):
            if relaxation.bound < self._record.value:
                self._model.use_cuts(self._bounds.cuts.get(relaxation.types, []))
                prices = self._sampler(relaxation)
                found += [] if prices is None else explore(prices, self._record, count)
        found.sort(key=lambda a: (self._record.evaluate.value(a), a.options, a.places))
        for start in found[: _SAMPLED if effort > 1 else 1]:
            self.cycle(start, USUAL.least_effort)

    def families(self, starts: list[Assignment]) -> list[Assignment]:
        """The best plan of each set of sharding types that is not far from the best of all.

        If none of them fits, the one that is least overfull: a cycle takes tables out of overfull
        ranks first, and puts them back where there is room. Where memory is tight, this leads to
        far better plans than cycles from those that fit.
        """
        value = self._record.evaluate.value
        best: dict[TypeSet | None, Assignment] = {}
        for start in sorted(dict.fromkeys(starts), key=lambda a: (value(a), a.options)):
            if value(start) <= _PROMISING * self._record.value:
                best.setdefault(self._types(start), start)
        if starts and not any(np.isfinite(value(start)) for start in starts):
            start = min(starts, key=self._space.overfull_ratio)
            best.setdefault(self._types(start), start)
        return list(best.values())[: USUAL.starts]

    # -- private ----------------------------------------------------------------------------------

    def _types(self, start: Assignment) -> TypeSet | None:
        """The set of sharding types whose bound and cuts hold for a plan; None for all together."""
        if None in self._relaxed:  # then it is the only one
            return None
        types = self._space.types(start)
        if types in self._relaxed:
            return types
        known, optional = (t for t in self._relaxed if t is not None), self._bounds.optional
        return next((t for t in known if t - optional == types - optional), types)

    def _sampler(self, relaxation: Relaxation) -> PriceSearch | None:
        """What samples prices for a relaxation; a new one once the model got more tangents."""
        key = relaxation.types, self._model.num_tangents
        if key not in self._prices and relaxation.phases is not None:
            may, phases = uses(relaxation.types, self._space), relaxation.phases[self._model.used]
            limits = self._bounds.builder.limits
            self._prices[key] = PriceSearch(self._model, may, phases, limits, self._rng)
        return self._prices.get(key)


def allowed_options(space: SearchSpace, known: Iterable[Relaxation], incumbent: float) -> BoolArray:
    """``[n]`` True for options that can be part of a plan better than the best one.

    Args:
        space: the options.
        known: the solutions of all sets of sharding types. An option is allowed if, in any of them,
            the bound plus its reduced cost is not above the incumbent. If none is, all are.
        incumbent: the objective of the best plan.
    """
    allowed = np.zeros(len(space.options), dtype=bool)
    for other in known:
        if other.reduced_costs is not None:
            lifted = other.bound + np.maximum(other.reduced_costs, 0.0)
            allowed |= uses(other.types, space) & (lifted <= incumbent)
    return allowed if allowed.any() else np.ones_like(allowed)
