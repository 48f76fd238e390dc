"""Opens the journal of a study: Optuna's own file, with which a later run goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from planner.errors import InvalidInputError

if TYPE_CHECKING:
    import optuna
    from optuna.samplers import BaseSampler
    from optuna.storages import BaseStorage

STUDY_NAME: Final = "shardplan"

TRIAL_LIMIT_S: Final = 120.0

SAMPLERS: Final = ("bounds", "tpe", "nsga2", "random")

_CREATE_STUDY, _CREATE_TRIAL, _OPERATIONS = 0, 4, 10
"""Codes of Optuna's operations: those up to the second are about a study, others about a trial."""
_DAMAGE: Final = (ValueError, LookupError, TypeError, AttributeError, AssertionError)
"""What Optuna raises if a line of a journal is not JSON, or lacks a field that it needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much a study does.

    Attributes:
        trials: how many setups are searched.
        trial_limit_s: a safety limit by the clock for one trial, far above what a search takes.
        trial_evaluations: the budget of each search in priced plans; None for the usual one.
        seed: the seed of the searches and of the sampler.
        sampler: what chooses the next setup, one of :data:`SAMPLERS`.
        within_ratio: setups that can better the best one by at most this share, as bounds prove,
            are not searched.
    """

    trials: int
    trial_limit_s: float = TRIAL_LIMIT_S
    trial_evaluations: int | None = None
    seed: int = 0
    sampler: str = "bounds"
    within_ratio: float = 0.0


def check_searches(kept: Effort, asked: Effort) -> None:
    """Refuse searches with another budget or seed than those in a journal.

    Setups are compared with each other. If one of them were searched longer, its better plan would
    be taken for a merit of the setup.

    Raises:
        InvalidInputError: they differ; the message says which options the journal was made with.
    """
    if (kept.trial_evaluations, kept.seed) == (asked.trial_evaluations, asked.seed):
        return
    size = "no --trial-evaluations"
    if kept.trial_evaluations is not None:
        size = f"--trial-evaluations {kept.trial_evaluations}"
    message = (
        f"the journal's setups were searched with {size} and --seed {kept.seed}, and compare with "
        "no others; give the same, or name another file with --storage"
    )
    raise InvalidInputError(message)


def open_study(
    journal: Path | None, *, sampler: BaseSampler | None = None, num_goals: int = 1
) -> optuna.Study:
    """Open the study of a journal, or begin one; without a journal it is kept in memory.

    Raises:
        InvalidInputError: the file is not a journal, or its folder is missing.
    """
    import optuna
    from optuna.storages import InMemoryStorage

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage: BaseStorage = InMemoryStorage()
    if journal is not None:
        _check_journal(journal)
        _drop_cut_line(journal)
        storage = _stored(journal)
    return optuna.create_study(
        study_name=STUDY_NAME,
        storage=storage,
        sampler=sampler,
        directions=["minimize"] * num_goals,
        load_if_exists=True,
    )


def _stored(journal: Path) -> BaseStorage:
    """The journal as Optuna reads it, opened by its absolute path.

    Optuna's lock is a symbolic link to the path of the journal. With a relative path the link can
    lead nowhere; if its process has been killed, Optuna would then wait for the lock forever.
    """
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    with damage_of(journal):
        return JournalStorage(JournalFileBackend(str(journal.absolute())))


@contextmanager
def damage_of(journal: Path | None) -> Iterator[None]:
    """A context in which what a damaged line raises becomes an error that names the journal.

    Raises:
        InvalidInputError: a line was damaged.
    """
    try:
        yield
    except InvalidInputError:
        raise
    except _DAMAGE as error:
        if journal is None:
            raise
        told = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        message = f"--storage {journal}: a line of the journal is damaged ({told}); name another"
        raise InvalidInputError(message) from error


def _drop_cut_line(journal: Path) -> None:
    """Cut off a last line that a full disk left without its end, to keep the next line apart."""
    from optuna.storages.journal import JournalFileSymlinkLock

    def is_whole() -> bool:
        return not journal.exists() or journal.read_bytes()[-1:] in (b"", b"\n")

    if is_whole():
        return
    lock = JournalFileSymlinkLock(str(journal.absolute()))
    lock.acquire()
    try:
        if not is_whole():
            os.truncate(journal, journal.read_bytes().rfind(b"\n") + 1)
    finally:
        lock.release()


def _check_journal(journal: Path) -> None:
    """Refuse a file that is not a journal, because Optuna would append to it without checking."""
    if not journal.parent.is_dir():
        message = f"--storage {journal}: there is no folder {journal.parent}"
        raise InvalidInputError(message)
    if not journal.exists():
        return
    if journal.is_dir():
        message = f"--storage {journal} is a folder; name a file"
        raise InvalidInputError(message)
    with journal.open(encoding="utf-8", errors="replace") as file:
        _check_lines(file, journal)


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
                message = f"--storage {journal}: exists and is no journal of a study; name another"
                raise InvalidInputError(message) from None
            code, entry = None, {}
        trial, study = entry.get("trial_id", 0), entry.get("study_id", 0)
        is_good = (
            type(code) is int
            and (number > 1 or code == _CREATE_STUDY)
            and code in range(_CREATE_STUDY, _OPERATIONS)
            and entry.get("study_name", STUDY_NAME) == STUDY_NAME
            and type(study) is int
            and study == 0
            and type(trial) is int
            and (("trial_id" not in entry) or 0 <= trial < trials)
            and ("study_id" in entry) == (_CREATE_STUDY < code <= _CREATE_TRIAL)
            and ("trial_id" in entry) == (code > _CREATE_TRIAL)
            and isinstance(entry.get("worker_id"), str)
        )
        if not is_good:
            message = (
                f"--storage {journal}: a line of the journal is damaged (line {number}: "
                f"{line.strip()[:60]!r}); name another file"
            )
            raise InvalidInputError(message)
        trials += code == _CREATE_TRIAL
