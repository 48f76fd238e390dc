"""From a DataFrame to a plan and back to DataFrames."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import planner
from costmodels.distribution.uniform import Uniform
from costmodels.distribution.zipf import Zipf
from costmodels.sharding import ShardingType
from costmodels.workload import DenseArch, Pooling, Workload
from planner import (
    Constraints,
    PlanningResult,
    load_plan,
    load_system,
    load_workload,
    save_plan,
    workload_from_dataframe,
)
from planner.errors import InvalidInputError
from planner.io import load_workload_file
from tests.planner.cases import ROOT


def frame(**columns: object) -> pd.DataFrame:
    """Three tables as people have them, with missing values."""
    return pd.DataFrame(
        {
            "name": ["user", "item", "tag"],
            "rows": [40_000_000, 3e6, 200],
            "dim": np.array([128, 64, 16], dtype=np.int32),
            "pooling_factor": [1.0, np.nan, 7.5],
            "zipf_exponent": [1.05, None, None],
            **columns,
        }
    )


@pytest.fixture(scope="module")
def result() -> PlanningResult:
    workload = workload_from_dataframe(frame(), batch_size_per_rank=512)
    return planner.plan(workload, load_system("h100_sxm", gpus=4), max_evaluations=40)


@pytest.mark.parametrize(
    "given",
    [
        frame()["rows"],
        {"name": ["a"], "rows": [1]},
        [["a", 100, 8]],
        "tables.csv",
        Path("tables.csv"),
        None,
        frame().to_numpy(),
    ],
    ids=lambda given: type(given).__name__,
)
def test_what_is_no_frame_is_refused(given: object) -> None:
    with pytest.raises(InvalidInputError, match=r"pandas\.DataFrame\(\.\.\.\) makes one"):
        workload_from_dataframe(given, batch_size_per_rank=512)  # type: ignore[arg-type]


def test_fields_of_a_workload_that_it_cannot_have_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="reserved_bytes"):
        workload_from_dataframe(frame(), batch_size_per_rank=512, reserved_bytes=-1.0)


def test_tables_beside_the_rows_are_refused() -> None:
    """They took the place of the rows, in silence."""
    with pytest.raises(InvalidInputError, match="takes the tables from the rows"):
        workload_from_dataframe(frame(), batch_size_per_rank=4, tables=())  # type: ignore[call-arg]


def test_columns_of_one_meaning_are_refused() -> None:
    """Either would be taken without a word."""
    with pytest.raises(InvalidInputError, match=r"is there twice \('rows', 'num_embeddings'\)"):
        workload_from_dataframe(frame(num_embeddings=[1, 2, 3]), batch_size_per_rank=512)
    twice = pd.concat([frame(), frame()[["rows"]]], axis=1)
    with pytest.raises(InvalidInputError, match=r"is there twice \('rows', 'rows'\)"):
        workload_from_dataframe(twice, batch_size_per_rank=512)


def test_cells_that_would_be_passed_over_are_refused(tmp_path: Path) -> None:
    """One of two cells about one thing won without a word, and constraints went nowhere."""
    rules = frame(constraints=[{"kernels": ["fused"]}, None, None])
    with pytest.raises(InvalidInputError, match=r"'constraints'.*constraints=planner.Constraints"):
        workload_from_dataframe(rules, batch_size_per_rank=512)
    law = frame(distribution=[{"kind": "uniform"}, None, None])
    with pytest.raises(InvalidInputError, match="DataFrame: 'zipf_exponent' and 'distribution'"):
        workload_from_dataframe(law, batch_size_per_rank=512)
    with pytest.raises(InvalidInputError, match="'pooling' and 'pooling_factor' both say"):
        workload_from_dataframe(frame(pooling=[3, 3, 3]), batch_size_per_rank=512)
    path = tmp_path / "tables.csv"
    path.write_text("name,rows,dim,pooling,pooling_factor\na,9,8,mean,2\nb,9,8,3,2\n")
    with pytest.raises(InvalidInputError, match=r"tables.csv:3: 'pooling' and 'pooling_factor'"):
        load_workload(path)


def test_classes_and_numbers_of_numpy() -> None:
    with pytest.raises(InvalidInputError, match="dtype: value"):
        workload_from_dataframe(frame(dtype=[np.float16] * 3), batch_size_per_rank=512)
    made = workload_from_dataframe(frame(), batch_size_per_rank=np.int64(512))
    assert made.batch_size_per_rank == 512


def test_rows_are_tables_and_missing_values_are_defaults() -> None:
    dense = DenseArch(num_dense_features=13, bottom_mlp=(64,), top_mlp=(1,))
    made = workload_from_dataframe(
        frame(features=[["a", "b"], None, None], pooling=["sum", pd.NA, "mean"]),
        batch_size_per_rank=512,
        name="mine",
        dense=dense,
        reserved_bytes=1e9,
    )
    assert (made.name, made.batch_size_per_rank, made.dense) == ("mine", 512, dense)
    assert made.reserved_bytes == 1e9
    user, item, tag = made.tables
    assert [t.num_embeddings for t in made.tables] == [40_000_000, 3_000_000, 200]
    assert [t.embedding_dim for t in made.tables] == [128, 64, 16]
    assert [f.name for f in user.features] == ["a", "b"]
    assert isinstance(user.distribution, Zipf)
    assert isinstance(item.distribution, Uniform)
    assert (item.pooling_factor, tag.pooling_factor) == (1.0, 7.5)
    assert tag.pooling is Pooling.MEAN
    assert (
        workload_from_dataframe(frame().to_dict("records"), batch_size_per_rank=9).tables[1] == item
    )


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"colour": ["red"] * 3}, "DataFrame: column 'colour': unknown"),
        ({"dim": [128, 0, 16]}, r"tables\[1\]\.embedding_dim: value 0"),
        ({"rows": [1.5, 2, 3]}, r"tables\[0\]\.num_embeddings: value 1\.5"),
        ({"name": ["a", "a", "b"]}, "2 tables have this name"),
        ({"pooling_factor": [-1.0, 1, 1]}, r"tables\[0\]\.pooling_factor"),
    ],
)
def test_bad_cells_are_named(columns: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words) as caught:
        workload_from_dataframe(frame(**columns), batch_size_per_rank=512)
    assert str(caught.value).startswith("DataFrame")


def test_every_other_field_of_a_workload_is_a_keyword() -> None:
    plain = workload_from_dataframe(frame(), batch_size_per_rank=512)
    every = {f.name: getattr(plain, f.name) for f in fields(Workload) if f.name != "tables"}
    assert workload_from_dataframe(frame(), **every) == plain
    with pytest.raises(InvalidInputError, match="optimiser is no field of a workload"):
        workload_from_dataframe(frame(), batch_size_per_rank=512, optimiser="adam")


def test_no_rows_and_no_batch_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="no rows"):
        workload_from_dataframe(frame().iloc[:0], batch_size_per_rank=512)
    with pytest.raises(InvalidInputError, match="batch_size_per_rank"):
        workload_from_dataframe(frame(), batch_size_per_rank=0)


def test_a_plan_as_dataframes(result: PlanningResult) -> None:
    tables, shards, ranks = (result.to_dataframe(per) for per in ("table", "shard", "rank"))
    assert list(tables["table"]) == ["user", "item", "tag"]
    assert tables["num_shards"].sum() == len(shards)
    for placement in result.plan.placements:
        own = shards[shards["table"] == placement.table]
        assert list(own["rank"]) == list(placement.ranks)
        if placement.sharding_type != "data_parallel":
            size = result.problem.workload.table(placement.table).weight_bytes
            assert own["weight_bytes"].sum() == size
    assert list(ranks["rank"]) == [0, 1, 2, 3]
    assert ranks["num_shards"].sum() == len(shards)
    used = [r.used_bytes for r in result.best.memory.ranks]
    assert list(ranks["used_bytes"]) == used
    for other in ("colour", ["table"]):
        with pytest.raises(InvalidInputError, match="table, shard, rank"):
            result.to_dataframe(other)  # type: ignore[arg-type]


def test_shards_without_rows_are_no_shards_in_any_frame() -> None:
    """Three rows on eight ranks: the plan lists eight shards, of which three hold a row."""
    rows = [{"name": "few", "rows": 3, "dim": 16}, {"name": "many", "rows": 4000, "dim": 16}]
    found = planner.plan(
        workload_from_dataframe(rows, batch_size_per_rank=64),
        load_system("h100_sxm", gpus=8),
        constraints=Constraints(sharding_types=(ShardingType.ROW_WISE,)),
        max_evaluations=20,
    )
    tables, shards, ranks = (found.to_dataframe(per) for per in ("table", "shard", "rank"))
    assert list(tables["num_shards"]) == [3, 8]
    assert list(tables["ranks"]) == [(0, 1, 2), tuple(range(8))]
    assert list(shards["table"]) == ["few"] * 3 + ["many"] * 8
    assert list(ranks["num_shards"]) == [2] * 3 + [1] * 5


def test_notebooks_write_dear_steps_and_single_things_as_people_do(
    result: PlanningResult,
) -> None:
    topology = replace(result.problem.topology, price_per_device_usd_per_hour=1e6)
    dear = replace(result, problem=replace(result.problem, topology=topology))
    assert dear.usd_per_billion_samples is not None
    assert f"{dear.usd_per_billion_samples:,.0f} USD per billion" in dear._repr_html_()
    assert "DOES NOT FIT" not in dear._repr_html_()
    ranks = tuple(replace(r, capacity_bytes=1.0) for r in result.best.memory.ranks)
    best = replace(result.best, memory=replace(result.best.memory, ranks=ranks))
    assert "DOES NOT FIT" in replace(result, best=best)._repr_html_()


def test_notebooks_show_facts_and_tables_with_names_escaped(result: PlanningResult) -> None:
    names = ["<b>&", *(f"t{i}" for i in range(40))]
    rows = [{"name": name, "rows": 10, "dim": 4} for name in names]
    workload = workload_from_dataframe(rows, batch_size_per_rank=8)
    found = planner.plan(workload, load_system("h100_sxm", gpus=1), max_evaluations=20)
    shown = found._repr_html_()
    assert "&lt;b&gt;&amp;" in shown
    assert "<b>&" not in shown
    assert "41 tables, " in shown
    assert "41 rows" in shown
    assert len(re.findall("<tr", shown)) == 32
    assert "4 x h100_sxm" in result._repr_html_()
    assert "samples/s" in result._repr_html_()


def test_plans_are_saved_and_loaded(result: PlanningResult, tmp_path: Path) -> None:
    save_plan(tmp_path / "plan.json", result)
    problem = result.problem
    saved = load_plan(tmp_path / "plan.json", problem.workload, problem.topology)
    assert saved.plan == result.plan


def test_public_names_exist_and_pandas_is_loaded_late() -> None:
    for name in planner.__all__:
        assert getattr(planner, name) is not None, name
    code = (
        "import sys, planner; planner.load_workload('small_demo'); planner.Workload; planner.plan; "
        "assert 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_spreadsheet_numbers_in_a_csv_list(tmp_path: Path) -> None:
    path = tmp_path / "tables.csv"
    path.write_text('name,rows,dim\na,3e6,64\nb,"40,000,000",128.0\n')
    first, second = load_workload_file(path).workload.tables
    assert (first.num_embeddings, second.num_embeddings, second.embedding_dim) == (
        3_000_000,
        40_000_000,
        128,
    )
    path.write_text('name,rows,dim\na,"40,00",64\nb,2.5,64\n')
    with pytest.raises(InvalidInputError, match="'40,00'") as caught:
        load_workload(path)
    assert "2.5" in str(caught.value)
