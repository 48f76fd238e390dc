"""Searches restated from their papers: RecShard's integer program, and one like EMBark's.

Neither has public code of its own that could be run here. Both see one number per shard, the
seconds of its phases (``shard_seconds``), and add these numbers up per rank. Whole plans that they
make are priced in full, and the best one counts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
from ortools.sat.python import cp_model

from benchmarks.search.peer_searches.tasks import Best
from costmodels.datatypes import FloatArray
from costmodels.sharding import ShardingType, Spread
from planner.objectives import objective_named
from planner.options.table_limits import HOST_KERNELS
from planner.search.common.linear import LinearModel
from planner.search.construct.greedy import list_greedy, shard_seconds, whole_options
from planner.space.evaluation import Assignment, Budget, Evaluator, SearchSpace

_UNITS: Final = 1_000_000
"""Costs are whole numbers in the integer program: so many for the mean rank."""
_MIB: Final = float(2**20)
_LOOK_EVERY_S: Final = 0.05
_THRESHOLDS: Final = 12
_WITHOUT_GAIN: Final = 12
"""Splits in a row without a better plan after which a walk ends."""
_AT_ONCE: Final = 32


class _Shards:
    """What every shard of a space costs, takes of memory, and loads which ranks with."""

    def __init__(self, space: SearchSpace) -> None:
        self.space = space
        self.objective = objective_named("iteration", space)
        self.evaluate = Evaluator(space, self.objective, Budget())
        self.seconds = shard_seconds(LinearModel(space, self.objective))

    def loads(self, flat: int, values: FloatArray, place: int) -> FloatArray:
        """``[W]`` of ``values`` (per work row) that one piece of an option adds at a place."""
        space = self.space
        rows, spread = space.rows[flat], space.options[flat].spread
        if spread is Spread.UNIFORM:
            return np.asarray(values[rows])
        added = np.zeros(space.world_size)
        if spread is Spread.RANKS:
            added[place] = values[rows[0]]
        else:
            added[space.host_ranks((place,))] = values[rows[0]]
        return added

    def has_equal_pieces(self, flat: int) -> bool:
        """Whether it does not matter which piece goes where, nor which go together."""
        option = self.space.options[flat]
        kept = option.keeps_pieces_on_host and option.num_pieces > 1
        return len(set(option.column_widths)) == 1 and not kept

    def num_places(self, flat: int) -> int:
        """Ranks or hosts that a piece may go to; 1 where all ranks hold a part."""
        spread = self.space.options[flat].spread
        places = {Spread.UNIFORM: 1, Spread.RANKS: self.space.world_size}
        return places.get(spread, self.space.num_hosts)

    def offer(self, best: Best, assignment: Assignment) -> float:
        """Price a plan in full and keep it if it is the best."""
        value = self.evaluate.value(assignment)
        best.offer(value, lambda: self.space.plan(assignment))
        return value


# ------------------------------------------------------------------ RecShard


def recshard(space: SearchSpace, best: Best, seed: int) -> None:
    """The integer program of Sethi et al. (ASPLOS 2022): the costliest rank as cheap as can be.

    One option per table and a place for each piece; ranks have a limit on device memory. In the
    paper a table's choice is how many of its rows lie in slow memory, and its cost is that of the
    lookups; here it is any option of the space, and all phases count. CP-SAT takes the place of
    Gurobi and begins at the greedy plan, which counts too. Kernels in host memory are left out.
    """
    shards = _Shards(space)
    start = list_greedy(space, _table_seconds(shards))
    shards.offer(best, start)
    program = _Program(shards, start)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1  # more find less in the same CPU seconds
    solver.parameters.random_seed = seed
    ended = threading.Event()

    def stop_in_time() -> None:
        while not ended.wait(_LOOK_EVERY_S):
            if best.left_s <= 0:
                solver.stop_search()

    looking = threading.Thread(target=stop_in_time)
    looking.start()
    solver.solve(program.model, program.watch(best))
    ended.set()
    looking.join()


class _Program:
    """The variables of the program, and how to read a plan from them."""

    def __init__(self, shards: _Shards, start: Assignment) -> None:
        self.shards, space = shards, shards.space
        self.model = cp_model.CpModel()
        self.flats = [
            f
            for f, option in enumerate(space.options)
            if shards.has_equal_pieces(f) and option.kernel not in HOST_KERNELS
        ]
        self.chosen = {f: self.model.new_bool_var("") for f in self.flats}
        self.counts = {f: self._counts(f) for f in self.flats}
        for t in range(space.num_tables):
            own = range(int(space.first[t]), int(space.first[t + 1]))
            self.model.add_exactly_one(self.chosen[f] for f in own if f in self.chosen)
        lightest = [
            min(shards.seconds[space.rows[f]].sum() for f in self.flats if space.table_of[f] == t)
            for t in range(space.num_tables)
        ]
        unit = sum(lightest) / space.world_size / _UNITS
        costliest = self.model.new_int_var(0, 1000 * _UNITS, "")
        for terms in self._per_rank(np.round(shards.seconds / unit)):
            self.model.add(sum(terms) <= costliest)
        limits = space.pipeline.device_limits / _MIB
        sizes = self._per_rank(np.ceil(space.pool_device / _MIB))
        for limit, terms in zip(limits, sizes, strict=True):
            self.model.add(sum(terms) <= int(limit))
        self.model.minimize(costliest)
        self._hint(start)

    def _counts(self, flat: int) -> list[Any]:
        """How many pieces lie at each place."""
        pieces = int(self.shards.space.pieces[flat])
        if not pieces:
            return [self.chosen[flat]]
        places = self.shards.num_places(flat)
        counts = [self.model.new_int_var(0, pieces, "") for _ in range(places)]
        self.model.add(sum(counts) == pieces * self.chosen[flat])
        return counts

    def _per_rank(self, values: FloatArray) -> list[list[Any]]:
        """The terms of each rank's sum of ``values``."""
        terms: list[list[Any]] = [[] for _ in range(self.shards.space.world_size)]
        for flat in self.flats:
            for place, count in enumerate(self.counts[flat]):
                loads = self.shards.loads(flat, values, place)
                for rank in np.flatnonzero(loads):
                    terms[rank].append(int(loads[rank]) * count)
        return terms

    def _hint(self, start: Assignment) -> None:
        space = self.shards.space
        taken = space.first[:-1] + start.options
        where = dict(zip(taken.tolist(), start.places, strict=True))
        for flat in self.flats:
            self.model.add_hint(self.chosen[flat], flat in where)
            if space.pieces[flat]:
                for place, count in enumerate(self.counts[flat]):
                    self.model.add_hint(count, where.get(flat, ()).count(place))

    def watch(self, best: Best) -> cp_model.CpSolverSolutionCallback:
        """What prices every plan that the solver finds."""
        program = self

        class Watch(cp_model.CpSolverSolutionCallback):  # type: ignore[misc]
            def on_solution_callback(self) -> None:
                program.shards.offer(best, program.read(self.value))

        return Watch()

    def read(self, value: Callable[[Any], int]) -> Assignment:
        """The plan of a solution."""
        space = self.shards.space
        options, places = [], []
        for t in range(space.num_tables):
            first = int(space.first[t])
            own = range(first, int(space.first[t + 1]))
            flat = next(f for f in own if f in self.chosen and value(self.chosen[f]))
            counts = [value(c) for c in self.counts[flat]] if space.pieces[flat] else []
            options.append(flat - first)
            places.append(tuple(p for p, n in enumerate(counts) for _ in range(n)))
        return Assignment(options=tuple(options), places=tuple(places))


