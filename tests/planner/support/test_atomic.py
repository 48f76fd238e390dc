"""Files that are written whole: their permissions, their names, and texts that no file can hold."""

from __future__ import annotations

import os
from pathlib import Path

from planner.cli.output import write_folder
from planner.support.files import write_text_atomic


def test_new_files_and_folders_are_as_private_as_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_text_atomic(tmp_path / "file", "x")
        write_folder(tmp_path / "folder", {"file": b"x"})
    finally:
        os.umask(before)
    for path in tmp_path.rglob("*"):
        mode = path.stat().st_mode & 0o777
        assert mode == (0o750 if path.is_dir() else 0o640), path


def test_the_longest_name_of_a_file_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 255)
    write_text_atomic(path, "text")
    assert path.read_text() == "text"


def test_names_that_are_no_text_are_written_by_their_numbers(tmp_path: Path) -> None:
    """On Linux a name of a file may be any bytes, and tables of results have such names."""
    name = os.fsdecode(b"box\xff")
    write_text_atomic(tmp_path / name, f"{name} ü\n")
    assert (tmp_path / name).read_bytes() == "box\\udcff ü\n".encode()
