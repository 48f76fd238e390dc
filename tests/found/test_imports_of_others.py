"""Imports that wrote too much, said too little or forgot memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.io import load_workload_file
from planner.io.documents import read_json
from planner.io.importers.base import imported_text
from planner.io.importers.fbgemm import import_fbgemm
from planner.io.importers.hugectr import import_hugectr
from tests.planner.cli.command_line import Run
from tests.planner.cli.conftest import run  # noqa: F401 - a fixture
from tests.planner.io.importers import samples
from tests.planner.io.importers.checks import save

DATA = Path(__file__).parent / "data"


def test_equal_laws_of_fbgemm_are_written_once(tmp_path: Path) -> None:
    config = samples.tbe_config() | {"T": 856, "E": 100_000, "D": 64}
    for key in ("Es", "Ds", "feature_table_map", "embedding_specs"):
        config.pop(key, None)
    config["batch_params"] = {"B": 512}
    config["pooling_params"] = {"L": 20}
    config["indices_params"] = {
        "heavy_hitters": [0.1, 0.05], "zipf_q": 3.0, "zipf_s": 1.1, "index_dtype": None,
        "offset_dtype": None,
    }  # fmt: skip
    imported = import_fbgemm(save(tmp_path, config))
    text = imported_text(imported)
    assert len(text) < 400_000
    path = tmp_path / "w.yaml"
    path.write_text(text)
    assert load_workload_file(path).workload.tables == imported.workload.tables


@pytest.mark.parametrize("text", ["import hugectr\nsolver = hugectr.CreateSolver()\n", ""])
def test_a_script_of_hugectr_is_told_what_to_do(text: str, run: Run, tmp_path: Path) -> None:  # noqa: F811
    path = tmp_path / "dlrm.py"
    path.write_text(text)
    done = run("import", "hugectr", path)
    assert done.code == 2
    assert "model.graph_to_json" in done.err


def test_hash_tables_of_hugectr_take_memory() -> None:
    """Two of 2 M rows on each GPU: 16 bytes a row, filled to 75 %."""
    path = DATA / "hctr_wide_dim1.json"
    imported = import_hugectr(path, read_json(path))
    key_bytes = imported.workload.index_bytes
    assert imported.workload.reserved_bytes == pytest.approx(2 * 2e6 * (key_bytes + 8) / 0.75)
    assert "hash tables" in imported.assumed["memory"]
