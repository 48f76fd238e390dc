"""The trials of a study as Optuna keeps them, in memory or in Optuna's own journal.

A process that is killed leaves running trials behind. The next process that opens the journal ends
them, and their setups are searched again, so that no setup is lost and none is counted twice.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter

from planner.errors import refuse
from planner.study.space import Setup, Space
from planner.study.task import SetupResult

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial, Trial

STUDY_NAME: Final = "shardplan"

_STARTUP_TRIALS: Final = 8
_POPULATION: Final = 16
_CREATE_STUDY, _CREATE_TRIAL, _OPERATIONS = 0, 4, 10
"""Codes of Optuna's operations: those up to the second are about a study, others about a trial."""
_RESULT: Final = TypeAdapter(SetupResult)
_APART: Final = {"setup", "number", "plan"}
"""Fields of a result that an entry of a trial does not repeat."""


class Trials:
    """The trials of a study.

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
        import optuna

        self._space = space
        self._results: dict[int, SetupResult] = {}
        self._begun_here: dict[int, Trial] = {}
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._study = optuna.create_study(
            study_name=STUDY_NAME,
            storage=_storage(journal),
            sampler=_sampler(sampler, seed),
            directions=["minimize"] * num_goals,
            load_if_exists=True,
        )
        for trial in self._in("RUNNING"):
            if _is_lost(trial.user_attrs.get("worker", "")):
                self._tell(trial.number, "FAIL")

    @property
    def attributes(self) -> dict[str, Any]:
        """What the journal says about the study itself."""
        return self._study.user_attrs

    def write(self, name: str, value: Any) -> None:
        """Write an attribute of the study."""
        self._study.set_user_attr(name, value)

    @property
    def results(self) -> tuple[SetupResult, ...]:
        """Every finished search, in the order in which they began."""
        for trial in self._in("COMPLETE"):
            if trial.number not in self._results:
                told, kept = trial.user_attrs, {"setup": _setup_of(trial), "number": trial.number}
                kept |= {**told["result"], "plan": told.get("plan")}
                self._results[trial.number] = _RESULT.validate_python(kept)
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
        begun = [t.datetime_start for t in done if t.datetime_start is not None]
        ended = [t.datetime_complete for t in done if t.datetime_complete is not None]
        return (max(ended) - min(begun)).total_seconds() if begun and ended else 0.0

    def begin(self, setup: Setup) -> int:
        """Begin the trial of a setup; returns its number."""
        knobs = self._space.knobs
        params = {k: v if v in knobs[k] else knobs[k][0] for k, v in setup.picks}
        self._study.enqueue_trial(params, user_attrs={"wanted": setup.picks})
        trial = self._study.ask()
        wanted = trial.user_attrs.get("wanted", setup.picks)
        return self._begun(trial, Setup(tuple((k, v) for k, v in wanted)))[0]

    def ask(self) -> tuple[int, Setup]:
        """Begin the trial of the setup that the sampler chooses."""
        return self._begun(self._study.ask(), None)

    def _begun(self, trial: Trial, setup: Setup | None) -> tuple[int, Setup]:
        values = [trial.suggest_categorical(n, list(v)) for n, v in self._space.knobs.items()]
        setup = setup or self._space.setup_of(values)
        self._begun_here[trial.number] = trial
        trial.set_user_attr("worker", _worker())
        trial.set_user_attr("setup", [list(pick) for pick in setup.picks])
        return trial.number, setup

    def end(self, number: int, result: SetupResult, values: Sequence[float]) -> None:
        """Write what a search has found, unless others have given the trial up meanwhile."""
        trial = self._begun_here.pop(number)
        told = {"result": _RESULT.dump_python(result, exclude=_APART), "plan": result.plan}
        with contextlib.suppress(_finished()):
            for name, value in told.items() if result.plan else [("result", told["result"])]:
                trial.set_user_attr(name, value)
            self._study.tell(trial, list(values), skip_if_finished=True)

    def rule_out(self, number: int) -> None:
        """End a trial whose setup cannot better what was found."""
        del self._begun_here[number]
        self._tell(number, "PRUNED")

    def give_up(self, number: int) -> None:
        """End a trial without a result; its setup may be searched again."""
        self._tell(number, "FAIL")

    def _tell(self, number: int, state: str) -> None:
        from optuna.trial import TrialState

        with contextlib.suppress(ValueError, _finished()):
            self._study.tell(number, state=TrialState[state], skip_if_finished=True)

    def _in(self, *states: str) -> list[FrozenTrial]:
        from optuna.trial import TrialState

        kept = tuple(TrialState[state] for state in states)
        return self._study.get_trials(deepcopy=False, states=kept)


def _setup_of(trial: FrozenTrial) -> Setup:
    return Setup(tuple((k, v) for k, v in trial.user_attrs["setup"]))


def _violation(trial: FrozenTrial) -> Sequence[float]:
    """Above 0 for a setup that was searched and under which nothing fits."""
    result = trial.user_attrs.get("result")
    return (1.0 if result is not None and not result.get("figures") else 0.0,)


def _finished() -> type[Exception]:
    from optuna.exceptions import UpdateFinishedTrialError

    return UpdateFinishedTrialError


def _worker() -> str:
    return f"{socket.gethostname()} {os.getpid()}"


def _is_lost(worker: str) -> bool:
    """Whether the process of a running trial has ended, or is on another machine."""
    host, _, pid = worker.rpartition(" ")
    return (
        host != socket.gethostname() or pid == str(os.getpid()) or not Path("/proc", pid).exists()
    )


def _sampler(name: str, seed: int) -> optuna.samplers.BaseSampler:
    """Optuna's sampler of that name; setups under which nothing fits break its constraint."""
    from optuna import samplers

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna 5 prefers another way, which Optuna 4 has not
        if name == "tpe":
            return samplers.TPESampler(
                seed=seed,
                n_startup_trials=_STARTUP_TRIALS,
                multivariate=True,
                group=True,
                constraints_func=_violation,
            )
        if name == "nsga2":
            return samplers.NSGAIISampler(
                population_size=_POPULATION, seed=seed, constraints_func=_violation
            )
        return samplers.RandomSampler(seed=seed)


