"""``import module``: the user's own model becomes a workload file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchrec")

from planner import io
from tests.planner.cli.command_line import Run
from tests.planner.cli.conftest import run  # noqa: F401 - a fixture

pytestmark = pytest.mark.torchrec

CODE = """\
import torch
from torch import nn
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.sparse = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(
                    name="user", num_embeddings=10**9, embedding_dim=64, feature_names=["u", "v"]
                ),
                EmbeddingBagConfig(
                    name="item", num_embeddings=5000, embedding_dim=32, feature_names=["i"]
                ),
            ]
        )
        self.over = nn.Linear(160, 1)


def build():
    return Model()


def build_with_limits():
    limits = {
        "user": ParameterConstraints(sharding_types=["row_wise"], pooling_factors=[3.0, 0.5])
    }
    return Model(), limits


def plain():
    return nn.Linear(2, 2)


def number():
    return 7


def fails():
    raise RuntimeError("no data here")


def leaves():
    raise SystemExit(3)


LIST = []
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of the user's, in the working folder."""
    (tmp_path / "my_model_code.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "my_model_code"
    sys.modules.pop("my_model_code", None)


def test_a_model_becomes_a_workload_that_plans(run: Run, package: str, tmp_path: Path) -> None:  # noqa: F811
    """256 GB of tables on the meta device: nothing is allocated."""
    output = tmp_path / "w.yaml"
    done = run("import", "module", f"{package}:build", "-o", output, "--batch-size", 64)
    assert done.code == 0, done.err
    assert "tables have no pooling factor" in done.err
    workload = io.load_workload_file(output).workload
    assert (workload.name, workload.batch_size_per_rank) == ("build", 64)
    shapes = {t.name: (t.num_embeddings, t.embedding_dim, t.module) for t in workload.tables}
    assert shapes == {"user": (10**9, 64, "sparse"), "item": (5000, 32, "sparse")}
    assert workload.reserved_bytes > 0
    folder = tmp_path / "run"
    system = ("--system", "h100_sxm", "--gpus", 8, "--time-limit", "2s")
    planned = run("plan", output, *system, "-o", folder, "-q", "--evaluations", 5)
    assert planned.code in (0, 4), planned.err


def test_constraints_of_the_factory_are_kept(run: Run, package: str, tmp_path: Path) -> None:  # noqa: F811
    """Also where TorchRec's rules limit a table."""
    output = tmp_path / "w.yaml"
    done = run("import", "module", f"{package}:build_with_limits", "-o", output)
    assert done.code == 0, done.err
    file = io.load_workload_file(output)
    (limit,) = file.constraints.for_table("user")[-1:]
    assert [str(t) for t in limit.sharding_types] == ["row_wise"]
    assert [f.pooling_factor for f in file.workload.table("user").features] == [3.0, 0.5]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("my_model_code", "is not PKG:FUNC"),
        ("my_model_code:", "is not PKG:FUNC"),
        ("no_such_package:build", "cannot be imported: ModuleNotFoundError"),
        ("my_model_code:bild", "cannot be imported: AttributeError"),
        ("my_model_code:LIST", "is no function but list"),
        ("my_model_code:plain", "has no table"),
        ("my_model_code:number", "returned int"),
        ("my_model_code:fails", "failed: RuntimeError: no data here"),
        ("my_model_code:leaves", "failed: SystemExit"),
        ("..:x", "cannot be imported"),
    ],
)
def test_factories_that_give_no_model(
    run: Run,  # noqa: F811
    package: Any,
    tmp_path: Path,
    name: str,
    words: str,
) -> None:
    assert package == "my_model_code"
    output = tmp_path / "w.yaml"
    done = run("import", "module", name, "-o", output)
    assert (done.code, output.exists()) == (2, False)
    assert words in done.err
    assert "Traceback" not in done.err
