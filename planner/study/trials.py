"""The trials of a study as Optuna keeps them, in memory or in Optuna's own journal.

A process that is killed leaves running trials behind. The next process that opens the journal ends
them, and their setups are searched again, so that no setup is lost and none is counted twice.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import socket
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import optuna
from optuna import samplers
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import InMemoryStorage, JournalStorage
from optuna.storages import journal as journals
from optuna.trial import FrozenTrial, Trial, TrialState
from pydantic import BaseModel, Field, StrictInt, TypeAdapter

from costmodels.system_models import sync_time_s
from planner import api
from planner.errors import (
    InfeasibleError,
    InvalidInputError,
    NoPlanFoundError,
    StoppedError,
    refuse,
)
from planner.io.plan.plan_file import plan_to_json
from planner.problem import PlanningProblem
from planner.report.figures import path_seconds
from planner.search.base import StopCallback
from planner.search.bounds.proofs import Floor
from planner.settings import SearchSettings
from planner.study.figures import Amount, Figures, Operation, figures_of, saved_bytes
from planner.study.space import SYNC, Setup, Space, whole_number
from planner.support.processes import ProcessDiedError, WorkerError, WorkerPool
from planner.support.status import Status

# ------------------ searches and proofs, here or elsewhere

DIED: Final = "its process died, for want of memory perhaps"
DONE, UNFIT, FAILED, STOPPED = "done", "does_not_fit", "failed", "stopped"

_POLL_S: Final = 0.5
"""Seconds between two checks of ``should_stop`` while a cluster works."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupResult:
    """A setup that was searched, or is impossible.

    Attributes:
        setup: the setup.
        status: ``done``, ``does_not_fit``, ``failed``, or ``stopped`` before the search had ended.
        figures: those of its plan; None if there is none.
        reason: why there is no plan.
        number: of its trial; trials are numbered in the order in which they began.
        bound_s: proven bound on the iteration, without the averaging of copies.
        sync_s: seconds per iteration for the averaging of copies.
        evaluations: plans that the search priced.
        is_cut: whether the clock ended the search.
        waits_for: the stage with the largest share of the critical path.
        plan: the plan as in ``plan.json``.
    """

    setup: Setup
    status: str
    figures: Figures | None = None
    reason: str = ""
    number: int = -1
    bound_s: Amount | None = None
    sync_s: Amount = 0.0
    evaluations: Annotated[int, Field(ge=0)] = 0
    is_cut: bool = False
    waits_for: str = ""
    plan: dict[str, Any] | None = None


def search(
    operation: Operation,
    settings: SearchSettings,
    asked: tuple[Setup, PlanningProblem, PlanningProblem],
    *,
    should_stop: Callable[[], bool] | None = None,
) -> SetupResult:
    """Search a setup.

    Args:
        operation: failures, and speeds of checkpoints.
        settings: budget, limits and seed.
        asked: the setup, the problem of all ranks under it, and that of one group of ranks.
        should_stop: called often; True ends the search.
    """
    setup, whole, problem = asked
    try:
        result = api.solve(problem, search=settings, should_stop=should_stop)
    except (InfeasibleError, NoPlanFoundError, StoppedError, InvalidInputError) as error:
        is_stopped = should_stop is not None and should_stop()
        status = UNFIT if isinstance(error, InfeasibleError) else STOPPED if is_stopped else FAILED
        return SetupResult(setup=setup, status=status, reason=str(error))
    memory, time = result.best.memory, result.estimate.time
    waits_s = path_seconds(result.estimate, lambda step: step.stage)
    size = problem.topology.world_size
    once_s = sync_time_s(whole.topology, size, memory, models=whole.models)
    sync_s = once_s / whole_number(setup.get(SYNC, 1))
    figures = figures_of(
        whole,
        operation,
        time_s=time.time_s + sync_s,
        free_bytes=memory.fullest.headroom_bytes,
        checkpoint_bytes=saved_bytes(result),
    )
    return SetupResult(
        setup=setup,
        status=STOPPED if result.solver.status is Status.INTERRUPTED else DONE,
        figures=replace(figures, low_s=time.low_s + sync_s, high_s=time.high_s + sync_s),
        bound_s=result.bound,
        sync_s=sync_s,
        evaluations=result.solver.evaluations,
        is_cut=result.solver.status is Status.TIME_LIMIT,
        waits_for=max(waits_s, key=waits_s.__getitem__, default=""),
        plan=plan_to_json(result.plan, problem.workload, problem.topology.local_world_size),
    )


def prove(
    problem: PlanningProblem, *, should_stop: Callable[[], bool] | None = None
) -> Floor | None:
    """What no plan of a problem can better; None if nothing fits.

    Raises:
        StoppedError: ``should_stop`` was True.
    """
    with contextlib.suppress(InfeasibleError, InvalidInputError):
        return api.floor(problem, should_stop=should_stop)
    return None


# ------------------------------------------------------------------ where tasks are done


