"""A study: it proves bounds, searches setups, and recommends one."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from optuna.trial import Trial
from pydantic import TypeAdapter

from costmodels.datatypes import FloatArray
from costmodels.sharding import Plan
from planner import api
from planner.errors import InfeasibleError, InvalidInputError, NoPlanFoundError, reading, refuse
from planner.io.plan.plan_file import plan_from_json
from planner.io.plan.result_json import inputs_hash
from planner.options.torchrec_rules import runtime_warnings
from planner.result import PlanningResult, SolverReport
from planner.search.base import StopCallback
from planner.search.bounds.proofs import Floor
from planner.settings import SearchSettings
from planner.study import figures as measures
from planner.study import trials
from planner.study.space import GPUS, SYSTEM, Files, Setup, Space, Value, checked_knobs
from planner.support.status import Status

TRIAL_LIMIT_S: Final = 120.0
TIE_RATIO: Final = 1e-3
"""Setups whose values differ by at most this share are ties; so close, models decide nothing."""

_UNFIT: Final = 1e30
"""Value of a setup under which nothing fits; finite, because samplers fit densities to values."""
_PROOFS_PER_TRIAL: Final = 20
"""Bounds order the setups if there are at most this many families for each trial."""
_WAVE: Final = 4
"""Setups that are chosen at a time: how many processes search them then changes no choice."""
_EFFORT: Final = ("--evaluations", "--seed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much a study does.

    Attributes:
        trials: how many setups are searched; a grid searches all.
        evaluations: the budget of each search in priced plans; None for the usual one.
        time_limit_s: a safety limit by the clock for each search; None for none.
        seed: the seed of the searches and of the sampler.
        sampler: ``bounds``, or the sampler of Optuna that chooses the next setup; None for bounds,
            or ``tpe`` in spaces that are too large to prove all bounds.
        within_ratio: setups that can better the best one by at most this share, as bounds prove,
            are not searched.
        is_grid: whether every setup is searched, also those that bounds rule out.
    """

    trials: int = 24
    evaluations: int | None = None
    time_limit_s: float | None = TRIAL_LIMIT_S
    seed: int = 0
    sampler: str | None = None
    within_ratio: float = 0.0
    is_grid: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A setup with its plan; ``sync_s`` are the seconds per iteration for averaging copies."""

    setup: Setup
    result: PlanningResult
    figures: measures.Figures
    sync_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The smallest cluster of one system that reaches a throughput.

    Attributes:
        system: the name of the system.
        found: the setup on the smallest cluster that reaches it; None if none does.
        ruled_out: numbers of ranks that are proven to be too slow, without a search.
    """

    system: str
    found: trials.SetupResult | None
    ruled_out: tuple[int, ...] = ()


