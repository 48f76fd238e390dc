"""Groups of ranks keep rules that name ranks and hosts: with every copy counted, or not at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from costmodels.sharding import ShardingType
from costmodels.topology import Topology, group_topology, members
from costmodels.units import GIB
from planner import api, io
from planner.cli.run import run
from planner.errors import InfeasibleError
from planner.problem import Constraints, CountLimit, Level, MemoryLimit, TableConstraint
from planner.rules.placement_rules import group_constraints
from planner.settings import SearchSettings
from tests.planner.study.spaces import space_of
from tests.strategies import make_topology

DATA = Path(__file__).parent / "data"


def job(hosts: int, local: int) -> Topology:
    return make_topology(num_hosts=hosts, local_world_size=local)


def in_groups(
    rules: Constraints, whole: Topology, size: int, *, between_hosts: bool = False
) -> Constraints:
    group = group_topology(whole, size, between_hosts=between_hosts)
    assert group is not None
    return group_constraints(rules, group, between_hosts=between_hosts)


def test_no_rank_of_any_group_exceeds_its_limit() -> None:
    """Groups of 2 put 4 GiB of tables on ranks 0 and 1, of which rank 1 may hold 3 GiB."""
    file = io.load_workload_file(DATA / "groups_rank_limit.yaml")
    system = io.load_system(str(DATA / "slow.yaml"), gpus=4, gpus_per_host=4)
    problem = io.load_problem(
        DATA / "groups_rank_limit.yaml", str(DATA / "slow.yaml"), gpus=4, gpus_per_host=4
    )
    assert problem.constraints == file.constraints
    space = space_of(problem, more={"copies": (2,), "column_width": (128,)})
    for setup in space.setups:
        found = api.solve(space.restricted(setup), search=SearchSettings(max_evaluations=200))
        copies = members(system, 2)
        held = {
            int(rank): used.used_bytes
            for group in copies
            for rank, used in zip(group, found.best.memory.ranks, strict=True)
        }
        assert held[1] <= 3 * GIB
        assert max(held.values()) > 4 * GIB  # the tables are somewhere


def test_a_pin_to_one_rank_leaves_no_groups(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Table a is on rank 1 and nowhere else, and the command says why there are no groups."""
    arguments = ["study", DATA / "groups_rank_table.yaml", "--system", DATA / "slow.yaml"]
    arguments += ["--gpus", 4, "--gpus-per-host", 2, "--vary", "copies=all"]
    arguments += ["--vary", "sync_interval=1000", "--vary", "training.pipeline=none"]
    arguments += ["--vary", "column_width=128", "-o", tmp_path / "o"]
    assert run([str(a) for a in arguments]) == 0
    capsys.readouterr()
    words = (tmp_path / "o" / "setups.csv").read_text(encoding="utf-8")
    assert "no groups of 2 ranks: constraint a: ranks 1" in words
    plan = io.load_plan(tmp_path / "o" / "plan.json")
    assert plan.world_size == 4
    assert plan.plan.placement("a").ranks == (1,)


@pytest.mark.parametrize(
    ("between", "allowed", "places"),
    [(False, (0, 1), (0,)), (False, (0, 1, 5, 6, 7), (0, 3)), (True, (1, 5), (1,))],
)
def test_a_table_may_be_where_all_of_its_copies_may_be(
    between: bool, allowed: tuple[int, ...], places: tuple[int, ...]
) -> None:
    """8 ranks in 2 groups: 0, 2, 4, 6 and 1, 3, 5, 7, or 0..3 and 4..7."""
    rules = Constraints(tables=(TableConstraint(pattern="a", ranks=allowed),))
    found = in_groups(rules, job(2, 4), 4, between_hosts=between)
    assert found.tables[0].ranks == places


def test_pins_to_hosts() -> None:
    """Interleaved groups have ranks on every host; blocks of ranks have one host each."""
    rules = Constraints(tables=(TableConstraint(pattern="a", hosts=(1,)),))
    assert in_groups(rules, job(2, 4), 4).tables[0].hosts == (1,)
    with pytest.raises(InfeasibleError, match="each of 2 groups of 4 ranks has a copy"):
        in_groups(rules, job(2, 4), 4, between_hosts=True)
    both = Constraints(tables=(TableConstraint(pattern="a", hosts=(0, 1)),))
    assert in_groups(both, job(2, 4), 4, between_hosts=True).tables[0].hosts == (0,)


def test_memory_of_a_host_is_shared_by_its_groups() -> None:
    """A host with two groups gives each the half of what it may hold; named hosts keep places."""
    rules = Constraints(
        memory=(
            MemoryLimit(most_bytes=64 * GIB, level=Level.HOST),
            MemoryLimit(most_bytes=8 * GIB, level=Level.HOST, places=(1,)),
            MemoryLimit(most_bytes=3 * GIB, level=Level.RANK, places=(5,)),
        )
    )
    halves = in_groups(rules, job(2, 4), 4).memory
    assert [(m.most_bytes / GIB, m.places) for m in halves] == [(32, ()), (4, (1,)), (3, (2,))]
    blocks = in_groups(rules, job(2, 4), 4, between_hosts=True).memory
    assert [(m.most_bytes / GIB, m.places) for m in blocks] == [(64, ()), (8, (0,)), (3, (1,))]


def test_a_limit_on_a_rank_that_there_is_not_stays_one() -> None:
    """It must not become a limit on all; the search then refuses it by name."""
    rules = Constraints(memory=(MemoryLimit(most_bytes=GIB, level=Level.RANK, places=(99,)),))
    assert in_groups(rules, job(2, 4), 4).memory == rules.memory


def test_shards_of_all_groups_on_a_host_count() -> None:
    """Tables are the same ones in every group; their shards are not."""
    shards = CountLimit(most=7, level=Level.HOST, counts_shards=True)
    tables, by_rank = replace(shards, counts_shards=False), replace(shards, level=Level.RANK)
    rules = Constraints(counts=(shards, tables, by_rank))
    assert [c.most for c in in_groups(rules, job(2, 4), 4).counts] == [3, 7, 7]
    few = Constraints(counts=(replace(shards, most=1),))
    with pytest.raises(InfeasibleError, match="2 groups share every host"):
        in_groups(few, job(2, 4), 4)


def test_a_plan_of_a_group_is_held_to_the_rules_of_the_job(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """`estimate` compares a group's plan with what ranks of the job may hold, copies included."""
    workload = io.load_workload_file(DATA / "groups_rank_limit.yaml").workload
    whole = io.load_system(str(DATA / "slow.yaml"), gpus=4, gpus_per_host=4)
    group = group_topology(whole, 2)
    assert group is not None
    whole_tables = tuple(
        TableConstraint(pattern=t, ranks=(0,), sharding_types=(ShardingType.TABLE_WISE,))
        for t in ("a", "b")
    )
    result = api.plan(
        workload,
        group,
        constraints=Constraints(tables=whole_tables),
        max_evaluations=20,
        with_baselines=False,
    )
    path = tmp_path / "plan.json"
    io.save_plan(path, result)
    asked = ["estimate", DATA / "groups_rank_limit.yaml", path, "--system", DATA / "slow.yaml"]
    assert run([str(a) for a in asked]) == 1
    assert "over device_memory 3 GiB on ranks 0" in " ".join(capsys.readouterr().out.split())
