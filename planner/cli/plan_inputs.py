"""From the flags of ``plan`` to constraints, the plan in use, and scenarios."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from costmodels.errors import CostModelError
from costmodels.workload import Workload
from planner import io
from planner.cli.flags import ProblemFlags
from planner.cli.inputs import Inputs, load_problem, with_constraints
from planner.cli.plan_flags import PlanFlags
from planner.errors import InvalidInputError
from planner.problem import MoveLimit, PlanningProblem
from planner.profiling.stats import Stats, load_stats
from planner.robust import Robust


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInputs:
    """What ``plan`` is asked."""

    inputs: Inputs
    moves: MoveLimit | None
    scenarios: tuple[Workload, ...]
    robust: Robust

    @property
    def problem(self) -> PlanningProblem:
        """Everything together."""
        return replace(self.inputs.problem, move_limit=self.moves, scenarios=self.scenarios)


def load_plan_inputs(source: Path, flags: ProblemFlags, more: PlanFlags) -> PlanInputs:
    """Workload, system, and all that the flags of ``plan`` add.

    Raises:
        InvalidInputError: a file or flag breaks a rule.
    """
    inputs = with_constraints(load_problem(source, flags), more.constraints)
    problem = inputs.problem
    moves, warnings = None, list(inputs.warnings)
    if more.plan_in_use is not None:
        saved = io.load_plan(more.plan_in_use, problem.workload, problem.topology)
        moves = MoveLimit(
            start=saved.plan, max_bytes=more.max_moved_bytes, max_tables=more.max_moved_tables
        )
        warnings += saved.warnings
    scenarios, found = load_scenarios(more.scenarios, problem.workload, flags)
    warnings += found
    return PlanInputs(
        inputs=replace(inputs, problem=problem, warnings=tuple(dict.fromkeys(warnings))),
        moves=moves,
        scenarios=scenarios,
        robust=Robust(more.robust or Robust.WORST),
    )


def load_scenarios(
    paths: tuple[Path, ...], workload: Workload, flags: ProblemFlags
) -> tuple[tuple[Workload, ...], list[str]]:
    """Variants of a workload with names that differ, and their warnings.

    Raises:
        InvalidInputError: a file breaks a rule.
    """
    read = [_scenario(path, workload, flags) for path in paths]
    warnings = [text for _, found in read for text in found]
    scenarios = [
        replace(scenario, name=path.stem) if scenario.name == workload.name else scenario
        for path, (scenario, _) in zip(paths, read, strict=True)
    ]
    return _distinct((workload, *scenarios))[1:], warnings


def _scenario(
    path: Path, workload: Workload, flags: ProblemFlags
) -> tuple[Workload, tuple[str, ...]]:
    """A variant of the workload, or the workload under other statistics; and its warnings."""
    if path.suffix == ".json":
        return _under(workload, load_stats(path), path), ()
    inputs = load_problem(path, flags)
    return inputs.problem.workload, tuple(f"{path}: {text}" for text in inputs.warnings)


def _under(workload: Workload, stats: Stats, path: Path) -> Workload:
    """Every table by its statistics, distribution and pooling factors both."""
    problems, tables = [], []
    for table in workload.tables:
        try:
            found = stats.table(table.name, tuple(f.name for f in table.features))
            features = tuple(
                replace(f, pooling_factor=float(found.features.get(f.name, found.pooling).mean))
                for f in table.features
            )
            law = found.distribution(table.num_embeddings)
            tables.append(replace(table, features=features, distribution=law))
        except (InvalidInputError, CostModelError) as error:
            problems.append(f"{path}: {error}")
    if problems:
        raise InvalidInputError(problems)
    return replace(workload, name=path.stem, tables=tuple(tables))


def _distinct(scenarios: tuple[Workload, ...]) -> tuple[Workload, ...]:
    """With numbers behind names that appear twice; the first keeps its own."""
    names = [s.name for s in scenarios]
    return tuple(
        s if i == 0 or names.count(s.name) == 1 else replace(s, name=f"{s.name} ({i})")
        for i, s in enumerate(scenarios)
    )
