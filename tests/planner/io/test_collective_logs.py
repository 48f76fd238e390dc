# ruff: noqa: E501 - tables as the programs print them
"""Logs of nccl-tests, rccl-tests and PARAM, as those programs write them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from costmodels.measured.curves import Collective
from costmodels.units import GB, US
from planner.errors import InvalidInputError
from planner.io.system.collective_curves import CurveRecord, LogShape, read_curves, read_logs
from tests.planner.cli.command_line import Run
from tests.planner.cli.conftest import run  # noqa: F401 - a fixture

RANKS = """\
# nThread 1 nGpus 1 minBytes 1024 maxBytes 4096 step: 2(factor) warmup iters: 5 iters: 20
#
# Using devices
#  Rank  0 Group  0 Pid   4101 on     node-a device  0 [0000:18:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   4102 on     node-a device  1 [0000:2a:00] NVIDIA H100 80GB HBM3
#  Rank  2 Group  0 Pid   5101 on     node-b device  0 [0000:18:00] NVIDIA H100 80GB HBM3
#  Rank  3 Group  0 Pid   5102 on     node-b device  1 [0000:2a:00] NVIDIA H100 80GB HBM3
NCCL version 2.27.3+cuda12.9
"""
TABLE = """\
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
           0             0     float     sum      -1     5.00    0.00    0.00       0     5.00    0.00    0.00       0
        1024           256     float     sum      -1    20.50    0.05    0.07       0    11.00    0.05    0.07       0
        2048           512     float     sum      -1    21.00    0.10    0.15       0    11.00    0.10    0.15     N/A
        4096          1024     float     sum      -1    22.00    0.19    0.28     N/A    11.00    0.19    0.28       0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 0.142
"""
OLD_TABLE = """\
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                     (ms)  (GB/s)  (GB/s)             (ms)  (GB/s)  (GB/s)
        1024           256   float     sum    0.0205    0.05    0.07  0e+00    0.011    0.05    0.07  0e+00
        2048           512   float     sum    0.0210    0.10    0.15  0e+00    0.011    0.10    0.15  0e+00
"""
INTERVALS = """\
#       size         count      type   redop    root     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)
        1024            64     float    none      -1    30.00    0.05    0.07       0
# i_min 29.1 i_max 33.0 i_p99 32.9 i_cv% 2.1
        2048           128     float    none      -1    31.00    0.10    0.15       0
        2048           128     float    none      -1    33.00    0.10    0.15       0
"""
PARAM = """\
	PARAM COMM environment: backend nccl
	COMMS-RES       size (B)  nElementsPerRank   Latency(us):p50         p75         p95         Min         Max    AlgBW(GB/s) BusBW(GB/s)
	COMMS-RES-all_to_allv        1048576             65536              80.5        81.0        82.0        79.0        84.0         13.025      9.769
	COMMS-RES-all_to_allv        2097152            131072             100.0       101.0       102.0        99.0       104.0         20.971     15.728
	COMMS-RES-broadcast          2097152            131072             100.0       101.0       102.0        99.0       104.0         20.971     15.728
	COMMS-RES-all_gather_base-float32        1048576             65536              70.5        81.0        82.0        79.0        84.0         13.025      9.769
	COMMS-RES-all_gather_base-float32        2097152            131072              90.0       101.0       102.0        99.0       104.0         20.971     15.728
