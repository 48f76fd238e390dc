"""``predict`` on a machine whose ranks are CPU cores."""

from __future__ import annotations

import csv
import io as text_io
from pathlib import Path

import numpy as np
import pytest

from costmodels.calibration.fitting import Calibration, FitError
from costmodels.cpu.exchange import Gloo
from planner import io
from planner.io.documents import configs_folder
from planner.io.system.system_writer import write_calibrated_system
from tests.costmodels.cpu.machines import MACHINE
from tests.planner.cli.command_line import Run
from tests.planner.cli.conftest import run  # noqa: F401 - a fixture

LOOKUPS = """phase,rows_per_table,dim,batch_per_table,pooling_factor,num_tables,location
forward,100000,64,512,10,4,
backward,100000,64,512,10,4,
forward+backward,100000,64,512,10,4,
forward,100000,64,512,10,4,uvm
"""
COLLECTIVES = """collective,size_bytes,nodes,gpus_per_node
all_to_all,1000000,1,2
all_reduce,1000000,1,4
"""
PRODUCTS = """M,K,N,dtype
512,256,128,fp32
512,256,128,fp16
"""


def fit(name: str, p90: float) -> FitError:
    return FitError(name=name, num_points=9, geomean_ratio=0.1, held_out_ratio=0.1, p90_ratio=p90)


@pytest.fixture
def system(tmp_path: Path) -> Path:
    errors = (
        fit("lookup forward fused", 0.2),
        fit("lookup backward fused", 0.3),
        fit("gloo all_to_all", 0.1),
        fit("dense forward", 0.4),
    )
    calibration = Calibration(constants=MACHINE, errors=errors, seed=1, effort="quick")
    path, _ = write_calibrated_system(tmp_path / "cpu.yaml", calibration, memory_bytes=2**34)
    return path


def predicted(
    run: Run,  # noqa: F811
    kind: str,
    text: str,
    system: Path | str,
    folder: Path | None = None,
) -> list[dict[str, str]]:
    path = (folder or Path(system).parent) / "rows.csv"
    path.write_text(text)
    outcome = run("predict", kind, str(path), "--system", str(system))
    assert outcome.code == 0, outcome.err
    return list(csv.DictReader(text_io.StringIO(outcome.out)))


def test_lookups_have_the_calls_cost_and_the_fits_spread(run: Run, system: Path) -> None:  # noqa: F811
    forward, backward, both, uvm = predicted(run, "lookup", LOOKUPS, system)
    times = [float(r["predicted_us"]) for r in (forward, backward, both)]
    assert times[0] > 1e6 * MACHINE.call_s / 4
    assert times[2] == pytest.approx(times[0] + times[1], rel=1e-5)
    assert float(forward["high_us"]) / times[0] == pytest.approx(1.2, rel=1e-4)
    assert float(both["high_us"]) / times[2] == pytest.approx(1.3, rel=1e-4)
    assert forward["source"] == "calibrated"
    assert uvm["predicted_us"] == ""
    assert "device memory" in uvm["reason"]


def test_collectives_are_gloos(run: Run, system: Path) -> None:  # noqa: F811
    known, other = predicted(run, "collective", COLLECTIVES, system)
    topology = io.load_system(system)
    send = np.array([[5e5, 0.0, 0.0]] * 2)
    expected = Gloo(constants=MACHINE).all_to_all_s(send, send, topology).max()
    assert float(known["predicted_us"]) == pytest.approx(1e6 * float(expected), rel=1e-4)
    assert known["source"] == "measured"
    assert float(known["high_us"]) / float(known["predicted_us"]) == pytest.approx(1.1, rel=1e-4)
    assert other["source"] == "extrapolated"
    assert float(other["high_us"]) / float(other["predicted_us"]) > 1.5


def test_products_are_priced_in_fp32(run: Run, system: Path) -> None:  # noqa: F811
    known, half = predicted(run, "dense", PRODUCTS, system)
    assert float(known["high_us"]) / float(known["predicted_us"]) == pytest.approx(1.4, rel=1e-4)
    assert "fp32" in half["reason"]


@pytest.mark.parametrize(
    "name", ["a100_80gb_sxm", "h200_sxm", "b200_sxm", "v100_32gb_sxm", "mi300"]
)
def test_other_gpus_are_predicted_with_intervals(
    run: Run,  # noqa: F811
    tmp_path: Path,
    name: str,
) -> None:
    where = name
    if name == "mi300":
        text = (configs_folder() / "systems" / "h100_pcie.yaml").read_text()
        text = text.replace("name: h100_pcie", "name: mi300x").replace("measured,", "datasheet,")
        lines = [x for x in text.splitlines() if not x.startswith("collective_curves")]
        (tmp_path / "mi300x.yaml").write_text("\n".join(lines) + "\n")
        where = str(tmp_path / "mi300x.yaml")
    shapes = "all_to_all,67108864,1,8\nall_reduce,4096,16,8\n"
    for kind, text in (
        ("lookup", LOOKUPS + "forward,1000,16,16,1,1,\n"),
        ("collective", COLLECTIVES.splitlines()[0] + "\n" + shapes),
        ("dense", PRODUCTS),
    ):
        rows = predicted(run, kind, text, where, tmp_path)
        for row in rows:
            low, time, high = (float(row[c]) for c in ("low_us", "predicted_us", "high_us"))
            assert 0 < low < time < high < 10 * low
        if kind == "lookup":
            sources = {"h200_sxm": "calibrated", "mi300": "analytic"}  # of an H100's name
            known = sources.get(name, "extrapolated")
            assert rows[-1]["source"] == known
