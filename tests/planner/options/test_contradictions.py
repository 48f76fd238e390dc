"""Constraints that cannot hold are named before any search."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.errors import InvalidValueError
from costmodels.sharding import ShardingType
from planner import plan
from planner.errors import InfeasibleError, InvalidInputError
from planner.options.table_limits import contradictions
from planner.problem import Constraints, CountLimit, Level, MemoryLimit, TableConstraint, TableGroup
from planner.rules.placement_rules import PlacementRules
from tests.planner import cases

HOST, RANK = Level.HOST, Level.RANK


def group(*patterns: str, level: Level = RANK) -> TableGroup:
    return TableGroup(patterns=patterns, level=level)


def pin(pattern: str, *ranks: int) -> TableConstraint:
    return TableConstraint(pattern=pattern, ranks=ranks)


BAD = {
    "two apart on one rank": (
        Constraints(apart=(group("t0", "t1"),), tables=(pin("t0", 3), pin("t1", 3))),
        ("apart [t0, t1]", "'t0', 't1'", "[3]"),
    ),
    "two together on two ranks": (
        Constraints(together=(group("t0", "t1"),), tables=(pin("t0", 0), pin("t1", 3))),
        ("together [t0, t1]", "no rank is allowed"),
    ),
    "together and apart": (
        Constraints(together=(group("t0", "t1"),), apart=(group("t?", level=HOST),)),
        ("together [t0, t1]", "apart [t?]", "both name"),
    ),
    "more apart than ranks": (
        Constraints(apart=(group("t*"),)),
        ("apart [t*]", "4 ranks"),
    ),
    "more apart than hosts": (
        Constraints(apart=(group("t0", "t1", "t2", level=HOST),)),
        ("2 hosts",),
    ),
    "too few places for the tables": (
        Constraints(counts=(CountLimit(most=1),)),
        ("max_tables_per_rank 1", "4 ranks"),
    ),
    "a group above the limit": (
        Constraints(together=(group("t0", "t1", "t2"),), counts=(CountLimit(most=2),)),
        ("3 tables have to share one rank",),
    ),
    "a table in all but one piece": (
        Constraints(
            apart=(group("t0", "t1"),),
            tables=(TableConstraint(pattern="t0", sharding_types=(ShardingType.DATA_PARALLEL,)),),
        ),
        ("'t0'", "apart [t0, t1]", "data_parallel", "allow table_wise"),
    ),
    "unknown table": (
        Constraints(together=(group("t0", "zz"),)),
        ("'zz'", "matches no table; check its spelling"),
    ),
    "a limit on no table": (
        Constraints(counts=(CountLimit(most=1, patterns=()),)),
        ("max_tables_per_rank 1 of []", "alone; name a table"),
    ),
    "a group of one": (Constraints(apart=(group("t0"),)), ("alone",)),
    "a rank that is not there": (
        Constraints(memory=(MemoryLimit(most_bytes=1e9, level=RANK, places=(9,)),)),
        ("device_memory", "[9]", "0..3"),
    ),
}


@pytest.mark.parametrize(("limits", "words"), BAD.values(), ids=BAD.keys())
def test_what_contradicts_is_named(limits: Constraints, words: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInputError) as caught:
        cases.space(cases.synthetic(6), cases.topology(2, 2), limits)
    for word in words:
        assert word in str(caught.value)


@settings(max_examples=5 * settings().max_examples)  # of a millisecond each
@given(data=st.data())
def test_only_what_no_placement_keeps_is_refused(data: st.DataObject) -> None:
    """Tables as whole pieces: the checks refuse nothing that some placement keeps."""
    names = ("a", "b", "c", "d")
    topology = cases.topology(2, 2)
    allowed = np.array([[data.draw(st.booleans()) for _ in range(4)] for _ in names], dtype=bool)
    allowed[:, data.draw(st.integers(0, 3))] = True
    kind = data.draw(st.sampled_from(["apart", "together", "counts"]))
    level = data.draw(st.sampled_from(list(Level)))
    members = tuple(data.draw(st.sets(st.sampled_from(names), min_size=2)))
    limits = {
        "apart": Constraints(apart=(TableGroup(patterns=members, level=level),)),
        "together": Constraints(together=(TableGroup(patterns=members, level=level),)),
        "counts": Constraints(
            counts=(CountLimit(most=data.draw(st.integers(1, 2)), level=level, patterns=members),)
        ),
    }[kind]
    step = 1 if level is RANK else 2

    def keeps(ranks: tuple[int, ...]) -> bool:
        used = [r // step for n, r in zip(names, ranks, strict=True) if n in members]
        if kind == "together":
            return len(set(used)) == 1
        most = 1 if kind == "apart" else limits.counts[0].most
        return max(used.count(p) for p in used) <= most

    choices = [np.flatnonzero(row).tolist() for row in allowed]
    possible = any(keeps(ranks) for ranks in itertools.product(*choices))
    rules = PlacementRules(limits, names, topology)
    assert possible == (not contradictions(rules, names, allowed))


@pytest.mark.parametrize(
    ("limit", "kind", "words"),
    [
        (CountLimit(most=2), ShardingType.ROW_WISE, "max_tables_per_rank 2 leaves room for 8"),
        (
            CountLimit(most=2, counts_shards=True, patterns=("t*",)),
            ShardingType.ROW_WISE,
            "max_shards_per_rank 2 of [t*] leaves room for 8",
        ),
        (CountLimit(most=1, level=HOST), ShardingType.TABLE_ROW_WISE, "max_tables_per_host 1"),
    ],
)
def test_a_limit_that_tables_on_all_ranks_exceed_is_named(
    limit: CountLimit, kind: ShardingType, words: str
) -> None:
    """The message told of bytes, of which none were missing."""
    tables = tuple(cases.table(f"t{i}", 1000, 16, 1.0) for i in range(3))
    rules = Constraints(sharding_types=(kind,), counts=(limit,))
    with pytest.raises((InfeasibleError, InvalidInputError)) as caught:
        plan(
            cases.workload(tables),
            cases.topology(2, 2),
            constraints=rules,
            max_evaluations=20,
            with_baselines=False,
        )
    assert words in str(caught.value).replace("max_tables_per_host: 1", "max_tables_per_host 1")
    assert "0 B over" not in str(caught.value)


@pytest.mark.parametrize(
    ("most_bytes", "level", "words"),
    [
        (0.0, RANK, "constraint device_memory: the bytes must be above 0, got 0.0"),
        (float("nan"), RANK, "constraint device_memory: the bytes must be above 0, got nan"),
        (-1.0, HOST, "constraint host_memory: the bytes must be 0 or more, got -1.0"),
    ],
)
def test_memory_that_no_place_can_have_is_refused_by_its_rule(
    most_bytes: float, level: Level, words: str
) -> None:
    with pytest.raises(InvalidValueError, match=words):
        MemoryLimit(most_bytes=most_bytes, level=level)
    assert MemoryLimit(most_bytes=0.0, level=HOST).most_bytes == 0.0
    assert MemoryLimit(most_bytes=float("inf"), level=level).level is level
