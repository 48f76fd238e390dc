"""Statistics of all tables of a workload at once, or of some of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from costmodels.distribution.empirical import Empirical
from costmodels.workload import Pooling
from planner.errors import InvalidInputError
from planner.profiling.profiler import profile_files
from planner.profiling.statistics import ProfileOptions
from planner.profiling.stats import Stats, load_stats, with_stats
from tests.planner import cases
from tests.planner.profiling.samples import write_npy, zipf_ids


@pytest.fixture(scope="module")
def stats_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stats")
    ids = zipf_ids(3_000, 1.1, 0.0, 20_000)
    path = write_npy(folder / "day_0_sparse.npy", np.stack([ids, ids // 2], axis=1))
    profile_files([path], folder / "stats.json", ProfileOptions(batch_sizes=(512,)))
    return folder / "stats.json"


@pytest.fixture
def stats(stats_file: Path) -> Stats:
    return load_stats(stats_file)


def test_measured_tables_change_and_others_stay(stats: Stats) -> None:
    """By the table's name, or that of its only feature; both gaps are told."""
    by_name = replace(cases.table("cat_0", 5_000), pooling=Pooling.NONE)
    other = cases.table("other", 5_000)
    workload = cases.workload((by_name, other))
    found, notes = with_stats(workload, stats, "stats.json")
    assert isinstance(found.tables[0].distribution, Empirical)
    assert found.tables[0].pooling_factor == pytest.approx(stats.tables["cat_0"].pooling.mean)
    assert found.tables[1] == other
    shared = stats.tables["cat_0"].next_batch_ratio(distinct=False)
    assert shared is not None
    assert found.tables[0].next_batch_ratio == shared
    assert "no statistics of 1 of 2 tables (other)" in notes[0]
    assert "1 of its 2 tables are not in the workload (cat_1)" in notes[1]
    feature = replace(other.features[0], name="cat_1")
    both = cases.workload((by_name, replace(other, features=(feature,))))
    found, notes = with_stats(both, stats, "stats.json")
    assert all(isinstance(t.distribution, Empirical) for t in found.tables)
    assert notes == ()


def test_tables_that_are_too_small_and_files_of_other_tables_are_refused(stats: Stats) -> None:
    with pytest.raises(InvalidInputError, match=r"table 'cat_0': a table of 10 rows cannot take"):
        with_stats(cases.workload((cases.table("cat_0", 10),)), stats, "stats.json")
    with pytest.raises(InvalidInputError, match="none of the workload's tables x"):
        with_stats(cases.workload((cases.table("x"),)), stats, "stats.json")
