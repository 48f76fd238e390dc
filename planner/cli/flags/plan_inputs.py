"""Reads what the flags of ``plan`` name: constraints, the plan in use, and scenarios."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from costmodels.workload import Workload
from planner import io
from planner.cli.flags.common import ProblemFlags
from planner.cli.flags.inputs import Inputs, load_problem, with_constraints, with_notes
from planner.cli.flags.plan_flags import PlanFlags
from planner.problem import NO_CONSTRAINTS, MoveLimit, PlanningProblem
from planner.profiling.stats import load_stats, with_stats
from planner.scenarios import ScenarioRule


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInputs:
    """The inputs of ``plan``."""

    inputs: Inputs
    moves: MoveLimit | None
    scenarios: tuple[Workload, ...]
    robust: ScenarioRule

    @property
    def problem(self) -> PlanningProblem:
        """All inputs as one problem."""
        return replace(self.inputs.problem, move_limit=self.moves, scenarios=self.scenarios)


def load_plan_inputs(source: Path, flags: ProblemFlags, more: PlanFlags) -> PlanInputs:
    """Read the workload, the system, and everything that the flags of ``plan`` add.

    Raises:
        InvalidInputError: a file or flag breaks a rule.
    """
    loaded = load_problem(source, flags)
    inputs = with_constraints(loaded, more.constraints)
    moves, warnings = None, inputs.warnings
    problem = inputs.problem
    if more.stats is not None:
        measured, notes = with_stats(problem.workload, load_stats(more.stats), str(more.stats))
        problem = replace(problem, workload=measured)
        warnings = with_notes(warnings, notes)
    if more.plan_in_use is not None:
        saved = io.load_plan(more.plan_in_use, problem.workload, problem.topology)
        moves = MoveLimit(
            start=saved.plan, max_bytes=more.max_moved_bytes, max_tables=more.max_moved_tables
        )
        warnings += saved.warnings
    main = replace(loaded.problem, workload=problem.workload)
    scenarios, found = load_scenarios(more.scenarios, main, flags)
    warnings += tuple(found)
    return PlanInputs(
        inputs=replace(inputs, problem=problem, warnings=tuple(dict.fromkeys(warnings))),
        moves=moves,
        scenarios=scenarios,
        robust=ScenarioRule(more.robust or ScenarioRule.WORST),
    )


def load_scenarios(
    paths: tuple[Path, ...], main: PlanningProblem, flags: ProblemFlags
) -> tuple[tuple[Workload, ...], list[str]]:
    """Variants of a workload with different names, and their warnings.

    Args:
        paths: files of variants, or of statistics.
        main: the workload with the constraints of its file.
        flags: those on workload and system, which hold for variants too.

    Raises:
        InvalidInputError: a file breaks a rule.
    """
    workload = main.workload
    read = [_scenario(path, main, flags) for path in paths]
    warnings = [text for _, found in read for text in found]
    scenarios = [
        replace(scenario, name=path.stem) if scenario.name == workload.name else scenario
        for path, (scenario, _) in zip(paths, read, strict=True)
    ]
    return _distinct((workload, *scenarios))[1:], warnings


def _scenario(
    path: Path, main: PlanningProblem, flags: ProblemFlags
) -> tuple[Workload, tuple[str, ...]]:
    """A variant of the workload, or the workload under other statistics; and its warnings."""
    if path.suffix == ".json":
        measured, notes = with_stats(main.workload, load_stats(path), str(path))
        return replace(measured, name=path.stem), notes
    inputs = load_problem(path, flags)
    told = [f"{path}: {text}" for text in inputs.warnings]
    if inputs.problem.constraints not in (NO_CONSTRAINTS, main.constraints):
        told.append(
            f"{path}: its constraints are left out: a plan for several scenarios keeps those of "
            "the workload; put them there, or into --constraints"
        )
    return inputs.problem.workload, tuple(told)


def _distinct(scenarios: tuple[Workload, ...]) -> tuple[Workload, ...]:
    """The scenarios with a number behind each repeated name; the first one keeps its name."""
    names = [s.name for s in scenarios]
    return tuple(
        s if i == 0 or names.count(s.name) == 1 else replace(s, name=f"{s.name} ({i})")
        for i, s in enumerate(scenarios)
    )
