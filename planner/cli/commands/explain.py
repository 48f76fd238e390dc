"""``shardplan explain``: why a plan is as it is, and what would change it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from planner import io
from planner.cli import flags as spec
from planner.cli import inputs
from planner.cli.console import assumed_section, bar, tell
from planner.cli.interrupt import StopOnInterrupt
from planner.cli.printing import explain_show as show
from planner.explain import explainer as why
from planner.solving import assumed as assuming
from planner.support.text import counted

_CUT: Final = "--time-limit cut the searches marked 'cut': other runs may find other gains"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainFlags(spec.Flags):
    """What is to be explained.

    Attributes:
        tables: Price every option of this table; repeatable.
        prices: Plan again without each constraint.
        constraints: YAML file of constraints, in addition to those of the workload.
        time_limit: For each search of --prices, a safety by the clock.  [default: none; the budget
            of work ends a search]
    """

    tables: Annotated[spec.Texts, "NAME", "--table"] = ()
    prices: bool = False
    constraints: spec.File = None
    time_limit: spec.TimeLimit = None

    def check(self) -> None:
        """Refuse a flag that has no effect without another one."""
        is_vain = self.time_limit is not None and not self.prices
        spec.refuse(is_vain, "--time-limit limits the searches of --prices; add --prices")


def _ignored(path: Path, made_for: io.SavedPlan | None) -> tuple[str, ...]:
    """What the file says that the plan was made for, and explanations do not look at."""
    found = []
    if made_for is not None and made_for.objective not in (None, "iteration"):
        found.append(f"the objective {made_for.objective!r}")
    if made_for is not None and made_for.num_scenarios:
        found.append(f"{counted(made_for.num_scenarios, 'scenario')} beside the workload")
    told = f"{path}: was made for {' and '.join(found)}; only the workload's iteration is explained"
    return (told,) if found else ()


@spec.command("What a plan waits for, and which change would help.")
def command(
    workload: Path, asked: ExplainFlags, flags: spec.ProblemFlags, plan: Path | None = None
) -> None:
    """Say what a plan waits for, and which changes would help.

    Without --table and --prices: the stages that the iteration waits for, and the best change of
    each single table on a critical rank.

    With --table: the costs of each option of the table, and the iteration time of the plan with
    this option. An option with few ways to place its shards is tried in all of them; the shards of
    other options are placed one after the other, each where it costs least. With --prices: what
    each constraint costs, and what one GiB more per rank would gain.

    All times are iteration times of the workload itself: scenarios, statistics, limits on moves and
    other objectives do not count, even if the plan was made for them. Without tables, omit PLAN.

    Examples:
      shardplan explain dlrm.yaml run1/plan.json                     what would help most
      shardplan explain dlrm.yaml run1/plan.json --table user_id     every option of a table
      shardplan explain dlrm.yaml run1/plan.json --prices            what each constraint costs
    """
    loaded = inputs.load_plans(workload, () if plan is None else (plan,), flags)
    read = inputs.with_constraints(loaded, asked.constraints)

    explainer = why.Explainer(read.problem, read.plans[0])
    told = [explainer.table(name) for name in asked.tables]
    sections = [show.table_section(explanation) for explanation in told]
    changes: Sequence[why.Change] = ()
    costs: Sequence[why.ConstraintCost] = ()
    if not asked.tables and not asked.prices:
        names = explainer.critical_tables()
        with bar("tables", len(names)) as step:
            changes = explainer.changes(progress=step)
        sections += show.change_sections(explainer, changes)
    if asked.prices:
        total = len(why.relaxed(read.problem.constraints)) + 1
        with StopOnInterrupt(keeps=False) as stop, bar("constraints", total) as step:
            costs = why.constraint_costs(
                read.problem, time_limit_s=asked.time_limit, progress=step, should_stop=stop
            )
        sections.append(show.costs_section(costs))
    assumed = assuming.priced_assumptions(read.problem, read.plans[0], read.assumed)
    cut = (_CUT,) if any(cost.is_cut for cost in costs) else ()
    sections.append(assumed_section(assumed, explainer.plan_time_s))
    data = show.as_json(explainer.plan_time_s, told, changes, costs)
    warnings = read.warnings + _ignored(plan or workload, read.made_for) + cut
    tell({**data, "assumed": assumed}, sections, warnings)
