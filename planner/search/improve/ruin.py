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

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray, IntArray
from costmodels.sharding import Spread
from planner.search.base import Record
from planner.search.common.linear import LinearModel
from planner.search.construct.partial_plan import PartialPlan, grouped
from planner.space.effort import Meter, insertion_s, sharing_s
from planner.space.evaluation import Assignment, SearchSpace
from planner.space.objective import Cut

_MOST_ENTRIES: Final = 2**15
"""Most loads that are computed, over all ways to share pieces out. One more piece doubles it."""
_LEAST_PIECES, _MOST_PIECES = 4, 11
"""Most pieces that are shared out lie between these two, depending on how many loads each has. Of
more pieces, so many are drawn."""
_BETTER: Final = 1e-9
"""Share of the smooth objective by which a way has to be better than the present one."""


def share_out(
    field: PartialPlan,
    places: tuple[int, int],
    spread: Spread,
    rng: np.random.Generator,
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
    ranks = _ranks(field, places, spread)
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
    if values[way] >= field.smooth * (1 - _BETTER):
        return False
    moved: dict[int, list[int]] = {}
    for i, (table, piece, _, _) in enumerate(pieces):
        new = moved.setdefault(table, list(field.places[table]))
        new[piece] = places[(way >> i) & 1]
    field.move({table: tuple(new) for table, new in moved.items()})
    return True


def _ranks(field: PartialPlan, places: tuple[int, int], spread: Spread) -> IntArray:
    """``[2, L]`` the ranks of two hosts, or ``[2, 1]`` two ranks."""
    ranks = np.array(places) if spread is Spread.RANKS else field.space.host_ranks(places)
    return np.asarray(ranks.reshape(2, -1))


def _movable(
    field: PartialPlan, place: int, other: int, spread: Spread
) -> list[tuple[int, int, IntArray]]:
    """Table, number and rows of work of each piece on ``place`` that may also be on ``other``.

    Pieces that must keep apart from others stay where they are; so do pieces that must share a host
    with others, where the two ranks are on two hosts.
    """
    space, local = field.space, field.space.local_world_size
    on_ranks = spread is Spread.RANKS
    may = space.may_use_rank if on_ranks else space.may_use_host
    same_host = on_ranks and place // local == other // local
    found: list[tuple[int, int, IntArray]] = []
    for table in sorted(field.on_rank[place if on_ranks else place * local]):
        flat = int(space.first[table]) + field.options[table]
        option = space.options[flat]
        stays = option.keeps_pieces_apart or (option.keeps_pieces_on_host and not same_host)
        if option.spread is not spread or stays or not may[table, other]:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Cooling:
    """How the temperature of a walk falls from its first to its last step.

    Attributes:
        steps: number of steps.
        hot_ratio: temperature at the first step, as a share of the objective.
        cold_ratio: temperature at the last step.
    """

    steps: int
    hot_ratio: float
    cold_ratio: float

    def temperature(self, step: int) -> float:
        """The temperature at a step; it falls by the same factor from step to step."""
        share = step / max(self.steps - 1, 1)
        return float(self.hot_ratio * (self.cold_ratio / self.hot_ratio) ** share)


class Turns:
    """Which of several kinds of steps comes next, by what each has gained per nominal second.

    Args:
        kinds: number of kinds.
        rng: draws the kind.
    """

    def __init__(self, kinds: int, rng: np.random.Generator) -> None:
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


class Ruiner:
    """Walks from plan to plan of one search space."""

    def __init__(
        self,
        model: LinearModel,
        kept: list[IntArray],
        rng: np.random.Generator,
        stopped: Callable[[], bool],
        meter: Meter | None = None,
    ) -> None:
        """Keep what every step needs.

        Args:
            model: tangents and cuts.
            kept: for each table the indices of the options that are worth trying.
            rng: draws the tables and ranks of all steps.
            stopped: is asked before every step; True ends the walk.
            meter: is told of the work done.
        """
        self.model = model
        self.space: SearchSpace = model.space
        self.rng = rng
        self.stopped = stopped
        self._meter = Meter() if meter is None else meter
        self._insertion_s = insertion_s(self.space.world_size * (model.num_tangents + 2))
        self.choices = [grouped(self.space, t, k) for t, k in enumerate(kept)]
        self._shared = [] if self.space.rules else self._kinds_to_share()
        self._turns = Turns(1 + len(self._shared), rng)

    def build(self, field: PartialPlan, order: IntArray) -> bool:
        """Put all tables into an empty plan, in this order.

        Returns:
            False if a table fits nowhere, or if the search has to end.
        """
        for table in order:
            self._meter.spend(self._insertion_s)
            best = field.best_insertion(int(table), self.choices[int(table)])
            if best is None or not np.isfinite(best.value) or self.stopped():
                return False
            field.put(int(table), best.option, best.places)
        return True

    def walk(
        self, field: PartialPlan, schedule: Cooling, watch: Callable[[PartialPlan], None]
    ) -> None:
        """Ruin and recreate step by step.

        Args:
            field: the plan to begin with, which is changed.
            schedule: number of steps, and the temperature at each.
            watch: is shown every plan that is accepted.
        """
        current = best = field.smooth
        for step in range(schedule.steps):
            if self.stopped():
                return
            kind, before_s = self._turns.draw(), self._meter.spent_s
            if kind == 0:
                changed = self._ruin_and_recreate(field, current, schedule.temperature(step))
            else:
                changed = self._share_out(field, self._shared[kind - 1])
            if changed:
                current = field.smooth
                watch(field)
            gain_ratio = max(best - current, 0.0) / best if best > 0 else 0.0
            self._turns.count(kind, gain_ratio, self._meter.spent_s - before_s)
            best = min(best, current)

    def _kinds_to_share(self) -> list[Spread]:
        """The kinds of pieces that can be shared out: on ranks, and on hosts."""
        found = [Spread.RANKS] if self.space.world_size > 1 else []
        has_blocks = self.space.num_hosts > 1 and self.space.is_on_hosts.any()
        return [*found, Spread.HOSTS] if has_blocks else found

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
        field.take(ruined)
        complete = self._recreate(field, ruined)
        luck = -np.log(max(self.rng.random(), 1e-12))
        better = field.smooth < current + temperature * current * luck
        rules = self.space.rules
        if complete and better and (not rules or self.space.keeps_rules(field.assignment)):
            return True
        field.restore(loads, old)
        return False

    def _recreate(self, field: PartialPlan, tables: list[int]) -> bool:
        """Put tables back one by one, each where it is best; False if one fits nowhere."""
        blocked = self.rng.random(self.space.world_size) < _BLINK
        for table in tables:
            self._meter.spend(self._insertion_s)
            best = field.best_insertion(table, self.choices[table], blocked)
            if best is None or not np.isfinite(best.value):
                return False
            field.put(table, best.option, best.places)
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


STAGES: Final = ((32, 4.0), (64, 2.0), (128, 1.0), (128, 0.5), (128, 0.2), (128, 0.05))
"""Power of the norm, and weight of the mean over ranks (thrift), in each stage of a cycle."""
LATE_STAGES: Final = STAGES[2:]
"""Stages of a cycle that begins with a good plan, which the first stages would spoil."""
_HOT_RATIO: Final = 1e-4
_COLD_RATIO: Final = 1e-6
"""Temperature at the beginning and at the end of each stage, as a share of the objective. Hotter
stages leave poor plans more easily, colder ones keep good ones."""
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


class Cycles:
    """Runs the cycles of one search.

    Args:
        space: options and places.
        record: is offered the plans that are priced.
        rng: of all random choices.
    """

    def __init__(
        self,
        space: SearchSpace,
        record: Record,
        rng: np.random.Generator,
    ) -> None:
        """Keep the parts; nothing is searched yet."""
        self.space = space
        self.record = record
        self.rng = rng
        self._close = _CLOSE if space.num_tables * space.world_size <= _CHEAP else 1 - 1e-6
        self._queue: list[Assignment] = []
        self._minorant = np.inf

    def run(
        self,
        start: Assignment,
        cuts: Sequence[Cut],
        allowed: BoolArray,
        steps: int,
        stages: Sequence[tuple[int, float]] = STAGES,
    ) -> None:
        """Run one cycle.

        Args:
            start: the plan to begin with.
            cuts: cuts of the objective that hold for all ``allowed`` options.
            allowed: ``[n]`` True for options that are worth trying.
            steps: number of steps in each stage.
            stages: power of the norm, and weight of the mean, of each stage.
        """
        model = self._model(start, cuts)
        kept = self._kept(start, allowed)
        meter = self.record.evaluate.meter
        ruiner = Ruiner(
            model,
            kept,
            self.rng,
            lambda: self.record.stopped,
            meter,
        )
        self._minorant = np.inf
        current = start
        for power, thrift in stages:
            if self.record.stopped:
                break
            field = PartialPlan(model, self._scale(model, current), power, thrift)
            field.load(current)
            schedule = Cooling(steps=steps, hot_ratio=_HOT_RATIO, cold_ratio=_COLD_RATIO)
            ruiner.walk(field, schedule, self._watch)
            current = field.assignment
        self._price()

    # -- private ----------------------------------------------------------------------------------

    def _model(self, start: Assignment, cuts: Sequence[Cut]) -> LinearModel:
        """A linear model with tangents at the ranks that have the longest phases in ``start``."""
        model = LinearModel(self.space, self.record.evaluate.objective)
        model.use_cuts(cuts)
        work = self.space.work(start)
        for _ in range(_HOT_RANKS):
            phases = model.phase_maxima(model.loads(work))
            for rank in dict.fromkeys(int(r) for r in np.argmax(phases, axis=0)):
                model.add_tangents(work[rank])
        return model

    def _scale(self, model: LinearModel, assignment: Assignment) -> FloatArray:
        """``[K']`` the unit in which the norm of each phase is computed: about its maximum."""
        peaks = model.phase_maxima(model.loads(self.space.work(assignment)).max(axis=0))
        return np.asarray(np.maximum(peaks, _LEAST_SCALE * float(peaks.max())))

    def _kept(self, start: Assignment, allowed: BoolArray) -> list[IntArray]:
        """Indices of the allowed options of each table, and of the one it has in ``start``."""
        first = self.space.first
        kept = []
        for t, option in enumerate(start.options):
            mask = allowed[first[t] : first[t + 1]].copy()
            mask[option] = True
            kept.append(np.flatnonzero(mask))
        return kept

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
        self.record.keep_best_of(self._queue, values, "ruin and recreate")
        self._queue = []
