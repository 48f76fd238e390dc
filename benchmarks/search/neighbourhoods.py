"""Large neighbourhoods by CP-SAT, measured against more of the ordinary search.

    python -m benchmarks.search.neighbourhoods

They are no part of the product, for they gain less than the same time of ruin and recreate. From
the plan after 10 s, a few ranks are freed again and again: a phase's fullest one and others at
random. Tables that lie on them alone may take other options, other shards on them may change places
among them, everything else stays. The program minimises the minorant of the objective with the
loads of the other ranks as floors of the phases. Whether the outcome is better is then asked of the
objective itself. Solvers stop after a fixed amount of work, not of time.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from benchmarks.search.instances import workload_of
from costmodels.datatypes import FloatArray, IntArray
from costmodels.pipeline import CostPipeline
from costmodels.sharding import ShardingType
from planner import load_system
from planner.objectives import objective_named
from planner.problem import PlanningProblem
from planner.search.auto import Auto
from planner.search.base import Record
from planner.search.common.linear import LinearModel
from planner.solving.prepare import search_space
from planner.space.evaluation import FITTING, Assignment, Budget, Evaluator, SearchSpace

CASES: Final = ("dcnv2x16", "26x8", "100x8", "100x16", "100x64")
_FIRST_S: Final = 10.0
_RANKS: Final = (2, 5)
"""Fewest and most ranks freed."""
_OPTIONS: Final = 6
"""Options of each freed table that are tried, the cheapest first."""
_WORK: Final = 0.3
"""Deterministic time of one program, in the solver's own seconds."""
_UNITS: Final = 1e6
"""Integers per value of the incumbent."""
_MIB: Final = 2.0**20
_MOST_TABLES: Final = 40
_TYPES: Final = (ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Piece:
    """``count`` equal pieces of one option, or of what is left of a table on the freed ranks."""

    table: int
    option: int
    row: FloatArray
    count: int
    now: IntArray


class Neighbourhoods:
    """Improves plans of one search space a few ranks at a time."""

    def __init__(self, model: LinearModel, record: Record, rng: np.random.Generator) -> None:
        """Keep the parts.

        Args:
            model: tangents and cuts; the minorant is theirs.
            record: prices plans and says when to stop.
            rng: of the ranks chosen.
        """
        self._model, self._record, self._rng = model, record, rng
        self._space = model.space

    def improve(self, start: Assignment, rounds: int) -> Assignment:
        """The best plan after ``rounds`` neighbourhoods."""
        best, value = start, self._record.evaluate.value(start)
        for _ in range(rounds):
            if self._record.stopped or self._record.proven:
                break
            found = self._solve(best, self._ranks(best))
            if found is None:
                continue
            new = self._record.consider(found, "neighbourhoods")
            if new < value * (1 - 1e-9) and self._space.keeps_rules(found):
                best, value = found, new
        return best

    # -- which ranks ------------------------------------------------------------------------------

    def _ranks(self, best: Assignment) -> IntArray:
        """A fullest rank, drawn by its phase's part of the objective, and others at random."""
        loads = self._model.loads(self._space.work(best))
        phases = self._model.phase_maxima(loads)
        peaks = phases.max(axis=0)
        part = self._model.slopes_of(peaks) * peaks
        chance = part / part.sum() if part.sum() > 0 else np.full(len(part), 1 / len(part))
        hot = int(np.argmax(phases[:, int(self._rng.choice(len(part), p=chance))]))
        world = self._space.world_size
        count = min(int(self._rng.integers(_RANKS[0], _RANKS[1] + 1)), world)
        others = self._rng.permutation(np.delete(np.arange(world), hot))[: count - 1]
        return np.sort(np.append(others, hot))

    # -- the program ------------------------------------------------------------------------------

    def _solve(self, best: Assignment, ranks: IntArray) -> Assignment | None:
        pieces, fixed = self._free(best, ranks)
        if not pieces or len({p.table for p in pieces}) > _MOST_TABLES:
            return None
        from ortools.sat.python import cp_model

        program = cp_model.CpModel()
        counts: list[list[Any]] = []
        chosen: dict[int, list[Any]] = {}
        for piece in pieces:
            row: list[Any] = [program.new_int_var(0, piece.count, "") for _ in ranks]
            taken = program.new_bool_var("")
            program.add(sum(row) == piece.count * taken)
            for variable, now in zip(row, piece.now, strict=True):
                program.add_hint(variable, int(now))
            program.add_hint(taken, bool(piece.now.any()))
            chosen.setdefault(piece.table, []).append(taken)
            counts.append(row)
        for either in chosen.values():
            program.add_exactly_one(either)
        self._limits(program, pieces, counts, fixed, ranks)
        self._minorant(program, pieces, counts, fixed, ranks)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 0
        solver.parameters.max_deterministic_time = _WORK
        if solver.solve(program) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None
        placed = [np.array([solver.value(v) for v in row]) for row in counts]
        return self._decoded(best, pieces, placed, ranks)

    def _free(self, best: Assignment, ranks: IntArray) -> tuple[list[_Piece], FloatArray]:
        """Pieces that may move, and the loads of everything else, ``[W, P + 2]``."""
        space, model = self._space, self._model
        loads = model.loads(space.work(best))
        price = self._price(loads)
        pieces: list[_Piece] = []
        for table, (index, places) in enumerate(zip(best.options, best.places, strict=True)):
            option = space.option(table, index)
            if option.sharding_type not in _TYPES or len(set(option.column_widths)) > 1:
                continue
            allowed = space.may_use_rank[table][ranks].all()
            inside = [p for p in places if p in ranks]
            if not inside or not allowed:
                continue
            row = model.option_rows(int(space.first[table]) + index)[0]
            np.subtract.at(loads, np.array(inside), row)
            now = np.array([inside.count(int(r)) for r in ranks])
            pieces.append(_Piece(table=table, option=index, row=row, count=len(inside), now=now))
            if len(inside) == len(places):
                pieces += self._others(table, index, ranks, price)
        return pieces, np.maximum(loads, 0.0)

    def _price(self, loads: FloatArray) -> FloatArray:
        """``[P]`` what a unit of each tangent's load is worth in the objective."""
        model = self._model
        slopes = model.slopes_of(model.phase_maxima(loads).max(axis=0))
        members = np.bincount(model.phase_index, minlength=len(model.used))
        return np.asarray((slopes / members)[model.phase_index])

    def _others(self, table: int, index: int, ranks: IntArray, price: FloatArray) -> list[_Piece]:
        """The cheapest other options of a table that can lie on these ranks."""
        space, model = self._space, self._model
        first = int(space.first[table])
        found = []
        for other, option in enumerate(space.tables[table].options):
            fits = option.sharding_type in _TYPES and len(set(option.column_widths)) == 1
            if other == index or not fits or option.num_pieces > 4 * len(ranks):
                continue
            cost = float(model.mean[first + other, : len(price)] @ price)
            row = model.option_rows(first + other)[0]
            nothing = np.zeros(len(ranks), dtype=np.int64)
            piece = _Piece(table=table, option=other, row=row, count=option.num_pieces, now=nothing)
            found.append((cost, other, piece))
        return [piece for _, _, piece in sorted(found, key=lambda f: f[:2])[:_OPTIONS]]

    def _limits(
        self,
        program: Any,
        pieces: list[_Piece],
        counts: list[list[Any]],
        fixed: FloatArray,
        ranks: IntArray,
    ) -> None:
        """Device bytes of each rank, host bytes of each host."""
        pipeline, local = self._space.pipeline, self._space.local_world_size
        device = [int(np.ceil(p.row[-2] / _MIB)) for p in pieces]
        host = [int(np.ceil(p.row[-1] / _MIB)) for p in pieces]
        hosts: dict[int, list[Any]] = {}
        for i, rank in enumerate(ranks):
            room = (pipeline.device_limits[rank] * FITTING - fixed[rank, -2]) / _MIB
            used = sum(b * row[i] for b, row in zip(device, counts, strict=True))
            program.add(used <= max(int(room), 0))
            here = [b * row[i] for b, row in zip(host, counts, strict=True) if b > 0]
            hosts.setdefault(int(rank) // local, []).extend(here)
        taken = fixed[:, -1].reshape(-1, local).sum(axis=-1)
        for number, terms in hosts.items():
            left = (pipeline.host_limits[number] * FITTING - taken[number]) / _MIB
            if terms:
                program.add(sum(terms) <= max(int(left), 0))

    def _minorant(
        self,
        program: Any,
        pieces: list[_Piece],
        counts: list[list[Any]],
        fixed: FloatArray,
        ranks: IntArray,
    ) -> None:
        """Minimise the longest path, with every phase above the loads of its ranks."""
        model = self._model
        unit = _UNITS / float(model.value(fixed.max(axis=0)))
        floors = model.phase_maxima(fixed.max(axis=0)) * unit
        most = int(20 * _UNITS)
        phases = [program.new_int_var(int(f), most, "") for f in floors]
        for c in range(model.num_tangents):
            loads = [round(float(p.row[c]) * unit) for p in pieces]
            if not any(loads):
                continue
            for i, rank in enumerate(ranks):
                terms = [w * row[i] for w, row in zip(loads, counts, strict=True) if w]
                base = round(float(fixed[rank, c]) * unit)
                program.add(sum(terms) + base <= phases[int(model.phase_index[c])])
        longest = program.new_int_var(0, 1000 * most, "")
        for least, slopes in zip(model._bases, model._slopes, strict=True):
            terms = [round(100 * float(s)) * z for s, z in zip(slopes, phases, strict=True)]
            program.add(sum(terms) + round(100 * least * unit) <= longest)
        program.minimize(longest)

    def _decoded(
        self, best: Assignment, pieces: list[_Piece], placed: list[IntArray], ranks: IntArray
    ) -> Assignment | None:
        options, places = list(best.options), list(best.places)
        for piece, counts in zip(pieces, placed, strict=True):
            if not counts.sum():
                continue
            stay: tuple[int, ...] = ()
            if piece.option == best.options[piece.table]:
                stay = tuple(p for p in best.places[piece.table] if p not in ranks)
            new = [int(r) for r, n in zip(ranks, counts, strict=True) for _ in range(int(n))]
            options[piece.table] = piece.option
            places[piece.table] = tuple(sorted((*stay, *new)))
        found = Assignment(options=tuple(options), places=tuple(places))
        return None if found == best else found


def main() -> None:
    """A line per case."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--case", action="append", metavar="TABLESxRANKS")
    parser.add_argument("--more", type=float, default=15.0, metavar="SECONDS")
    chosen = parser.parse_args()
    for case in chosen.case or CASES:
        compare(case, chosen.more)


def compare(case: str, more_s: float) -> None:
    """10 s of search, then ``more_s`` of neighbourhoods, beside a search of both times."""
    workload, ranks = workload_of(case)
    topology = load_system("h100_sxm", gpus=ranks)
    space = search_space(PlanningProblem(workload=workload, topology=topology), CostPipeline)
    start, value = _searched(space, _FIRST_S)
    record = Record(_evaluator(space, more_s))
    record.consider(start, "start")
    model = LinearModel(space, record.evaluate.objective)
    for row in space.work(start):
        model.add_tangents(row)
    peaks = model.loads(space.work(start)).max(axis=0)
    types = frozenset(space.option(t, i).sharding_type for t, i in enumerate(start.options))
    phases = model.all_phases(model.phase_maxima(peaks))
    cut = record.evaluate.objective.cut(phases, types)
    model.use_cuts([] if cut is None else [cut])
    Neighbourhoods(model, record, np.random.default_rng(0)).improve(start, 1_000_000)
    _, longer = _searched(space, _FIRST_S + more_s)
    print(
        f"{case:>9}  after {_FIRST_S:g} s {1e3 * value:9.4f} ms   {more_s:g} s of neighbourhoods "
        f"{100 * (1 - record.value / value):5.2f} % less   of ordinary search "
        f"{100 * (1 - longer / value):5.2f} % less",
        flush=True,
    )


def _searched(space: SearchSpace, seconds: float) -> tuple[Assignment, float]:
    outcome = Auto().search(Record(_evaluator(space, seconds)), seed=0)
    return outcome.assignments[0], outcome.values[0]


def _evaluator(space: SearchSpace, seconds: float) -> Evaluator:
    return Evaluator(space, objective_named("iteration", space), Budget(time_limit_s=seconds))


if __name__ == "__main__":
    main()
