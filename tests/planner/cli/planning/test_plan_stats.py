"""``plan --stats``: measured statistics of all tables at once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from planner.profiling.profiler import profile_files
from planner.profiling.statistics import ProfileOptions
from tests.planner.cli.command_line import Run
from tests.planner.profiling.samples import write_npy, zipf_ids


@pytest.fixture
def stats_file(tmp_path: Path) -> Path:
    """Two columns of indices, profiled."""
    ids = zipf_ids(3_000, 1.1, 0.0, 20_000)
    path = write_npy(tmp_path / "day_0_sparse.npy", np.stack([ids, ids // 2], axis=1))
    profile_files([path], tmp_path / "stats.json", ProfileOptions(batch_sizes=(512,)))
    return tmp_path / "stats.json"


def test_the_flag_changes_the_plan_and_tells_what_it_lacks(
    run: Run, tmp_path: Path, system_file: Path, stats_file: Path
) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(
        "name: w\ntraining: {batch_size_per_rank: 512}\ntables:\n"
        "  - {name: cat_0, num_embeddings: 5000, embedding_dim: 16, pooling_factor: 90}\n"
        "  - {name: other, num_embeddings: 5000, embedding_dim: 16}\n"
    )
    asked = ("plan", path, "--system", system_file, "--json", "--evaluations", 8)
    bare, measured = run(*asked), run(*asked, "--stats", stats_file)
    assert (bare.code, measured.code) == (0, 0), measured.err
    times = [json.loads(d.out)["predicted"]["iteration_time_s"] for d in (bare, measured)]
    assert times[1] < times[0]  # one index per sample was measured, and not 90
    told = " ".join(json.loads(measured.out)["warnings"])
    assert "no statistics of 1 of 2 tables (other)" in told
    assert "every row is taken as equally likely, where there are no statistics" in told
    assert run(*asked, "--stats", tmp_path / "none.json").code == 2