class Study:
    """A study of a design space, in memory or in a journal.

    Args:
        space: the setups; a journal made for another space is refused.
        effort: how much to do.
        goals: names of :data:`planner.study.figures.GOALS`; by default the iteration time, or the
            throughput (and, for a grid, the cost) if setups train different numbers of samples.
        operation: failures, which lower the throughput.
        smallest_for: samples per second that the smallest cluster has to reach; None looks for the
            best setup instead.
        journal: Optuna's journal, with which a later run goes on; None keeps all in memory.
        place: a pool of processes, a client of a Dask cluster, or None for this process.

    Raises:
        InvalidInputError: the journal has another study or is not a journal, or a goal is unknown
            or needs a price that is missing.
    """

    def __init__(
        self,
        space: Space,
        effort: Effort,
        *,
        goals: tuple[str, ...] = (),
        operation: measures.Operation = measures.NO_FAILURES,
        smallest_for: float | None = None,
        journal: Path | None = None,
        place: Any = None,
    ) -> None:
        """Open the study, or begin it."""
        self.space, self.effort, self.operation = space, effort, operation
        self.smallest_for, self._place = smallest_for, place
        self.answers: tuple[Answer, ...] = ()
        self.floors: dict[Setup, Floor | None] = {}
        self.unfinished: trials.SetupResult | None = None
        loosest = [space.loosest(s) for s in space.setups]
        self._family = dict(zip(space.setups, loosest, strict=True))
        self.families = tuple(dict.fromkeys(loosest))
        few = len(self.families) <= _PROOFS_PER_TRIAL * effort.trials
        usual = "bounds" if space.is_listed and (few or effort.is_grid) else "tpe"
        self.sampler = effort.sampler or usual
        if not space.is_listed and (self.sampler == "bounds" or effort.is_grid or smallest_for):
            refuse(f"{space.num_setups:,} setups are too many to list; use --sampler tpe")
        self.goals = goals or self._usual_goals()
        measures.check_goals(self.goals, space.first_problems())
        self.settings = SearchSettings(
            time_limit_s=effort.time_limit_s,
            max_evaluations=effort.evaluations,
            seed=effort.seed,
            with_baselines=False,
        )
        damaged = reading(f"{journal}: a line of the journal is damaged; name another folder")
        with damaged if journal else nullcontext():
            self._trials = trials.Trials(
                space, journal, self.sampler, seed=effort.seed, num_goals=len(self.goals)
            )
            self._agree(journal)
            for result in self.front:
                self._choice(result)

    def _usual_goals(self) -> tuple[str, ...]:
        problems = [self.space.problem(s) for s in self.space.setups]
        samples = {p.workload.samples_per_rank * p.topology.world_size for p in problems}
        if len(samples) == 1 and not self.smallest_for:
            return ("iteration",)
        priced = all(p.topology.price_per_device_usd_per_hour is not None for p in problems)
        return ("throughput", "cost") if self.effort.is_grid and priced else ("throughput",)

    def _agree(self, journal: Path | None) -> None:
        """Write in the journal what the study is about, or check that it is the same study.

        Searches of another budget or seed are refused too: setups are compared with each other, and
        the better plan of a longer search would be taken for a merit of its setup.
        """
        about = {
            "workload, system or constraints": list(map(inputs_hash, self.space.first_problems())),
            "knobs": {name: list(values) for name, values in self.space.knobs.items()},
            "--objective": list(self.goals),
            "--mtbf or --restart": [str(value) for value in asdict(self.operation).values()],
            "--evaluations": self.effort.evaluations,
            "--seed": self.effort.seed,
        }
        if not self._trials.study.user_attrs:
            self._trials.study.set_user_attr("about", about)
        kept = self._trials.study.user_attrs.get("about", {})
        differ = [
            f"{name} (it was {kept.get(name)})" if name in _EFFORT else name
            for name in about
            if kept.get(name) != about[name]
        ]
        if differ:
            refuse(
                f"{journal}: belongs to another study, with other {', '.join(differ)}; give the "
                "same, or name another folder with --output"
            )

    # -- what is known ----------------------------------------------------------------------------

    @property
    def results(self) -> tuple[trials.SetupResult, ...]:
        """Every finished search, in the order in which they began."""
        return self._trials.results

    @property
    def front(self) -> tuple[trials.SetupResult, ...]:
        """Searched setups that no other one dominates; the best in the first goal comes first."""
        fit = [(self.values(r.figures), r) for r in self.results if r.figures is not None]
        kept = measures.front_of(np.array([v for v, _ in fit])) if fit else []
        ordered = sorted((fit[i] for i in kept), key=lambda pair: (pair[0], pair[1].number))
        return tuple(result for _, result in ordered)

    @property
    def ties(self) -> tuple[trials.SetupResult, ...]:
        """Setups as good as the best one by the first goal, those with fewest changes first."""
        if not self.front:
            return ()
        best = self.value(self.front[0])
        near = [r for r in self.results if self.value(r) <= best + TIE_RATIO * abs(best)]
        usual = dict(self.space.base.picks)
        changes = {r.setup: sum(usual[k] != v for k, v in r.setup.picks) for r in near}
        return tuple(sorted(near, key=lambda r: (changes[r.setup], self.value(r), r.number)))

    @property
    def recommended(self) -> trials.SetupResult | None:
        """The answer on the fewest ranks if there is one; otherwise the first of the ties."""
        answers = [a.found for a in self.answers if a.found is not None]
        if answers:
            return min(answers, key=lambda r: (self._ranks(r.setup), self.value(r)))
        return next(iter(self.ties), None)

    def _ranks(self, setup: Setup) -> int:
        return self.space.problem(setup).topology.world_size

    def value(self, result: trials.SetupResult) -> float:
        """The value of a result by the first goal, which the study minimises."""
        return self.values(result.figures)[0]

    def values(self, figures: measures.Figures | None) -> tuple[float, ...]:
        """What the study minimises, a number for each goal; infinite if nothing fits."""
        goals = (measures.GOALS[name] for name in self.goals)
        return tuple(math.inf if figures is None else goal.value(figures) for goal in goals)

    def bound(self, setup: Setup, proven_s: float | None = None) -> measures.Figures | None:
        """Figures that no plan of a setup can better; None if nothing fits or nothing is proven.

        Args:
            setup: the setup.
            proven_s: a further bound on its iteration, without the averaging of copies.
        """
        floor = self.floors.get(self._family.get(setup) or self.space.loosest(setup))
        if floor is None or math.isinf(floor.value):
            return None
        time_s = max(floor.value, proven_s or 0.0) + self.space.least_sync_s(setup)
        whole = self.space.problem(setup)
        return measures.figures_of(
            whole, self.operation, time_s=time_s, free_bytes=floor.free_bytes
        )

    def least_s(self, result: trials.SetupResult) -> float | None:
        """Seconds per iteration that no plan of a setup goes below, without averaging copies.

        It is the higher one of the bound of the search and that of the setup's family; None if
        nothing is proven.
        """
        floor = self.floors.get(self.space.loosest(result.setup))
        bounds = (result.bound_s, None if floor is None else floor.value)
        return max((b for b in bounds if b is not None), default=None)

    def gap_ratio(self, result: trials.SetupResult) -> float | None:
        """By what share a plan of the setup can be faster than that found; None if not proven."""
        least_s, figures = self.least_s(result), result.figures
        if least_s is None or figures is None or not figures.time_s:
            return None
        sync_s = self.space.least_sync_s(result.setup)
        return max(0.0, 1.0 - (least_s + sync_s) / figures.time_s)

    @property
    def is_proven(self) -> bool:
        """Whether there is a bound for every setup."""
        return bool(self.families) and all(f in self.floors for f in self.families)

    def _bounds(self) -> FloatArray:
        """``[n, K]`` values that no plan of each setup can better; infinite if nothing fits."""
        proven = {r.setup: r.bound_s for r in self.results}
        told = [
            self.values(self.bound(s, proven.get(s)))
            if self._family[s] in self.floors
            else (-math.inf,) * len(self.goals)
            for s in self.space.setups
        ]
        return np.array(told).reshape(-1, len(self.goals))

    def _found(self) -> FloatArray:
        """``[m, K]`` values of the setups of the front."""
        found = [self.values(r.figures) for r in self.front]
        return np.array(found).reshape(-1, len(self.goals))

    @property
    def unfit(self) -> tuple[Setup, ...]:
        """Setups under which nothing fits, as is proven."""
        return tuple(s for s in self.space.setups if self.floors.get(self._family[s], 0) is None)

    @property
    def ruled_out(self) -> tuple[Setup, ...]:
        """Setups that bounds ruled out; with a sampler of Optuna only those that it picked."""
        if self.sampler != "bounds" or self.smallest_for:
            return self._trials.ruled_out
        seen, bounds = {r.setup for r in self.results}, self._bounds()
        out = np.isfinite(bounds).all(axis=1)
        out &= measures.behind(self._found(), bounds) <= self.effort.within_ratio
        return tuple(
            s for s, is_out in zip(self.space.setups, out, strict=True) if is_out and s not in seen
        )

    @property
    def proof_ratio(self) -> float | None:
        """By what share any plan of any setup may better what was found; None if not proven."""
        found = self._found()
        if not self.is_proven or not len(found):
            return None
        bounds = self._bounds()
        fits = ~np.isposinf(bounds).all(axis=1)
        return max(0.0, float(measures.behind(found, bounds)[fits].max(initial=0.0)))

    def best(self) -> Choice:
        """The recommended setup with its plan.

        If the study was stopped before any search ended, it has the plan of the first one so far.

        Raises:
            NoPlanFoundError: no setup has a plan that fits.
        """
        result = self.recommended or self.unfinished
        if result is not None:
            return self._choice(result)
        reasons = list(dict.fromkeys(r.reason for r in self.results if r.reason))
        first = f" (the first: {reasons[0]})" if reasons else ""
        message = f"none of {len(self.results)} setups has a plan that fits{first}; use more GPUs"
        raise NoPlanFoundError(message)

    def _choice(self, result: trials.SetupResult) -> Choice:
        """The stored plan of a setup, priced again, with the bound of the setup."""
        asked, figures = self.space.restricted(result.setup), result.figures
        assert figures is not None
        plan = Plan(placements=())
        if asked.workload.tables:
            plan = plan_from_json(result.plan, asked.workload, asked.topology)
        candidate = api.estimate(
            asked.workload, asked.topology, plan, name="study", models=asked.models
        )
        report = SolverReport(
            strategy="study",
            objective="iteration",
            status=Status.INTERRUPTED if result.status == trials.STOPPED else Status.GAP,
            value=candidate.estimate.time.time_s,
            bound=self.least_s(result),
            seconds=self._trials.seconds,
            seed=self.effort.seed,
            evaluations=sum(r.evaluations for r in self.results),
        )
        priced = PlanningResult(
            problem=asked,
            best=candidate,
            solver=report,
            warnings=runtime_warnings(plan, asked.workload),
        )
        return Choice(setup=result.setup, result=priced, figures=figures, sync_s=result.sync_s)

    # -- running ----------------------------------------------------------------------------------

    def run(
        self,
        *,
        progress: Callable[[str], None] = lambda _: None,
        should_stop: StopCallback = lambda: False,
    ) -> None:
        """Search until all is done, or bounds rule out the rest.

        Args:
            progress: called with words after every search and proof.
            should_stop: called again and again. If it is True, running trials are given back.
        """
        self._progress, self._should_stop = progress, should_stop
        if self.smallest_for is not None:
            self._find_smallest(self.smallest_for)
            return
        if self.sampler != "bounds":
            self._by_sampler()
        elif self.effort.is_grid:
            self._search(self._fresh(self.space.setups))
        else:
            self._by_bounds()

    def _fresh(self, setups: Sequence[Setup]) -> list[Setup]:
        """The setups that nobody has searched or is searching."""
        taken = self._trials.taken
        return [s for s in setups if s not in taken]

    def _search(
        self, setups: Sequence[Setup], begun: Sequence[Trial] = (), *, here: bool = False
    ) -> None:
        """Search setups, whose trials may have begun, and write each result at once."""
        asked = [(s, self.space.problem(s), self.space.restricted(s)) for s in setups]
        search = partial(trials.search, self.operation, self.settings)
        left = dict(enumerate(begun or [self._trials.begin(s)[0] for s in setups]))
        place = None if here else self._place
        try:
            for i, found in trials.done_at(place, search, asked, self._should_stop):
                died = trials.SetupResult(setup=setups[i], status=trials.FAILED, reason=trials.DIED)
                result = found or died
                if result.status != trials.STOPPED:
                    self._record(left.pop(i), result)
                    self._progress(setups[i].words)
                elif result.figures is not None:
                    self.unfinished = result
        finally:
            for trial in left.values():
                self._trials.drop(trial, "FAIL")

    def _record(self, trial: Trial, result: trials.SetupResult) -> None:
        """Write a result; its plan only if no other setup is known to dominate it."""
        own = self.values(result.figures)
        told = [value if math.isfinite(value) else _UNFIT for value in own]
        if (self._found() <= own).all(axis=1).any() and not self.smallest_for:
            near = result.figures is not None and own[0] <= min(self._found()[:, 0]) * (
                1 + math.copysign(TIE_RATIO, own[0])
            )
            result = result if near else replace(result, plan=None)
        self._trials.end(trial, result, told)

    def _prove(self, setups: Sequence[Setup]) -> None:
        """Prove the bounds of the families of some setups that have none; a journal keeps them."""
        families = list(dict.fromkeys(self.space.loosest(s) for s in setups))
        attributes, left = self._trials.study.user_attrs, []
        for family in families:
            kept = attributes.get(_name(family), 0)
            if kept != 0:
                with reading(f"the journal's {_name(family)} is damaged; name another folder"):
                    self.floors[family] = TypeAdapter(Floor | None).validate_python(kept)
            elif family not in self.floors:
                left.append(family)
        problems = [self.space.restricted(family) for family in left]
        for i, floor in trials.done_at(self._place, trials.prove, problems, self._should_stop):
            self.floors[left[i]] = floor
            kept = None if floor is None else asdict(floor)
            self._trials.study.set_user_attr(_name(left[i]), kept)
            self._progress(f"bound of {left[i].words}")

    def _by_bounds(self) -> None:
        """Prove every bound, then search the most promising setups until none can be better."""
        self._search(self._fresh([self.space.base]), here=True)
        self._prove(self.space.setups)
        while not self._should_stop() and self.is_proven:
            room = self.effort.trials - len(self.results) - len(self._trials.ruled_out)
            wave = self._fresh(self._ordered())[: min(_WAVE, room)]
            if room <= 0 or not wave:
                return
            self._search(wave)

    def _ordered(self) -> list[Setup]:
        """The setups that may better what was found, the most promising first.

        A setup promises its bound, multiplied by how far plans so far were above theirs; if its
        family was searched, the best that was found there. Several goals decide in turn.
        """
        bounds = self._bounds()
        is_open = ~np.isposinf(bounds).all(axis=1)
        is_open &= measures.behind(self._found(), bounds) > self.effort.within_ratio
        best: dict[Setup, FloatArray] = {}
        stretch = 1.0
        for result in self.results:
            family, own = self._family.get(result.setup), self.bound(result.setup)
            if family is None or own is None or result.figures is None:
                continue
            stretch = max(stretch, result.figures.time_s / own.time_s)
            value = np.array(self.values(result.figures))
            best[family] = np.minimum(value, best.get(family, value))
        promise = bounds * np.where(bounds < 0, 1 / stretch, stretch)
        for i, setup in enumerate(self.space.setups):
            known = best.get(self._family[setup])
            promise[i] = promise[i] if known is None else np.maximum(known, bounds[i])
        ranked = np.argsort(promise[:, len(self.results) % len(self.goals)], kind="stable")
        return [self.space.setups[i] for i in ranked if is_open[i]]

    def _by_sampler(self) -> None:
        """Search what a sampler of Optuna picks, unless its bound says that it is no better.

        Where it picks a known setup, an unknown one is drawn at random.
        """
        draw, listed = random.Random(self.effort.seed), set(self.space.setups)
        self._search(self._fresh([self.space.base]), here=True)
        while not self._should_stop():
            seen, done = self._trials.taken, len(self.results) + len(self._trials.ruled_out)
            none_left = len(seen) >= self.space.num_setups or (listed and listed <= seen)
            if none_left or done >= self.effort.trials:
                return
            trial, setup = self._trials.begin()
            if setup in seen or (listed and setup not in listed):
                self._trials.drop(trial, "FAIL")
                while setup in seen or (listed and setup not in listed):
                    if listed:
                        setup = draw.choice(self.space.setups)
                    else:
                        every = self.space.knobs.values()
                        setup = self.space.setup_of([draw.choice(values) for values in every])
                trial, _ = self._trials.begin(setup)
            self._pick(trial, setup)

    def _pick(self, trial: Trial, setup: Setup) -> None:
        """Search a setup that a sampler has picked, or rule it out."""
        try:
            self.space.restricted(setup)
        except (InfeasibleError, InvalidInputError) as error:
            failed = trials.SetupResult(setup=setup, status=trials.FAILED, reason=str(error))
            self._record(trial, failed)
            return
        self._prove([setup])
        bound, found = self.bound(setup), self._found()
        own = np.array([self.values(bound)])
        if bound and len(found) and measures.behind(found, own)[0] <= self.effort.within_ratio:
            self._trials.drop(trial, "PRUNED")
            return
        self._search([setup], [trial])

    # -- the smallest cluster ---------------------------------------------------------------------

    def _find_smallest(self, target: float) -> None:
        """For each system, find the fewest ranks whose best plan reaches a throughput.

        The smallest clusters come first. Setups that are proven to be too slow are not searched. In
        the end every smaller cluster than the answer was searched or ruled out. If none reaches
        the throughput, the one with the best bound is searched.
        """
        for system in self.space.knobs[SYSTEM]:
            if self._should_stop():
                return
            own = [s for s in self.space.setups if s.get(SYSTEM) == system]
            slow: list[int] = []
            answer = None
            for size in sorted({self._ranks(s) for s in own}):
                setups = [s for s in own if self._ranks(s) == size]
                self._prove(setups)
                fast = [s for s in setups if self._speed(self.bound(s)) >= target]
                if not fast:
                    slow.append(size)
                self._search(self._fresh(fast))
                reach = [r for r in self.results if self._speed(r.figures) >= target]
                answer = min((r for r in reach if r.setup in fast), key=self.value, default=None)
                if answer is not None or self._should_stop():
                    break
            self.answers += (Answer(system=str(system), found=answer, ruled_out=tuple(slow)),)
            if answer is None and not any(r.setup in own for r in self.results):
                most = sorted(own, key=lambda s: -self._speed(self.bound(s)))
                self._search(self._fresh(most[:1]))

    @staticmethod
    def _speed(figures: measures.Figures | None) -> float:
        return 0.0 if figures is None else figures.samples_per_s


