"""A study: it chooses setups, searches them, proves bounds, and tells how far it is."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from planner import api
from planner.errors import InfeasibleError, InvalidInputError, NoPlanFoundError, StoppedError
from planner.io.plan.plan_file import plan_from_json, plan_to_json
from planner.io.plan.result_json import inputs_hash
from planner.options.runtime_warnings import runtime_warnings
from planner.result import PlanningResult, SolverReport
from planner.support.status import Status
from planner.tuning.design import DesignSpace, Value
from planner.tuning.goals import Facts, check_goals, front_of, usual_goals, values_of
from planner.tuning.journal import Effort, check_searches, damage_of
from planner.tuning.known import Known, Look
from planner.tuning.pricer import Outcome, Pricer, StopCallback, Tuned
from planner.tuning.proofs import Proofs
from planner.tuning.setups import Setup
from planner.tuning.trials import Trials

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.trial import Trial

_UNFIT: Final = 1e30
"""Value of a setup under which nothing fits; finite, because samplers fit densities to values."""
_PROOFS_PER_TRIAL: Final = 20
"""At the end all bounds are proven if there are at most this many families for each trial."""
_REPEATS: Final = 3
"""If a sampler picks this many known setups in a row, an unknown one is drawn at random."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyProgress:
    """How far a study is: searches done, searches allowed, and the best setup so far.

    While bounds are proven, ``proofs`` has how many are done, and how many there are.
    """

    done: int
    trials: int
    best: Facts | None
    setup: Setup | None
    proofs: tuple[int, int] | None = None


