"""Files that are read once per version."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from planner.support.files import once_per_version


class _Counted:
    """Reads texts, and counts how often."""

    def __init__(self) -> None:
        self.num_reads = 0

    def __call__(self, path: Path) -> str:
        self.num_reads += 1
        return path.read_text()


def test_a_version_is_read_once_and_the_next_one_again(tmp_path: Path) -> None:
    counted = _Counted()
    read = once_per_version(num_kept=2)(counted)
    path = tmp_path / "file"
    path.write_text("first")
    assert [read(path), read(path), counted.num_reads] == ["first", "first", 1]
    path.write_text("second")
    assert [read(path), read(path), counted.num_reads] == ["second", "second", 2]


def test_another_file_of_equal_size_and_time_is_another_version(tmp_path: Path) -> None:
    read = once_per_version(num_kept=2)(_Counted())
    path, copied = tmp_path / "file", tmp_path / "copied"
    path.write_text("aaaa")
    assert read(path) == "aaaa"
    copied.write_text("bbbb")
    stat = path.stat()
    os.utime(copied, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    copied.replace(path)
    assert path.stat().st_mtime_ns == stat.st_mtime_ns
    assert read(path) == "bbbb"


def test_a_file_that_is_gone_is_not_answered_from_memory(tmp_path: Path) -> None:
    read = once_per_version(num_kept=2)(_Counted())
    path = tmp_path / "file"
    path.write_text("text")
    read(path)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        read(path)


def test_no_more_than_the_given_number_is_kept(tmp_path: Path) -> None:
    counted = _Counted()
    read = once_per_version(num_kept=1)(counted)
    for name in ("a", "b", "a"):
        (tmp_path / name).touch(exist_ok=True)
        read(tmp_path / name)
    assert counted.num_reads == 3
