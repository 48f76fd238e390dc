"""The result of planning: the plan, its price, how good it is, and what it is compared with."""

from __future__ import annotations

import importlib
from collections import Counter
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from costmodels import units
from costmodels.estimates import IterationEstimate, MemoryLedger
from costmodels.fields import is_in
from costmodels.sharding import Plan, Shard, TablePlacement
from costmodels.topology import Topology
from costmodels.workload import Workload
from planner.errors import refuse
from planner.problem import PlanningProblem
from planner.support.kinds import path_of
from planner.support.status import Status
from planner.support.text import counted, format_gap

TORCHREC_BASELINE: Final = "torchrec_greedy"
"""The strategy that makes the plan of TorchRec's own planner; also its name as a baseline."""
OPTIMAL_GAP: Final = 1e-4
"""A plan within this share of its bound is called the best."""
_MOST_ROWS: Final = 30
_SAMPLES: Final = 1e9
_SECONDS_PER_HOUR: Final = 3600.0


def usd_per_billion_samples(time_s: float, workload: Workload, topology: Topology) -> float | None:
    """US dollars for 10^9 samples at ``time_s`` per iteration; None for a system without price."""
    price = topology.price_per_device_usd_per_hour
    if price is None:
        return None
    return time_s * price / _SECONDS_PER_HOUR / workload.samples_per_rank * _SAMPLES


if TYPE_CHECKING:
    from pandas import DataFrame

    from costmodels.pipeline import CostPipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverReport:
    """How the search went.

    Attributes:
        strategy: the name of the strategy.
        objective: what was minimized.
        status: how the search ended.
        value: of the best plan, in the unit of the objective (seconds for ``iteration``).
        bound: a proven lower bound on the value of every plan in the search space, in the same
            unit; None if the strategy proves none.
        seconds: how long the search took.
        seed: of the random choices.
        evaluations: how many plans were priced.
        work: all the work that was done, counted in priced plans.
        separable_value: the part of ``value`` that follows from the longest durations of the plan's
            phases alone, which is all that bounds can see; None if that is all of it.
        balanced_value: what would be left of ``separable_value`` if the plan's work were spread
            evenly over its ranks; None where ranks differ.
        progress: (seconds, incumbent, bound) at moments of the search.
        torchrec_defaults: whether values rest on TorchRec's default figures instead of the
        system's.
    """

    strategy: str
    objective: str
    status: Status
    value: float
    bound: float | None
    seconds: float
    seed: int
    evaluations: int
    work: int = 0
    separable_value: float | None = None
    balanced_value: float | None = None
    progress: tuple[tuple[float, float, float | None], ...] = ()
    torchrec_defaults: bool = False

    @property
    def gap_ratio(self) -> float | None:
        """The gap (value - bound) / value, 0..1; None without a bound."""
        if self.bound is None or self.value <= 0:
            return None
        return max(0.0, (self.value - self.bound) / self.value)

    @property
    def unseen_gap_ratio(self) -> float:
        """The part of the gap that bounds cannot see, 0..1: launches and overlap."""
        gap = self.gap_ratio
        if gap is None or self.separable_value is None:
            return 0.0
        return min(gap, (self.value - self.separable_value) / self.value)

    @property
    def uneven_gap_ratio(self) -> float | None:
        """The part of the gap that comes from uneven ranks, 0..1; None if that is not known.

        What is left of the gap then comes from options that cost more than those of the bound.
        """
        gap = self.gap_ratio
        if gap is None or self.balanced_value is None:
            return None
        seen = self.value if self.separable_value is None else self.separable_value
        uneven = (min(seen, self.value) - self.balanced_value) / self.value
        return min(max(uneven, 0.0), gap - self.unseen_gap_ratio)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One priced plan.

    Attributes:
        name: of the strategy that found it, or as the caller named it.
        plan: the plan.
        estimate: its times, in seconds.
        memory: its memory, in bytes per rank and host.
    """

    name: str
    plan: Plan
    estimate: IterationEstimate
    memory: MemoryLedger

    @classmethod
    def of(cls, name: str, plan: Plan, pipeline: CostPipeline) -> Candidate:
        """A plan as a pipeline prices it.

        Raises:
            InvalidValueError: the plan is not one of the pipeline's workload on its ranks.
        """
        estimate, memory = pipeline.estimate(plan), pipeline.memory(plan)
        return cls(name=name, plan=plan, estimate=estimate, memory=memory)

    def __repr__(self) -> str:
        """One line: name, time with its interval, and number of tables."""
        time = self.estimate.time
        low, text, high = map(units.format_time, (time.low_s, time.time_s, time.high_s))
        tables = counted(len(self.plan.placements), "table")
        return f"<Candidate {self.name!r}: {text} ({low} to {high}, 90 %), {tables}>"


def _run_files() -> Any:
    """The module that writes runs; it is above this one, so that it is imported when it is used."""
    return importlib.import_module("planner.report.run_files")


LEAST_GAIN_RATIO: Final = 1e-3
"""A move has to save this share of an iteration: less is far below what predictions can tell."""
PAYBACK_S: Final = 3600.0
"""Within so many seconds of training a move has to have saved the time that it takes. Data drift by
the day, and after some days the next plan moves tables again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reshard:
    """What the move from the plan in use to a new plan takes, and what it saves per iteration.

    Bytes are weights and optimizer state that ranks receive from other ranks.

    Attributes:
        moved_tables: how many tables some rank receives a part of.
        recut_tables: how many tables change otherwise: every rank keeps a part of what it holds, as
            when a replicated table becomes column-wise.
        moved_bytes: what all ranks together receive.
        most_received_bytes: what the rank that receives most receives.
        time_s: seconds of the move over the links.
        before_s: iteration time of the plan in use.
        saved_s: by how much the new plan's iteration is shorter; negative if it is longer.
        payback_iterations: iterations of the new plan until the move is paid back; None where it is
            not faster.
    """

    moved_tables: int
    recut_tables: int
    moved_bytes: float
    most_received_bytes: float
    time_s: float
    before_s: float
    saved_s: float
    payback_iterations: int | None

    @property
    def payback_s(self) -> float | None:
        """Seconds of training on the new plan that save the time of the move; None for never."""
        count = self.payback_iterations
        return None if count is None else count * (self.before_s - self.saved_s)

    @property
    def pays(self) -> bool:
        """Whether the move is worth making: :data:`LEAST_GAIN_RATIO` and :data:`PAYBACK_S`."""
        payback_s = self.payback_s
        gains = self.saved_s >= LEAST_GAIN_RATIO * self.before_s
        return gains and payback_s is not None and payback_s <= PAYBACK_S