def _table_seconds(shards: _Shards) -> FloatArray:
    space = shards.space
    flats = space.first[:-1] + whole_options(space)
    return np.array([shards.seconds[space.rows[f]].sum() for f in flats])


# ------------------------------------------------------------------ EMBark


def embark(space: SearchSpace, best: Best, seed: int) -> None:
    """After EMBark (Liu et al., RecSys 2024): thresholds, greedy placing, splitting, local search.

    Tables below a threshold are copied to all ranks; several thresholds are tried. The others are
    placed as list greedies do, costliest shard first. Then the table of the costliest shard is cut
    again: columns into twice as many pieces or rows over ranks or hosts, whichever gives the better
    plan. What is left of the time goes to local search from the best plan: shards move and swap,
    and tables change their options.
    """
    shards = _Shards(space)
    start: tuple[float, Assignment | None] = (np.inf, None)
    for choice in _thresholds(space):
        for plan, value in _split(shards, best, choice):
            start = min(start, (value, plan), key=lambda pair: pair[0])
            best.check()
    if start[1] is not None:
        _climb(shards, best, start[1], np.random.default_rng(seed))


def _thresholds(space: SearchSpace) -> Iterator[list[int]]:
    """Whole tables, with all those copied to every rank that are no larger than a threshold."""
    whole = whole_options(space).tolist()
    copied = [_option_of(space, t, ShardingType.DATA_PARALLEL) for t in range(space.num_tables)]
    sizes = np.array([table.weight_bytes for table in space.problem.workload.tables])
    yield whole
    if any(c is not None for c in copied):
        for share in np.linspace(0.0, 1.0, _THRESHOLDS + 1)[1:]:
            limit = np.quantile(sizes, share)
            pairs = enumerate(zip(whole, copied, strict=True))
            yield [w if c is None or sizes[t] > limit else c for t, (w, c) in pairs]


