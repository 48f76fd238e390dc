"""Pairs of problems that must agree: ``python -m tests.differential.relations --help``.

A problem is *looser* than another if every plan of the other is a plan of it at no higher value.
No bound of the looser problem may then be above the value of any plan of the tighter one, nothing
may fit the tighter one alone, and a plan called optimal for the looser one is no worse. Problems
that mean the same are looser than each other. Nothing is enumerated, so that this also judges
problems with too many plans to price them all.

Each problem is planned, and then planned again in words that mean the same, without a rule, with a
rule that its plan obeys, on a better machine, and so on. Its files are read back, too.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from zlib import crc32

import numpy as np

from costmodels.sharding import ComputeKernel, Plan, ShardingType
from costmodels.workload import Table, Workload
from planner.errors import InfeasibleError, InvalidInputError, NoPlanFoundError
from planner.io.workload.workload_file import load_workload_file, workload_text
from planner.problem import (
    Constraints,
    CountLimit,
    Level,
    MoveLimit,
    TableConstraint,
    TableGroup,
)
from planner.scenarios import ScenarioRule
from tests.differential.asking import Answer, Run, ask
from tests.differential.case import Case, leave_of
from tests.differential.check import OPTIMAL, SAME
from tests.differential.drawing.problems import DRAWINGS
from tests.differential.judging.rules import broken_rules
from tests.differential.laws import better_machines
from tests.differential.seeds import look_at, seed_parser

_UNIFORM = (ShardingType.DATA_PARALLEL, ShardingType.ROW_WISE)
_FASTER = 3
"""Better machines that each problem is planned on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relative:
    """A problem beside a planned one.

    Attributes:
        name: what was changed.
        case: the changed problem.
        is_looser: every plan of the planned problem is a plan of this one, at no higher value.
        is_tighter: every plan of this problem is a plan of the planned one, at no higher value.
        has_plan: the plan that was found is one of this problem too, at the same value.
    """

    name: str
    case: Case
    is_looser: bool = False
    is_tighter: bool = False
    has_plan: bool = False


Made = Iterator[Relative]
Make = Callable[[np.random.Generator, Case, Answer], Made]


def disagreements(case: Case, seed: int, *, run: Run, max_evaluations: int) -> list[str]:
    """One line for each pair of answers that cannot both be right; the seed draws the pairs."""
    rng = np.random.default_rng(seed)
    lines = [*_files(case)]
    first = ask(case, run, max_evaluations=max_evaluations)
    lines += [f"crash: {line}" for line in _crashes(first)]
    for make in MAKERS:
        for other in make(rng, case, first):
            second = ask(other.case, run, max_evaluations=max_evaluations)
            found = [*_crashes(second)]
            if other.is_looser or other.has_plan:
                found += _disagree(second, first)
            if other.is_tighter:
                found += _disagree(first, second)
            lines += [f"{other.name}: {line}" for line in found]
    return lines


def _crashes(answer: Answer) -> Iterator[str]:
    known = (InfeasibleError, InvalidInputError, NoPlanFoundError)
    if answer.error is not None and not isinstance(answer.error, known):
        yield answer.text
    if answer.withdrew:
        yield "the planner saw its own bound to be wrong"


def _disagree(looser: Answer, tighter: Answer) -> Iterator[str]:
    """What the answer for a problem and the plan of a tighter one say against each other."""
    if tighter.plan is None:
        return
    if isinstance(looser.error, InfeasibleError | InvalidInputError):
        yield f"a plan at {tighter.value:.9g}, but: {looser.text.splitlines()[0]}"
    if looser.bound is not None and looser.bound > tighter.value * (1.0 + SAME):
        yield f"bound {looser.bound:.9g} above a plan at {tighter.value:.9g}"
    if looser.is_optimal and looser.value > tighter.value * (1.0 + OPTIMAL):
        yield f"{looser.value:.9g} is called optimal, a plan is at {tighter.value:.9g}"


# ------------------------------------------------------------------ files