def done_at(
    place: Any, function: Callable[..., Any], items: Sequence[Any], should_stop: StopCallback
) -> Iterator[tuple[int, Any]]:
    """Call a function on each item; yields the index and the result, as calls finish.

    The result is None for a call whose process died twice, the second time alone.

    Args:
        place: a pool of processes, a client of a Dask cluster, or None for this process.
        function: :func:`search` or :func:`prove`.
        items: the arguments.
        should_stop: called again and again; True ends the calls.

    Raises:
        StoppedError: ``should_stop`` was True in a proof of this process.
        WorkerError: the connection to the cluster was lost.
    """
    if place is None:
        for index, item in enumerate(items):
            if should_stop():
                return
            yield index, function(item, should_stop=should_stop)
    elif isinstance(place, WorkerPool):
        died: list[int] = []
        for index, done in place.run(function, items, should_stop=should_stop):
            if isinstance(done.exception(), ProcessDiedError):
                died.append(index)
            else:
                yield index, done.result()
        with type(place)(1) as alone:
            again = [items[i] for i in died]
            for index, done in alone.run(function, again, should_stop=should_stop):
                is_lost = isinstance(done.exception(), ProcessDiedError)
                yield died[index], None if is_lost else done.result()
    else:
        yield from _on_dask(place, function, items, should_stop)


def _on_dask(
    client: Any, function: Callable[..., Any], items: Sequence[Any], should_stop: StopCallback
) -> Iterator[tuple[int, Any]]:
    """Results of a cluster; what a lost worker did goes to another one, a few times."""
    distributed = importlib.import_module("distributed")
    waiting = {client.submit(function, item, pure=False): i for i, item in enumerate(items)}
    while waiting:
        if should_stop():
            client.cancel(list(waiting))
            return
        with contextlib.suppress(TimeoutError):
            distributed.wait(list(waiting), timeout=_POLL_S, return_when="FIRST_COMPLETED")
        for future in [f for f in waiting if f.done()]:
            index = waiting.pop(future)
            if future.cancelled():
                message = "the Dask cluster was lost; start again to go on from the results so far"
                raise WorkerError(message)
            is_lost = isinstance(future.exception(), distributed.KilledWorker)
            yield index, None if is_lost else future.result()


# ------------------ the trials

STUDY_NAME: Final = "shardplan"

_POPULATION: Final = 16
_CREATE_STUDY, _CREATE_TRIAL, _OPERATIONS = 0, 4, 10
"""Codes of Optuna's operations: those up to the second are about a study, others about a trial."""
_RESULT: Final = TypeAdapter(SetupResult)


class Trials:
    """The trials of a study; ``study`` is Optuna's, whose attributes say what it is about.

    Args:
        space: the setups.
        journal: the file of Optuna's journal; None keeps the trials in memory.
        sampler: ``tpe``, ``nsga2`` or ``random``; others pick at random too.
        seed: of the sampler.
        num_goals: number of goals.

    Raises:
        InvalidInputError: the file is not a journal, or is damaged.
    """

    def __init__(
        self, space: Space, journal: Path | None, sampler: str, *, seed: int, num_goals: int
    ) -> None:
        """Open the study of a journal, or begin one, and give up what lost processes have begun."""
        self._space = space
        self._results: dict[int, SetupResult] = {}
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.study = optuna.create_study(
            study_name=STUDY_NAME,
            storage=_storage(journal),
            sampler=_sampler(sampler, seed),
            directions=["minimize"] * num_goals,
            load_if_exists=True,
        )
        for trial in self._in("RUNNING"):
            if _is_lost(trial.user_attrs.get("worker", "")):
                self.drop(trial, "FAIL")

    @property
    def results(self) -> tuple[SetupResult, ...]:
        """Every finished search, in the order in which they began."""
        for trial in self._in("COMPLETE"):
            if trial.number not in self._results:
                kept, setup = trial.user_attrs["result"], _setup_of(trial)
                told = replace(_RESULT.validate_python(kept), setup=setup, number=trial.number)
                self._results[trial.number] = told
        return tuple(self._results[number] for number in sorted(self._results))

    @property
    def ruled_out(self) -> tuple[Setup, ...]:
        """Setups that a sampler picked, and that were not searched because of their bounds."""
        return tuple(_setup_of(t) for t in self._in("PRUNED"))

    @property
    def taken(self) -> set[Setup]:
        """The setups that were searched or ruled out, or are at work."""
        every = self._in("COMPLETE", "PRUNED", "RUNNING")
        return {_setup_of(t) for t in every if "setup" in t.user_attrs}

    @property
    def seconds(self) -> float:
        """Seconds from the start of the first search to the end of the last one."""
        done = self._in("COMPLETE")
        times = [at for t in done for at in (t.datetime_start, t.datetime_complete) if at]
        return (max(times) - min(times)).total_seconds() if times else 0.0

    def begin(self, setup: Setup | None = None) -> tuple[Trial, Setup]:
        """Begin the trial of a setup, or of the one that the sampler chooses.

        Another process may take what is queued here, and this one what the other has queued. Either
        trial then has the setup that its process searches, and parameters of the other one.
        """
        knobs = self._space.knobs
        if setup is not None:
            params = {k: v if v in knobs[k] else knobs[k][0] for k, v in setup.picks}
            self.study.enqueue_trial(params)
        trial = self.study.ask()
        values = [trial.suggest_categorical(name, list(given)) for name, given in knobs.items()]
        setup = setup or self._space.setup_of(values)
        trial.set_user_attr("worker", f"{socket.gethostname()} {os.getpid()}")
        trial.set_user_attr("setup", [list(pick) for pick in setup.picks])
        return trial, setup

    def end(self, trial: Trial, result: SetupResult, values: Sequence[float]) -> None:
        """Write what a search has found, unless others have given the trial up meanwhile."""
        with contextlib.suppress(UpdateFinishedTrialError):
            trial.set_user_attr("result", _RESULT.dump_python(result))
            self.study.tell(trial, list(values), skip_if_finished=True)

    def drop(self, trial: Trial | FrozenTrial, state: str) -> None:
        """End a trial without a result.

        Args:
            trial: the trial.
            state: ``PRUNED`` if its setup cannot better what was found, or ``FAIL`` if the setup
                may be searched again.
        """
        with contextlib.suppress(ValueError, UpdateFinishedTrialError):
            self.study.tell(trial.number, state=TrialState[state], skip_if_finished=True)

    def _in(self, *states: str) -> list[FrozenTrial]:
        kept = tuple(TrialState[state] for state in states)
        return self.study.get_trials(deepcopy=False, states=kept)