class Study:
    """A study of a design space, in memory or in a journal.

    Args:
        space: the setups; a journal made for another space is refused.
        effort: how much to do.
        goals: names of :data:`planner.tuning.goals.GOALS`; by default the iteration time, or the
            throughput if setups train different numbers of samples.
        journal: the file with which a later run goes on; None keeps everything in memory.
        pricer: prices setups; by default by searches within the limits of ``effort``.

    Raises:
        InvalidInputError: the journal has another study or is not a journal, or a goal is unknown
            or needs a price that is missing.
    """

    def __init__(
        self,
        space: DesignSpace,
        effort: Effort,
        *,
        goals: tuple[str, ...] = (),
        journal: Path | None = None,
        pricer: Pricer | None = None,
    ) -> None:
        """Open the study, or begin it with the setups that every study tries first."""
        self.space, self.effort = space, effort
        self.goals = goals or usual_goals(space)
        check_goals(self.goals, space)
        self.pricer = pricer or Pricer(
            space=space,
            time_limit_s=effort.trial_limit_s,
            max_evaluations=effort.trial_evaluations,
            seed=effort.seed,
        )
        self.sampler = effort.sampler
        self._unfinished: Tuned | None = None
        self._repeats = self._tenths = 0
        self._known: Known | None = None
        with damage_of(journal):
            self._trials = Trials(space, journal, self._made(), len(self.goals))
            self._proofs = Proofs(space, self.pricer, self._trials)
            if self.sampler == "bounds":
                self._known = Known(space, self.goals, self._proofs.floors, effort.within_ratio)
            self._agree()
            for look in self.front if self.known is not None or self.looks else ():
                self.plan_of(look)

    def _made(self) -> BaseSampler:
        from planner.tuning.sampling import Ordered, make_sampler

        if self.sampler == "bounds":
            return Ordered(self.space.values, self._promising)
        return make_sampler(self.sampler, seed=self.effort.seed)

    # -- running ----------------------------------------------------------------------------------

    def run(
        self,
        *,
        progress: Callable[[StudyProgress], None] | None = None,
        should_stop: StopCallback = lambda: False,
    ) -> None:
        """Do trials until all are done, or bounds rule out the rest.

        Args:
            progress: called after every trial, and while bounds are proven.
            should_stop: called again and again. If it is True, the present trial is given back.
        """
        while not should_stop():
            done = self._trials.num_done
            family = self._to_prove(is_done=done >= self.effort.trials)
            if family is not None:
                self._prove(family, progress, should_stop)
                continue
            if done >= self.effort.trials or not self._is_left:
                break
            if self._one(should_stop) and progress is not None and not should_stop():
                progress(self.progress())

    def progress(self) -> StudyProgress:
        """How far the study is."""
        best = self._best()
        return StudyProgress(
            done=min(self._trials.num_done, self.effort.trials),
            trials=self.effort.trials,
            best=None if best is None else best.facts,
            setup=None if best is None else best.setup,
        )

    # -- what is known ----------------------------------------------------------------------------

    @property
    def has_plan(self) -> bool:
        """Whether there is a plan for :meth:`best`."""
        return self._unfinished is not None or self._best() is not None

    @property
    def looks(self) -> tuple[Look, ...]:
        """Every finished search, in the order in which they began."""
        return self._trials.looks

    @property
    def front(self) -> tuple[Look, ...]:
        """Searched setups that no other one dominates; the best in the first goal comes first."""
        fit = [(values_of(self.goals, x.facts), x) for x in self.looks if x.facts is not None]
        kept = front_of(np.array([v for v, _ in fit])) if fit else []
        return tuple(
            x for _, x in sorted((fit[i] for i in kept), key=lambda p: (p[0], p[1].number))
        )

    @property
    def known(self) -> Known | None:
        """What is found and proven; None if a sampler of Optuna chooses the setups."""
        if self._known is not None:
            self._known.note_proofs()
            for look in self.looks:
                self._known.note(look)
        return self._known

    @property
    def ruled_out(self) -> tuple[Setup, ...]:
        """Setups that bounds ruled out; with a sampler of Optuna only those that it picked."""
        known = self.known
        if known is None:
            return self._trials.ruled_out
        return tuple(self.space.setups[i] for i in known.ruled_out(self._trials.seen()))

    def best(self) -> Tuned:
        """The best setup by the first goal, with its plan.

        If the study was stopped before any search ended, it has the plan of the first one so far.

        Raises:
            NoPlanFoundError: no setup has a plan that fits.
        """
        best = self._best()
        if best is not None:
            return self.plan_of(best)
        if self._unfinished is not None:
            return self._unfinished
        looks = self.looks
        reasons = list(dict.fromkeys(x.reason for x in looks if x.reason))
        first = f" (the first: {reasons[0]})" if reasons else ""
        message = (
            f"none of {len(looks)} setups has a plan that fits{first}; use more GPUs, or allow more"
        )
        raise NoPlanFoundError(message)

    def plan_of(self, look: Look) -> Tuned:
        """The stored plan of a setup of the front, priced again, with the bound of the setup."""
        asked, facts = self.space.restricted(look.setup), look.facts
        assert facts is not None
        floor = self._proofs.floors.found.get(self.space.loosest(look.setup))
        bounds = [
            b for b in (look.bound_s, None if floor is None else floor.value) if b is not None
        ]
        plan = plan_from_json(self._trials.plan_of(look), asked.workload, asked.topology)
        candidate = api.estimate(
            asked.workload, asked.topology, plan, name="tuned", models=asked.models
        )
        result = PlanningResult(
            problem=asked,
            best=candidate,
            solver=SolverReport(
                strategy="tuned",
                objective="iteration",
                status=Status.GAP,
                value=candidate.estimate.time.time_s,
                bound=max(bounds, default=None),
                seconds=self._trials.seconds,
                seed=self.effort.seed,
                evaluations=sum(x.evaluations for x in self.looks),
            ),
            warnings=runtime_warnings(plan, asked.workload),
        )
        return Tuned(setup=look.setup, result=result, sync_s=look.sync_s, facts=facts)

    def _best(self) -> Look | None:
        return next(iter(self.front), None)

    # -- one trial --------------------------------------------------------------------------------

    def _one(self, should_stop: StopCallback) -> bool:
        """Do one trial, or give it back if it is stopped; returns whether it was done."""
        trial, setup = self._trials.ask()
        if setup in self._trials.seen(before=trial.number):
            self._trials.end(trial, is_double=True)
            self._repeats += 1
            if self._repeats >= _REPEATS and self.sampler != "bounds":
                self._trials.enqueue_unseen(trial.number)
            return False
        self._repeats = 0
        found: Outcome | str
        try:
            if self.sampler != "bounds" and self._rules_out(setup, should_stop):
                self._trials.end(trial, is_double=False)
                return True
            found = self.pricer.solve(setup, should_stop)
        except (InfeasibleError, InvalidInputError) as error:
            found = str(error)
        except (NoPlanFoundError, StoppedError) as error:
            if should_stop():
                self._trials.give_up(trial.number, trial.params)
                return False
            found = str(error)
        except KeyboardInterrupt:
            self._trials.give_up(trial.number, trial.params)
            raise
        tuned = None if isinstance(found, str) else found.tuned
        if tuned is not None and tuned.result.solver.status is Status.INTERRUPTED:
            self._unfinished = tuned
            self._trials.give_up(trial.number, trial.params)
            return False
        self._record(trial, found)
        return True

    def _record(self, trial: Trial, found: Outcome | str) -> None:
        """Write what a trial has found, or why nothing fits."""
        if isinstance(found, str):
            told: dict[str, Any] = {"reason": found, "facts": None}
            self._trials.tell(trial, told, [_UNFIT] * len(self.goals))
            return
        own = values_of(self.goals, found.facts)
        told = {
            "evaluations": found.evaluations,
            "cut": found.is_cut,
            "sync_s": found.sync_s,
            "bound_s": found.bound_s,
            "facts": found.facts.to_json(),
        }
        if found.tuned is not None and not (np.array(self._values()) <= own).all(axis=1).any():
            result = found.tuned.result
            asked = result.problem
            hosts = asked.topology.local_world_size
            told["plan"] = plan_to_json(result.plan, asked.workload, hosts)
        self._trials.tell(trial, told, own)

    def _values(self) -> Any:
        """``[m, K]`` values of the setups of the front."""
        found = [values_of(self.goals, x.facts) for x in self.front if x.facts is not None]
        return np.array(found).reshape(-1, len(self.goals))

    # -- which one is next ------------------------------------------------------------------------

    @property
    def _is_left(self) -> bool:
        """Whether there is a setup left to search."""
        if self._trials.is_queued:
            return True
        known, seen = self.known, self._trials.seen()
        return len(known.left(seen)) > 0 if known else len(seen) < len(self.space.setups)

    def _promising(self) -> dict[str, Value]:
        """The choices of the most promising setup by their names; empty if no setup is left."""
        known = self.known
        left = [] if known is None else known.left(self._trials.seen())
        if known is None or not len(left):
            return {}
        return self.space.parameters(known.ordered(left, len(self.looks))[0])

    def _rules_out(self, setup: Setup, should_stop: StopCallback) -> bool:
        within, found = self.effort.within_ratio, self._values()
        return self._proofs.rules_out(setup, self.goals, found, within, should_stop)

    def _to_prove(self, *, is_done: bool) -> Setup | None:
        """The family to prove before the next search or, if ``is_done``, at the end; or None."""
        known = self.known
        if known is None or self._trials.is_queued or known.is_proven:
            return None
        floors = known.floors
        missing = floors.missing
        left = known.left(self._trials.seen())
        if is_done or not len(left):
            few = len(floors.families) <= _PROOFS_PER_TRIAL * self.effort.trials
            return missing[0] if few and missing else None
        first = [f for f in floors.first if f not in floors.found]
        if first:
            return first[0]
        promising = known.ordered(left, len(self.looks))
        if not known.wants_proof(promising[0]):
            return None
        families = dict.fromkeys(self.space.loosest(s) for s in promising)
        return next((f for f in families if f not in floors.found), None)

    def _prove(
        self,
        family: Setup,
        progress: Callable[[StudyProgress], None] | None,
        should_stop: StopCallback,
    ) -> None:
        """Prove a bound, and report progress after each tenth of all bounds."""
        with contextlib.suppress(StoppedError):
            self._proofs.prove(family, should_stop)
        floors = self._proofs.floors
        total = len(floors.families)
        tenth = 10 * (total - len(floors.missing)) // total
        if progress is not None and tenth > self._tenths:
            progress(replace(self.progress(), proofs=(total - len(floors.missing), total)))
        self._tenths = tenth

    # -- the journal ------------------------------------------------------------------------------

    def _agree(self) -> None:
        """Write in the journal what the study is about, or check that it is the same study."""
        about = {
            "inputs_hashes": [inputs_hash(p) for p in self.space.problems],
            "menu": json.loads(json.dumps(self.space.menu.to_json())),
            "goals": list(self.goals),
        }
        found = self._trials.attributes.get("about")
        if found is None:
            first = self.space.alternatives if self.sampler != "bounds" else (self.space.base,)
            for setup in first:
                self._trials.enqueue(setup)
            self._trials.write("effort", asdict(self.effort))
            self._trials.write("about", about)
            return
        if found != about:
            message = (
                "the journal belongs to another study: workload, systems, constraints, menu or "
                "objectives differ; name another file with --storage"
            )
            raise InvalidInputError(message)
        check_searches(Effort(**self._trials.attributes["effort"]), self.effort)
