"""The design space: every setup that the menus allow on some clusters, and the problem of each."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from costmodels.batch_shares import PROPORTIONAL, batch_ratios
from costmodels.errors import InvalidValueError
from costmodels.sharding import ComputeKernel
from costmodels.system_models import least_sync_s
from costmodels.topology import Topology
from costmodels.workload import Pipeline, Workload
from planner.errors import InfeasibleError, InvalidInputError
from planner.models import pipeline_of
from planner.options.enumeration import CACHE_LOAD_FACTORS, enumerate_options
from planner.options.memory import surely_crowded
from planner.problem import Constraints, PlanningProblem, TableConstraint
from planner.rules.group_rules import group_problem
from planner.tuning.setups import OWN_CODECS, Menu, Setup, changed, cluster_name, group_sizes

COLUMN_WIDTHS: Final = (4, 8, 16, 32, 64, 128)
"""Least widths of column pieces to choose among. Narrow pieces balance ranks better; wide ones make
fewer options."""

CACHE_MENUS: Final = tuple(
    (low, round((low * high) ** 0.5, 3), high)
    for low, high in itertools.product((0.01, 0.05, 0.2), (0.2, 0.5, 0.9))
    if low < high
)
"""Sets of cache load factors to choose among, in addition to the usual one."""

TORCHREC_PIPELINES: Final = (
    Pipeline.SPARSE_DIST,
    Pipeline.PREFETCH_SPARSE_DIST,
    Pipeline.NONE,
)

MOST_SETUPS: Final = 20_000
"""The most setups that a design space may have, because all of them are listed."""

_NOT_ASKED: Final = object()

Value = str | int | float
Pick = Callable[[str, Sequence[Any]], Any]
"""Called with the name of a choice and its values; returns one of the values."""


@dataclass(frozen=True, kw_only=True)
class DesignSpace:
    """All setups that a menu allows on some clusters. The first cluster is the usual one.

    Args:
        problems: the problem on each cluster.
        menu: the values that may be chosen on each cluster.

    Raises:
        InvalidInputError: two clusters have the same name, a value of the menu suits no cluster, or
            there are more than :data:`MOST_SETUPS` setups.
    """

    problems: tuple[PlanningProblem, ...]
    menu: Menu

    def __post_init__(self) -> None:
        """List the setups, and check the values of the menu."""
        if len(self._by_name) < len(self.problems):
            message = "two of the clusters have the same system and size; name each once"
            raise InvalidInputError(message)
        kinds = {
            (s.cluster, s.batch_size, s.pipeline, s.lookahead_batches, s.communication): s
            for s in self.setups
        }
        for setup in kinds.values():
            problem = self.problem_of(setup)
            made = changed(problem.workload, setup)
            try:
                batch_ratios(made, problem.topology)
            except InvalidValueError as error:
                message = f"{setup.pipeline.value}, codecs {setup.communication}: {error}"
                raise InvalidInputError(message) from error

    @cached_property
    def setups(self) -> tuple[Setup, ...]:
        """Every setup once; setups with the first values of the menu come first."""
        return tuple(self._listed())

    @cached_property
    def _syncs_s(self) -> dict[tuple[str, int], float]:
        return {}

    @cached_property
    def _by_name(self) -> dict[str, PlanningProblem]:
        return {cluster_name(p.topology): p for p in self.problems}

    @property
    def refused_groups(self) -> tuple[str, ...]:
        """For each size of groups in which the constraints cannot be kept, which rule and why."""
        found = []
        for name, size in dict.fromkeys((s.cluster, s.group_size) for s in self.setups):
            try:
                _group(self._by_name[name], size)
            except InfeasibleError as error:
                found.append(f"no groups of {size} ranks: {error}")
        return tuple(found)

    @property
    def base(self) -> Setup:
        """The setup with the first value of every list, which changes nothing."""
        return self.setups[0]

    @property
    def alternatives(self) -> tuple[Setup, ...]:
        """The base, and on its cluster one setup for each other pipeline and each group size."""
        base = self.base
        first: dict[tuple[str, object], Setup] = {}
        for setup in self.setups:
            if setup.cluster == base.cluster:
                first.setdefault(("pipeline", setup.pipeline), setup)
                if setup.pipeline is base.pipeline:
                    first.setdefault(("group", setup.group_size), setup)
        return tuple(dict.fromkeys([base, *first.values()]))

    def problem_of(self, setup: Setup) -> PlanningProblem:
        """The problem on the cluster of a setup."""
        return self._by_name[setup.cluster]

    def restricted(self, setup: Setup) -> PlanningProblem:
        """The problem of one group of ranks under a setup.

        Raises:
            InfeasibleError: the constraints leave a table no place in groups of this size.
        """
        problem = _group(self.problem_of(setup), setup.group_size)
        rule = TableConstraint(
            pattern="*",
            min_column_width=setup.min_column_width,
            cache_load_factors=setup.cache_load_factors,
        )
        constraints = problem.constraints
        return replace(
            problem,
            workload=changed(problem.workload, setup),
            constraints=replace(constraints, tables=(*constraints.tables, rule)),
        )

    def least_sync_s(self, setup: Setup) -> float:
        """Seconds per iteration that averaging the copies of tables takes at least."""
        problem, size = self.problem_of(setup), setup.group_size
        if (setup.cluster, size) not in self._syncs_s:
            weights = float(problem.workload.weight_bytes)
            least_s = least_sync_s(problem.topology, size, weights, problem.models)
            self._syncs_s[setup.cluster, size] = least_s
        return self._syncs_s[setup.cluster, size] / setup.sync_interval

    def loosest(self, setup: Setup) -> Setup:
        """The setup of the same family that allows the most plans; see :func:`loosest_of`."""
        return loosest_of(setup, self.menu, self.problem_of(setup).constraints)

    def build(self, pick: Pick) -> Setup:
        """Make a setup by calling ``pick`` once for each choice that is open.

        Which choices are open can depend on those made before: for example, there is no number of
        batches ahead unless the pipeline is ``lookahead``.
        """
        menu, problem = self.menu, self._by_name[pick("cluster", tuple(self._by_name))]
        workload, topology = problem.workload, problem.topology
        pipeline = pick("pipeline", menu.pipelines or (workload.pipeline,))
        lookahead, interval = workload.lookahead_batches, 1
        if pipeline is not Pipeline.LOOKAHEAD:
            lookahead = 0
        elif menu.lookaheads:
            lookahead = pick("lookahead_batches", menu.lookaheads)
        world, where = topology.world_size, cluster_name(topology)
        sizes = group_sizes(topology) if menu.tries_groups else (world,)
        size = pick(f"group_size of {where}", sizes)
        if size < world:
            interval = pick("sync_interval", menu.sync_intervals)
        batches: tuple[str, tuple[int, ...]] = (
            f"batch_size of {where}",
            (int(workload.local_batch_size),),
        )
        if menu.batch_sizes:
            batches = "batch_size", menu.batch_sizes
        return Setup(
            system=topology.name,
            gpus=world,
            pipeline=pipeline,
            lookahead_batches=lookahead,
            group_size=size,
            sync_interval=interval,
            batch_size=pick(*batches),
            communication=pick("communication", menu.communications or (OWN_CODECS,)),
            reserved_bytes=pick(
                "reserved_bytes", menu.reserves_bytes or (workload.reserved_bytes,)
            ),
            min_column_width=pick("min_column_width", menu.min_column_widths or COLUMN_WIDTHS[:1]),
            cache_load_factors=pick("cache_load_factors", menu.cache_menus or ((),)),
        )

    def parameters(self, setup: Setup) -> dict[str, Value]:
        """The choices that make a setup, by the names that :meth:`build` gives them."""
        found: dict[str, Value] = {}

        def told(name: str, values: Sequence[Any]) -> Any:
            del values
            value = getattr(setup, name.partition(" of ")[0])
            found[name] = plain(value)
            return value

        self.build(told)
        return found

    @property
    def values(self) -> dict[str, tuple[Value, ...]]:
        """The values of every choice that :meth:`build` can ask for, by its name."""
        found: dict[str, tuple[Value, ...]] = {}
        for setup in self.setups:

            def told(name: str, values: Sequence[Any]) -> Any:
                if name not in found:
                    found[name] = tuple(plain(v) for v in values)
                return getattr(setup, name.partition(" of ")[0])  # noqa: B023 - called at once

            self.build(told)
        return found

    def _listed(self) -> Iterator[Setup]:
        open_ends: list[tuple[Any, ...]] = [()]
        count = 0
        while open_ends:
            prefix = open_ends.pop()
            asked = iter(prefix)
            made: list[Any] = []
            branches: list[tuple[Any, ...]] = []

            def pick(name: str, values: Sequence[Any]) -> Any:
                del name
                value = next(asked, _NOT_ASKED)  # noqa: B023 - called in this round alone
                if value is _NOT_ASKED:
                    branches.extend((*made, v) for v in reversed(values[1:]))  # noqa: B023
                    value = values[0]
                made.append(value)  # noqa: B023
                return value

            yield self.build(pick)
            open_ends += branches
            count += 1
            if count > MOST_SETUPS:
                message = (
                    f"the menus make more than {MOST_SETUPS:,} setups; name fewer values, or fix "
                    "some by naming one alone"
                )
                raise InvalidInputError(message)


def design_space(
    *problems: PlanningProblem, menu: Menu | None = None, tunes_cache: bool = True
) -> DesignSpace:
    """The setups that are worth trying for a workload on some clusters.

    Args:
        problems: the problem on each cluster, the usual one first.
        menu: values that the user named. If it names no pipelines, all of TorchRec's are tried, or
            the workload's own if that is not one of TorchRec's. If it names no least widths of
            column pieces, those are tried that change the options of some table.
        tunes_cache: whether to choose among :data:`CACHE_MENUS` too. This is done only if tables
            may be cached, device memory is short, constraints name no cache sizes, and the menu
            names none.

    Raises:
        InvalidInputError: in the cases of :class:`DesignSpace`; or groups are asked for on ranks
            that differ; or numbers of batches ahead are named for a pipeline that is not tried.
    """
    asked = Menu() if menu is None else menu
    own = problems[0].workload.pipeline
    usual = (own, *(p for p in TORCHREC_PIPELINES if p is not own))
    pipelines = asked.pipelines or (usual if own in TORCHREC_PIPELINES else (own,))
    if asked.lookaheads and Pipeline.LOOKAHEAD not in pipelines:
        message = (
            "--lookahead is about pipeline lookahead, which is not tried; add it to --pipeline"
        )
        raise InvalidInputError(message)
    if asked.tries_groups:
        for problem in problems:
            _require_alike(problem.topology, problem.workload)
    widths: dict[int, None] = {}
    caching = fixed = False
    for problem in problems:
        pipeline = pipeline_of(problem)
        listing = enumerate_options(problem, pipeline)
        options = [o for table in listing.tables for o in table.options]
        widest = max((max(o.column_widths) for o in options), default=4)
        widths |= dict.fromkeys(w for w in COLUMN_WIDTHS if w <= max(widest, 4))
        cached = any(o.kernel is ComputeKernel.FUSED_UVM_CACHING for o in options)
        sizes = [t.weight_bytes for t in problem.workload.tables]
        caching |= cached and surely_crowded(sizes, pipeline.device_limits)
        fixed |= any(c.cache_load_factors for c in problem.constraints.tables)
    menus = asked.cache_menus
    if not menus and tunes_cache and caching and not fixed:
        menus = ((), *CACHE_MENUS)
    return DesignSpace(
        problems=problems,
        menu=replace(
            asked,
            pipelines=pipelines,
            min_column_widths=asked.min_column_widths or tuple(sorted(widths)),
            cache_menus=menus,
        ),
    )


def loosest_of(setup: Setup, menu: Menu, constraints: Constraints) -> Setup:
    """The setup of a family that allows all plans of the family.

    A family are the setups that differ only in least column width, reserve, cache sizes and how
    often copies are averaged. They price a plan alike, except for the averaging of copies. The
    loosest setup has the least width, the least reserve and every cache size, so that a bound on
    its plans holds for every setup of the family. A setup that names no cache sizes allows the
    usual ones and those that constraints name.
    """
    named = {f for rule in constraints.tables for f in rule.cache_load_factors}
    unnamed = {*CACHE_LOAD_FACTORS, *named}
    factors = {f for own in menu.cache_menus for f in own or unnamed}
    return replace(
        setup,
        sync_interval=1,
        reserved_bytes=min(menu.reserves_bytes, default=setup.reserved_bytes),
        min_column_width=min(menu.min_column_widths, default=setup.min_column_width),
        cache_load_factors=tuple(sorted(factors)),
    )


def _require_alike(topology: Topology, workload: Workload) -> None:
    if workload.batch_share_ratio not in ((), PROPORTIONAL):
        message = "--groups and batch_shares per rank exclude each other: groups share one plan"
        raise InvalidInputError(message)
    if topology.hbm_capacity_by_rank_bytes or topology.speed_by_rank_ratio:
        message = "--groups: groups of ranks need ranks that are all alike; leave it out"
        raise InvalidInputError(message)


def _group(problem: PlanningProblem, group_size: int) -> PlanningProblem:
    """The problem of one group of ranks.

    Raises:
        InvalidInputError: groups of this size have different numbers of ranks on different hosts.
        InfeasibleError: the constraints leave a table no place in such a group.
    """
    group = group_problem(problem, group_size)
    if group is None:
        topology = problem.topology
        message = (
            f"groups of {group_size} of {topology.world_size} ranks have uneven numbers of ranks "
            f"on hosts of {topology.local_world_size}; use another size"
        )
        raise InvalidInputError(message)
    return group


def plain(value: Any) -> Value:
    """A value of a menu as Optuna and JSON can store it; several cache sizes become one text."""
    if isinstance(value, Pipeline):
        return value.value
    if isinstance(value, tuple):
        return ", ".join(f"{v:g}" for v in value)
    return value  # type: ignore[no-any-return]