def _files(case: Case) -> Iterator[str]:
    """A workload and its constraints are the same after they were written and read back."""
    try:
        text = workload_text(case.workload, case.constraints)
    except InvalidInputError:
        return  # a file cannot hold all that Python can say
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "workload.yaml"
        path.write_text(text, encoding="utf-8")
        read = load_workload_file(path)
    for field in fields(Workload):
        before, after = (getattr(w, field.name) for w in (case.workload, read.workload))
        if before != after:
            yield f"file: {field.name} was {before}, is {after}"
    again = replace(case, constraints=read.constraints)
    for table in case.workload.tables:
        if leave_of(case, table) != leave_of(again, table):
            yield f"file: constraints on {table.name} were {leave_of(case, table)}"
    for key in ("together", "apart", "counts", "memory"):
        if getattr(case.constraints, key) != getattr(read.constraints, key):
            yield f"file: {key} was {getattr(case.constraints, key)}"


# ------------------------------------------------------------------ the same in other words


def _same(name: str, case: Case) -> Relative:
    return Relative(name=name, case=case, is_looser=True, is_tighter=True)


def _with_days(case: Case, change: Callable[[Workload], Workload]) -> Case:
    """The case with a change of the workload and of every scenario."""
    return replace(
        case, workload=change(case.workload), scenarios=tuple(map(change, case.scenarios))
    )


def _in_another_order(rng: np.random.Generator, case: Case, _: Answer) -> Made:
    order = rng.permutation(len(case.workload.tables))
    yield _same(
        "order of tables",
        _with_days(case, lambda w: replace(w, tables=tuple(w.tables[i] for i in order))),
    )


def _under_other_names(rng: np.random.Generator, case: Case, _: Answer) -> Made:
    """Tables under names that sort the other way, and modules under other paths.

    The name of a table of hashed ids decides which of its parts has the hottest row.
    """
    counts = case.topology.world_size, case.topology.local_world_size
    names = {
        t.name: next(
            name
            for name in (f"user {90 - i}.{n}" for n in itertools.count())
            if _hottest_parts(name, t, counts) == _hottest_parts(t.name, t, counts)
        )
        for i, t in enumerate(case.workload.tables)
    }
    rules = case.constraints
    lists = [[c.pattern] for c in rules.tables]
    lists += [g.patterns for g in (*rules.together, *rules.apart, *rules.counts)]
    if any(p != "*" and p not in names for patterns in lists for p in patterns):
        return

    def renamed(pattern: str) -> str:
        return names.get(pattern, pattern)

    def in_group(group: TableGroup | CountLimit) -> TableGroup | CountLimit:
        return replace(group, patterns=tuple(map(renamed, group.patterns)))

    def in_plan(plan: Plan) -> Plan:
        return Plan(placements=tuple(replace(p, table=names[p.table]) for p in plan.placements))

    changed = replace(
        rules,
        tables=tuple(replace(c, pattern=renamed(c.pattern)) for c in rules.tables),
        together=tuple(map(in_group, rules.together)),
        apart=tuple(map(in_group, rules.apart)),
        counts=tuple(map(in_group, rules.counts)),
    )
    moves = case.moves and replace(case.moves, start=in_plan(case.moves.start))

    def in_day(day: Workload) -> Workload:
        tables = (replace(t, name=names[t.name], module=f"a.{t.module[::-1]}") for t in day.tables)
        return replace(day, tables=tuple(tables))

    other = replace(case, constraints=changed, moves=moves)
    yield _same("names", _with_days(other, in_day))


