"""Damaged files end with exit 2 and one clear message: no bug, no waiting, no gigabytes.

Every reader gets files of its kind with bytes dropped, put in, flipped or cut off, and JSON with
values changed. The slow form draws some 4,000 of them.
"""

from __future__ import annotations

import gzip
import json
import random
import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costmodels.sharding import ComputeKernel, Plan, Shard, ShardingType, TablePlacement
from planner.cli.run import run as run_command_line
from planner.errors import InvalidInputError
from planner.io.documents import configs_folder
from planner.io.plan.plan_file import shards_csv
from planner.trace.reading import load_trace
from tests.planner.cli.command_line import SYSTEM_TEXT, WORKLOAD_TEXT
from tests.planner.cli.conftest import run, small_plan  # noqa: F401 - fixtures
from tests.planner.io.importers import samples

DATA = Path(__file__).parent / "data"
CURVED = "base: h100_sxm\nname: x\ncollective_curves: [curves.csv]\n"
CORES = "base: cpu_gloo\nname: x\ncalibration: cores.json\n"
THREE = (
    "name: w\ntraining: {batch_size_per_rank: 64}\nmemory: {reserve: 1 GiB}\ntables:\n"
    + "".join(f"  - {{name: t{i}, num_embeddings: 1000, embedding_dim: 8}}\n" for i in range(3))
)
TRACED = (
    "name: w\ntraining: {batch_size_per_rank: 64}\ndense: {ops: operators.yaml}\n"
    "memory: {reserve: 1 GiB}\n"
)
BESIDE = {"CURVED": CURVED, "CORES": CORES, "TRACED": TRACED, "THREE": THREE}
"""Files that name the damaged one, or are needed with it."""
OPERATORS = (
    b"batch_size_per_rank: 64\nsource: a test\nafter_tables:\n"
    b"  - {name: b, kind: matmul, shape: [1, 64, 13, 8], num_parameters: 112}\n"
)
LONGEST_S = 10.0
MOST_BYTES = 2**30
JUNK: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2.5, 1e308, 10**30, "", "x", [], {}, [[]], {"x": 1}, "nan", -0.5,
)  # fmt: skip


def changed_json(value: Any, draw: random.Random) -> Any:
    """The value with one place replaced, removed or renamed."""
    if not isinstance(value, dict | list) or not value or draw.random() < 0.1:
        return draw.choice(JUNK)
    key = draw.choice(list(value)) if isinstance(value, dict) else draw.randrange(len(value))
    copy = dict(value) if isinstance(value, dict) else list(value)
    way = draw.random()
    if way < 0.15:
        del copy[key]
    elif way < 0.25 and isinstance(copy, dict):
        copy[draw.choice(["é", "", "x"])] = copy.pop(key)
    else:
        copy[key] = changed_json(value[key], draw)
    return copy


def mutated(data: bytes, draw: random.Random) -> bytes:
    """The bytes with one to three faults; a line of JSON may have a value changed instead."""
    lines = data.split(b"\n")
    if draw.random() < 0.5:
        number = draw.randrange(len(lines))
        try:
            text = b"\n".join(lines) if data[:1] in b"{[" and len(lines) < 3 else lines[number]
            value = json.loads(text)
        except ValueError:
            pass
        else:
            new = json.dumps(changed_json(value, draw)).encode()
            return new if text == data else b"\n".join([*lines[:number], new, *lines[number + 1 :]])
    damaged = bytearray(data)
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(damaged) + 1)
        way = draw.randrange(5)
        if way == 0:
            del damaged[at : at + draw.choice([1, 2, 40, 4000])]
        elif way == 1:
            damaged[at:at] = draw.randbytes(draw.choice([1, 2, 30]))
        elif way == 2 and at < len(damaged):
            damaged[at] ^= 1 << draw.randrange(8)
        elif way == 3:
            del damaged[at:]
        else:
            damaged[at:at] = draw.choice(
                [b"-", b"9" * 30, b"[" * 3000, b"nan", b"\0", b"\n", b"e9"]
            )
    return bytes(damaged)


