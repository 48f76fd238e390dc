"""The trials of a study as Optuna keeps them, in memory or in a journal.

A process that is killed leaves a running trial behind. The next process that opens the journal ends
it and puts its setup back in the queue, so that no setup is lost and none is counted twice.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.tuning.design import DesignSpace, plain
from planner.tuning.journal import open_study
from planner.tuning.known import Look
from planner.tuning.setups import Setup

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial, Trial


class Trials:
    """The trials of a study."""

    def __init__(
        self, space: DesignSpace, journal: Path | None, sampler: BaseSampler, num_goals: int
    ) -> None:
        """Open the study of a journal, or begin one.

        Raises:
            InvalidInputError: the file is not a journal, or its folder is missing.
        """
        self._space = space
        self._study = open_study(journal, sampler=sampler, num_goals=num_goals)
        self._looks: dict[int, Look] = {}
        self._requeue_lost()

    # -- what there is ----------------------------------------------------------------------------

    @property
    def attributes(self) -> dict[str, Any]:
        """What the journal says about the study itself."""
        return self._study.user_attrs

    def write(self, name: str, value: Any) -> None:
        """Write an attribute of the study."""
        self._study.set_user_attr(name, value)

    @property
    def looks(self) -> tuple[Look, ...]:
        """Every finished search, in the order in which they began."""
        from optuna.trial import TrialState

        for trial in self._in(TrialState.COMPLETE):
            if trial.number not in self._looks:
                self._looks[trial.number] = Look.of(trial.number, trial.user_attrs)
        return tuple(self._looks[number] for number in sorted(self._looks))

    @property
    def ruled_out(self) -> tuple[Setup, ...]:
        """Setups that were chosen, but not searched because of their bounds."""
        from optuna.trial import TrialState

        pruned = self._in(TrialState.PRUNED)
        return tuple(Setup.from_json(t.user_attrs["setup"]) for t in pruned)

    def plan_of(self, look: Look) -> Any:
        """The stored plan of a search."""
        return next(t for t in self._in() if t.number == look.number).user_attrs["plan"]

    @property
    def seconds(self) -> float:
        """Seconds from the start of the first search to the end of the last one."""
        from optuna.trial import TrialState

        done = self._in(TrialState.COMPLETE)
        begun = [t.datetime_start for t in done if t.datetime_start is not None]
        ended = [t.datetime_complete for t in done if t.datetime_complete is not None]
        return (max(ended) - min(begun)).total_seconds() if begun and ended else 0.0

    @property
    def is_queued(self) -> bool:
        """Whether there are setups in the queue."""
        from optuna.trial import TrialState

        return bool(self._in(TrialState.WAITING))

    def seen(self, *, before: int | None = None) -> set[Setup]:
        """Setups that were searched or ruled out, or that are being searched.

        With ``before``, running trials count only if their number is below it.
        """
        from optuna.trial import TrialState

        done = self._in(TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING)
        return {
            Setup.from_json(t.user_attrs["setup"])
            for t in done
            if "setup" in t.user_attrs
            and (before is None or t.number < before or t.state is not TrialState.RUNNING)
        }

    @property
    def num_done(self) -> int:
        """Number of finished trials."""
        from optuna.trial import TrialState

        return len(self._in(TrialState.COMPLETE, TrialState.PRUNED))

    def _requeue_lost(self) -> None:
        """Put the setups of trials that a process left unfinished back in the queue."""
        from optuna.trial import TrialState

        for trial in self._in(TrialState.RUNNING):
            self.give_up(trial.number, trial.params or trial.system_attrs.get("fixed_params", {}))

    # -- what becomes of a trial ------------------------------------------------------------------

    def ask(self) -> tuple[Trial, Setup]:
        """Begin a trial, with a setup from the queue or from the sampler."""
        trial = self._study.ask()

        def pick(name: str, values: Sequence[Any]) -> Any:
            listed: list[Any] = [plain(v) for v in values]
            return values[listed.index(trial.suggest_categorical(name, listed))]

        setup = self._space.build(pick)
        trial.set_user_attr("setup", setup.to_json())
        return trial, setup

    def tell(self, trial: Trial, attributes: Mapping[str, Any], values: Sequence[float]) -> None:
        """Write what a search has found, unless others have given the trial up meanwhile."""
        from optuna.exceptions import UpdateFinishedTrialError

        with contextlib.suppress(UpdateFinishedTrialError):
            for name, value in attributes.items():
                trial.set_user_attr(name, value)
            _constrain(trial, fits=attributes["facts"] is not None)
            self._study.tell(trial, list(values), skip_if_finished=True)

    def end(self, trial: Trial, *, is_double: bool) -> None:
        """End a trial without a search: another trial has its setup, or a bound rules it out."""
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        state = TrialState.FAIL if is_double else TrialState.PRUNED
        with contextlib.suppress(UpdateFinishedTrialError):
            _constrain(trial, fits=True)
            self._study.tell(trial, state=state, skip_if_finished=True)

    def give_up(self, number: int, picked: Mapping[str, Any]) -> None:
        """End a trial without a result, and put its choices back in the queue."""
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        try:
            self._study.tell(number, state=TrialState.FAIL)
        except (ValueError, UpdateFinishedTrialError):
            return  # another process was faster, or the trial's own process has ended it
        if picked:
            self._study.enqueue_trial(dict(picked))

    def enqueue(self, setup: Setup) -> None:
        """Put a setup in the queue."""
        self._study.enqueue_trial(self._space.parameters(setup))

    def enqueue_unseen(self, number: int) -> None:
        """Put a setup that nobody has searched in the queue; ``number`` is the seed of the draw."""
        seen = self.seen()
        unseen = [s for s in self._space.setups if s not in seen]
        if unseen:
            self.enqueue(random.Random(number).choice(unseen))

    def _in(self, *states: Any) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False, states=states or None)


def _constrain(trial: Trial, *, fits: bool) -> None:
    from planner.tuning.sampling import SETS_CONSTRAINTS

    if SETS_CONSTRAINTS:
        trial.set_constraint("fits", 0.0 if fits else 1.0)
