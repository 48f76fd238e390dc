"""Every format, written as documented, is read back index by index."""

from __future__ import annotations

import gzip
import io
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest

from planner.errors import InvalidInputError
from planner.profiling.profiler import find_sources, folders_inside
from planner.profiling.readers import (
    READERS,
    AbstractReader,
    CriteoTsvReader,
    NpyReader,
    NpzReader,
    ParquetReader,
    read_head,
)
from tests.planner.profiling.samples import (
    halves,
    read_bags,
    write_npy,
    write_npz,
    write_tsv,
)

RNG = np.random.default_rng(7)


def categories(count: int) -> list[list[int | None]]:
    values = RNG.integers(0, 2**32, (count, 26)).tolist()
    return [[None if (i + j) % 11 == 0 else v for j, v in enumerate(row)] for i, row in
            enumerate(values)]  # fmt: skip


# ------------------------------------------------------------------ Criteo


@pytest.mark.parametrize("name", ["train.txt", "day_0", "day_0.gz"])
@pytest.mark.parametrize(("end", "label"), [("\n", True), ("\r\n", True), ("\n", False)])
def test_criteo(tmp_path: Path, name: str, end: str, label: bool) -> None:
    rows = categories(50)
    path = write_tsv(tmp_path / name, rows, end=end, label=label)
    found = read_bags(CriteoTsvReader(empty_is_zero=False), path)
    assert list(found) == [f"cat_{i}" for i in range(26)]
    for j in range(26):
        assert found[f"cat_{j}"] == [[] if row[j] is None else [row[j]] for row in rows]
    zero = read_bags(CriteoTsvReader(), path)
    assert zero["cat_0"][0] == [0]


@pytest.mark.parametrize("parts", [1, 2, 3, 17, 200])
def test_criteo_pieces_are_the_whole(tmp_path: Path, parts: int) -> None:
    path = write_tsv(tmp_path / "train.txt", categories(60))
    reader = CriteoTsvReader()
    assert read_bags(reader, path, halves(reader, path, parts)) == read_bags(reader, path)


def test_criteo_without_a_last_newline(tmp_path: Path) -> None:
    path = write_tsv(tmp_path / "train.txt", categories(9))
    reader = CriteoTsvReader()
    whole = read_bags(reader, path)
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    assert read_bags(reader, path) == whole
    assert read_bags(reader, path, halves(reader, path, 4)) == whole


@pytest.mark.parametrize("name", ["train.txt", "day_0.gz"])
def test_criteo_is_cut_at_a_line(tmp_path: Path, name: str) -> None:
    path = write_tsv(tmp_path / name, categories(40))
    reader = CriteoTsvReader()
    whole = read_bags(reader, path)["cat_3"]
    assert len(whole) == 40
    found = read_bags(reader, path, [slice(0, 13)])["cat_3"]
    assert found == whole[: len(found)]
    assert len(found) == 40 if name.endswith("gz") else abs(len(found) - 13) <= 2
    assert reader.look(path).num_samples >= 20


def test_criteo_across_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tsv(tmp_path / "train.txt", categories(30))
    reader = CriteoTsvReader()
    whole = read_bags(reader, path)
    monkeypatch.setattr("planner.profiling.readers._BLOCK_BYTES", 1_000)
    assert read_bags(reader, path) == whole
    assert read_bags(reader, path, halves(reader, path, 3)) == whole


# ------------------------------------------------------------------ numpy


def test_npy(tmp_path: Path) -> None:
    array = RNG.integers(0, 1_000, (70_000, 3))
    path = write_npy(tmp_path / "day_0_sparse.npy", array)
    reader = NpyReader()
    found = read_bags(reader, path, halves(reader, path, 3))
    assert [found[f"cat_{i}"] for i in range(3)] == array.T[:, :, None].tolist()
    assert len(read_bags(reader, path, [slice(5, 15)])["cat_0"]) == 10


def test_npy_of_one_feature(tmp_path: Path) -> None:
    path = tmp_path / "user.npy"
    np.save(path, np.array([3, 1, 2], dtype=np.uint64))
    assert read_bags(NpyReader(), path) == {"user": [[3], [1], [2]]}