def texts(plan: str) -> dict[str, tuple[str, bytes, list[str]]]:
    """For each reader: the name of its file, a good file, and the command; FILE is the file."""
    arrays = np.arange(200, dtype=np.int64)
    trace = {
        "traceEvents": [
            {"ph": "X", "cat": "kernel", "name": "k", "ts": 1.0, "dur": 2.0, "tid": 7,
             "args": {"correlation": 1}}
        ]
    }  # fmt: skip
    criteo = b"\t".join([b"1", *[b"3"] * 13, *[b"0a1b"] * 26]) + b"\n"
    asked = {
        "old_alltoall.log": ["--collective", "all_to_all"],
        "mpirun_tagged.log": ["--collective", "all_to_all"],
        "last_rank_only.log": ["--nodes", "4", "--gpus-per-node", "8"],
        "no_hash.log": ["--collective", "all_reduce"],
    }
    logs = {
        name: (name, (DATA / name).read_bytes(), ["import", "collectives", "FILE", *flags])
        for name, flags in asked.items()
    }
    nccl = (DATA / "nccl_list.json").read_bytes().replace(b'["node-a"]', b'"node-a"')
    js = {
        "hugectr": samples.hugectr_config(),
        "fbgemm": samples.tbe_config(),
        "param": samples.param_config(),
        "torchrec": samples.torchrec_plan(),
    }
    shapes = {"torchrec": ["--shape", "hour=24x4"]}
    shipped, published = configs_folder() / "calibrations", configs_folder() / "published"
    curves = b"\n".join((shipped / "collectives.csv").read_bytes().split(b"\n")[:4])
    rows = b"\n".join((published / "gpu_h200.jsonl").read_bytes().split(b"\n")[:30])
    cores = (shipped / "cpu_gloo.calibration.json").read_bytes()
    sizes = {"user": 100_000, "item": 50_000, "place": 1000} | dict.fromkeys(
        ("tag_0", "tag_1", "tag_2"), 20_000
    )
    csv = shards_csv(
        Plan(
            placements=tuple(
                TablePlacement(
                    table=name,
                    sharding_type=ShardingType.TABLE_WISE,
                    kernel=ComputeKernel.FUSED,
                    shards=(Shard(rank=0, row_offset=0, num_rows=rows, col_offset=0, num_cols=32),),
                )
                for name, rows in sizes.items()
            )
        )
    )
    points = b"collective,nodes,ranks,size_bytes\nall_to_all,1,8,1048576\nall_reduce,1,8,4096\n"
    spec = (
        b"feature_spec:\n  a: {cardinality: 10, hotness: 3, alpha: 1.1}\n  b: {cardinality: 20}\n"
    )
    study = [
        "study", "WORKLOAD", "--system", "SYSTEM", "--gpus", "4", "--trials", "1",
        "--evaluations", "5", "-q", "--workers", "1", "-o", "FOLDER",
    ]  # fmt: skip
    inputs = ["WORKLOAD", "--system", "SYSTEM", "--gpus", "4"]
    fit = ["fit", *inputs, "--run", "PLAN=FILE", "-o", "OUT"]
    return {
        **logs,
        **{
            k: (f"{k}.json", json.dumps(v).encode(), ["import", k, "FILE", *shapes.get(k, ())])
            for k, v in js.items()
        },
        "nccl json": ("n.json", nccl, ["import", "collectives", "FILE"]),
        "workload": ("w.yaml", WORKLOAD_TEXT.encode(), ["check", "FILE"]),
        "system": ("s.yaml", SYSTEM_TEXT.encode(), ["check", "FILE"]),
        "plan": ("p.json", plan.encode(), ["check", "FILE"]),
        "estimate": (
            "p.json", plan.encode(), ["estimate", "WORKLOAD", "FILE", "--system", "SYSTEM",
                                      "--gpus", "4"]),
        "constraints": ("c.yaml", b"constraints:\n- {tables: a, ranks: [0]}\n", ["check", "FILE"]),
        "list": ("l.csv", (DATA / "shared_features.csv").read_bytes(), ["check", "FILE"]),
        "easyrec": (
            "p.config", b'feature_configs { id_feature { feature_name: "u" num_buckets: 9 '
            b"embedding_dim: 8 } }\n", ["import", "tables", "OUT", "--list", "FILE"]),
        "fuxictr": (
            "f.json", b'{"features": [{"u": {"vocab_size": 9, "embedding_dim": 8}}]}',
            ["import", "tables", "OUT", "--list", "FILE"]),
        "journal": ("study.journal", b"", study),
        "criteo": ("c.tsv", criteo * 20, ["profile", "FILE", "-o", "OUT", "-q"]),
        "criteo gz": ("c.tsv.gz", gzip.compress(criteo * 20), ["profile", "FILE", "-o", "OUT"]),
        "npy": ("a.npy", array_bytes(arrays), ["profile", "FILE", "-o", "OUT", "-q"]),
        "curves": ("curves.csv", curves, ["check", "CURVED"]),
        "rows": ("r.jsonl", rows, ["calibrate", "--from", "FILE", "--system", "h200_sxm", "-o",
                                   "OUT", "-q"]),
        "calibration": ("cores.json", cores, ["check", "CORES"]),
        "operators": ("operators.yaml", OPERATORS, ["check", "TRACED"]),
        "plan csv": ("p.csv", csv.encode(), ["estimate", "WORKLOAD", "FILE", "--system", "SYSTEM",
                                             "--gpus", "4"]),
        "hugectr plan": ("h.json", json.dumps(samples.hugectr_plan()).encode(),
                         ["import", "hugectr", "FILE", "--workload", "THREE", "--plan", "OUT"]),
        "points": ("c.csv", points, ["predict", "collective", "FILE", "--system", "h100_sxm"]),
        "nvidia": ("f.yaml", spec, ["import", "tables", "OUT", "--list", "FILE", "--dim", "8"]),
        "trace": ("t.json", json.dumps(trace).encode(), fit),
        "trace gz": ("t.json.gz", gzip.compress(json.dumps(trace).encode()), fit),
    }  # fmt: skip