def _setup_of(trial: FrozenTrial) -> Setup:
    return Setup(tuple((k, v) for k, v in trial.user_attrs["setup"]))


def _violation(trial: FrozenTrial) -> Sequence[float]:
    """Above 0 for a setup that was searched and under which nothing fits."""
    result = trial.user_attrs.get("result")
    return (1.0 if result is not None and not result.get("figures") else 0.0,)


def _is_lost(worker: str) -> bool:
    """Whether the process of a running trial has ended, or is on another machine."""
    host, _, pid = worker.rpartition(" ")
    return (
        host != socket.gethostname() or pid == str(os.getpid()) or not Path("/proc", pid).exists()
    )


def _sampler(name: str, seed: int) -> samplers.BaseSampler:
    """Optuna's sampler of that name; setups under which nothing fits break its constraint."""
    given: dict[str, Any] = {"seed": seed, "constraints_func": _violation}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna 5 prefers another way, which Optuna 4 has not
        if name == "tpe":
            return samplers.TPESampler(multivariate=True, group=True, **given)
        if name == "nsga2":
            return samplers.NSGAIISampler(population_size=_POPULATION, **given)
        return samplers.RandomSampler(seed=seed)


# ------------------------------------------------------------------ the journal


def _storage(journal: Path | None) -> optuna.storages.BaseStorage:
    """The journal as Optuna reads it, opened by its absolute path.

    Optuna's lock is a symbolic link to the path of the journal. With a relative path the link can
    lead nowhere; if its process has been killed, Optuna would then wait for the lock forever.
    """
    if journal is None:
        return InMemoryStorage()
    if journal.exists():
        with journal.open(encoding="utf-8", errors="replace") as file:
            _check_lines(file, journal)
        _drop_cut_line(journal)
    return JournalStorage(journals.JournalFileBackend(str(journal.absolute())))


def _drop_cut_line(journal: Path) -> None:
    """Cut off a last line that a full disk left without its end, to keep the next line apart."""
    lock = journals.JournalFileSymlinkLock(str(journal.absolute()))
    lock.acquire()
    try:
        os.truncate(journal, journal.read_bytes().rfind(b"\n") + 1)
    finally:
        lock.release()


class _Line(BaseModel):
    """What Optuna has to find in a line; ids are those of the only study and of a trial."""

    op_code: Annotated[int, Field(strict=True, ge=0, lt=_OPERATIONS)]
    worker_id: str
    study_name: Literal["shardplan"] = STUDY_NAME
    study_id: StrictInt | None = None
    trial_id: StrictInt | None = None

    def is_about(self, trials: int) -> bool:
        """Whether it is about the study, or about one of the trials before it, as its code says."""
        if self.op_code > _CREATE_TRIAL:
            return self.study_id is None and self.trial_id in range(trials)
        study = None if self.op_code == _CREATE_STUDY else 0
        return self.study_id == study and self.trial_id is None


def _check_lines(file: Iterable[str], journal: Path) -> None:
    """Refuse lines that Optuna would wait for, skip or fail with: wrong operations and numbers.

    The last line may be cut off. A line about another study, or about a trial that no line has
    begun, is damaged: Optuna does not see it, and waits for its effect.
    """
    trials = 0
    for number, text in enumerate(file, 1):
        if number > 1 and not text.endswith("\n"):
            return
        with contextlib.suppress(ValueError, RecursionError):
            line = _Line.model_validate(json.loads(text))
            if line.is_about(trials) and (number > 1 or line.op_code == _CREATE_STUDY):
                trials += line.op_code == _CREATE_TRIAL
                continue
        if number == 1:
            refuse(f"{journal}: exists and is no journal of a study; name another folder")
        refuse(
            f"{journal}: a line of the journal is damaged (line {number}: {text.strip()[:60]!r}); "
            "name another folder"
        )
