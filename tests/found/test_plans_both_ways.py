"""Plans that leave for other tools and come back are the same plans."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from costmodels.sharding import (
    ComputeKernel,
    Plan,
    ShardingOption,
    ShardingType,
    TablePlacement,
    place,
)
from costmodels.workload import Workload
from planner.errors import InvalidInputError
from planner.io import load_system, load_workload
from planner.io.importers.hugectr import hugectr_plan_text, import_hugectr_plan
from planner.io.plan.plan_file import load_plan, ranks_csv, shards_csv

WORKLOAD = load_workload("small_demo")
TOPOLOGY = load_system("h100_sxm", gpus=16)
KINDS = (
    ShardingType.TABLE_WISE,
    ShardingType.ROW_WISE,
    ShardingType.TABLE_ROW_WISE,
    ShardingType.DATA_PARALLEL,
)


def placed(workload: Workload, number: int, kind: ShardingType) -> TablePlacement:
    table = workload.tables[number]
    kernel = ComputeKernel.DENSE if kind is ShardingType.DATA_PARALLEL else ComputeKernel.FUSED
    widths = (table.embedding_dim // 2,) * 2 if kind is ShardingType.COLUMN_WISE else None
    option = ShardingOption(
        table=table.name,
        sharding_type=kind,
        kernel=kernel,
        column_widths=widths or (table.embedding_dim,),
    )
    where = {
        ShardingType.TABLE_WISE: (number % 16,),
        ShardingType.COLUMN_WISE: (3, 9),
        ShardingType.TABLE_ROW_WISE: (number % 2,),
    }.get(kind, ())
    return place(option, table.num_embeddings, where, world_size=16, local_world_size=8)


def plan_of(kinds: tuple[ShardingType, ...]) -> Plan:
    tables = range(len(WORKLOAD.tables))
    return Plan(placements=tuple(placed(WORKLOAD, i, kinds[i % len(kinds)]) for i in tables))


def test_hugectr_keeps_rows_on_one_host(tmp_path: Path) -> None:
    plan, path = plan_of(KINDS), tmp_path / "hugectr.json"
    path.write_text(hugectr_plan_text(plan, WORKLOAD, 16))
    back = import_hugectr_plan(path, WORKLOAD, json.loads(path.read_text()), local_world_size=8)
    assert back.plan is not None
    assert {p.table: p.sharding_type for p in back.plan.placements} == {
        p.table: p.sharding_type for p in plan.placements
    }


def test_our_own_csv_is_read_back(tmp_path: Path) -> None:
    plan, path = plan_of((*KINDS, ShardingType.COLUMN_WISE)), tmp_path / "plan.csv"
    path.write_text(shards_csv(plan))
    assert load_plan(path, WORKLOAD, TOPOLOGY).plan == plan


def test_table_and_rank_both_ways(tmp_path: Path) -> None:
    plan = plan_of((ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE))
    path = tmp_path / "ranks.csv"
    path.write_text(ranks_csv(plan))
    assert path.read_text().splitlines()[0].strip() == "table,rank"
    assert load_plan(path, WORKLOAD, TOPOLOGY).plan == plan
    with pytest.raises(InvalidInputError, match="more than columns table and rank can say"):
        ranks_csv(plan_of(KINDS))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("table,gpu\na,1\n", "columns table, gpu: a plan has table and rank"),
        ("table,rank\na,x\n", ":2: rank: value 'x'"),
        ("table,rank\na\n", "more or fewer cells"),
        ("table,rank\nnobody,1\n", "nobody"),
    ],
)
def test_bad_plans_are_named(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text(text)
    with pytest.raises(InvalidInputError) as caught:
        load_plan(path, WORKLOAD, TOPOLOGY)
    assert words in str(caught.value)


def test_a_cache_in_a_later_row_alone_is_refused_by_its_line(tmp_path: Path) -> None:
    """Reading such a file once ended with a KeyError."""
    path = tmp_path / "plan.csv"
    path.write_text(
        "table,sharding_type,compute_kernel,cache_load_factor,rank,row_offset,num_rows,"
        "col_offset,num_cols\n"
        "a,row_wise,fused_uvm_caching,,0,0,50,0,8\n"
        "a,row_wise,fused_uvm_caching,0.3,1,50,50,0,8\n"
    )
    with pytest.raises(InvalidInputError, match=r"plan\.csv:3: table 'a' has another type, kernel"):
        load_plan(path)
