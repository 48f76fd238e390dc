"""Streams whose laws move, replayed: the controller against an oracle, never and always moving.

The law of a stream changes from period to period. Data are looked at several times in a period:
the first look of a period still sees the data of the period before, the others see its own. The
oracle knows the laws of all periods and may move whenever the controller may.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from costmodels.distribution.zipf import Zipf
from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan
from costmodels.workload import Feature, Workload
from planner import api
from planner.drift.changes import Controller, Offer
from planner.problem import MoveLimit
from planner.replan import reshard
from tests.counted import law_of_counts
from tests.planner import cases

PERIODS = 6
LOOKS = 4
EVALUATIONS = 150
SYSTEM = cases.topology(2, 2)


def stream(seed: int) -> list[Workload]:
    """True laws of every period: pooling factors and exponents walk, some tables jump once."""
    rng = np.random.default_rng(seed)
    model = cases.synthetic(6, seed=seed, batch=16384)
    count = len(model.tables)
    pooling = np.array([t.pooling_factor for t in model.tables])
    exponent = rng.uniform(0.6, 1.2, count)
    speed = rng.normal(0.0, rng.uniform(0.05, 0.4), count)
    jump, factor = rng.integers(2, PERIODS, count), np.exp(rng.normal(0.0, 1.0, count))
    jumps = rng.random(count) < 0.3
    days = []
    for day in range(PERIODS):
        grown = pooling * np.exp(speed * day) * np.where(jumps & (day >= jump), factor, 1.0)
        skew = np.clip(exponent + 0.1 * speed * day, 0.0, 1.5)
        tables = tuple(
            replace(
                t,
                features=(Feature(name=t.name, pooling_factor=float(np.clip(p, 0.5, 300))),),
                distribution=Zipf(num_embeddings=t.num_embeddings, exponent=float(s)),
            )
            for t, p, s in zip(model.tables, grown, skew, strict=True)
        )
        days.append(replace(model, tables=tables))
    return days


def measured(day: Workload, rng: np.random.Generator) -> Workload:
    """What a profile of 2,000 samples of the day tells."""
    tables = []
    for t in day.tables:
        lengths = rng.poisson(t.pooling_factor, 2_000)
        rows, probability = t.distribution.frequency_bins()
        mass = rows * probability
        of_bin = rng.multinomial(max(int(lengths.sum()), 1), mass / mass.sum())
        counts = np.concatenate(
            [
                np.unique(rng.integers(0, max(int(n), 1), k), return_counts=True)[1]
                for n, k in zip(rows, of_bin, strict=True)
                if k
            ]
        )
        law = law_of_counts(counts, t.num_embeddings)
        feature = Feature(name=t.name, pooling_factor=float(max(lengths.mean(), 0.01)))
        tables.append(replace(t, features=(feature,), distribution=law))
    return replace(day, tables=tuple(tables))


@dataclass
class Replay:
    """One stream with all plans that anybody looks at."""

    truth: list[Workload]
    told: list[Workload]
    num_looks: int
    num_iterations: float = 0.0

    def __post_init__(self) -> None:
        self.pipelines = [CostPipeline(w, SYSTEM) for w in self.truth]
        self.judges = [CostPipeline(w, SYSTEM) for w in self.told]
        self.found: dict[tuple[int, Plan | None, int | None], Plan] = {}

    def plan(self, day: Workload, start: Plan | None, most_tables: int | None = None) -> Plan:
        key = id(day), start, most_tables
        if key not in self.found:
            self.found[key] = api.plan(
                day,
                SYSTEM,
                constraints=cases.DEVICE_ONLY,
                moves=None if start is None else MoveLimit(start=start, max_tables=most_tables),
                with_baselines=False,
                max_evaluations=EVALUATIONS,
            ).plan
        return self.found[key]

    def move_s(self, a: Plan, b: Plan) -> float:
        return reshard(a, b, self.truth[0], SYSTEM, before_s=1.0, after_s=1.0).time_s

    def time(self, day: int, plan: Plan) -> float:
        pipeline = self.pipelines[day]
        return float(pipeline.iteration_times(pipeline.plan_work(plan))) * self.num_iterations

    def believed(self, day: int, plan: Plan) -> float:
        judge = self.judges[day]
        return float(judge.iteration_times(judge.plan_work(plan)))

    def never(self, first: Plan) -> float:
        return sum(self.time(d, first) for d in range(PERIODS))

    def always(self, first: Plan) -> float:
        plan, total = first, self.time(0, first)
        for day in range(1, PERIODS):
            new = self.plan(self.told[day - 1], plan)
            total += self.move_s(plan, new) + self.time(day, new)
            plan = new
        return total

    def controlled(self, first: Plan) -> tuple[float, int]:
        """Seconds, and how often it moved."""
        plan, total, moves, controller = first, 0.0, 0, Controller()
        seen = [first]
        for known, day in self.looks():
            if known is not None:
                # One, three or any tables moved, and a plan from nothing; also what was found
                # before, for a law may come back.
                told = self.told[known]
                new = [self.plan(told, plan, most) for most in (1, 3, None)]
                seen = list(dict.fromkeys([*seen, *new, self.plan(told, None)]))
                offers = [
                    Offer(iteration_s=self.believed(known, p), move_s=self.move_s(plan, p))
                    for p in seen
                ]
                per_look = self.num_iterations / self.num_looks
                chosen = controller.choose(self.believed(known, plan), offers, per_look)
                if chosen is not None:
                    total += offers[chosen].move_s
                    plan, moves = seen[chosen], moves + 1
            total += self.time(day, plan) / self.num_looks
        return total, moves

    def looks(self) -> list[tuple[int | None, int]]:
        """(period whose data are known, period that is) of every look."""
        known = [p if look else p - 1 for p in range(PERIODS) for look in range(self.num_looks)]
        return [(None if k < 0 else k, i // self.num_looks) for i, k in enumerate(known)]

    def oracle(self, first: Plan) -> float:
        """The cheapest path through all plans that anybody saw and the best of every true day."""
        for day in self.truth[1:]:
            self.plan(day, first)
            self.plan(day, None)
        pool = list(dict.fromkeys([first, *self.found.values()]))
        moves = np.array([[self.move_s(a, b) for b in pool] for a in pool])
        cost = np.array([0.0 if p is first else np.inf for p in pool])
        times = [np.array([self.time(d, p) for p in pool]) for d in range(PERIODS)]
        for known, day in self.looks():
            if known is not None:
                cost = (cost[:, None] + moves).min(axis=0)
            cost = cost + times[day] / self.num_looks
        return float(cost.min())


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Seconds of each way, and how often the controller moved."""

    controlled: float
    oracle: float
    never: float
    always: float
    moves: int


def replayed(seed: int, num_looks: int = LOOKS) -> Outcome:
    """One stream in all ways; ``num_looks`` of the controller in each period."""
    truth = stream(seed)
    rng = np.random.default_rng(1000 + seed)
    replay = Replay(truth, [measured(day, rng) for day in truth], num_looks)
    first = replay.plan(replay.told[0], None)
    replay.num_iterations = 1.0
    whole = sum(t.weight_bytes for t in truth[0].tables) / SYSTEM.world_size
    whole /= SYSTEM.network_link.bandwidth_bytes_per_s
    # To send every rank its share of all tables takes 0.3 to 30 % of a period's training.
    share = float(np.exp(rng.uniform(np.log(0.003), np.log(0.3))))
    replay.num_iterations = whole / share / replay.time(0, first)
    always, never = replay.always(first), replay.never(first)
    controlled, moves = replay.controlled(first)
    return Outcome(
        controlled=controlled, oracle=replay.oracle(first), never=never, always=always, moves=moves
    )