@pytest.mark.parametrize("compressed", [False, True])
def test_npz(tmp_path: Path, compressed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of several chunks."""
    monkeypatch.setattr("planner.profiling.readers.CHUNK_SAMPLES", 700)
    arrays = [RNG.integers(0, 1_000, (3_000, size)) for size in (3, 1, 20)]
    path = write_npz(tmp_path / "day_0_sparse_multi_hot.npz", arrays, compressed=compressed)
    reader = NpzReader()
    found = read_bags(reader, path, halves(reader, path, 3))
    assert list(found.values()) == [array.tolist() for array in arrays]
    assert reader.look(path).num_samples == 3_000
    assert read_bags(reader, path, [slice(5, 15)])["cat_2"] == arrays[2][5:15].tolist()


def test_npz_of_flat_arrays(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, user=np.array([3, 1, 2]))
    assert read_bags(NpzReader(), path) == {"user": [[3], [1], [2]]}


# ------------------------------------------------------------------ recognition


def test_formats_are_recognised_by_content(tmp_path: Path) -> None:
    paths = {
        "criteo_tsv": write_tsv(tmp_path / "a", categories(3)),
        "npy": write_npy(tmp_path / "b.npy", RNG.integers(0, 9, (3, 26))),
        "npz": write_npz(tmp_path / "c.npz", [RNG.integers(0, 9, (3, 1))]),
    }
    for name, path in paths.items():
        head = read_head(path)
        matching = [reader.name for reader in READERS if reader.matches(path, head)]
        assert matching == [name]


def test_folders_are_read_in_natural_order(tmp_path: Path) -> None:
    for day in (10, 2, 1):
        write_npy(tmp_path / f"day_{day}_sparse.npy", RNG.integers(0, 9, (3, 2)))
        np.save(tmp_path / f"day_{day}_dense.npy", np.zeros((3, 13), np.float32))
        np.save(tmp_path / f"day_{day}_labels.npy", np.zeros((3, 1), np.int32))
    (tmp_path / "README").write_text("not data")
    (tmp_path / "1\N{SUPERSCRIPT TWO}3").touch()
    (tmp_path / "empty").touch()
    found = find_sources([tmp_path], READERS)
    names = [source.path.name for source in found]
    assert names == ["day_1_sparse.npy", "day_2_sparse.npy", "day_10_sparse.npy"]


# ------------------------------------------------------------------ bad files

GOOD_LINE = b"\t".join([b"1"] * 14 + [b"0000000a"] * 26) + b"\n"

BAD_FILES: list[tuple[AbstractReader, str, bytes, str]] = [
    (CriteoTsvReader(), "t", GOOD_LINE + b"1\t2\n", "Expected 40 columns, got 2"),
    (CriteoTsvReader(), "t", b"1\t2\t3\n", "line 1 has 3 tab-separated columns"),
    (CriteoTsvReader(), "t", GOOD_LINE.replace(b"0a\t", b"0g\t", 1), "'0000000g'"),
    (CriteoTsvReader(), "t", GOOD_LINE.replace(b"0a\n", b"0aa\n"), "up to 8 digits"),
    (CriteoTsvReader(), "t", GOOD_LINE + b"0" * (1 << 24), "straddles two block boundaries"),
    (CriteoTsvReader(), "t.gz", gzip.compress(GOOD_LINE * 9_000)[:-500], "cannot be read"),
    (NpyReader(), "x.npy", b"\x93NUMPY\x01\x00", "not a whole .npy file"),
    (NpyReader(), "x.npy", b"\x93NUMPY\x01\x00\x04\x00{'a'", "not a whole .npy file"),
    (NpzReader(), "x.npz", b"PK\x03\x04 garbage", "not a whole .npz file"),
    (ParquetReader(), "x.parquet", b"PAR1 garbage", "not a whole parquet file"),
]


@pytest.mark.parametrize(("reader", "name", "data", "message"), BAD_FILES)
def test_bad_files(
    tmp_path: Path, reader: AbstractReader, name: str, data: bytes, message: str
) -> None:
    if reader.name == "parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(InvalidInputError, match=message) as caught:
        read_bags(reader, path)
    assert str(path) in str(caught.value)


def test_a_header_as_python_2_wrote_it_is_read_in_silence(tmp_path: Path) -> None:
    header = b"{'descr': '<i8', 'fortran_order': False, 'shape': (2L,), }   \n"
    path = tmp_path / "x.npy"
    size = len(header).to_bytes(2, "little")
    path.write_bytes(b"\x93NUMPY\x01\x00" + size + header + np.array([5, 7]).tobytes())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_bags(NpyReader(), path) == {"x": [[5], [7]]}


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((3, 13), np.float32), "it holds float32"),
        (np.zeros((0, 26), np.int32), "at least 1 of each"),
        (np.zeros((2, 2, 2), np.int32), "at least 1 of each"),
        (np.array([[1, -1]]), "index -1 is negative"),
        (np.array([2**63], np.uint64), r"above 2\^63 - 1"),
    ],
)
def test_bad_npy_arrays(tmp_path: Path, array: np.ndarray, message: str) -> None:  # type: ignore[type-arg]
    path = tmp_path / "x.npy"
    np.save(path, array)
    with pytest.raises(InvalidInputError, match=message):
        read_bags(NpyReader(), path)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": np.zeros((3, 2)), "b": np.zeros((3, 2), np.int32)}, "must hold integers"),
        (
            {"a": np.zeros((3, 2), np.int32), "b": np.zeros((4, 2), np.int32)},
            "as many samples each",
        ),
        ({"a": np.zeros((0, 2), np.int32)}, "at least 1"),
        ({"a": np.asfortranarray(np.zeros((3, 2), np.int32))}, "stored in columns"),
        ({"a": np.array([[1, -5]])}, "index -5 is negative"),
    ],
)
def test_bad_npz_arrays(tmp_path: Path, arrays: dict[str, object], message: str) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, **arrays)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match=message):
        read_bags(NpzReader(), path)


def test_a_short_npz_ends_early(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    header, whole = io.BytesIO(), io.BytesIO()
    np.save(whole, RNG.integers(0, 9, (100, 4)))
    header.write(whole.getvalue()[:-8])
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("0.npy", header.getvalue())
    reader = NpzReader()
    with pytest.raises(InvalidInputError, match="ends early"):
        list(reader.read(path, slice(0, None), ("cat_0",)))


def test_parts_without_rows_are_passed_over(tmp_path: Path) -> None:
    """Spark leaves them; the others could not be profiled beside one."""
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    for part, rows in enumerate(([4, 5], [], [6])):
        table = arrow.table({"user": arrow.array(rows, arrow.int64())})
        parquet.write_table(table, tmp_path / f"{part}.pq")
    assert {s.path.name for s in find_sources([tmp_path], READERS)} == {"0.pq", "2.pq"}


def test_sources_that_cannot_be(tmp_path: Path) -> None:
    readers = READERS
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("hello")
    with pytest.raises(InvalidInputError) as caught:
        find_sources([tmp_path / "none", tmp_path / "empty", tmp_path / "text"], readers)
    assert [line.split(": ", 1)[1].split(";")[0] for line in caught.value.problems] == [
        "no such file",
        "the file is empty",
        "not recognised as any of criteo_tsv, npy, npz, parquet",
    ]
    with pytest.raises(InvalidInputError, match="holds no file of raw indices"):
        find_sources([tmp_path], readers)
    one = write_npy(tmp_path / "a.npy", RNG.integers(0, 9, (3, 2)))
    with pytest.raises(InvalidInputError, match=r"a\.npy: is named twice"):
        find_sources([one, one], readers)
    two = write_npy(tmp_path / "b.npy", RNG.integers(0, 9, (3, 3)))
    with pytest.raises(InvalidInputError, match=r"other features than .*: cat_2"):
        find_sources([one, two], readers)
    with pytest.raises(InvalidInputError, match=r"not a whole \.npz"):
        find_sources([one], readers, "npz")


def test_what_a_folder_holds_instead_of_indices_is_told(tmp_path: Path) -> None:
    """Folders inside are not read, nor hidden files, nor those of dense parts and labels."""
    readers, part = READERS, RNG.integers(0, 9, (3, 2))
    write_npy(tmp_path / ".day_0.npy", part)
    write_npy(tmp_path / "day_0_labels.npy", part)
    for name in (".cache", "date=1"):
        (tmp_path / name).mkdir()
        write_npy(tmp_path / name / "day_1.npy", part)
    with pytest.raises(InvalidInputError) as caught:
        find_sources([tmp_path], readers)
    assert "folders in it are not read: date=1; name them too" in str(caught.value)
    assert "hidden files, dense parts and labels are read only" in str(caught.value)
    assert folders_inside([tmp_path, tmp_path / "date=1"]) == (
        f"{tmp_path}: folders in it are not read: date=1; name them too",
    )
    (source,) = find_sources([tmp_path / "date=1"], readers)
    assert source.path.name == "day_1.npy"


@pytest.mark.parametrize(
    ("name", "is_read"),
    [
        ("labelled_0.npy", True),
        ("condensed.npy", True),
        ("day_0_dense.npy", False),
        ("day_0_labels.npy", False),
        ("label.npy", False),
        ("_SUCCESS.npy", False),
    ],
)
def test_names_of_dense_parts_and_labels_are_whole_words(
    tmp_path: Path, name: str, is_read: bool
) -> None:
    for each in ("day_0_sparse.npy", name):
        write_npy(tmp_path / each, RNG.integers(0, 9, (3, 2)))
    found = {source.path.name for source in find_sources([tmp_path], READERS)}
    assert (name in found) is is_read
