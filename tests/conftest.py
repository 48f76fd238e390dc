"""What every test runs under: examples of hypothesis are the same at every run, without a clock.

``--hypothesis-profile thorough`` tries 400 of each.

The tests and what they import are a million objects that stay until the end. Python's collector is
told so; otherwise it goes through all of them again and again. Libraries of linear algebra get one
thread: theirs wait for each other by spinning, and the tests already run on every core. Bytecode is
kept beside the code even where ``PYTHONDONTWRITEBYTECODE`` is set: the tests start a hundred
processes, each of which would else compile the packages again. Ctrl-C works also where a shell has
begun the tests in the background, which ignores it: some tests interrupt what they have started.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from planner.problem import PlanningProblem
    from planner.search.bounds.proofs import Floor

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # read when NumPy and torch are imported
    os.environ.setdefault(_name, "1")
gc.disable()  # until all is imported
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_FLOORS: dict[PlanningProblem, Floor] = {}

settings.register_profile(
    "shardplan",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=8,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("thorough", settings.get_profile("shardplan"), max_examples=400)
settings.load_profile("shardplan")


@pytest.fixture
def no_process_beside(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches do in this process what they would do in others, as where none can be started.

    The outcome is the same; starting a process takes longer than a small search. Slow tests start
    them.
    """
    if request.node.get_closest_marker("slow") is None:
        from planner.support.processes import WorkerPool

        class NoPool(WorkerPool):
            """A pool that can start no process."""

            def begin(self, *_: object) -> NoReturn:
                """Begin no call."""
                raise OSError

        monkeypatch.setattr("planner.search.improve.second_search.WorkerPool", NoPool)


@pytest.fixture
def floors_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What no plan of a problem can go below is computed once for all tests that ask for it.

    Studies of one problem ask for the same bounds again and again.
    """
    from planner import api

    honest = api.floor

    def once(problem: PlanningProblem, **hooks: Any) -> Floor:
        if problem not in _FLOORS:
            _FLOORS[problem] = honest(problem, **hooks)
        return _FLOORS[problem]

    monkeypatch.setattr(api, "floor", once)


@pytest.fixture(params=["soon", pytest.param("in full", marks=pytest.mark.slow)])
def end_of_searches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches that were given no budget end soon; the slow form gives them the usual one."""
    if request.param == "soon":
        monkeypatch.setattr("planner.space.budget.default_work_s", lambda *_: 0.1)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Take what is imported by now out of the collector's sight, and let it run less often."""
    del session
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    gc.enable()
