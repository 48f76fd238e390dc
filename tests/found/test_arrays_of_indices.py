"""Arrays whose headers or archives are damaged are refused; the other order of bytes is read."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("duckdb")

from planner.cli.run import run

HEADER = "{'descr': '%s', 'fortran_order': False, 'shape': %s, }"
HEADERS = {
    "rows past a C long": HEADER % ("<i8", "(4611686018427387904, 4)"),
    "a truth value as size": HEADER % ("<i8", "(True, 0)"),
    "elements of no bytes": HEADER % ("|S0", "(8,)"),  # NumPy's map of them ends the process
    "no columns": HEADER % ("<i8", "(8, 0)"),
    "below zero": HEADER % ("<i8", "(-1, 4)"),
    "ten thousand signs": "-" * 9000 + "1",
}


def npy(header: str) -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text + bytes(64)


def npz(data: bytes, method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        archive.writestr("0.npy", data)
    return buffer.getvalue()


def saved(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def refused(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What is said of the file, which is one error that names it."""
    assert run(["profile", str(path), "-o", str(path.parent / "s.json"), "-q"]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"shardplan: error: {path}"), told
    return told


@pytest.mark.parametrize("ending", ["npy", "npz"])
@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
def test_headers_that_no_array_has(
    header: str, ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"a.{ending}"
    path.write_bytes(npy(header) if ending == "npy" else npz(npy(header)))
    refused(path, capsys)


def test_samples_in_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each of the features took 20 ms."""
    path = tmp_path / "a.npy"
    np.save(path, np.zeros((2, 1001), dtype=np.int64))
    assert "transpose" in refused(path, capsys)


def test_a_sample_of_gigabytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A member of 8 GB, as its header says, was read whole; zeros pack to a thousandth."""
    path = tmp_path / "a.npz"
    path.write_bytes(npz(npy(HEADER % ("<i8", "(1, 1000000000)"))))
    assert "more than 64 MiB in each sample" in refused(path, capsys)


@pytest.mark.parametrize("ending", ["npy", "npz"])
def test_the_other_order_of_bytes(
    ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stats = []
    for order in "<>":
        data = saved(np.arange(40).reshape(8, 5).astype(f"{order}i8"))
        path = tmp_path / f"a.{ending}"
        path.write_bytes(data if ending == "npy" else npz(data))
        assert run(["profile", str(path), "-o", str(tmp_path / "s.json"), "-q"]) == 0
        stats.append(json.loads((tmp_path / "s.json").read_text())["tables"])
    assert stats[0] == stats[1]
    capsys.readouterr()


@pytest.mark.parametrize(
    ("method", "at", "value", "said"),
    [
        (zipfile.ZIP_STORED, 8, 77, "compression method"),
        (zipfile.ZIP_STORED, 6, 1, "encrypted"),
        (zipfile.ZIP_STORED, 6, 64, "encryption"),
        (zipfile.ZIP_LZMA, -1, 255, "Corrupt input"),
    ],
)  # fmt: skip
def test_archives_that_zipfile_does_not_unpack(
    method: int, at: int, value: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = bytearray(npz(saved(np.arange(40)), method))
    listed = data.index(b"PK\1\2")
    if at < 0:
        data[50:80] = bytes([value]) * 30
    else:
        data[at] = data[listed + at + 2] = value
    path = tmp_path / "a.npz"
    path.write_bytes(data)
    assert said in refused(path, capsys)
