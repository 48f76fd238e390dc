"""What communication beside the top adds: random iterations, simulated event by event."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodels.datatypes import FloatArray
from costmodels.floors.overlap import SlowedTop, TopOverlap, top_overlap
from costmodels.iteration.base import FamilyTimes, Program, StageTimes
from costmodels.iteration.pipelines import PIPELINES as ALL
from costmodels.workload import Pipeline
from tests.costmodels.iteration.events import simulate
from tests.costmodels.iteration.programs import family, stage_times

TOP = "interaction and top MLP"
RANKS = 3
SPARSE_DIST = ALL[Pipeline.SPARSE_DIST]
PIPELINES = (SPARSE_DIST, ALL[Pipeline.PREFETCH_SPARSE_DIST], ALL[Pipeline.NONE])


def _drawn(rng: np.random.Generator) -> StageTimes:
    """Ranks with the same dense part; lookups and hosts differ from rank to rank."""

    def log(*size: int, top: float = 1.0) -> FloatArray:
        """Mostly below ``top``, over three powers of ten, and sometimes 0."""
        return top * 10.0 ** rng.uniform(-3.0, 0.5, size) * (rng.uniform(size=size) < 0.9)

    there = rng.uniform(size=rng.integers(1, 4)) < 0.8
    families = tuple(
        replace(
            family(
                f"type {i}",
                input_s=float(log(1, top=4.0)[0] * is_there),
                exchange=float(log(1)[0] * is_there),
            ),
            present=np.array([is_there]),
        )
        for i, is_there in enumerate(there)
    )
    return stage_times(
        bottom_forward_s=log(1),
        top_forward_s=log(1, top=3.0),
        top_backward_s=log(1, top=6.0),
        lookup_forward_s=log(RANKS),
        lookup_backward_s=log(RANKS),
        cache_fetch_s=0.0,
        input_splits_s=log(1, top=0.1),
        tail_bucket_s=log(1),
        top_host_s=log(1, top=float(rng.choice([0.1, 3.0]))),
        top_backward_host_s=log(1, top=float(rng.choice([0.1, 5.0]))),
        lookup_host_s=log(RANKS, top=float(rng.choice([0.1, 2.0]))),
        collective_host_s=log(1, top=float(rng.choice([0.01, 0.3]))),
        bucket_s=tuple(log(1, top=2.0) for _ in range(rng.integers(0, 4))),
        families=families,
        overlap_slowdown_ratio=float(rng.choice([0.05, 0.1, 0.4, 0.9])),
    )


def _known(times: StageTimes, program: Program) -> TopOverlap:
    issue_s = float(times.collective_host_s[0])
    return top_overlap(program, TOP, issue_s=issue_s, num_types=len(times.families))


def _chains(times: StageTimes, program: Program, known: TopOverlap) -> list[SlowedTop]:
    """The chains of an iteration whose own moments and durations are known."""
    first = simulate(replace(program, overlap_slowdown_ratio=0.0), RANKS)
    chains = list(known.always)
    sent = [i for i, s in enumerate(program.steps) if s.name.startswith("input dist")]
    there = [i for i in sent if program.steps[i].is_present]
    if known.exchange is not None and there:
        begun_s = float(first.start_s[known.forward].max())
        hidden_s = sum(float(program.steps[i].duration_s[0]) for i in there)
        chain = known.slowed(begun_s, float(first.start_s[there[0]].max()), hidden_s)
        chains += [] if chain is None else [chain]
    return chains


@pytest.mark.parametrize("seed", range(0, 4000, 100))
def test_no_iteration_ends_its_top_before_a_chain_says(seed: int) -> None:
    """Whether passes wait for their hosts or not, with any number of pieces and of exchanges."""
    for number in range(seed, seed + 100):
        rng = np.random.default_rng([77, number])
        times = _drawn(rng)
        program = PIPELINES[number % len(PIPELINES)].program(times)
        known = _known(times, program)
        first = simulate(replace(program, overlap_slowdown_ratio=0.0), RANKS)
        second = simulate(program, RANKS)
        for chain in _chains(times, program, known):
            start_s = float(first.start_s[chain.start].max())
            end_s = float(second.finish_s[chain.end].max())
            least_s = chain.share_ratio * start_s + chain.constant_s
            assert end_s >= least_s * (1.0 - 1e-9), (number, chain)


def test_chains_say_more_than_a_program_without_slow_down() -> None:
    """In most iterations whose exchange goes on beside the top, and with all-reduces always."""
    gained = reduced = beside = 0
    for number in range(1500):
        rng = np.random.default_rng([78, number])
        times = _drawn(rng)
        program = SPARSE_DIST.program(times)
        known = _known(times, program)
        first = simulate(replace(program, overlap_slowdown_ratio=0.0), RANKS)
        plain_s = float(first.start_s[known.forward].max()) + known.forward_s + known.backward_s
        reduced += bool(known.always)
        for chain in _chains(times, program, known)[len(known.always) :]:
            beside += 1
            start_s = float(first.start_s[chain.start].max())
            gained += chain.share_ratio * start_s + chain.constant_s > plain_s
    assert reduced > 300
    assert beside > 300
    assert gained == beside


def test_a_chain_by_hand() -> None:
    """The top runs from 7 to 13 s; indices travel from 0.5 to 10.5 s: 3.5 s of them are left.

    All-reduces of the two first of three pieces run beside the backward pass from 11 to 13 s.
    """
    exchanged = FamilyTimes(
        name="table_wise",
        present=np.array([True]),
        input_s=np.array([10.0]),
        outputs_s=(("all-to-all", np.array([1.0])),),
    )
    times = stage_times(
        lookup_forward_s=5.0,
        lookup_backward_s=5.0,
        cache_fetch_s=0.0,
        top_forward_s=3.0,
        top_backward_s=3.0,
        families=(exchanged,),
        bucket_s=(np.array([1.5]), np.array([1.5])),
        overlap_slowdown_ratio=0.1,
    )
    known = _known(times, SPARSE_DIST.program(times))
    assert (known.forward_s, known.backward_s) == (3.0, 3.0)
    assert known.all_reduces_s == pytest.approx(2.0)
    chain = known.slowed(7.0, 0.5, 10.0)
    assert chain is not None
    end_s = chain.share_ratio * 7.0 + chain.constant_s
    assert end_s == pytest.approx(7.0 + 6.0 + (3.5 + 2.0) * 0.1 / 1.2)
    (always,) = known.always
    assert 10.0 + always.constant_s == pytest.approx(13.0 + 2.0 * 0.1 / 1.1)
    assert known.slowed(7.0, 0.5, 6.5) is None
    late = known.slowed(7.0, 0.5, 100.0)
    assert late is not None
    assert late.constant_s == pytest.approx(6.0 + 0.1 / 1.2 * (13.0 + 2.0)), "no more than the top"
