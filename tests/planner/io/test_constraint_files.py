"""One grammar for constraints, in a workload or in a file of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from costmodels.sharding import ComputeKernel, ShardingType
from costmodels.units import GIB
from planner import io
from planner.errors import InvalidInputError
from planner.problem import CountLimit, Level, MemoryLimit, TableGroup
from tests.planner.cli.command_line import SYSTEM_TEXT, WORKLOAD_TEXT

RULES = """\
constraints:
  - {tables: "tag_*", forbid_sharding_types: [row_wise], forbid_kernels: [fused_uvm]}
  - {tables: [user, item], ranks: [0, 1], min_column_width: 16}
  - {together: [user, item]}
  - {apart: ["tag_*"], on: host}
  - {max_tables_per_rank: 4}
  - {max_shards_per_host: 9, tables: "tag_*"}
  - {device_memory: 12 GiB, ranks: [1]}
  - {host_memory: 100 GiB}
"""
NAMES = ("user", "item", "place", "tag_0", "tag_1", "tag_2")


def write(tmp_path: Path, text: str, name: str = "rules.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_a_file_and_a_workload_say_the_same(tmp_path: Path) -> None:
    alone = io.load_constraints(write(tmp_path, RULES), NAMES)
    inside = io.load_workload_file(write(tmp_path, WORKLOAD_TEXT + RULES, "w.yaml")).constraints
    assert alone == inside
    assert [t.pattern for t in alone.tables] == ["tag_*", "user", "item"]
    assert ShardingType.ROW_WISE not in alone.tables[0].sharding_types
    assert len(alone.tables[0].sharding_types) == len(ShardingType) - 1
    assert ComputeKernel.FUSED_UVM not in alone.tables[0].kernels
    assert alone.tables[1].ranks == (0, 1)
    assert alone.together == (TableGroup(patterns=("user", "item")),)
    assert alone.apart == (TableGroup(patterns=("tag_*",), level=Level.HOST),)
    assert alone.counts == (
        CountLimit(most=4),
        CountLimit(most=9, level=Level.HOST, counts_shards=True, patterns=("tag_*",)),
    )
    assert alone.memory == (
        MemoryLimit(most_bytes=12 * GIB, level=Level.RANK, places=(1,)),
        MemoryLimit(most_bytes=100 * GIB, level=Level.HOST),
    )


def test_memory_rules_limit_the_topology(tmp_path: Path) -> None:
    limits = io.load_constraints(write(tmp_path, RULES), NAMES)
    system = io.load_system(write(tmp_path, SYSTEM_TEXT, "box.yaml"), gpus=8)
    limited = limits.limited(system)
    assert limited.hbm_capacities().tolist() == [16 * GIB, 12 * GIB, *[16 * GIB] * 6]
    assert limited.ddr_capacities().tolist() == [100 * GIB] * 2


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (
            "{together: [user, item], apart: [user, item]}",
            ("apart does not go with together", "one entry for each"),
        ),
        ("{together: [user, item], ranks: [1]}", ("ranks does not go with together", "on")),
        ("{tables: user, on: host, ranks: [1]}", ("on does not go with tables", "remove it")),
        ("{tables: user}", ("says no rule", "together")),
        ("{ranks: [1]}", ("says no rule",)),
        (
            "{tables: user, forbid_sharding_types: [row_wise], sharding_types: [row_wise]}",
            ("none",),
        ),
        ("{apart: [user, usr]}", ("'usr'", "matches no table", "constraints[0].apart")),
        ("{max_tables_per_rank: 0}", ("at least 1",)),
        ("{max_table_per_rank: 1}", ("unknown key", "did you mean 'max_tables_per_rank'")),
        ("{device_memory: 12}", ("device_memory", "12")),
        ("{together: [user, item], on: gpu}", ("must be one of rank, host",)),
    ],
)
def test_a_bad_entry_says_rule_value_and_remedy(
    tmp_path: Path, entry: str, words: tuple[str, ...]
) -> None:
    path = write(tmp_path, f"constraints:\n  - {entry}\n")
    with pytest.raises(InvalidInputError) as caught:
        io.load_constraints(path, NAMES)
    for word in (*words, f"{path}:2: constraints[0]"):
        assert word in str(caught.value)


def test_a_system_with_ranks_and_hosts_that_differ(tmp_path: Path) -> None:
    text = SYSTEM_TEXT + (
        "different_ranks:\n"
        "  - {ranks: [0, 1], hbm_capacity: 8 GiB (datasheet), speed: 0.5 (measured)}\n"
        "different_hosts:\n"
        "  - {hosts: [1], ddr_capacity: 64 GiB}\n"
    )
    path = write(tmp_path, text, "box.yaml")
    system = io.load_system(path, gpus=8)
    assert system.hbm_capacities().tolist() == [8 * GIB] * 2 + [16 * GIB] * 6
    assert system.speeds().tolist() == [0.5] * 2 + [1.0] * 6
    assert system.ddr_capacities().tolist() == [256 * GIB, 64 * GIB]
    with pytest.raises(InvalidInputError, match=r"different_hosts.hosts: value 1: must be 0..0"):
        io.load_system(path, gpus=4)


def test_constraints_of_a_workload_are_returned_or_refused_by_name(tmp_path: Path) -> None:
    """Never lost: the loader of workloads alone says where to go."""
    path = write(tmp_path, WORKLOAD_TEXT + RULES, "w.yaml")
    with pytest.raises(InvalidInputError, match=r"key 'constraints'.*load_problem") as caught:
        io.load_workload(path)
    assert str(path) in str(caught.value)
    problem = io.load_problem(path, write(tmp_path, SYSTEM_TEXT, "s.yaml"), gpus=4)
    assert problem.constraints == io.load_workload_file(path).constraints
    assert problem.topology.world_size == 4
    assert io.load_workload(write(tmp_path, WORKLOAD_TEXT, "bare.yaml")).tables


def test_every_key_of_the_schema_is_described() -> None:
    """Editors show these sentences."""
    schema = io.constraints_json_schema()
    for part in (
        schema["$defs"]["ConstraintSchema"],
        io.workload_json_schema()["$defs"]["TableConstraintSchema"],
    ):
        bare = [key for key, value in part["properties"].items() if "description" not in value]
        assert not bare