@dataclass(frozen=True, slots=True, kw_only=True)
class MovePoint:
    """The best plan found that moves at most a number of tables.

    Attributes:
        most_tables: the number; None for as many as the limits of the problem allow.
        iteration_s: iteration time of the plan.
        move: what the move to it takes.
        bound_s: no plan within these limits has a shorter iteration; None where the search had
            another objective.
    """

    most_tables: int | None
    iteration_s: float
    move: Reshard
    bound_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """The change of one table that would save most, and that a limit on moves forbids.

    Attributes:
        table: its name.
        iteration_s: iteration time of the plan with the change.
        moved_bytes: what ranks would have to receive for it.
    """

    table: str
    iteration_s: float
    moved_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumed:
    """A value that a workload file left open.

    Attributes:
        key: of the file.
        what: the key in words.
        value: what was assumed.
        num_tables: for how many tables; 0 for what holds for the whole step.
        other: a value at the other end of its usual range.
        time_s: seconds of the plan's step with this other value alone; None if it was not priced.
    """

    key: str
    what: str
    value: str
    num_tables: int
    other: str
    time_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioTime:
    """Iteration time of the plan in one scenario, with its 90 % interval and its throughput."""

    name: str
    time_s: float
    low_s: float
    high_s: float
    samples_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningResult:
    """The answer to a planning problem.

    Attributes:
        problem: the question.
        best: the best plan with its price.
        solver: how the search went, its value and bound.
        runners_up: the next best plans of the search.
        baselines: simple plans for comparison, priced by the same models.
        unfit_baselines: names of baselines that found no plan that fits.
        warnings: what a user of the plan has to know, one sentence each.
        searched: lines that say which options were considered; the bound is about these.
        reshard: the move from the plan in use; None if none was given.
        curve: what each number of moved tables gives, if that was asked.
        blocked: the table that the limit on moves blocks, if the curve was asked.
        scenarios: the time in each scenario, the workload itself first; empty without scenarios.
        checkpoint_interval_s: seconds between two checkpoints; None unless failures were given.
        assumed: what a workload file left open; empty for problems that were not read from one.

    Example:
        >>> workload, system = load_workload("small_demo"), load_system("h100_sxm", gpus=8)
        >>> result = plan(workload, system, max_evaluations=50)
        >>> 0.0 <= result.gap_ratio <= 1.0
        True
        >>> len(result.to_dataframe(per="rank"))
        8
    """

    problem: PlanningProblem
    best: Candidate
    solver: SolverReport
    runners_up: tuple[Candidate, ...] = ()
    baselines: tuple[Candidate, ...] = ()
    unfit_baselines: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    searched: tuple[str, ...] = ()
    reshard: Reshard | None = None
    curve: tuple[MovePoint, ...] = ()
    blocked: Blocked | None = None
    scenarios: tuple[ScenarioTime, ...] = ()
    checkpoint_interval_s: float | None = None
    assumed: tuple[Assumed, ...] = ()

    def __repr__(self) -> str:
        """One line: the plan, its time and gap, and whether it does not fit."""
        gap = "no bound" if self.gap_ratio is None else f"gap {format_gap(self.gap_ratio)}"
        size = counted(self.problem.topology.world_size, "rank")
        fits = "" if self.best.memory.fits else ", which it does not fit"
        return f"<PlanningResult: {self.best!r} on {size}{fits}, {gap}>"

    def save(self, folder: str | Path) -> tuple[Path, ...]:
        """Write plan, report and traces into a folder, as ``shardplan plan -o`` does.

        What an earlier run has left in the folder is replaced; other files stay.

        Returns:
            The files and folders written.

        Raises:
            InvalidInputError: the folder cannot be written.
        """
        return tuple(_run_files().write_run(path_of(folder, "folder"), self))

    def to_html(self) -> str:
        """The report as one HTML page, which needs no network."""
        return str(_run_files().page(self))

    def to_dataframe(self, per: Literal["table", "shard", "rank"] = "table") -> DataFrame:
        """The best plan as a pandas DataFrame.

        Args:
            per: what a row of it is: a ``table`` (shape, sharding type, kernel, ranks), a ``shard``
                (its rows and columns, its rank and bytes), or a ``rank`` (seconds and bytes).

        Raises:
            InvalidInputError: ``per`` is none of these words.
        """
        import pandas

        if not is_in(per, tuple(_ROWS)):
            refuse(f"to_dataframe: per is {per!r}; use one of {', '.join(_ROWS)}")
        return pandas.DataFrame(_ROWS[per](self))

    def _repr_html_(self) -> str:
        """What notebooks show: the first lines of the report, and the tables."""
        facts = _run_files().first_facts(self)
        lines = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in facts)
        table = self.to_dataframe().to_html(index=False, max_rows=_MOST_ROWS, show_dimensions=True)
        return f"<dl>{lines}</dl>{table if self.plan.placements else ''}"

    @property
    def plan(self) -> Plan:
        """The best plan found."""
        return self.best.plan

    @property
    def estimate(self) -> IterationEstimate:
        """The predicted times of the best plan."""
        return self.best.estimate

    @property
    def usd_per_billion_samples(self) -> float | None:
        """US dollars for 10^9 samples at the price of the devices; None without a price."""
        time_s = self.estimate.time.time_s
        return usd_per_billion_samples(time_s, self.problem.workload, self.problem.topology)

    @property
    def bound(self) -> float | None:
        """A proven lower bound of the objective, in its unit; None if none is proven."""
        return self.solver.bound

    @property
    def gap_ratio(self) -> float | None:
        """How far the best plan can be from the best possible, 0..1; None without a bound."""
        return self.solver.gap_ratio


