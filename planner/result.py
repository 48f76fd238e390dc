"""What comes back: the plan, what it costs, how good it is, and what else was tried."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean
from typing import TYPE_CHECKING, Any, Final, get_args

from costmodels import units
from costmodels.estimates import IterationEstimate, MemoryLedger
from costmodels.sharding import Plan
from costmodels.topology import Topology
from costmodels.workload import Workload
from planner.errors import InvalidInputError
from planner.problem import PlanningProblem
from planner.support import result_frames
from planner.support.digits import counted, format_gap, significant
from planner.support.status import Status

TORCHREC_BASELINE: Final = "torchrec_greedy"
"""The strategy, and the baseline in a result, that is the plan of TorchRec's own planner."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverReport:
    """How the search went.

    ``value`` and ``bound`` are in the unit of the objective (seconds for ``iteration``); ``bound``
    is a proven lower bound on ``value`` over every plan in the search space, None if the strategy
    has none. ``separable_value`` is the part of ``value`` that follows from the largest phases of
    the plan, which is all that bounds can see; None if that is all of it. ``balanced_value`` is
    what would be left of it if the plan's work were spread evenly over its ranks; None where ranks
    differ. ``evaluations`` is the number of plans priced, ``work`` all that was done, in priced
    plans. ``progress`` holds (seconds, incumbent, bound) as the search went. With
    ``torchrec_defaults`` values rest on TorchRec's default figures, not on the system's.
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
        """(value - bound) / value, 0..1."""
        if self.bound is None or self.value <= 0:
            return None
        return max(0.0, (self.value - self.bound) / self.value)

    @property
    def unseen_gap_ratio(self) -> float:
        """The part of the gap that is not in the phases: launches and overlap, 0..1."""
        gap = self.gap_ratio
        if gap is None or self.separable_value is None:
            return 0.0
        return min(gap, (self.value - self.separable_value) / self.value)

    @property
    def uneven_gap_ratio(self) -> float | None:
        """The part of the gap that is ranks above the mean, 0..1; None if that is not known.

        What is then left are options that cost more in all than those of the bound.
        """
        gap = self.gap_ratio
        if gap is None or self.balanced_value is None:
            return None
        seen = self.value if self.separable_value is None else self.separable_value
        uneven = (min(seen, self.value) - self.balanced_value) / self.value
        return min(max(uneven, 0.0), gap - self.unseen_gap_ratio)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One plan, fully priced, and the strategy that found it."""

    name: str
    plan: Plan
    estimate: IterationEstimate
    memory: MemoryLedger


