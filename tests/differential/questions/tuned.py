"""What ``study`` proves of drawn spaces: ``python -m tests.differential.questions.tuned -h``.

Pipelines, batches, codecs, widths of columns and groups of ranks surround a drawn problem. Every
plan of every setup is priced. No bound of a setup may be above its best plan, a setup that was
ruled out may not hold a better plan than the best that was found, and what is proven about the best
has to be true.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np

from costmodels.errors import InvalidValueError
from costmodels.topology import batch_ratios
from costmodels.workload import Pipeline
from planner.errors import InvalidInputError, NoPlanFoundError
from planner.problem import Level
from planner.study import Effort, Space, Study
from planner.study.figures import NO_FAILURES, Figures, behind, figures_of
from planner.study.space import Setup
from tests.differential.asking import problem_of
from tests.differential.case import Case
from tests.differential.judging.enumerator import Enumerator, Optimum
from tests.differential.questions.explaining import explained_case
from tests.differential.seeds import look_at_drawn
from tests.planner.study.spaces import RESERVE, space_of

_NOTHING: Final = Optimum(value=math.inf, plan=None, num_allowed=0, num_fitting=0)
_ROUNDING: Final = 1e-9
_MOST_SETUPS: Final = 24
_MOST_PLANS: Final = 15_000
"""Larger problems take too long, because those of every setup are priced."""


def tuned_faults(case: Case, seed: int) -> list[str]:
    """One line for each promise that a study of a drawn design space breaks."""
    case = _narrow(case)
    rng = np.random.default_rng([seed, 11])
    try:
        space = space_of(problem_of(case), more=_knobs(rng, case))
    except (InvalidInputError, InvalidValueError):
        return []
    if len(space.setups) > _MOST_SETUPS:
        return []
    spaces = {s: _space_of(case, space, s) for s in space.setups}
    if any(s is not None and s.num_plans > _MOST_PLANS for s in spaces.values()):
        return []
    best = {setup: s.optimum() if s is not None else _NOTHING for setup, s in spaces.items()}
    effort = Effort(trials=1000, time_limit_s=600.0, evaluations=100, sampler="bounds")
    study = Study(space, effort)
    study.run()
    return list(_faults(study, best))


def _narrow(case: Case) -> Case:
    """The case as ``study`` is asked, with a price."""
    case = explained_case(case)
    return replace(case, topology=replace(case.topology, price_per_device_usd_per_hour=2.0))


def _knobs(rng: np.random.Generator, case: Case) -> dict[str, tuple[Any, ...]]:
    """One to three of the things that may vary, groups only where ranks are alike."""
    workload = case.workload
    pipelines = tuple(Pipeline(str(p)) for p in rng.permutation([p.value for p in Pipeline])[:1])
    others = tuple(dict.fromkeys((workload.pipeline, *pipelines)))
    alike = len(set(case.topology.speeds())) == 1
    batch, reserved = workload.batch_size_per_rank, workload.reserved_bytes
    choices: tuple[dict[str, tuple[Any, ...]], ...] = (
        {"training.pipeline": tuple(p.value for p in others if p is not Pipeline.LOOKAHEAD)},
        {"training.batch_size_per_rank": (batch, 4 * batch)},
        {"training.communication": (None, "fp16/bf16")},
        {"column_width": (4, 32)},
        {"copies": ("all",) if alike else ()},
        {RESERVE: (reserved, reserved + 2.0**29)},
        {"cache_sizes": (None, "[0.05, 0.2]")},
    )
    chosen = rng.choice(len(choices), size=int(rng.integers(1, 4)), replace=False)
    return {k: values for i in chosen for k, values in choices[int(i)].items() if values}


def _space_of(case: Case, space: Space, setup: Setup) -> Enumerator | None:
    """The plans of a setup; None where what it asks for contradicts itself."""
    asked = space.restricted(setup)
    sizes = {Level.RANK: asked.topology.world_size, Level.HOST: asked.topology.num_hosts}
    rules = asked.constraints.memory
    if any(place >= sizes[rule.level] for rule in rules for place in rule.places):
        return None
    try:
        batch_ratios(asked.workload, asked.topology)
    except InvalidValueError:
        return None
    own = replace(
        case, workload=asked.workload, topology=asked.topology, constraints=asked.constraints
    )
    return Enumerator(own)


def _faults(study: Study, best: dict[Setup, Optimum]) -> Iterator[str]:
    space, looks = study.space, {x.setup: x for x in study.results}
    for setup, optimum in best.items():
        look, floor = looks.get(setup), study.floors.get(space.loosest(setup))
        told = [floor.value if floor else None, look.bound_s if look else None]
        for bound in (b for b in told if b is not None and b > optimum.value * (1 + _ROUNDING)):
            yield f"{setup}: bound {bound:.9g}, optimum {optimum.value:.9g}"
        if look is not None and look.figures is None and math.isfinite(optimum.value):
            yield f"{setup}: no plan ({look.reason}), the best takes {optimum.value:.9g}"
    fitting = {s: o for s, o in best.items() if math.isfinite(o.value)}
    try:
        study.best()
    except NoPlanFoundError as error:
        if fitting:
            yield f"{len(fitting)} setups have a plan that fits, but: {error}"
        return
    found = np.array([study.values(x.figures) for x in study.front if x.figures])
    # What the averaging of copies adds is at least what is counted here.
    true = {s: np.array([study.values(_figures(space, s, o.value))]) for s, o in fitting.items()}
    exact = {s: v for s, v in true.items() if s.get("copies", 1) == 1}
    for setup in study.ruled_out:
        if setup in exact and float(behind(found, exact[setup])[0]) > _ROUNDING:
            yield f"{setup} was ruled out, and its best plan betters what was found"
    ratio = study.proof_ratio
    if ratio is not None and exact:
        most = max(float(behind(found, v)[0]) for v in exact.values())
        if most > ratio + _ROUNDING:
            yield f"no plan is said to be better by more than {ratio:.3%}, one is by {most:.3%}"


def _figures(space: Space, setup: Setup, time_s: float) -> Figures:
    time_s += space.least_sync_s(setup)
    return figures_of(space.problem(setup), NO_FAILURES, time_s=time_s, free_bytes=math.inf)


def main(arguments: list[str] | None = None) -> int:
    """Studies around drawn problems; 1 if a promise is broken."""
    kept = "studies keep every promise"
    return look_at_drawn(arguments, __doc__, tuned_faults, count=50, draw="usual", kept=kept)


if __name__ == "__main__":
    sys.exit(main())