def _name(family: Setup) -> str:
    return "floor " + json.dumps(family.picks)


# ------------------------------------------------------------------ the public function


def study(
    workload: str | Path,
    systems: Sequence[str],
    *,
    gpus: Sequence[int] = (),
    vary: Mapping[str, Sequence[Value]] | None = None,
    goals: Sequence[str] = (),
    smallest_for: float | None = None,
    journal: Path | None = None,
    **effort: Any,
) -> Study:
    """Choose what surrounds a plan, and find the plan.

    Args:
        workload: path of a workload file, or the name of a shipped one.
        systems: paths or names of systems, the usual one first.
        gpus: numbers of ranks; none for one host of each system.
        vary: the values of further knobs, the usual one first: keys of the workload, keys of the
            system with ``system.`` before them, and those of
            :data:`planner.study.space.OWN_KNOBS`.
        goals: names of :data:`planner.study.figures.GOALS`.
        smallest_for: samples per second that the smallest cluster has to reach; None looks for the
            best setup.
        journal: Optuna's journal, with which a later call goes on.
        **effort: fields of :class:`planner.study.Effort`, such as ``trials=10``.

    Returns:
        The study: ``best()`` has the recommended setup with its plan (times in seconds), and
        ``results`` has every setup that was searched.

    Raises:
        InvalidInputError: a file or value breaks a rule.

    Example:
        >>> found = study("small_demo", ["h100_sxm"], gpus=[2], trials=1, evaluations=20)
        >>> found.best().setup.get("gpus")
        2
    """
    load = Files(workload=workload)
    asked = Effort(**effort)
    knobs: dict[str, Sequence[Value]] = {SYSTEM: systems, GPUS: gpus}
    knobs |= checked_knobs(vary or {})
    space = Space(knobs, load, with_usual=not asked.is_grid and smallest_for is None)
    found = Study(space, asked, goals=tuple(goals), smallest_for=smallest_for, journal=journal)
    found.run()
    return found