@dataclass(frozen=True, slots=True, kw_only=True)
class Reshard:
    """What going from the plan in use to this one takes, once, and what it saves per iteration.

    Bytes are weights and optimizer state that ranks receive, from others or, where a host was lost,
    from a checkpoint; ``time_s`` leaves out reading that. ``moved_tables`` are those of which
    some rank receives any; ``recut_tables`` change too, but every rank keeps a part of what it
    holds, such as a replicated table that becomes column-wise. ``payback_iterations`` is None where
    the new plan is not faster.
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
        """Seconds of training on the new plan until the move is paid back; None for never."""
        count = self.payback_iterations
        return None if count is None else count * (self.before_s - self.saved_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class MovePoint:
    """The best plan found with a number of tables moved, and what the move to it takes.

    ``most_tables`` is None for as many as the limits of the question allow. No plan that keeps to
    them takes less than ``bound_s``; None where the bound is not one of the iteration.
    """

    most_tables: int | None
    iteration_s: float
    move: Reshard
    bound_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """The change of one table that would save most beyond a plan, and that a limit forbids.

    ``iteration_s`` is that of the plan with the change; ``moved_bytes`` have to travel for it.
    """

    table: str
    iteration_s: float
    moved_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLoss:
    """What it takes to go on without one host.

    Host ``seats[i]`` of the larger plan becomes host ``i`` of the smaller one. ``restored_bytes``
    were on the lost host alone and come from the checkpoint; ``moved_bytes`` come from other hosts
    and ranks that are left. ``time_s`` is that of both, one after the other.
    """

    lost_host: int
    seats: tuple[int, ...]
    restored_bytes: float
    moved_bytes: float
    time_s: float

    @property
    def received_bytes(self) -> float:
        """All that ranks receive."""
        return self.restored_bytes + self.moved_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyMember:
    """A plan for some number of hosts, in a family that loses one host after the other.

    Attributes:
        result: the plan, with the bound that holds for so many hosts.
        fastest_s: seconds per iteration of the fastest plan found for so many hosts.
        losses: of each host of the member before, in its order; empty for the first member.
        alone: the same from the plan searched alone for one host more to that for so many.
        alone_s: seconds per iteration of the plan searched alone for so many hosts.
        to_fastest: the same from the member before to the fastest plan for so many.
        checkpoint_bytes: weights and optimizer state on the rank that has most of them.
        checkpoint_interval_s: by Young and Daly; infinite without a mean time between failures.
    """

    result: PlanningResult
    fastest_s: float
    losses: tuple[HostLoss, ...]
    alone: tuple[HostLoss, ...]
    alone_s: float
    to_fastest: tuple[HostLoss, ...]
    checkpoint_bytes: float
    checkpoint_interval_s: float

    @property
    def num_hosts(self) -> int:
        """How many hosts the plan is for."""
        return self.result.problem.topology.num_hosts

    @property
    def fastest_pays_after_s(self) -> float | None:
        """Seconds of training after which moving to the fastest plan would have been better.

        None where the member is the fastest one, or is the first.
        """
        time_s = self.result.estimate.time.time_s
        saved_s = time_s - self.fastest_s
        if not self.losses or saved_s <= 0:
            return None
        longer_s = mean(x.time_s for x in self.to_fastest) - mean(x.time_s for x in self.losses)
        return max(0.0, longer_s) / saved_s * self.fastest_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFamily:
    """Plans for N hosts, one fewer and so on; ``notes`` say what was assumed."""

    members: tuple[FamilyMember, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioTime:
    """Iteration time of the plan in one scenario, with its 90 % interval, and its throughput."""

    name: str
    time_s: float
    low_s: float
    high_s: float
    samples_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningResult:
    """The answer to a planning problem. ``baselines`` are priced by the same models.

    ``searched`` says which options were tried, one line each: the best plan and its bound are about
    these. ``reshard`` is set when a plan in use was given; ``curve`` and ``blocked`` when it was
    asked what each number of moved tables gives; ``scenarios`` holds the time in each scenario of a
    robust search, the workload itself first. ``family`` has this plan and those for fewer hosts,
    where they were asked for.
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
    family: PlanFamily | None = None

    def to_dataframe(self, per: result_frames.Per = "table") -> DataFrame:
        """The best plan as a pandas DataFrame.

        Args:
            per: what a row is: a ``table`` (shape, sharding type, kernel, ranks), a ``shard`` (its
                rows and columns, its rank and bytes), or a ``rank`` (seconds and bytes).

        Raises:
            InvalidInputError: another word.
        """
        import pandas

        if per not in get_args(result_frames.Per):
            known = ", ".join(get_args(result_frames.Per))
            message = f"to_dataframe: per is {per!r}; use one of {known}"
            raise InvalidInputError(message)
        return pandas.DataFrame(self._rows(per))

    def _rows(self, per: result_frames.Per) -> list[dict[str, Any]]:
        if per == "rank":
            return result_frames.rank_rows(self.plan, self.estimate, self.best.memory)
        build = result_frames.table_rows if per == "table" else result_frames.shard_rows
        return build(self.plan, self.problem.workload)

    def _repr_html_(self) -> str:
        """What notebooks show: time, throughput, proof, memory, cost, and the tables."""
        time, fullest = self.estimate.time, self.best.memory.fullest
        gap, usd = self.gap_ratio, self.usd_per_billion_samples
        topology = self.problem.topology
        facts = [
            (
                "Plan",
                f"{counted(len(self.plan.placements), 'table')} on "
                f"{counted(topology.world_size, 'rank')}",
            ),
            ("Iteration", result_frames.time_text(time.low_s, time.time_s, time.high_s)),
            ("Throughput", f"{units.format_count(self.estimate.samples_per_s)} samples/s"),
            ("Gap to the proven bound", "no bound" if gap is None else format_gap(gap)),
            (
                "Fullest rank",
                f"{fullest.rank}: {units.format_bytes(fullest.used_bytes)} of "
                f"{units.format_bytes(fullest.capacity_bytes)}"
                f"{'' if self.best.memory.fits else '; the plan does not fit'}",
            ),
        ]
        if usd is not None:
            facts.append(("Cost", f"{significant(usd)} USD per billion samples"))
        return result_frames.html(facts, self._rows("table"))

    @property
    def plan(self) -> Plan:
        """The best plan found."""
        return self.best.plan

    @property
    def estimate(self) -> IterationEstimate:
        """What the best plan costs."""
        return self.best.estimate

    @property
    def usd_per_billion_samples(self) -> float | None:
        """What training costs at the price of the devices; None for a system without price."""
        problem = self.problem
        time_s = self.best.estimate.time.time_s
        return usd_per_billion_samples(time_s, problem.workload, problem.topology)

    @property
    def bound(self) -> float | None:
        """Proven lower bound of the objective."""
        return self.solver.bound

    @property
    def gap_ratio(self) -> float | None:
        """Optimality gap of the best plan, 0..1."""
        return self.solver.gap_ratio