# ------------------ rows of plain values


def _is_held(shard: Shard) -> bool:
    """Whether a shard has cells; it has none if its table has fewer rows than there are ranks."""
    return shard.num_rows > 0 and shard.num_cols > 0


def ranks_held(placement: TablePlacement) -> list[int]:
    """The rank of each shard that has cells of the table."""
    return [shard.rank for shard in placement.shards if _is_held(shard)]


_SHAPE: Final = ("num_embeddings", "embedding_dim", "pooling_factor", "weight_bytes")


def _table_rows(result: PlanningResult) -> list[dict[str, Any]]:
    """One row per table, in the workload's order."""
    return [
        {
            "table": table.name,
            **{key: getattr(table, key) for key in _SHAPE},
            "sharding_type": placement.sharding_type.value,
            "kernel": placement.kernel.value,
            "num_shards": len(ranks_held(placement)),
            "ranks": tuple(sorted(set(ranks_held(placement)))),
        }
        for table in result.problem.workload.tables
        for placement in (result.plan.placement(table.name),)
    ]


def _shard_rows(result: PlanningResult) -> list[dict[str, Any]]:
    """One row for each shard that has cells; tables are in the workload's order."""
    return [
        {
            "table": table.name,
            "shard": number,
            "rank": shard.rank,
            "sharding_type": placement.sharding_type.value,
            "kernel": placement.kernel.value,
            **asdict(shard),
            "weight_bytes": shard.num_rows * shard.num_cols * table.dtype.num_bytes,
        }
        for table in result.problem.workload.tables
        for placement in (result.plan.placement(table.name),)
        for number, shard in enumerate(placement.shards)
        if _is_held(shard)
    ]


_TIMES: Final = ("compute_s", "communication_s", "exposed_s", "idle_s")


def _rank_rows(result: PlanningResult) -> list[dict[str, Any]]:
    """One row per rank: its times in seconds, its memory in bytes, and its shards."""
    shards = Counter(rank for placement in result.plan.placements for rank in ranks_held(placement))
    return [
        {
            "rank": time.rank,
            "num_shards": shards[time.rank],
            **{key: getattr(time, key) for key in _TIMES},
            "used_bytes": held.used_bytes,
            "headroom_bytes": held.headroom_bytes,
        }
        for time, held in zip(result.estimate.ranks, result.best.memory.ranks, strict=True)
    ]


_ROWS: Final = {"table": _table_rows, "shard": _shard_rows, "rank": _rank_rows}
"""What makes the rows of :meth:`PlanningResult.to_dataframe`."""