def _split(shards: _Shards, best: Best, choice: list[int]) -> Iterator[tuple[Assignment, float]]:
    """Plans of a walk that cuts the table of the costliest shard, again and again."""
    space, idle, lowest = shards.space, 0, np.inf
    closed: set[int] = set()
    while idle < _WITHOUT_GAIN:
        hottest = [
            -1.0 if t in closed else float(shards.seconds[_rows(space, t, o)].max())
            for t, o in enumerate(choice)
        ]
        table = int(np.argmax(hottest))
        finer = [choice] if np.isinf(lowest) else _finer(space, choice, table)
        plans = [(_place(shards, c), c) for c in finer]
        found = [(shards.offer(best, plan), plan, c) for plan, c in plans if plan is not None]
        if not found:
            closed.add(table)
            if len(closed) == space.num_tables or np.isinf(lowest):
                return
            continue
        value, plan, choice = min(found, key=lambda f: f[0])
        idle = 0 if value < lowest else idle + 1
        lowest = min(lowest, value)
        yield plan, value


def _rows(space: SearchSpace, table: int, option: int) -> Any:
    return space.rows[int(space.first[table]) + option]


def _finer(space: SearchSpace, choice: list[int], table: int) -> list[list[int]]:
    """The same choice with one table's columns halved, or its rows spread over ranks or hosts."""
    now = space.option(table, choice[table])
    found = []
    if now.spread is Spread.RANKS:
        halves = _option_of(space, table, now.sharding_type, 2 * now.num_pieces, now.kernel)
        kinds = (ShardingType.ROW_WISE, ShardingType.TABLE_ROW_WISE, ShardingType.GRID_SHARD)
        found = [halves, *(_option_of(space, table, kind, 1, now.kernel) for kind in kinds)]
    return [[*choice[:table], o, *choice[table + 1 :]] for o in found if o is not None]


def _option_of(
    space: SearchSpace, table: int, kind: ShardingType, pieces: int = 1, kernel: str | None = None
) -> int | None:
    for index, option in enumerate(space.tables[table].options):
        widths = option.column_widths
        same = option.sharding_type is kind and kernel in (None, option.kernel)
        if same and len(widths) == pieces and len(set(widths)) == 1:
            return index
    return None


