"""Whatever is in a file or on a command line: a clear error, or a workload; never anything else."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from planner.errors import InvalidInputError
from planner.io.importers.base import Imported, import_torchrec_plan, imported_text
from planner.io.importers.dlrm import PROGRAMS, import_dlrm
from planner.io.importers.fbgemm import import_fbgemm, import_param
from planner.io.importers.hugectr import import_hugectr, import_hugectr_plan
from tests.planner.io.importers import samples
from tests.planner.io.importers.checks import SHAPES, check_readable, save, three_tables


def refused(error: InvalidInputError) -> None:
    """An error that says something, on one line per problem."""
    assert str(error).strip()
    assert all(line.strip() for line in error.problems)


def read_hugectr(path: Path) -> Imported:
    """A configuration or a plan, as the command tells them apart."""
    value = json.loads(path.read_text())
    if isinstance(value, list):
        return import_hugectr_plan(path, three_tables(), value)
    return import_hugectr(path, value)


READERS: dict[str, tuple[Callable[[Path], Imported], list[Any]]] = {
    "torchrec": (lambda p: import_torchrec_plan(p, SHAPES), [samples.torchrec_plan()]),
    "hugectr": (
        read_hugectr,
        [
            samples.hugectr_config(),
            samples.hugectr_config("DistributedSlotSparseEmbeddingHash"),
            samples.hugectr_plan(),
        ],
    ),
    "fbgemm": (import_fbgemm, [samples.tbe_config(), {"a": samples.tbe_config()}]),
    "param": (import_param, [samples.param_config()]),
}
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 5),
    st.integers(-(10**30), 10**30),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.just([]),
    st.just({}),
    st.lists(st.integers(-1, 4), max_size=4),
    st.just([[1, 2], 3]),
    st.just({"value": [0]}),
    st.sampled_from(["localized", "dp", "torch.int64", "MultiCross", "Data", "MLP", "row_wise"]),
)


@st.composite
def spoilt(draw: DrawFn, values: list[Any]) -> Any:
    """A good value with one to three places replaced, removed or doubled."""
    value = copy.deepcopy(draw(st.sampled_from(values)))
    for _ in range(draw(st.integers(1, 3))):
        part, last = value, None
        while isinstance(part, dict | list) and part:
            keys = list(part) if isinstance(part, dict) else list(range(len(part)))
            last = (part, draw(st.sampled_from(keys)))
            part = part[last[1]]
            if draw(st.integers(0, 4)) == 0:
                break
        if last is None:
            return copy.deepcopy(draw(JUNK))
        holder, key = last
        action = draw(st.integers(0, 3))
        if action == 0:
            del holder[key]
        elif action == 1 and isinstance(holder, list):
            holder.append(copy.deepcopy(holder[key]))
        else:
            holder[key] = copy.deepcopy(draw(JUNK))
    return value


@pytest.mark.parametrize("kind", READERS)
@given(data=st.data())
def test_spoilt_files_give_a_clear_error_or_a_workload(
    kind: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Never anything else: no traceback, and what is accepted can be written and read."""
    read, values = READERS[kind]
    folder = tmp_path_factory.getbasetemp()
    path = save(folder, data.draw(spoilt(values)))
    try:
        imported = read(path)
        imported_text(imported)
    except InvalidInputError as error:
        refused(error)
    else:
        check_readable(imported, folder)


@given(data=st.data())
def test_any_command_line_gives_a_clear_error_or_a_workload(data: st.DataObject) -> None:
    program = data.draw(st.sampled_from(sorted(PROGRAMS)))
    values, switches = PROGRAMS[program]
    value = st.sampled_from(
        ["1", "64", "0", "-1", "1-2", "2,3", "13-64-16", "x", "", "None", "=", "é"]
    )
    names = st.sampled_from(sorted(values | switches)) | st.text("abc-_=", max_size=4)
    words = st.lists(st.builds("--{}".format, names) | value | st.text(max_size=4), max_size=8)
    try:
        imported = import_dlrm([program, *data.draw(words)])
    except InvalidInputError as error:
        refused(error)
    else:
        assert imported_text(imported).startswith("# From a command line of")