def array_bytes(array: Any) -> bytes:
    import io

    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, small_plan: str) -> Path:  # noqa: F811
    folder = tmp_path_factory.mktemp("mutated")
    (folder / "small.yaml").write_text(WORKLOAD_TEXT)
    (folder / "box.yaml").write_text(SYSTEM_TEXT)
    (folder / "plan.json").write_text(small_plan)
    return folder


NAMES = sorted(texts("{}"))
MANY = [pytest.param(n, s, marks=pytest.mark.slow) for n in NAMES for s in range(1, 4)]


@pytest.mark.parametrize(("name", "part"), [*((n, 0) for n in NAMES), *MANY])
def test_damaged_files_are_refused_or_read(
    name: str, part: int, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file_name, good, command = texts((place / "plan.json").read_text())[name]
    folder, draw = place / f"{name}{part}".replace(" ", "_"), random.Random(f"{name} {part}")
    for number in range(2 if part == 0 else 42):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        path = folder / file_name
        words = {
            "FILE": str(path), "FOLDER": str(folder), "OUT": str(folder / "out.yaml"),
            "WORKLOAD": str(place / "small.yaml"), "SYSTEM": str(place / "box.yaml"),
            "PLAN=FILE": f"{place / 'plan.json'}={path}",
            **dict.fromkeys(BESIDE, str(folder / "x.yaml")),
        }  # fmt: skip
        args = [words.get(word, word) for word in command]
        if not good:
            assert run_command_line(args) == 0
            good = path.read_bytes()
        for text in (BESIDE[word] for word in command if word in BESIDE):
            (folder / "x.yaml").write_text(text)
        path.write_bytes(mutated(good, draw))
        kept = path.read_bytes()
        start = time.perf_counter()
        code = run_command_line(args)
        told = (name, part, number, kept[:3000], capsys.readouterr().err[-300:])
        assert code in (0, 1, 2, 3, 4), told
        assert time.perf_counter() - start < LONGEST_S, told
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert part == 0 or peak < MOST_BYTES


@pytest.mark.parametrize(
    "text",
    [
        f"base: {'x' * 500}\nname: y\n",
        f"base: h100_sxm\nname: {'x' * 400}\n",
        'base: "\\0"\nname: y\n',
        f"base: cpu_gloo\nname: y\ncalibration: {'x' * 400}.json\n",
        'base: cpu_gloo\nname: y\ncalibration: "\\0"\n',
        f"base: h100_sxm\nname: y\ncollective_curves: [{'x' * 400}.csv]\n",
    ],
    ids=["base", "name", "zero", "calibration", "calibration zero", "curves"],
)
def test_names_that_no_file_can_have(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name of 255 characters or more made the check of the file itself fail (exit 70)."""
    path = tmp_path / "s.yaml"
    path.write_text(text)
    code = run_command_line(["check", str(path)])
    assert code == (0 if "name: x" in text else 2), capsys.readouterr().err


def edited(journal: Path, old: str, new: str) -> None:
    text = journal.read_text()
    assert old in text
    journal.write_text(text.replace(old, new))


def studied(place: Path, folder: Path) -> list[str]:
    """A short study that keeps its journal in a folder."""
    words = [
        "study", place / "small.yaml", "--system", place / "box.yaml", "--gpus", 4, "--trials", 1,
        "--evaluations", 5, "-q", "--workers", 1, "-o", folder,
    ]  # fmt: skip
    return list(map(str, words))


@pytest.fixture(scope="module")
def whole_journal(place: Path) -> bytes:
    folder = place / "whole"
    assert run_command_line(studied(place, folder)) == 0
    return (folder / "study.journal").read_bytes()


@pytest.mark.parametrize(
    ("old", "new"),
    [('"time_s"', '"é"'), ('"study_id":0', '"study_id":1'), ('"trial_id":0', '"trial_id":77'),
     ('"about"', '"e"'), ('"status"', '"x"')],
)  # fmt: skip
def test_a_damaged_line_of_a_journal_is_named(
    old: str,
    new: str,
    tmp_path: Path,
    place: Path,
    whole_journal: bytes,
    capsys: pytest.CaptureFixture[str],
) -> None:
    journal = tmp_path / "study.journal"
    journal.write_bytes(whole_journal)
    assert run_command_line(studied(place, tmp_path)) == 0, "the journal is not that of the study"
    edited(journal, old, new)
    capsys.readouterr()
    start = time.perf_counter()
    assert run_command_line(studied(place, tmp_path)) == 2
    assert time.perf_counter() - start < LONGEST_S
    assert "study.journal" in capsys.readouterr().err


def bomb(path: Path, block: bytes, count: int) -> Path:
    with gzip.open(path, "wb", 1) as file:
        for _ in range(count):
            file.write(block)
    return path


@pytest.mark.parametrize("block", [b"[]," * 2**19, b"1," * 2**19, b'{"a":1},' * 2**17])
def test_a_short_trace_of_many_values(block: bytes, tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    with gzip.open(path, "wb", 1) as file:
        file.write(b'{"traceEvents":[')
        for _ in range(60):
            file.write(block)
        file.write(b"0]}")
    start: Callable[[], float] = time.perf_counter
    begun = start()
    with pytest.raises(InvalidInputError, match="or 8,000,000 values, which are the most"):
        load_trace(path)
    assert start() - begun < LONGEST_S


def test_a_line_without_end(tmp_path: Path) -> None:
    path = bomb(tmp_path / "d.tsv.gz", b"a" * 2**20, 600)
    start = time.perf_counter()
    for kind in ("criteo_tsv", "torch"):
        assert (
            run_command_line(["profile", str(path), "--format", kind, "-o", str(path) + "x"]) == 2
        )
    assert time.perf_counter() - start < 2 * LONGEST_S
