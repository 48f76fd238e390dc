"""Measurements without the pace of the machine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

pytest.importorskip("torch")

from costmodels.calibration.points import CollectivePoint
from planner.integrations.measure import pace as pace_module
from planner.integrations.measure.pace import Pace


@dataclass
class Machine:
    """Clocks of a core that other guests slow down, and the work it does."""

    at_s: float = 0.0
    busy_s: float = 0.0
    slowness: float = 1.0

    def work(self, seconds: float) -> None:
        self.at_s += 2.0 * self.slowness * seconds
        self.busy_s += self.slowness * seconds

    def perf_counter(self) -> float:
        return self.at_s

    def thread_time(self) -> float:
        return self.busy_s


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine on which each kind of fixed work takes 1, 2 and 4 ms."""
    found = Machine()
    monkeypatch.setattr(pace_module, "time", found)
    for name, seconds in (("_look_up", 1e-3), ("_multiply", 2e-3), ("_call", 4e-3)):
        monkeypatch.setattr(Pace, name, lambda _, seconds=seconds: found.work(seconds))
    return found


def taken(machine: Machine, pace: Pace, seconds: float) -> list[CollectivePoint]:
    """A measurement that reads the pace in between."""
    before = machine.thread_time()
    machine.work(seconds)
    time_s = machine.thread_time() - before
    pace.read()
    both = (8.0, 8.0)
    return [
        CollectivePoint(operation="all_reduce", sent_bytes=both, kept_bytes=both, time_s=time_s)
    ]


def test_what_is_measured_while_the_machine_is_slow_comes_out_as_at_its_typical_pace(
    machine: Machine,
) -> None:
    pace, timed = Pace(), []
    slowness, seconds = [1.0, 1.4, 1.0, 0.8, 1.0], [1e-3, 3e-3, 1e-3, 5e-3, 2e-3]
    for slow, own in zip(slowness, seconds, strict=True):
        machine.slowness = slow
        timed += pace.timed("steps", lambda own=own: taken(machine, pace, own))
        machine.at_s += 60.0
    assert [t.point.time_s for t in timed] == pytest.approx(
        [slow * own for slow, own in zip(slowness, seconds, strict=True)]
    )
    assert [pace.at_typical(t).time_s for t in timed] == pytest.approx(seconds)
    assert pace.typical_s("steps") == pytest.approx(2e-3)
    logs = np.log([1.4, 0.8])
    assert pace.sigma_ratio() == pytest.approx(np.sqrt(np.square(logs).sum() / 5))


def test_a_moment_without_a_reading_nearby_takes_the_nearest(machine: Machine) -> None:
    pace = Pace()
    (first,) = pace.timed("steps", lambda: taken(machine, pace, 1e-3))
    machine.slowness, machine.at_s = 2.0, machine.at_s + 60.0
    (second,) = pace.timed("steps", lambda: taken(machine, pace, 60.0))
    pace.read()
    typical_s = pace.typical_s("steps")
    assert pace.at_typical(first).time_s == pytest.approx(1e-3 * typical_s / 2e-3)
    assert pace.at_typical(second).time_s == pytest.approx(60.0 * typical_s / 2e-3)


def test_a_kind_of_measurement_that_slows_the_fixed_work_down_keeps_its_seconds(
    machine: Machine,
) -> None:
    """Beside collectives all work takes half as long again; the machine itself never changes."""
    pace, timed = Pace(), []
    for beside, slow in 3 * [("steps", 1.0), ("collectives", 1.5), ("steps", 1.0)]:
        machine.slowness = slow
        timed += pace.timed(beside, lambda: taken(machine, pace, 1e-3))
    seconds = [pace.at_typical(t).time_s for t in timed]
    assert seconds == pytest.approx([t.point.time_s for t in timed])
    assert seconds[:3] == pytest.approx([1e-3, 1.5e-3, 1e-3])
    assert pace.sigma_ratio() == pytest.approx(0.0, abs=1e-12)
    typical_s = [pace.typical_s(beside) for beside in ("steps", "collectives")]
    assert typical_s == pytest.approx([2e-3, 3e-3])


def test_fixed_work_is_done_for_real() -> None:
    pace = Pace()
    pace.read()
    assert 1e-6 < pace.typical_s() < 1.0