def _hottest_parts(name: str, table: Table, counts: tuple[int, ...]) -> list[int]:
    """Which of so many parts of a table has its hottest row if the table has this name."""
    row = crc32(name.encode()) % table.num_embeddings
    return [row // -(-table.num_embeddings // n) for n in counts]


def _said_twice(rng: np.random.Generator, case: Case, _: Answer) -> Made:
    rules = case.constraints
    keys = ("tables", "together", "apart", "counts", "memory")
    if any(getattr(rules, key) for key in keys):
        twice = {key: getattr(rules, key) * 2 for key in keys}
        yield _same("every rule twice", replace(case, constraints=replace(rules, **twice)))
    for i, rule in enumerate(rules.tables):
        keys = ("ranks", "hosts", "min_column_width", "cache_load_factors", "pairs")
        parts = [
            replace(TableConstraint(pattern=rule.pattern), **{f.name: getattr(rule, f.name)})
            for f in fields(TableConstraint)
            if f.name != "pattern" and getattr(rule, f.name) != f.default
        ]
        if len(parts) > 1:
            split = (*rules.tables[:i], *parts, *rules.tables[i + 1 :])
            yield _same("a rule split", replace(case, constraints=replace(rules, tables=split)))


def _the_same_day(rng: np.random.Generator, case: Case, _: Answer) -> Made:
    if case.on_torchrecs_terms:
        return
    again = replace(case.workload, name="again")
    if not case.scenarios:
        how = ScenarioRule(str(rng.choice([r.value for r in ScenarioRule])))
        yield _same(f"the same day, {how}", replace(case, scenarios=(again,), robust=how))
    elif case.robust is ScenarioRule.WORST:
        yield _same("a day twice", replace(case, scenarios=(*case.scenarios, again)))


# ------------------------------------------------------------------ looser problems


def _looser(name: str, case: Case) -> Relative:
    return Relative(name=name, case=case, is_looser=True)


def _without_rules(rng: np.random.Generator, case: Case, _: Answer) -> Made:
    rules = case.constraints
    for key in ("tables", "together", "apart", "counts", "memory"):
        given = getattr(rules, key)
        if given:
            gone = int(rng.integers(len(given)))
            kept = given[:gone] + given[gone + 1 :]
            yield _looser(
                f"without {given[gone]}", replace(case, constraints=replace(rules, **{key: kept}))
            )
    if rules != Constraints():
        yield _looser("without constraints", replace(case, constraints=Constraints()))
    if case.moves is not None:
        yield _looser("without a plan in use", replace(case, moves=None))


def _with_more_memory(rng: np.random.Generator, case: Case, _: Answer) -> Made:
    topology, factor = case.topology, float(rng.choice([1.1, 2.0, 20.0]))
    device = tuple((factor * topology.hbm_capacities()).tolist())
    host = tuple((factor * topology.ddr_capacities()).tolist())
    yield _looser(
        f"{factor} times the memory",
        replace(
            case,
            topology=replace(
                topology, hbm_capacity_by_rank_bytes=device, ddr_capacity_by_host_bytes=host
            ),
        ),
    )


def _with_fewer_days(rng: np.random.Generator, case: Case, _: Answer) -> Made:
    if case.scenarios and case.robust is ScenarioRule.WORST:
        yield _looser("a day less", replace(case, scenarios=case.scenarios[1:]))
        yield _looser("mean of days", replace(case, robust=ScenarioRule.MEAN))


def _on_better_machines(rng: np.random.Generator, case: Case, _: Answer) -> Made:
    """Where communication slows compute down, a faster machine may overlap more of them."""
    topology = case.topology
    if case.objective != "iteration" or topology.device.overlap_slowdown_ratio:
        return
    if topology.calibration:
        return
    every = list(better_machines(topology))
    for i in rng.choice(len(every), size=_FASTER, replace=False):
        name, better = every[int(i)]
        yield _looser(f"better {name}", replace(case, topology=better))


# ------------------------------------------------------------------ rules that the plan obeys


def _with_obeyed_rules(rng: np.random.Generator, case: Case, answer: Answer) -> Made:
    """Each of the rules alone, and all of them together."""
    if answer.plan is None:
        return
    rules = case.constraints
    every = rules
    for key, rule in _obeyed(rng, case, answer.plan):
        alone = replace(rules, **{key: (*getattr(rules, key), rule)})
        every = replace(every, **{key: (*getattr(every, key), rule)})
        yield _obeys(f"obeyed {rule}", replace(case, constraints=alone), answer.plan)
    yield _obeys("all obeyed rules", replace(case, constraints=every), answer.plan)
    if case.moves is None:
        stay = MoveLimit(start=answer.plan, max_tables=int(rng.integers(2)))
        yield _obeys(f"moves at most {stay.max_tables}", replace(case, moves=stay), answer.plan)
        stay = MoveLimit(start=answer.plan, max_bytes=0.0)
        yield _obeys("moves no byte", replace(case, moves=stay), answer.plan)


def _obeys(name: str, case: Case, plan: Plan) -> Relative:
    broken = broken_rules(case, plan)
    if broken:
        msg = f"{name} was to be obeyed, but: {broken}"
        raise AssertionError(msg)
    return Relative(name=name, case=case, is_tighter=True, has_plan=True)


def _obeyed(
    rng: np.random.Generator, case: Case, plan: Plan
) -> Iterator[tuple[str, TableConstraint | TableGroup | CountLimit]]:
    """Rules of every kind that a plan keeps, with the part of the constraints that has them."""
    placement = plan.placements[int(rng.integers(len(plan.placements)))]
    rule = TableConstraint(pattern=placement.table)
    yield "tables", replace(rule, sharding_types=(placement.sharding_type,))
    yield "tables", replace(rule, kernels=(placement.kernel,))
    yield "tables", replace(rule, pairs=((placement.sharding_type, placement.kernel),))
    ranks = tuple(sorted(set(placement.ranks)))
    topology = case.topology
    if placement.sharding_type not in _UNIFORM:
        yield "tables", replace(rule, ranks=ranks)
        hosts = tuple(sorted({r // topology.local_world_size for r in ranks}))
        yield "tables", replace(rule, hosts=hosts)
    if placement.kernel is ComputeKernel.FUSED_UVM_CACHING:
        factor = placement.cache_load_factor_ratio or 0.0
        yield "tables", replace(rule, cache_load_factors=(factor,))
    names = [p.table for p in plan.placements]
    for level in Level:
        width = 1 if level is Level.RANK else topology.local_world_size
        places = {p.table: {r // width for r in p.ranks} for p in plan.placements}
        used = set().union(*places.values())
        shards = max(
            sum(r // width == place for p in plan.placements for r in p.ranks) for place in used
        )
        tables = max(sum(place in own for own in places.values()) for place in used)
        yield "counts", CountLimit(most=shards, level=level, counts_shards=True)
        yield "counts", CountLimit(most=tables, level=level)
        pair = rng.choice(names, size=2, replace=False).tolist() if len(names) > 1 else []
        if pair and not places[pair[0]] & places[pair[1]]:
            yield "apart", TableGroup(patterns=tuple(pair), level=level)
        if pair and len(places[pair[0]] | places[pair[1]]) == 1:
            yield "together", TableGroup(patterns=tuple(pair), level=level)


MAKERS: tuple[Make, ...] = (
    _in_another_order,
    _under_other_names,
    _said_twice,
    _the_same_day,
    _without_rules,
    _with_more_memory,
    _with_fewer_days,
    _on_better_machines,
    _with_obeyed_rules,
)


def main(arguments: list[str] | None = None) -> int:
    """Look at drawn problems; 1 if any answers disagree."""
    parser = seed_parser(__doc__, count=20)
    parser.add_argument("--draw", choices=[*DRAWINGS], default="usual", help="kind of problems")
    parser.add_argument("--run", choices=[r.value for r in Run], default="plan", help="how to ask")
    parser.add_argument("--evaluations", type=int, default=300, help="most plans priced each")
    flags = parser.parse_args(arguments)

    def faults(seed: int) -> list[str]:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            case = DRAWINGS[flags.draw](seed)
            lines = disagreements(case, seed, run=Run(flags.run), max_evaluations=flags.evaluations)
        return [f"{case.name} [{case.objective}] {line}" for line in lines]

    seeds = range(flags.start, flags.start + flags.count)
    return look_at(seeds, faults, "problems agree with all their relatives")


if __name__ == "__main__":
    sys.exit(main())
