"""Plans, bounds and proofs of impossibility against every plan that TorchRec can run."""

from __future__ import annotations

import os

import pytest

from tests.differential import named
from tests.differential.check import Verdict, check
from tests.differential.problems import draw

CHUNKS, CHUNK = 20, 10
EVALUATIONS = 300
"""Plans that the search may price for each default problem: it is about promises, not quality."""

COUNT = int(os.environ.get("DIFFERENTIAL_COUNT", "2000"))
START = int(os.environ.get("DIFFERENTIAL_START", "100000"))


def complaints(verdicts: list[Verdict]) -> str:
    """One line for each fault."""
    return "\n".join(f"{v.case.name}: {fault}" for v in verdicts for fault in v.faults)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_problems(chunk: int) -> None:
    seeds = range(chunk * CHUNK, (chunk + 1) * CHUNK)
    found = complaints([check(draw(seed), max_evaluations=EVALUATIONS) for seed in seeds])
    assert not found, f"\n{found}\nsee python -m tests.differential.run --seed N"


@pytest.mark.parametrize("name", named.names())
def test_named_cases(name: str) -> None:
    verdict = check(named.named(name), exact=name not in named.TOO_LARGE)
    found = complaints([verdict])
    assert not found, f"\n{found}\nsee python -m tests.differential.run --case {name}"


@pytest.mark.slow
def test_many_random_problems() -> None:
    """As many as DIFFERENTIAL_COUNT says, from the seed DIFFERENTIAL_START on."""
    verdicts = [check(draw(seed)) for seed in range(START, START + COUNT)]
    found = complaints(verdicts)
    assert not found, f"\n{found}"
