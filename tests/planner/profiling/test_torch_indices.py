"""Files of torch.save: what dlrm_datasets holds, and KeyedJaggedTensors."""

from __future__ import annotations

import gzip
import io
import pickle
import random
from pathlib import Path
from typing import Any

import pytest

from planner.errors import InvalidInputError
from planner.integrations.measure.torch_indices import TorchReader
from planner.profiling.profiler import profile_files
from planner.profiling.readers import read_head
from planner.profiling.statistics import ProfileOptions
from tests.planner.profiling.samples import read_bags

torch: Any = pytest.importorskip("torch")

pytestmark = pytest.mark.torchrec

BAGS = {"t_0": [[1], [2, 3]], "t_1": [[], [4]]}
VALUES, LENGTHS, OFFSETS = [1, 2, 3, 4], [[1, 2], [0, 1]], [0, 1, 3, 3, 4]


def save(path: Path, content: object) -> Path:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    data = buffer.getvalue()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def triple(**changes: Any) -> tuple[Any, Any, Any]:
    values = {"indices": VALUES, "offsets": OFFSETS, "lengths": LENGTHS, **changes}
    return tuple(torch.tensor(v) for v in values.values())  # type: ignore[return-value]


@pytest.mark.parametrize("name", ["fbgemm_t2_bs2.pt", "fbgemm_t2_bs2.pt.gz"])
def test_indices_offsets_lengths(tmp_path: Path, name: str) -> None:
    path = save(tmp_path / name, triple())
    reader = TorchReader()
    assert reader.matches(path, read_head(path))
    assert read_bags(reader, path) == BAGS
    assert reader.look(path).num_samples == 2


def test_one_table(tmp_path: Path) -> None:
    path = save(tmp_path / "x.pt", triple(lengths=[1, 2, 0, 1]))
    assert read_bags(TorchReader(), path) == {"t_0": [[1], [2, 3], [], [4]]}


@pytest.mark.parametrize(
    "content",
    [
        {"keys": ["a", "b"], "values": torch.tensor(VALUES), "lengths": torch.tensor([1, 2, 0, 1])},
        {"keys": ["a", "b"], "values": torch.tensor(VALUES), "offsets": torch.tensor(OFFSETS)},
        (["a", "b"], torch.tensor(VALUES), torch.tensor([1, 2, 0, 1])),
    ],
)
def test_keys_values_lengths(tmp_path: Path, content: object) -> None:
    path = save(tmp_path / "x.pt", content)
    assert list(read_bags(TorchReader(), path).values()) == list(BAGS.values())


def test_saved_keyed_jagged_tensors(tmp_path: Path) -> None:
    sparse: Any = pytest.importorskip("torchrec.sparse.jagged_tensor")
    kjt = sparse.KeyedJaggedTensor.from_lengths_sync(
        ["a", "b"], torch.tensor(VALUES), torch.tensor([1, 2, 0, 1])
    )
    one = save(tmp_path / "one.pt", kjt)
    assert list(read_bags(TorchReader(), one).values()) == list(BAGS.values())
    many = save(tmp_path / "many.pt", [kjt, kjt])
    assert read_bags(TorchReader(), many)["a"] == [[1], [2, 3]] * 2
    stats = profile_files(
        [one, many], tmp_path / "s.json", ProfileOptions(batch_sizes=(2,)), readers=[TorchReader()]
    )
    assert stats.tables["b"].num_indices == 3
    assert stats.tables["a"].pooling.mean == 1.5


class Harmful:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("harm"),))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (3, "holds int; expected a KeyedJaggedTensor"),
        ({"keys": ["a"], "values": [1, 2], "lengths": torch.tensor([1])}, "expected a tensor"),
        ({"keys": ["a"], "values": torch.tensor(VALUES)}, "neither lengths nor offsets"),
        (triple(offsets=[0, 1, 3, 3, 5]), "offsets and lengths disagree"),
        (triple(offsets=[1, 1, 3, 3, 4]), "ascend from 0"),
        (triple(indices=[1, 2, 3]), "lengths sum to 4, but there are 3 indices"),
        (triple(indices=[1, 2, 3, -4]), "index -4 is negative"),
        (triple(indices=[1.0, 2.0, 3.0, 4.0]), "must be integers"),
        (
            {"keys": ["a", "b"], "values": torch.tensor([1]), "lengths": torch.tensor([1])},
            "1 lengths cannot be shared by 2 features",
        ),
        (
            {"keys": ["a", "a"], "values": torch.tensor([1]), "lengths": torch.tensor([1, 0])},
            "appears twice",
        ),
        ([triple(), (["a"], torch.tensor([1]), torch.tensor([1]))], "other features"),
        ([triple(), triple(offsets=[0])], "batch 1: offsets and lengths disagree"),
        (
            {"keys": ["a"], "values": torch.tensor([0])[:0], "lengths": torch.tensor([0])[:0]},
            "holds no samples",
        ),
        (Harmful(), "not tensors written by torch.save"),
    ],
)
def test_bad_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: object, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = save(tmp_path / "x.pt", content)
    with pytest.raises(InvalidInputError, match=message):
        TorchReader().look(path)
    assert not Path("harm").exists()


def test_bad_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(InvalidInputError, match="not tensors written by"):
        TorchReader().look(path)
    path.write_bytes(pickle.dumps(3)[:-1])
    with pytest.raises(InvalidInputError, match="not tensors written by"):
        TorchReader().look(path)
    path.write_bytes(gzip.compress(b"x" * 10_000)[:-9])
    with pytest.raises(InvalidInputError, match="cannot be read"):
        TorchReader().look(path)
    save(path, triple(indices=[1, 2, 3, 9]))
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(InvalidInputError, match=r"shardplan\[torchrec\]"):
        TorchReader().look(path)


def test_a_small_file_that_unpacks_to_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.pt.gz"
    path.write_bytes(gzip.compress(bytes(10**7)))
    with pytest.raises(InvalidInputError, match=r"not tensors written by torch\.save"):
        TorchReader().look(path)
    monkeypatch.setattr("planner.profiling.readers._LEAST_LIMIT_BYTES", 1e6)
    with pytest.raises(InvalidInputError, match=r"unpacks to more than 1000000 bytes"):
        TorchReader().look(path)


def test_no_bytes_end_in_another_error(tmp_path: Path) -> None:
    """Bytes 0 to 255 ended in an IndexError: the unpickler takes any bytes for commands."""
    rng, path = random.Random(0), tmp_path / "x.pt"
    saved = save(path, triple()).read_bytes()
    contents = [bytes(range(256)), *(rng.randbytes(rng.randrange(1, 200)) for _ in range(300))]
    contents += [bytes(rng.choices(b"(.]}{)tseh\x80\x02q\x00K\x01", k=40)) for _ in range(300)]
    for _ in range(100):
        changed = bytearray(saved)
        for at in rng.sample(range(len(saved)), 4):
            changed[at] = rng.randrange(256)
        contents.append(bytes(changed[: rng.randrange(len(saved))]))
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(InvalidInputError):
            TorchReader().look(path)
