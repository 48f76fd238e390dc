"""How much is measured on more than two ranks."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from costmodels.calibration.points import FULL, QUICK, MeasuringEffort, collective_points


@pytest.mark.parametrize("effort", [FULL, QUICK])
def test_two_ranks_measure_what_is_said(effort: MeasuringEffort) -> None:
    assert effort.shared_by(2) == effort


def counts_of(effort: MeasuringEffort) -> dict[str, int]:
    """All counts of an effort by name."""
    found = asdict(effort)
    lookups = found.pop("num_lookups")
    return {**found, **{f"lookups {i}": count for i, count in enumerate(lookups)}}


@pytest.mark.parametrize("world_size", [3, 4, 6, 8])
def test_more_ranks_measure_about_as_much_in_all(world_size: int) -> None:
    own = counts_of(FULL.shared_by(world_size))
    for name, of_two in counts_of(FULL).items():
        if name in ("num_passes", "num_blocks"):
            assert own[name] == of_two
        else:
            assert 2 * of_two <= world_size * own[name] < 2 * of_two + world_size


def test_many_ranks_still_measure_a_quarter_each() -> None:
    assert FULL.shared_by(64).num_lookups[0] == FULL.num_lookups[0] // 4


@pytest.mark.parametrize("world_size", [2, 3, 4, 16, 64])
def test_collectives_never_hold_more_than_32_mib(world_size: int) -> None:
    points = collective_points(world_size)
    largest = max(sum(p.kept_bytes) for p in points)
    assert 2**24 < largest <= 2**25
    assert min(sum(p.sent_bytes) for p in points if len({*p.sent_bytes}) == 1) == 2**10 * world_size
    assert {p.operation for p in points if max(p.sent_bytes) == max(points[-1].sent_bytes)} == {
        p.operation for p in points
    }