# ------------------------------------------------------------------ the journal


def _storage(journal: Path | None) -> optuna.storages.BaseStorage:
    """The journal as Optuna reads it, opened by its absolute path.

    Optuna's lock is a symbolic link to the path of the journal. With a relative path the link can
    lead nowhere; if its process has been killed, Optuna would then wait for the lock forever.
    """
    from optuna.storages import InMemoryStorage, JournalStorage
    from optuna.storages.journal import JournalFileBackend

    if journal is None:
        return InMemoryStorage()
    if journal.exists():
        with journal.open(encoding="utf-8", errors="replace") as file:
            _check_lines(file, journal)
        _drop_cut_line(journal)
    return JournalStorage(JournalFileBackend(str(journal.absolute())))


def _drop_cut_line(journal: Path) -> None:
    """Cut off a last line that a full disk left without its end, to keep the next line apart."""
    from optuna.storages.journal import JournalFileSymlinkLock

    lock = JournalFileSymlinkLock(str(journal.absolute()))
    lock.acquire()
    try:
        os.truncate(journal, journal.read_bytes().rfind(b"\n") + 1)
    finally:
        lock.release()


def _check_lines(file: Iterable[str], journal: Path) -> None:
    """Refuse lines that Optuna would wait for, skip or fail with: wrong operations and numbers.

    The last line may be cut off. A line about another study, or about a trial that no line has
    begun, is damaged: Optuna does not see it, and waits for its effect.
    """
    trials = 0
    for number, line in enumerate(file, 1):
        try:
            entry = json.loads(line)
            code = entry["op_code"]
        except (ValueError, TypeError, LookupError, RecursionError):
            if number > 1 and not line.endswith("\n"):
                return
            if number == 1:
                refuse(f"{journal}: exists and is no journal of a study; name another folder")
            code, entry = None, {}
        is_good = (
            type(code) is int
            and code in range(_OPERATIONS if number > 1 else _CREATE_STUDY + 1)
            and entry.get("study_name", STUDY_NAME) == STUDY_NAME
            and isinstance(entry.get("worker_id"), str)
            and _is_about(entry, code, trials)
        )
        if not is_good:
            refuse(
                f"{journal}: a line of the journal is damaged (line {number}: "
                f"{line.strip()[:60]!r}); name another folder"
            )
        trials += code == _CREATE_TRIAL


def _is_about(entry: dict[str, Any], code: int, trials: int) -> bool:
    """Whether a line is about the study, or about one of the trials before it, as its code says."""
    ids = {key: entry[key] for key in ("study_id", "trial_id") if key in entry}
    if code == _CREATE_STUDY:
        return not ids
    name, count = ("study_id", 1) if code <= _CREATE_TRIAL else ("trial_id", trials)
    return list(ids) == [name] and type(ids[name]) is int and 0 <= ids[name] < count