"""
JSON_LOG = {
    "version": 3,
    "args": ["./build/alltoall_perf", "-b", "1K"],
    "env": {"SECRET_TOKEN": "hunter2", "HOME": "/home/me"},
    "nccl_version": 22902,
    "config": {"nthreads": 1, "ngpus": 1},
    "devices": [
        {"rank": 0, "group": 0, "hostname": "node-a", "device": 0},
        {"rank": 1, "group": 0, "hostname": "node-a", "device": 1},
    ],
    "results": [
        {"size": 1024, "out_of_place": {"time": 8.5}, "in_place": {"time": 7.0}},
        {"size": 2048, "out_of_place": {"time": 9.5}, "in_place": {"time": 7.0}},
    ],
}


def read(tmp_path: Path, text: str, name: str = "run.log", **shape: object) -> list[CurveRecord]:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return list(read_logs((path,), LogShape(**shape)))  # type: ignore[arg-type]


def test_the_text_of_nccl_tests(tmp_path: Path) -> None:
    (record,) = read(tmp_path, "# Collective test: all_reduce_perf\n" + RANKS + TABLE)
    curve = record.curve
    assert curve.collective is Collective.ALL_REDUCE
    assert (curve.ranks, record.nodes, curve.domains) == (4, 2, 2)
    assert curve.size_bytes == (1024, 2048, 4096)
    assert curve.time_s == pytest.approx((20.5 * US, 21 * US, 22 * US))
    assert (curve.version, record.library, record.role) == ("2.27.3", "NCCL", "calibrate")
    assert curve.source == "run.log"


def test_the_collective_may_stand_in_the_file_name_or_a_flag(tmp_path: Path) -> None:
    (named,) = read(tmp_path, RANKS + TABLE, "reduce_scatter_perf.log")
    assert named.curve.collective is Collective.REDUCE_SCATTER
    (flagged,) = read(tmp_path, RANKS + TABLE, collective=Collective.ALL_GATHER)
    assert flagged.curve.collective is Collective.ALL_GATHER
    with pytest.raises(InvalidInputError, match="add --collective"):
        read(tmp_path, RANKS + TABLE)


def test_columns_and_units_are_read_by_their_header(tmp_path: Path) -> None:
    shape = {"gpus_per_node": 8, "nodes": 1}
    (old,) = read(tmp_path, "all_reduce_perf\n" + OLD_TABLE, **shape)
    assert old.curve.time_s == pytest.approx((20.5 * US, 21 * US))
    (spread,) = read(tmp_path, "rccl-tests: alltoall_perf\n" + INTERVALS, **shape)
    assert spread.curve.time_s == pytest.approx((30 * US, 32 * US))
    assert spread.library == "RCCL"
    assert spread.curve.collective is Collective.ALL_TO_ALL


def test_several_tests_in_one_log(tmp_path: Path) -> None:
    text = RANKS + "./all_reduce_perf\n" + TABLE + "./alltoall_perf\n" + INTERVALS
    found = read(tmp_path, text, domain_gpus=4, network_bytes_per_s=50 * GB)
    assert [r.curve.collective.value for r in found] == ["all_reduce", "all_to_all"]
    assert {r.curve.domains for r in found} == {1}
    assert {r.curve.network_bytes_per_s for r in found} == {50 * GB}


def test_the_json_of_nccl_tests_without_its_environment(tmp_path: Path) -> None:
    (record,) = read(tmp_path, json.dumps(JSON_LOG), "x.json")
    assert record.curve.collective is Collective.ALL_TO_ALL
    assert (record.curve.ranks, record.nodes) == (2, 1)
    assert record.curve.time_s == pytest.approx((8.5 * US, 9.5 * US))
    assert record.curve.version == "2.29.2"
    assert "hunter2" not in repr(record)


def test_param_rows_give_the_median(tmp_path: Path) -> None:
    first, second = read(tmp_path, PARAM, gpus_per_node=4)
    assert first.curve.collective is Collective.ALL_TO_ALL
    assert first.curve.time_s == pytest.approx((80.5 * US, 100 * US))
    assert second.curve.collective is Collective.ALL_GATHER
    assert first.harness == "PARAM comms"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello\n", "no table of nccl-tests or PARAM"),
        ("", "no table of nccl-tests or PARAM"),
        ("{", "not well-formed JSON"),
        ('{"results": ' * 100_000, "nested too deeply"),
        ('{"results": [{"size": 8}]}', "results[0]: key 'out_of_place' is missing"),
        ("all_reduce_perf\n" + OLD_TABLE, "add --gpus-per-node"),
        (RANKS + "all_reduce_perf\n" + TABLE.replace("22.00", "fast"), "'fast'"),
        (RANKS + "all_reduce_perf\n" + "\n".join(TABLE.splitlines()[:6]), "fewer than two sizes"),
        (PARAM.replace("p50", "p51"), "Latency(us):p50"),
    ],
)
def test_a_bad_log_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        read(tmp_path, text)
    assert message in str(caught.value)
    assert "run.log" in str(caught.value)


def test_all_bad_logs_are_listed(tmp_path: Path) -> None:
    paths = tuple(tmp_path / name for name in ("a.log", "b.log"))
    for path in paths:
        path.write_text("nothing", encoding="utf-8")
    with pytest.raises(InvalidInputError) as caught:
        read_logs((*paths, tmp_path / "absent.log"), LogShape())
    assert len(caught.value.problems) == 3


def test_flags_that_contradict_the_log_are_refused(tmp_path: Path) -> None:
    """Of two tests in one log, a flag would rename one to the other."""
    text = RANKS + "./all_reduce_perf\n" + TABLE + "./alltoall_perf\n" + INTERVALS
    with pytest.raises(InvalidInputError, match="the log times all_to_all, --collective says"):
        read(tmp_path, text, collective=Collective.ALL_REDUCE)
    with pytest.raises(InvalidInputError, match="lists 4 ranks, 2 nodes of 8 GPUs have 16"):
        read(tmp_path, text, gpus_per_node=8)
    assert len(read(tmp_path, text, nodes=1, gpus_per_node=4)) == 2


def test_uneven_nodes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="do not divide over 3 nodes"):
        read(tmp_path, "all_reduce_perf\n" + RANKS + TABLE, nodes=3)


def test_the_command_writes_what_a_system_file_can_name(run: Run, tmp_path: Path) -> None:  # noqa: F811
    log, curves = tmp_path / "all_reduce_perf.log", tmp_path / "mine.csv"
    log.write_text(RANKS + TABLE, encoding="utf-8")
    done = run("import", "collectives", log, "-o", curves, "--nic", "50 GB/s")
    assert done.code == 0, done.err
    assert "1 curves written" in done.err
    (record,) = read_curves(curves)
    assert record.curve.network_bytes_per_s == pytest.approx(50 * GB)
    shown = run("import", "collectives", log)
    assert shown.out.startswith("set,collective,nodes")
    as_json = json.loads(run("import", "collectives", log, "--json").out)
    assert as_json[0]["ranks"] == 4
    assert run("import", "collectives", tmp_path / "absent.log").code == 2
