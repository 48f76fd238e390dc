"""One Optuna study: asks for setups, prices them, and survives the loss of any process.

The journal is the only shared state. A process that dies leaves a running trial behind; whoever
sees one whose process on the same machine is gone, or that is older than any trial may be, gives it
up and puts its setup back in the queue, so that no pick is lost and none is counted twice.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from costmodels.sharding import Plan
from costmodels.workload import Pipeline
from planner import api
from planner.errors import InfeasibleError, InvalidInputError, NoPlanFoundError
from planner.io.plan.plan_file import plan_from_json, plan_to_json
from planner.io.plan.result_json import inputs_hash
from planner.problem import PlanningProblem
from planner.result import PlanningResult, SolverReport
from planner.support.status import Status
from planner.tuning.journal import (
    FORMAT,
    Effort,
    effort_values,
    menu_values,
    open_study,
)
from planner.tuning.liveness import has_ended, own_process
from planner.tuning.setups import Setup, SetupChoices, Tuned, restricted, solve

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial, Trial

_POLL_S: Final = 0.2
_CACHE_LOW: Final = (0.01, 0.3)
_CACHE_HIGH: Final = (0.1, 0.9)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyProgress:
    """How far a study is: trials done of all, and the best iteration time so far."""

    done: int
    trials: int
    best_s: float | None
    setup: Setup | None


class Study:
    """A study of one problem, in memory or in a journal that other processes share.

    Args:
        problem: the question; a journal made for another one is refused.
        menu: what may be picked.
        effort: how much to do.
        journal: the shared file; None keeps everything in memory.
        source: plain values from which another process can load the same problem.

    Raises:
        InvalidInputError: the journal holds another study, or is no journal.
    """

    def __init__(
        self,
        problem: PlanningProblem,
        menu: SetupChoices,
        effort: Effort,
        *,
        journal: Path | None = None,
        source: dict[str, Any] | None = None,
    ) -> None:
        """Open the study, or begin it with the setups that are always worth a trial."""
        self.problem, self.menu, self.effort = problem, menu, effort
        self._unfinished: Tuned | None = None
        self._study = open_study(journal, effort)
        self._agree(source or {})

    # -- running ----------------------------------------------------------------------------------

    def run(
        self,
        *,
        progress: Callable[[StudyProgress], None] | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        patient: bool = True,
    ) -> None:
        """Do trials until all are done, here or by others.

        Args:
            progress: called after every trial.
            should_stop: asked often. A trial in which it says so is given back to the study.
            patient: wait for the trials that other processes are at; else return when none is left
                to begin.
        """
        while not should_stop():
            done, running = self._count()
            if done >= self.effort.trials:
                break
            if done + running >= self.effort.trials:
                if not patient:
                    break
                time.sleep(_POLL_S)
                continue
            self._one(should_stop)
            if progress is not None and not should_stop():
                progress(self.progress())

    def progress(self) -> StudyProgress:
        """Where the study stands, over all processes."""
        done, _ = self._count()
        best = self._best()
        return StudyProgress(
            done=min(done, self.effort.trials),
            trials=self.effort.trials,
            best_s=None if best is None else best.value,
            setup=None if best is None else _setup(best.user_attrs["setup"]),
        )

    @property
    def has_plan(self) -> bool:
        """Whether :meth:`best` has something to give."""
        return self._unfinished is not None or self._best() is not None

    @property
    def num_cut(self) -> int:
        """Trials whose search was cut by the clock."""
        return sum(bool(t.user_attrs.get("cut")) for t in self._finished())

    def values(self) -> tuple[tuple[Setup, float | None], ...]:
        """Every finished pick with its iteration time, None where nothing fits; in order."""
        return tuple(
            (_setup(t.user_attrs["setup"]), t.value if t.user_attrs["fits"] else None)
            for t in self._finished()
        )

    def best(self) -> Tuned:
        """The best pick with its plan, whichever process found it.

        Where none was finished before the study was stopped, the plan so far of the first one.

        Raises:
            NoPlanFoundError: no pick has a plan that fits.
        """
        best = self._best()
        if best is None or best.value is None:
            if self._unfinished is not None:
                return self._unfinished
            message = (
                f"none of {self._count()[0]} setups has a plan that fits; "
                "use more GPUs, or allow more"
            )
            raise NoPlanFoundError(message)
        setup = _setup(best.user_attrs["setup"])
        return Tuned(
            setup=setup,
            result=self._result(best, setup),
            sync_s=best.user_attrs["sync_s"],
            value_s=best.value,
        )

    def _result(self, best: FrozenTrial, setup: Setup) -> PlanningResult:
        """The stored plan, priced again; the bound is that of its own setup."""
        asked = restricted(self.problem, setup)
        plan = plan_from_json(best.user_attrs["plan"], asked.workload, asked.topology)
        candidate = api.estimate(asked.workload, asked.topology, plan, name="tuned")
        return PlanningResult(
            problem=asked,
            best=candidate,
            solver=SolverReport(
                strategy="tuned",
                objective="iteration",
                status=Status.GAP,
                value=candidate.estimate.time.time_s,
                bound=best.user_attrs["bound_s"],
                seconds=self._seconds(),
                seed=int(best.user_attrs["seed"]),
                evaluations=sum(t.user_attrs.get("evaluations", 0) for t in self._finished()),
            ),
            warnings=candidate.estimate.warnings,
        )

    def _seconds(self) -> float:
        """Seconds from the first trial's start to the last one's end."""
        done = self._finished()
        begun = [t.datetime_start for t in done if t.datetime_start is not None]
        ended = [t.datetime_complete for t in done if t.datetime_complete is not None]
        return (max(ended) - min(begun)).total_seconds() if begun and ended else 0.0

    def _one(self, should_stop: Callable[[], bool]) -> None:
        """A trial; given back to the study if it is stopped in the middle."""
        from optuna.exceptions import UpdateFinishedTrialError

        trial = self._study.ask()
        trial.set_user_attr("started", time.time())
        trial.set_user_attr("process", own_process())
        setup = _suggest(trial, self.menu)
        seed = self.effort.seed + trial.number
        trial.set_user_attr("setup", setup.to_json())
        trial.set_user_attr("seed", seed)
        found: Tuned | str
        try:
            found = self._solve(setup, seed, should_stop)
        except (InfeasibleError, InvalidInputError) as error:
            found = str(error)
        except NoPlanFoundError as error:
            if should_stop():
                return self._give_up(trial.number, trial.params)
            found = str(error)
        except KeyboardInterrupt:
            self._give_up(trial.number, trial.params)
            raise
        if isinstance(found, Tuned) and found.result.solver.status is Status.INTERRUPTED:
            self._unfinished = found
            return self._give_up(trial.number, trial.params)
        with contextlib.suppress(UpdateFinishedTrialError):  # others took it for lost
            self._record(trial, setup, found)
        return None

    def _record(self, trial: Trial, setup: Setup, found: Tuned | str) -> None:
        """Tell the study what a trial has found, or why nothing fits."""
        if isinstance(found, str):
            trial.set_user_attr("fits", value=False)
            trial.set_user_attr("reason", found)
            self._study.tell(trial, _UNFIT_S, skip_if_finished=True)
            return
        best, solver = self._best(), found.result.solver
        if best is None or best.value is None or found.value_s < best.value:
            trial.set_user_attr("plan", self._plan_values(setup, found.result.plan))
        trial.set_user_attr("evaluations", solver.evaluations)
        trial.set_user_attr("cut", value=solver.status is Status.TIME_LIMIT)
        trial.set_user_attr("fits", value=True)
        trial.set_user_attr("sync_s", found.sync_s)
        trial.set_user_attr("bound_s", found.result.bound)
        self._study.tell(trial, found.value_s, skip_if_finished=True)

    def _solve(self, setup: Setup, seed: int, should_stop: Callable[[], bool]) -> Tuned:
        return solve(
            self.problem,
            setup,
            sync_interval=self.menu.sync_interval,
            time_limit_s=self.effort.trial_limit_s,
            max_evaluations=self.effort.trial_evaluations,
            seed=seed,
            should_stop=should_stop,
        )

    def _plan_values(self, setup: Setup, plan: Plan) -> dict[str, Any]:
        asked = restricted(self.problem, setup)
        return plan_to_json(plan, asked.workload, asked.topology.local_world_size)

    # -- the journal ------------------------------------------------------------------------------

    def _agree(self, source: dict[str, Any]) -> None:
        """Write what the study is about, or check that it is the same."""
        about = {
            "format": FORMAT,
            "inputs_hash": inputs_hash(self.problem),
            "menu": menu_values(self.menu),
        }
        found = self._study.user_attrs.get("about")
        if found is None:
            for setup in _first_setups(self.menu):
                self._study.enqueue_trial(_parameters(setup, self.menu), skip_if_exists=True)
            self._study.set_user_attr("source", source)
            self._study.set_user_attr("effort", effort_values(self.effort))
            self._study.set_user_attr("about", about)
            return
        if found != about:
            message = (
                "the journal belongs to another study: workload, system, constraints or menu "
                "differ; name another file with --storage"
            )
            raise InvalidInputError(message)

    def _finished(self) -> list[FrozenTrial]:
        from optuna.trial import TrialState

        return self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))

    def _best(self) -> FrozenTrial | None:
        kept = [t for t in self._finished() if "plan" in t.user_attrs]
        return min(kept, key=lambda t: (t.value, t.number), default=None)

    def _count(self) -> tuple[int, int]:
        """(finished, running) trials; those whose process is gone are put back in the queue."""
        from optuna.trial import TrialState

        running = self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        lost = [t for t in running if has_ended(t.user_attrs) or _age_s(t) > self.effort.stale_s]
        for trial in lost:
            self._give_up(trial.number, trial.params or trial.system_attrs.get("fixed_params", {}))
        return len(self._finished()), len(running) - len(lost)

    def _give_up(self, number: int, picked: dict[str, Any]) -> None:
        """End a trial without a result, and put its pick back in the queue."""
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        try:
            self._study.tell(number, state=TrialState.FAIL)
        except (ValueError, UpdateFinishedTrialError):
            return  # another process saw it first, or its own came back
        self._study.enqueue_trial(dict(picked))


_UNFIT_S: Final = 1e9
"""Value of a setup under which nothing fits; finite, because samplers fit densities to values."""


def _age_s(trial: FrozenTrial) -> float:
    """Seconds since a trial began; in UTC, for machines may keep different local times."""
    return time.time() - float(trial.user_attrs.get("started", time.time()))


def _first_setups(menu: SetupChoices) -> list[Setup]:
    """The base and its neighbours: every pipeline and every group size once."""
    base = menu.base()
    others = [replace(base, pipeline=pipeline) for pipeline in menu.pipelines]
    groups = [replace(base, group_size=size) for size in menu.group_sizes]
    return list(dict.fromkeys([base, *others, *groups]))


def _parameters(setup: Setup, menu: SetupChoices) -> dict[str, Any]:
    """A setup in the names of :func:`_suggest`."""
    values: dict[str, Any] = {
        "pipeline": setup.pipeline.value,
        "group_size": setup.group_size,
        "min_column_width": setup.min_column_width,
    }
    if menu.tunes_cache:
        values["cache_menu"] = "own" if setup.cache_load_factors else "usual"
    return values


def _suggest(trial: Trial, menu: SetupChoices) -> Setup:
    pipeline = trial.suggest_categorical("pipeline", [p.value for p in menu.pipelines])
    size = trial.suggest_categorical("group_size", list(menu.group_sizes))
    width = trial.suggest_categorical("min_column_width", list(menu.min_column_widths))
    factors: tuple[float, ...] = ()
    if menu.tunes_cache and trial.suggest_categorical("cache_menu", ["usual", "own"]) == "own":
        low = trial.suggest_float("cache_low", *_CACHE_LOW, log=True)
        high = trial.suggest_float("cache_high", *_CACHE_HIGH)
        middle = (low * high) ** 0.5
        factors = tuple(sorted({round(f, 4) for f in (low, middle, high)}))
    return Setup(
        pipeline=Pipeline(pipeline),
        group_size=int(size),
        min_column_width=int(width),
        cache_load_factors=factors,
    )


def _setup(values: dict[str, Any]) -> Setup:
    return Setup(
        pipeline=Pipeline(values["pipeline"]),
        group_size=values["group_size"],
        min_column_width=values["min_column_width"],
        cache_load_factors=tuple(values["cache_load_factors"]),
    )
