"""What a trial decides, and what it then costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from costmodels.sharding import ComputeKernel
from costmodels.topology import Topology
from costmodels.workload import Pipeline
from planner import api
from planner.errors import InvalidInputError
from planner.models import pipeline_of
from planner.options.enumeration import enumerate_options
from planner.problem import PlanningProblem, TableConstraint
from planner.result import PlanningResult
from planner.settings import SearchSettings
from planner.tuning.groups import group_topology, sync_time_s

COLUMN_WIDTHS: Final = (4, 8, 16, 32, 64, 128)
"""Least widths of a column piece: narrow pieces balance better, wide ones make fewer options."""

TORCHREC_PIPELINES: Final = (
    Pipeline.SPARSE_DIST,
    Pipeline.PREFETCH_SPARSE_DIST,
    Pipeline.NONE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One pick.

    Attributes:
        pipeline: training pipeline.
        group_size: ranks that share one copy of the tables; the world size means no replicas.
        min_column_width: columns of the narrowest piece.
        cache_load_factors: shares of a cached table on the device; empty means the usual menu.
    """

    pipeline: Pipeline
    group_size: int
    min_column_width: int = 4
    cache_load_factors: tuple[float, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "pipeline": self.pipeline.value}


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupChoices:
    """What may be picked. ``tunes_cache``: load factors are free numbers instead of a fixed menu.

    ``sync_interval`` is the number of iterations between two averagings of replicas.
    """

    pipelines: tuple[Pipeline, ...]
    group_sizes: tuple[int, ...]
    min_column_widths: tuple[int, ...]
    tunes_cache: bool
    sync_interval: int = 1

    def base(self) -> Setup:
        """The pick that changes nothing: first of every list."""
        return Setup(
            pipeline=self.pipelines[0],
            group_size=self.group_sizes[0],
            min_column_width=self.min_column_widths[0],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """A pick with its plan. ``value_s`` is the iteration with replicas averaged, per iteration."""

    setup: Setup
    result: PlanningResult
    sync_s: float
    value_s: float


def menu_of(
    problem: PlanningProblem,
    *,
    pipelines: tuple[Pipeline, ...] = (),
    groups: bool = False,
    sync_interval: int = 1,
) -> SetupChoices:
    """What is worth trying for a problem.

    Args:
        problem: the question.
        pipelines: allowed training pipelines, the first being the usual one; by default the
            workload's own and TorchRec's three.
        groups: allow copies of all tables on smaller groups of ranks (2D parallelism).
        sync_interval: iterations between two averagings of the copies.

    Raises:
        InvalidInputError: groups are asked for on ranks that differ.
    """
    topology = problem.topology
    own = problem.workload.pipeline
    allowed = pipelines or (
        (own, *(p for p in TORCHREC_PIPELINES if p is not own))
        if own in TORCHREC_PIPELINES
        else (own,)
    )
    sizes: tuple[int, ...] = (topology.world_size,)
    if groups:
        if topology.hbm_capacity_by_rank_bytes or topology.speed_by_rank_ratio:
            message = "--groups: groups of ranks need ranks that are all alike; leave it out"
            raise InvalidInputError(message)
        sizes = _group_sizes(topology)
    listing = enumerate_options(problem, pipeline_of(problem))
    options = [o for table in listing.tables for o in table.options]
    caching = any(o.kernel is ComputeKernel.FUSED_UVM_CACHING for o in options)
    fixed = any(c.cache_load_factors for c in problem.constraints.tables)
    widest = max((max(o.column_widths) for o in options), default=4)
    return SetupChoices(
        pipelines=allowed,
        group_sizes=sizes,
        min_column_widths=tuple(w for w in COLUMN_WIDTHS if w <= max(widest, 4)),
        tunes_cache=caching and not fixed,
        sync_interval=sync_interval,
    )


def solve(
    problem: PlanningProblem,
    setup: Setup,
    *,
    sync_interval: int,
    time_limit_s: float | None,
    max_evaluations: int | None,
    seed: int,
    should_stop: Callable[[], bool] | None = None,
) -> Tuned:
    """The best plan under a setup; the best so far if ``should_stop`` ends the search.

    Raises:
        InfeasibleError: nothing fits under it.
        NoPlanFoundError: the search found nothing that fits.
    """
    asked = restricted(problem, setup)
    search = SearchSettings(
        time_limit_s=time_limit_s,
        max_evaluations=max_evaluations,
        seed=seed,
        with_baselines=False,
    )
    result = api.solve(asked, search=search, should_stop=should_stop)
    sync_s = sync_time_s(problem.topology, setup.group_size, result.best.memory) / sync_interval
    return Tuned(
        setup=setup, result=result, sync_s=sync_s, value_s=result.estimate.time.time_s + sync_s
    )


def restricted(problem: PlanningProblem, setup: Setup) -> PlanningProblem:
    """The problem of one group of ranks under a setup."""
    rule = TableConstraint(
        pattern="*",
        min_column_width=setup.min_column_width,
        cache_load_factors=setup.cache_load_factors,
    )
    constraints = problem.constraints
    return replace(
        problem,
        workload=replace(problem.workload, pipeline=setup.pipeline),
        topology=_group(problem.topology, setup.group_size),
        constraints=replace(constraints, tables=(*constraints.tables, rule)),
    )


def _group(topology: Topology, group_size: int) -> Topology:
    """The ranks of one group.

    Raises:
        InvalidInputError: the groups of this size have uneven numbers of ranks on hosts.
    """
    group = group_topology(topology, group_size)
    if group is None:
        message = (
            f"groups of {group_size} of {topology.world_size} ranks have uneven numbers of ranks "
            f"on hosts of {topology.local_world_size}; use another size"
        )
        raise InvalidInputError(message)
    return group


def _group_sizes(topology: Topology) -> tuple[int, ...]:
    """Divisors of the world size, largest first, whose copies nest in hosts."""
    world, local = topology.world_size, topology.local_world_size
    sizes = [s for s in range(world, 0, -1) if world % s == 0]
    copies = {s: world // s for s in sizes}
    nested = (s for s in sizes if local % copies[s] == 0 or copies[s] % local == 0)
    return tuple(s for s in nested if group_topology(topology, s) is not None)
