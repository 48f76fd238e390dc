"""Plans, bounds and proofs of impossibility against every plan that TorchRec can run."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.differential import named
from tests.differential.asking import UNCUT, Run
from tests.differential.check import EVALUATIONS, Verdict, check
from tests.differential.drawing.problems import draw, draw_larger
from tests.planner.cases import first

pytestmark = pytest.mark.usefixtures("no_process_beside")

CHUNKS, CHUNK = 20, 10
QUICK = 2
"""Chunks that run by default; the others are slow."""

ENGINE_EVERY = 3
"""The engine alone takes most of the time, so it is asked about every third default problem."""

MOST_OF_A_FAULT = 3
"""Problems that one fault was found with and that run by default."""

COUNT = int(os.environ.get("DIFFERENTIAL_COUNT", "2000"))
START = int(os.environ.get("DIFFERENTIAL_START", "100000"))


def complaints(verdicts: list[Verdict]) -> str:
    """One line for each fault."""
    return "\n".join(f"{v.case.name}: {fault}" for v in verdicts for fault in v.faults)


@pytest.mark.parametrize("chunk", first(range(CHUNKS), QUICK))
def test_random_problems(chunk: int) -> None:
    verdicts = []
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        runs = UNCUT if seed % ENGINE_EVERY == 0 else (Run.USERS,)
        verdicts.append(check(draw(seed), runs=runs, max_evaluations=EVALUATIONS))
    found = complaints(verdicts)
    assert not found, f"\n{found}\nsee python -m tests.differential.run --seed N"


@pytest.mark.parametrize("seed", first([5056, *range(5000, 5018)], 2))
def test_host_kernels_that_are_left_out(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large problems leave host kernels unlisted; bounds and refusals hold for them too."""
    monkeypatch.setattr("planner.options.enumeration._EVERY", 0)
    found = complaints([check(draw(seed), max_evaluations=EVALUATIONS)])
    assert not found, f"\n{found}"


def some_of_each_fault() -> list[object]:
    """All names; those after the third of one fault are slow."""
    faults = Counter[str]()
    marked = []
    for name in named.names():
        fault = name.rpartition("-")[0] or name
        faults[fault] += 1
        marks = [pytest.mark.slow] if faults[fault] > MOST_OF_A_FAULT else []
        marked.append(pytest.param(name, marks=marks))
    return marked


@pytest.mark.parametrize("name", some_of_each_fault())
def test_named_cases(name: str) -> None:
    """Asked as users ask where only that found the fault, else of the engine alone.

    No fault was one of what is known without a search, which the slow form asks for too.
    """
    runs = (Run.USERS if named.only_users_saw(name) else Run.ENGINE,)
    _check_named(name, runs, floors=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", named.names())
def test_named_cases_asked_in_both_ways(name: str) -> None:
    _check_named(name, UNCUT)


def _check_named(name: str, runs: tuple[Run, ...], *, floors: bool = True) -> None:
    exact = named.has_every_plan(name)
    verdict = check(
        named.named(name), runs=runs, exact=exact, max_evaluations=EVALUATIONS, floors=floors
    )
    found = complaints([verdict])
    assert not found, f"\n{found}\nsee python -m tests.differential.run --case {name}"


@pytest.mark.slow
def test_many_random_problems() -> None:
    """As many as DIFFERENTIAL_COUNT says, from the seed DIFFERENTIAL_START on."""
    found = complaints([check(draw(seed)) for seed in range(START, START + COUNT)])
    assert not found, f"\n{found}"


@pytest.mark.slow
def test_larger_problems() -> None:
    """Held against plans that are known, for they have too many to price them all."""
    seeds = range(START, START + max(1, COUNT // 50))
    found = complaints([check(draw_larger(seed), exact=False, twice=True) for seed in seeds])
    assert not found, f"\n{found}"
