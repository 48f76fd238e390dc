"""Logs of nccl-tests as people have them: old tables, prefixes of launchers, cut lists of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from costmodels.measured.curves import Collective
from costmodels.units import US
from planner.errors import InvalidInputError
from planner.io.system.collective_curves import CurveRecord, LogShape, read_logs

DATA = Path(__file__).parent / "data"
ALL_TO_ALL = LogShape(collective=Collective.ALL_TO_ALL)


def one(path: Path, shape: LogShape = ALL_TO_ALL) -> CurveRecord:
    (record,) = read_logs((path,), shape)
    return record


def test_old_tables_leave_redop_empty() -> None:
    record = one(DATA / "old_alltoall.log")
    assert (record.curve.collective, record.nodes) == (Collective.ALL_TO_ALL, 1)
    assert record.curve.ranks == 2
    assert record.curve.size_bytes == (1048576, 2097152, 4194304)
    assert record.curve.time_s == pytest.approx((60 * US, 90 * US, 150 * US))


@pytest.mark.parametrize(
    "prefix",
    ["[1,0]<stdout>:", "[1,0]<stdout>: ", "0: ", "[0] ", "host-a:4711 ", "host-a: ", "00: ",
     "host-a:4711:4722 [0] ", "2026-11-27T10:00:00.5Z ", "[2026-11-27 10:00:00] 0: ", ""],
)  # fmt: skip
def test_prefixes_of_launchers_are_no_cells(prefix: str, tmp_path: Path) -> None:
    text = (DATA / "mpirun_tagged.log").read_text(encoding="utf-8")
    path = tmp_path / "tagged.log"
    path.write_text(text.replace("[1,0]<stdout>:", prefix), encoding="utf-8")
    record = one(path)
    assert (record.nodes, record.curve.ranks) == (2, 4)
    assert record.curve.time_s == pytest.approx((60 * US, 90 * US, 150 * US))


def test_flags_overrule_a_list_of_which_one_rank_is_left() -> None:
    """busbw is 2 x 31 / 32 times algbw, which is an all-reduce; nothing else says so."""
    record = one(DATA / "last_rank_only.log", LogShape(nodes=8, gpus_per_node=4))
    assert (record.nodes, record.curve.ranks) == (8, 32)
    assert record.curve.collective is Collective.ALL_REDUCE
    assert record.curve.time_s == pytest.approx((1700 * US, 2900 * US))
    with pytest.raises(InvalidInputError, match=r"lists rank 31 but not all.*--nodes"):
        one(DATA / "last_rank_only.log", LogShape())
    with pytest.raises(InvalidInputError, match="lists rank 31, 2 nodes of 4 GPUs have 8"):
        one(DATA / "last_rank_only.log", LogShape(nodes=2, gpus_per_node=4))


def test_logs_without_hash_signs() -> None:
    record = one(DATA / "no_hash.log", LogShape(collective=Collective.ALL_REDUCE))
    assert (record.nodes, record.curve.ranks) == (1, 2)
    assert record.curve.time_s == pytest.approx((40 * US, 50 * US, 70 * US))


def test_times_of_one_table_never_get_the_name_of_another(tmp_path: Path) -> None:
    text = (DATA / "old_alltoall.log").read_text(encoding="utf-8")
    path = tmp_path / "two.log"
    path.write_text(f"# all_reduce_perf\n{text.replace('float    ', 'float sum')}\n{text}", "utf-8")
    with pytest.raises(InvalidInputError, match=r"busbw is 0.5 times algbw.*another collective"):
        one(path)
    path.write_text(text + text, "utf-8")
    with pytest.raises(InvalidInputError, match=r"2 tables do not name their collective.*split"):
        one(path)
    path.write_text(f"./alltoall_perf\n{text}./broadcast_perf\n{text.replace('90', '95')}", "utf-8")
    assert one(path).curve.time_s == pytest.approx((60 * US, 90 * US, 150 * US))
    path.write_text(f"# starting: all_gather_perf\n{text}# concluded: all_gather_perf\n{text}")
    first, second = read_logs((path,), ALL_TO_ALL)
    assert (first.curve.collective, second.curve.collective) == ("all_gather", "all_to_all")


def test_each_table_has_the_ranks_above_it(tmp_path: Path) -> None:
    small = (DATA / "old_alltoall.log").read_text(encoding="utf-8")
    large = (DATA / "mpirun_tagged.log").read_text(encoding="utf-8")
    path = tmp_path / "two.log"
    path.write_text(f"alltoall_perf\n{small}alltoall_perf\n{large}", "utf-8")
    assert [(r.nodes, r.curve.ranks) for r in read_logs((path,), LogShape())] == [(1, 2), (2, 4)]


@pytest.mark.parametrize("name", ["nccl_hostname_dict.json", "nccl_list.json"])
def test_hosts_that_are_no_text_are_named(name: str) -> None:
    with pytest.raises(InvalidInputError, match=r"devices\[\d\].hostname: value .*: must be text"):
        one(DATA / name)