def _place(shards: _Shards, choice: list[int]) -> Assignment | None:
    """Costliest pieces first, each where the sum of costs is least and there is room."""
    space = shards.space
    cost, taken = np.zeros((2, space.num_hosts, space.local_world_size))
    limits = space.pipeline.device_limits.reshape(cost.shape)
    places: list[tuple[int, ...]] = [()] * space.num_tables
    flats = [int(space.first[t]) + o for t, o in enumerate(choice)]
    hottest = [float(shards.seconds[space.rows[f]].max()) for f in flats]
    order = sorted(range(len(flats)), key=lambda t: (not space.is_uniform[flats[t]], -hottest[t]))
    for t in order:
        rows, spread = space.rows[flats[t]], space.options[flats[t]].spread
        if spread is Spread.UNIFORM:
            cost += shards.seconds[rows].reshape(cost.shape)
            taken += space.pool_device[rows].reshape(cost.shape)
            if (taken > limits).any():
                return None
            continue
        added, size = shards.seconds[rows[0]], space.pool_device[rows[0]]
        own = []
        for _ in range(len(rows)):
            room, after = taken + size <= limits, cost + added
            if spread is Spread.HOSTS:
                room, after = room.all(axis=1), after.max(axis=1)
            ranked = np.where(room, after, np.inf).ravel()
            place = int(np.argmin(ranked))
            if np.isinf(ranked[place]):
                return None
            at = place if spread is Spread.HOSTS else divmod(place, space.local_world_size)
            cost[at] += added
            taken[at] += size
            own.append(place)
        places[t] = tuple(own)
    return Assignment(options=tuple(choice), places=tuple(places))


def _climb(shards: _Shards, best: Best, start: Assignment, rng: np.random.Generator) -> None:
    """Take the best of some random changes whenever it is better, until time is up."""
    space, now = shards.space, start
    work = space.work(now)
    value = float(shards.evaluate.values(work))
    while True:
        best.check()
        tried = [_changed(shards, now, rng) for _ in range(_AT_ONCE)]
        works = np.stack([_moved(space, work, now, t, other) for t, other in tried])
        values = shards.evaluate.values(works)
        best.num_priced += len(values)
        for at in np.argsort(values):
            if values[at] >= value:
                break
            if space.keeps_rules(tried[at][1]):
                now, value = tried[at][1], float(values[at])
                work = space.work(now)
                kept = now
                best.offer(value, lambda kept=kept: space.plan(kept))  # type: ignore[misc]
                break


def _changed(
    shards: _Shards, now: Assignment, rng: np.random.Generator
) -> tuple[tuple[int, ...], Assignment]:
    """A random change, and the tables it touches."""
    space = shards.space
    t, u = (int(x) for x in rng.choice(space.num_tables, 2, replace=False))
    kind = rng.random()
    if kind < 0.3 and now.places[t] and now.places[u]:
        i, j = (int(rng.integers(len(now.places[x]))) for x in (t, u))
        flats = [int(space.first[x]) + now.options[x] for x in (t, u)]
        if shards.num_places(flats[0]) == shards.num_places(flats[1]):
            swapped = _put(now, t, i, now.places[u][j])
            return (t, u), _put(swapped, u, j, now.places[t][i])
    if kind < 0.8 and now.places[t]:
        flat = int(space.first[t]) + now.options[t]
        i = int(rng.integers(len(now.places[t])))
        return (t,), _put(now, t, i, int(rng.integers(shards.num_places(flat))))
    option = int(rng.integers(len(space.tables[t].options)))
    flat = int(space.first[t]) + option
    pieces, places = int(space.pieces[flat]), shards.num_places(flat)
    where = rng.permutation(np.arange(max(pieces, places)) % places)[:pieces]
    options = (*now.options[:t], option, *now.options[t + 1 :])
    moved = (*now.places[:t], tuple(where.tolist()), *now.places[t + 1 :])
    return (t,), Assignment(options=options, places=moved)


def _put(now: Assignment, table: int, piece: int, place: int) -> Assignment:
    own = now.places[table]
    moved = (*own[:piece], place, *own[piece + 1 :])
    return replace(now, places=(*now.places[:table], moved, *now.places[table + 1 :]))


def _moved(
    space: SearchSpace,
    work: FloatArray,
    now: Assignment,
    tables: tuple[int, ...],
    other: Assignment,
) -> FloatArray:
    """Work of the plan with these tables as in ``other``."""
    after = work
    for t in tables:
        after = space.work_without(after, t, now.options[t], now.places[t])
        ranks, rows = space.placed_rows(t, other.options[t], other.places[t])
        np.add.at(after, ranks, rows)
    return after
