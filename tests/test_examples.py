"""Every example runs as it stands."""

from __future__ import annotations

import contextlib
import importlib.util
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("[0-9][0-9]_*.py"))
LONG = "05_mlperf_dcnv2_in_torchrec"
WITH_TORCH = ("03_use_in_torchrec", LONG)
"""They take seconds to import it. What a rank of the first does is held by the test of training in
``integration/on_ranks``, and that the second plans its model by one below."""


def needs_torch(path: Path) -> bool:
    """Whether an example imports torch, or our adapter to it, at its top or anywhere else."""
    text = path.read_text(encoding="utf-8")
    return any(f"{word} torch" in text for word in ("import", "from")) or "integrations" in text


def test_examples_have_numbers_of_their_own() -> None:
    numbers = [path.name[:2] for path in EXAMPLES]
    assert numbers
    assert len(set(numbers)) == len(numbers)


@pytest.mark.torchrec
def test_the_mlperf_example_plans_its_model() -> None:
    """All but the training, which takes minutes on a busy machine and is a slow test."""
    pytest.importorskip("torchrec")
    from tests.integration.models import torchrec_topology

    (path,) = (path for path in EXAMPLES if path.stem == LONG)
    spec = importlib.util.spec_from_file_location("mlperf_example", path)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    planner = example.EmbeddingShardingPlanner(
        topology=torchrec_topology(2, 2, device="cpu"), batch_size=16, max_evaluations=5, stats=[]
    )
    plan = planner.plan(example.make_model(), [example.EmbeddingBagCollectionSharder()])
    planned = {name for tables in plan.plan.values() for name in tables}
    assert planned == set(example.Batch(seed=0).sparse_features.keys())
    assert len(planned) == 26


def examples() -> list[object]:
    """All; those with torch are slow."""
    return [
        pytest.param(path, id=path.stem, marks=pytest.mark.slow if path.stem in WITH_TORCH else [])
        for path in EXAMPLES
    ]


@pytest.mark.usefixtures("end_of_searches")
@pytest.mark.parametrize("path", examples())
def test_example_runs(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In this process, but for those with torch, which start processes of their own by forking."""
    if not needs_torch(path):
        with contextlib.chdir(tmp_path):
            runpy.run_path(str(path), run_name="__main__")
        assert capsys.readouterr().out.strip()
        assert list(tmp_path.iterdir()) == [], "an example cleans up after itself"
        return
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch")
    done = subprocess.run(
        [sys.executable, str(path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert list(tmp_path.iterdir()) == [], "an example cleans up after itself"
