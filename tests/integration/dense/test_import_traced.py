"""``import torchrec PKG:FUNC --inputs``: the traced dense part in a workload file."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torchrec")

from planner import io
from tests.planner.cli.command_line import Run
from tests.planner.cli.conftest import run  # noqa: F401 - a fixture

pytestmark = pytest.mark.torchrec

CODE = """\
import torch
from tests.integration.dense import dense_modules as m

def dlrm():
    return m.dlrm()

def dlrm_inputs(batch):
    return torch.zeros(batch, 13), m.indices(batch)

def gpt():
    return m.Transformer(6, 64, 2, 256, 32, 500, causal=True)

def gpt_inputs(batch):
    return m.tokens(batch, 32, 2)

def wrong_inputs(batch):
    return torch.zeros(batch, 7)

def fails(batch):
    raise RuntimeError("no data here")
"""
NAME = "my_traced_code"
SYSTEM = ("--system", "h100_sxm", "--gpus", "8")


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of the user's, in the working folder."""
    (tmp_path / f"{NAME}.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield NAME
    sys.modules.pop(NAME, None)


def test_a_model_without_tables_is_priced(run: Run, code: str, tmp_path: Path) -> None:  # noqa: F811
    output = tmp_path / "gpt.yaml"
    asked = ("import", "module", f"{code}:gpt", "--inputs", f"{code}:gpt_inputs", "--batch", 4)
    done = run(*asked, "-o", output)
    assert done.code == 0, done.err
    assert "traced on fake tensors" in done.err
    assert "adagrad; a model does not say how its dense part is updated" in done.err
    text = output.read_text()
    assert "num_repeats: 6" in text
    assert "dense_modules" not in text
    workload = io.load_workload(output)
    assert (workload.tables, workload.batch_size_per_rank) == ((), 4)
    estimated = run("estimate", output, *SYSTEM, "--json")
    assert estimated.code == 0, estimated.err
    half = run(*asked, "--autocast", "bf16", "-o", output)
    assert half.code == 0, half.err
    assert "dtype: bf16" in output.read_text()


@pytest.mark.parametrize("pipeline", ["sparse_dist", "hugectr"])
def test_a_traced_dlrm_costs_what_its_keys_cost(
    run: Run,  # noqa: F811
    code: str,
    tmp_path: Path,
    pipeline: str,
) -> None:
    """The whole estimate of one plan, by the keys that are read off the model and by its trace.

    A trace lists PyTorch's own kernels of the interaction, which a key names for HugeCTR.
    """
    traced, keyed, folder = tmp_path / "traced.yaml", tmp_path / "keyed.yaml", tmp_path / "run"
    batch = ("--batch-size", "512")
    for output, more in ((keyed, ()), (traced, ("--inputs", f"{code}:dlrm_inputs"))):
        done = run("import", "module", f"{code}:dlrm", *more, *batch, "-o", output)
        assert done.code == 0, done.err
        assert "training.dense_optimizer: adagrad" in done.err
        text = output.read_text()
        assert "pipeline: sparse_dist" in text
        text = text.replace("pipeline: sparse_dist", f"pipeline: {pipeline}")
        output.write_text(text.replace("  bottom_mlp", "  interaction_kernel: eager\n  bottom_mlp"))
    assert "bottom_mlp" in keyed.read_text()
    assert "operators:" in traced.read_text()
    planned = run("plan", keyed, *SYSTEM, "-o", folder, "-q", "--evaluations", 5)
    assert planned.code == 0, planned.err
    times = []
    for source in (keyed, traced):
        done = run("estimate", source, folder / "plan.json", "--json")
        assert done.code == 0, done.err
        times.append(json.loads(done.out)["predicted"]["iteration_time_s"])
    assert times[1] == pytest.approx(times[0], rel=1e-9)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("gpt", "--inputs", f"{NAME}:nothing"), "cannot be imported: AttributeError"),
        (("gpt", "--inputs", f"{NAME}:fails"), "fails: failed: RuntimeError: no data here"),
        (("gpt", "--inputs", f"{NAME}:wrong_inputs"), "Transformer cannot be traced on fake"),
        (("gpt",), "name a function that gives its inputs with --inputs"),
        (("gpt", "--autocast", "bf16"), "name its inputs with --inputs too"),
    ],
)
def test_what_cannot_be_traced_is_told(
    run: Run,  # noqa: F811
    code: str,
    tmp_path: Path,
    asked: tuple[str, ...],
    words: str,
) -> None:
    output = tmp_path / "w.yaml"
    done = run("import", "module", f"{code}:{asked[0]}", *asked[1:], "-o", output)
    assert (done.code, output.exists()) == (2, False)
    assert words in " ".join(done.err.split())
    assert "Traceback" not in done.err


def test_another_batch_than_the_traced_one_is_refused(
    run: Run,  # noqa: F811
    code: str,
    tmp_path: Path,
) -> None:
    output = tmp_path / "gpt.yaml"
    run(
        "import", "module", f"{code}:gpt", "--inputs", f"{code}:gpt_inputs", "--batch", "4",
        "-o", output,
    )  # fmt: skip
    done = run("estimate", output, *SYSTEM, "--batch-size", "8")
    assert done.code == 2
    assert "are for 4 samples per rank, the batch is 8" in " ".join(done.err.split())
