"""Raw rows of a calibration: what is read, what is refused, and the system that is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.calibration.fit_fbgemm import LookupRow, block_errors, call_seconds
from costmodels.measured.curves import Collective
from costmodels.measured.fbgemm_constants import MOST, FbgemmConstants
from planner import io
from planner.errors import InvalidInputError
from planner.io.documents import configs_folder
from planner.io.system.collective_curves import load_curves
from planner.io.system.system_writer import MeasuredRows, Written, fit_and_write, read_rows

H200_ROWS = configs_folder() / "published" / "gpu_h200.jsonl"
LINES = H200_ROWS.read_text().splitlines()
ENVIRONMENT = json.loads(LINES[0])
FIRST = {row["block"]: row for row in map(json.loads, reversed(LINES[1:]))}


CEILINGS = [line for line in LINES if '"ceilings"' in line]
CALLS = ("hbm", "seq", "uvm", "uvmc")


@pytest.fixture(scope="module")
def some_rows(tmp_path_factory: pytest.TempPathFactory) -> MeasuredRows:
    """All rows but of lookups, of which it has every fourth."""
    calls = [line for line in LINES[1:] if json.loads(line)["block"] in CALLS]
    others = [line for line in LINES[1:] if line not in calls]
    return read_rows(written(tmp_path_factory.mktemp("some"), ENVIRONMENT, *others, *calls[::4]))


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory, some_rows: MeasuredRows) -> Written:
    """A system of these rows."""
    path = tmp_path_factory.mktemp("fitted") / "mine.yaml"
    return fit_and_write(path, "h200_sxm", some_rows)


def written(folder: Path, *rows: object) -> Path:
    path = folder / "rows.jsonl"
    path.write_text(
        "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)
    )
    return path


def rows_or_refusal(path: Path) -> tuple[tuple[dict[str, Any], ...], str]:
    try:
        return read_rows(path).rows, ""
    except InvalidInputError as error:
        return (), str(error)


def lookup(**changed: Any) -> dict[str, Any]:
    return {**FIRST["hbm"], **changed}


def test_rows_of_the_h200_are_read() -> None:
    measured = read_rows(H200_ROWS)
    assert len(measured.rows) == len(LINES) - 1
    assert len(measured.of_block("hbm", "seq")) == 142
    assert measured.machine("fbgemm") == (
        "NVIDIA H200, torch 2.11.0+cu130, fbgemm 1.6.0, driver 580.159.04"
    )


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("{", "not well-formed JSON"),
        ("[1]", "must hold keys and values"),
        ('{"block": "hbm", "block": "seq"}', "given twice"),
        ("[" * 100_000, "not well-formed JSON"),
        (lookup(block="lookups"), "block: value 'lookups': must be one of"),
        ({"block": "ceilings"}, "key 'what' is missing"),
        (ENVIRONMENT, "only the first row"),
        (lookup(fwd_us=0.0), "fwd_us: value 0.0: must be above 0"),
        (lookup(bwd_us=float("nan")), "NaN is not a number"),
        (lookup(bwd_us=10**400), "bwd_us"),
        (lookup(bwd_us="12"), "bwd_us"),
        (lookup(N=10, uniq=11), "uniq (11) must not exceed N (10)"),
        (lookup(law="pareto 2"), "law"),
        (lookup(T=0), "T: value 0: must be above 0"),
        (lookup(T=True), "T: value True"),
        ({k: v for k, v in lookup().items() if k != "dim"}, "key 'dim' is missing"),
        ({k: v for k, v in lookup().items() if k != "id"}, "key 'id' is missing"),
        ({k: v for k, v in lookup().items() if k != "loc"}, "key 'loc' is missing"),
        (lookup(loc="ssd"), "loc"),
        ({"block": "ceilings", "what": "gemm", "prec": "fp4", "n": 64, "us": 1.0}, "prec"),
        ({"block": "hbm", "error": 3}, "error: value 3: must be text"),
        (
            {
                "block": "collectives",
                "operation": "all_to_all",
                "ranks": 3,
                "sent_bytes": [1.0, 1.0],
                "kept_bytes": [1.0, 1.0],
                "us": 3.0,
            },
            "a number for each of 3 ranks",
        ),
    ],
)
def test_a_wrong_row_is_refused_by_its_line(tmp_path: Path, row: object, said: str) -> None:
    path = written(tmp_path, ENVIRONMENT, "", lookup(), row, lookup(T=0))
    with pytest.raises(InvalidInputError) as refused:
        read_rows(path)
    assert str(refused.value).startswith(f"{path}:4: ")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ((), "no rows"),
        ((lookup(),), ":1: the first row must describe the machine"),
        (({"system": "h100_sxm", "gpus": 2},), ":1: key 'block' is missing"),
        (({**ENVIRONMENT, "mem": -1},), ":1: mem"),
    ],
)
def test_a_file_of_other_rows_is_refused(
    tmp_path: Path, rows: tuple[object, ...], said: str
) -> None:
    with pytest.raises(InvalidInputError, match=r"rows\.jsonl") as refused:
        read_rows(written(tmp_path, *rows))
    assert said in str(refused.value)


_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**40), 10**40),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


@given(
    block=st.sampled_from(sorted(FIRST)),
    position=st.integers(0, 30),
    value=_VALUES,
    cut=st.integers(0, 400),
)
def test_no_row_passes_with_a_number_that_a_fit_cannot_use(
    tmp_path_factory: pytest.TempPathFactory, block: str, position: int, value: object, cut: int
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    row = dict(FIRST[block])
    key = list(row)[position % len(row)]
    for text in (json.dumps({**row, key: value}), json.dumps(row)[:cut]):
        path = written(folder, ENVIRONMENT, text)
        found, refusal = rows_or_refusal(path)
        assert refusal.startswith(f"{path}:2: ") or not refusal
        checked = [r for r in found if r["block"] in ("hbm", "seq", "uvm", "uvmc", "codec")]
        timed = [r[k] for r in checked for k in ("us", "fwd_us", "bwd_us") if k in r]
        assert all(0 < t < 1e11 for t in timed)


def test_the_system_of_the_rows_has_their_rates(fitted: Written) -> None:
    base = io.load_system("h200_sxm")
    assert [line for line in fitted.kept if "collectives" in line]
    (path,) = fitted.written
    mine = io.load_system(path)
    device = mine.device
    rates, peaks = dict(device.flops_per_s), dict(base.device.flops_per_s)
    assert device.hbm_bandwidth_bytes_per_s == pytest.approx(4.25e12, rel=0.01)
    assert device.kernel_latency_s == pytest.approx(1.88e-6, rel=0.01)
    assert mine.host.device_link_bandwidth_bytes_per_s == pytest.approx(55.1e9, rel=0.01)
    assert mine.host.eager_call_s == pytest.approx(23.97e-6, rel=0.01)
    assert mine.host.eager_pass_s == pytest.approx(360.6e-6, rel=0.01)
    for name, tflops in (("fp32", 51.3), ("tf32", 405.9), ("bf16", 784.1), ("fp16", 751.9)):
        reached = next(rate for kind, rate in rates.items() if kind == name)
        assert reached * device.flops_efficiency_ratio == pytest.approx(1e12 * tflops, rel=0.01)
    assert [rate for kind, rate in rates.items() if kind == "fp8"] == [
        rate for kind, rate in peaks.items() if kind == "fp8"
    ]
    sources = {p.name: (p.source.value, p.reference) for p in mine.provenance}
    told = sources["device.hbm_bandwidth"]
    assert told[0] == "measured"
    assert "NVIDIA H200, torch 2.11.0+cu130, driver 580.159.04" in told[1]
    assert mine.collective_curves == base.collective_curves


def test_the_system_of_the_rows_predicts_them(fitted: Written, some_rows: MeasuredRows) -> None:
    mine = io.load_system(fitted.written[0], gpus=1)
    assert mine.lookup_constants is not None
    calls = [LookupRow.of(row) for row in some_rows.of_block(*CALLS)]
    predicted = np.array([call_seconds(c.kernel, [(c.shards, c.num_tables)], mine) for c in calls])
    inside = block_errors(calls, predicted)
    assert len(inside) == len(fitted.lookup_errors) == 8
    for key, error in fitted.lookup_errors.items():
        assert inside[key].count == error.count
        assert inside[key].mean_error_ratio < error.mean_error_ratio < 0.2
    sources = {p.name: p.source.value for p in mine.provenance if p.name.startswith("lookup.")}
    assert len(sources) == len(MOST)
    assert sources.pop("lookup.l2_bandwidth_bytes_per_s") == "default"
    assert set(sources.values()) == {"calibrated"}


def test_other_lookups_give_other_constants(tmp_path: Path) -> None:
    slow = [lookup(id=f"p{i}", fwd_us=2 * FIRST["hbm"]["fwd_us"]) for i in range(4)]
    forward = []
    for rows in (slow, [lookup(id=f"p{i}") for i in range(4)]):
        path = tmp_path / f"{len(forward)}.yaml"
        fit_and_write(path, "h200_sxm", read_rows(written(tmp_path, ENVIRONMENT, *rows)))
        call = LookupRow.of(lookup())
        forward.append(
            call_seconds(call.kernel, [(call.shards, call.num_tables)], io.load_system(path))[0]
        )
    assert forward[0] / forward[1] == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("  forward_floor: 1e-5", "must be one of l2_"),
        ("  forward_floor_s: 13 us", "forward_floor_s"),
        ("  forward_floor_s: 13", "forward_floor_s must be 0..0.001, got 13"),
        ("  forward_floor_s: -1e-5", "forward_floor_s"),
    ],
)
def test_constants_of_lookups_are_checked(tmp_path: Path, lines: str, said: str) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(f"base: h200_sxm\nname: own\nlookup:\n{lines}\n")
    with pytest.raises(InvalidInputError, match=r"own\.yaml") as refused:
        io.load_system(path)
    assert said in str(refused.value)


def test_constants_that_are_not_given_are_shipped(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("base: h200_sxm\nname: own\nlookup:\n  forward_floor_s: 2e-5\n")
    assert io.load_system(path).lookup_constants == FbgemmConstants(forward_floor_s=2e-5)
    assert io.load_system("h200_sxm").lookup_constants is None


def test_collectives_become_curves_beside_the_system(tmp_path: Path) -> None:
    rows: list[object] = [{**ENVIRONMENT, "nccl": "2.27.3"}]
    for size in (1024.0, 65536.0, 2.0**26):
        for operation, kept in (("all_to_all", size / 4), ("all_reduce", size)):
            point = {"sent_bytes": [0.75 * size] * 4, "kept_bytes": [kept] * 4}
            timed = {"us": 10.0 + size / 2e5, "ranks": 4, "operation": operation}
            rows.append({"block": "collectives", **timed, **point})
    uneven = {"sent_bytes": [768.0, 0.0, 0.0, 0.0], "kept_bytes": [0.0] * 4, "us": 20.0}
    rows.append({"block": "collectives", "operation": "all_to_all", "ranks": 4, **uneven})
    result = fit_and_write(
        tmp_path / "out" / "mine.yaml", "h100_sxm", read_rows(written(tmp_path, *rows))
    )
    assert [path.name for path in result.written] == ["mine.yaml", "mine.curves.csv"]
    mine = io.load_system(tmp_path / "out" / "mine.yaml", gpus=4)
    assert mine.host_link.latency_s == pytest.approx(10e-6, rel=0.01)
    assert mine.host_link.bandwidth_bytes_per_s == pytest.approx(0.75 * 2e11, rel=0.05)
    own = [c for c in load_curves(mine) if "own measurement" in c.source]
    assert {c.collective for c in own} == {Collective.ALL_TO_ALL, Collective.ALL_REDUCE}
    assert {(c.ranks, c.version, c.priority) for c in own} == {(4, "2.27.3", 0)}
    assert own[0].size_bytes == (1024.0, 65536.0, 2.0**26)


def test_rows_of_cores_are_no_gpu(tmp_path: Path) -> None:
    cores = {"block": "ceilings", "what": "env", "cpu": "some core", "torch": "2.13"}
    with pytest.raises(InvalidInputError, match="rows of CPU cores"):
        fit_and_write(tmp_path / "x.yaml", "h100_sxm", read_rows(written(tmp_path, cores)))


def test_a_base_of_cores_or_the_base_itself_is_refused(tmp_path: Path) -> None:
    measured = read_rows(written(tmp_path, *CEILINGS))
    own = tmp_path / "own.yaml"
    own.write_text("base: h200_sxm\nname: own\n")
    with pytest.raises(InvalidInputError, match="name another file"):
        fit_and_write(own, own, measured)
    fit_and_write(tmp_path / "sub" / "mine.yaml", own, measured)
    assert io.load_system(tmp_path / "sub" / "mine.yaml").device.name == "H200-SXM-141GB"
    cores = tmp_path / "cores.yaml"
    cores.write_text(own.read_text() + "collective_curves: []\ncalibration: a.json\n")
    with pytest.raises(InvalidInputError, match="CPU cores"):
        fit_and_write(tmp_path / "x.yaml", cores, measured)


@pytest.mark.parametrize(
    ("what", "changed", "said"),
    [
        ("env", {"mem": 1.0}, "device.hbm_capacity"),
        ("link", {"h2d_us": 1e9}, "host.device_link_bandwidth"),
        ("eager add_ of 8 elements, back to back", {"wall_us": 1e9}, "host.eager_call"),
        ("eager linear+sum forward backward", {"wall_us": 1.0}, "eager_pass .* less than"),
    ],
)
def test_a_system_that_nobody_could_read_is_not_written(
    tmp_path: Path, what: str, changed: dict[str, float], said: str
) -> None:
    """The file was left behind, over the one that was there, and only then it was refused."""
    rows = [json.loads(line) for line in CEILINGS]
    rows = [{**row, **changed} if row["what"] == what else row for row in rows]
    path = tmp_path / "mine.yaml"
    path.write_text("name: before\n")
    with pytest.raises(InvalidInputError, match=f"rows.jsonl: .*{said}"):
        fit_and_write(path, "h200_sxm", read_rows(written(tmp_path, *rows)))
    assert path.read_text() == "name: before\n"


def test_control_characters_in_the_name_of_a_card_stay_out_of_its_system(tmp_path: Path) -> None:
    rows = written(tmp_path, {**ENVIRONMENT, "gpu": "NVIDIA\u202e H200\x07"}, *CEILINGS[1:])
    fit_and_write(tmp_path / "mine.yaml", "h200_sxm", read_rows(rows))
    assert "(measured, NVIDIA H200, torch" in (tmp_path / "mine.yaml").read_text()


@pytest.mark.parametrize(
    ("card", "base", "said"),
    [
        ("NVIDIA H200", "h200_sxm", ""),
        ("NVIDIA H200", "a100_80gb_sxm", "the base has A100-SXM4-80GB"),
        ("NVIDIA GH200 480GB", "h200_sxm", "the base has H200-SXM-141GB"),
        ("NVIDIA H100 80GB HBM3", "h100_pcie", "with 132 multiprocessors"),
    ],
)
def test_rows_of_another_card_than_that_of_the_base_are_told(
    tmp_path: Path, card: str, base: str, said: str
) -> None:
    rows = written(tmp_path, {**ENVIRONMENT, "gpu": card}, *CEILINGS[1:])
    told = fit_and_write(tmp_path / "mine.yaml", base, read_rows(rows)).other_card
    assert (said in told) if said else told == ""
