"""Random problems from a seed, small enough to price every plan of them.

The same seed gives the same problem as long as this file does not change; problems that found a
fault are therefore kept as files (:mod:`tests.differential.stored`), not as seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import lru_cache

import numpy as np

from costmodels.sharding import ComputeKernel, Plan, ShardingType
from costmodels.topology import Topology
from costmodels.workload import Workload
from planner.problem import Constraints, MoveLimit
from tests.differential.case import Case, limited_topology
from tests.differential.drawing.calibrated import calibrated_topology
from tests.differential.drawing.days import with_unlike_days
from tests.differential.drawing.dense_parts import may_replicate, with_dense_part
from tests.differential.drawing.draw_constraints import COUPLING, draw_constraints, one_more_rule
from tests.differential.drawing.draw_system import draw_topology
from tests.differential.drawing.draw_workload import draw_scenarios, draw_workload
from tests.differential.drawing.hot_rows import hot, unequal_domains, with_hot_rows
from tests.differential.drawing.options import num_placements, placements
from tests.differential.drawing.rare import rare
from tests.differential.drawing.slow_links import with_slow_links
from tests.differential.drawing.together import (
    is_allowed,
    mixed,
    odd_topology,
    odd_workload,
    restricted,
)
from tests.differential.drawing.unusual import fitted, unusual
from tests.differential.judging.descent import FEW
from tests.differential.judging.enumerator import Enumerator
from tests.differential.judging.judge import judge_of
from tests.differential.judging.rules import broken_rules

MOST_PLANS = 60_000
"""Plans of one problem, before memory and rules rule any out."""

_OBJECTIVES = {
    "iteration": 0.62,
    "phases": 0.18,
    "torchrec": 0.12,
    "torchrec-critical-path": 0.08,
}
_CAPS = (2_000, 12_000, MOST_PLANS)
"""Problems are made smaller until they have no more plans than one of these."""

_VERSION = 20_260_713
"""Another number gives other problems to every seed."""

_SAMPLE = 300
"""Random plans from whose memory limits are set."""

_MIRRORED = 24
"""Most mirror images of a plan: exchanges of four ranks."""


@lru_cache(maxsize=256)
def draw(seed: int) -> Case:
    """The problem of a seed; drawn once, since pricing its plans takes most of the time."""
    rng = np.random.default_rng([seed, _VERSION])
    case = _drawn(rng, f"seed {seed}")
    case = _small_enough(rng, case, int(rng.choice(_CAPS)))
    return _with_limits(rng, case)


@lru_cache(maxsize=256)
def draw_unusual(seed: int) -> Case:
    """A small problem with settings that :func:`draw` leaves as they are."""
    rng = np.random.default_rng([seed, _VERSION, 2])
    case = unusual(rng, _drawn(rng, f"unusual seed {seed}"))
    case = _small_enough(rng, case, int(rng.choice(_CAPS[:2])))
    return _with_limits(rng, case)


@lru_cache(maxsize=256)
def draw_rare(seed: int) -> Case:
    """A small problem with what neither :func:`draw` nor :func:`draw_unusual` has."""
    rng = np.random.default_rng([seed, _VERSION, 3])
    case = _drawn(rng, f"rare seed {seed}")
    case = rare(rng, unusual(rng, case) if rng.random() < 0.3 else case)
    case = _small_enough(rng, case, int(rng.choice(_CAPS[:2])))
    return _with_limits(rng, case)


@lru_cache(maxsize=256)
def draw_replanned(seed: int) -> Case:
    """A small problem with a plan in use, a limit on moves, and rules that couple tables."""
    rng = np.random.default_rng([seed, _VERSION, 4])
    case = _drawn(rng, f"replanned seed {seed}")
    rules = case.constraints
    for _ in range(int(rng.integers(1, 4))):
        rules = one_more_rule(rng, case, rules, COUPLING)
    case = _small_enough(rng, replace(case, constraints=rules), _CAPS[1])
    case = _with_plan_in_use(rng, case, legal=bool(rng.random() < 0.8))
    return _with_tight_memory(rng, case, few=None) if rng.random() < 0.3 else case


@lru_cache(maxsize=256)
def draw_calibrated(seed: int) -> Case:
    """A small problem whose ranks are cores of a machine with measured constants of its own."""
    rng = np.random.default_rng([seed, _VERSION, 5])
    case = _drawn(rng, f"calibrated seed {seed}")
    hosts, local = case.topology.num_hosts, case.topology.local_world_size
    case = replace(case, topology=calibrated_topology(seed, hosts, local))
    case = fitted(rng, case) if rng.random() < 0.2 else case
    case = _small_enough(rng, case, int(rng.choice(_CAPS[:2])))
    return _with_limits(rng, case)


@lru_cache(maxsize=256)
def draw_dense(seed: int) -> Case:
    """A small problem of which the dense part decides what a step takes."""
    rng = np.random.default_rng([seed, _VERSION, 6])
    case = may_replicate(rng, _drawn(rng, f"dense seed {seed}"))
    case = _small_enough(rng, case, int(rng.choice(_CAPS[:2])))
    return _with_limits(rng, with_dense_part(rng, case))


@lru_cache(maxsize=256)
def draw_days(seed: int) -> Case:
    """A small problem of unlike days that take about as long as one another."""
    rng = np.random.default_rng([seed, _VERSION, 7])
    case = may_replicate(rng, _drawn(rng, f"days seed {seed}"))
    case = _small_enough(rng, case, int(rng.choice(_CAPS[:2])))
    return _with_limits(rng, with_unlike_days(rng, with_dense_part(rng, case)))


@lru_cache(maxsize=256)
def draw_slow_links(seed: int) -> Case:
    """A small problem of which the indices or the rows of caches arrive last."""
    rng = np.random.default_rng([seed, _VERSION, 8])
    case = _drawn(rng, f"slow links seed {seed}")
    case = _small_enough(rng, case, int(rng.choice(_CAPS[:2])))
    return _with_limits(rng, with_slow_links(rng, case))


@lru_cache(maxsize=256)
def draw_hot(seed: int) -> Case:
    """A small problem with hot rows, batches that repeat ids and domains of unequal size."""
    rng = np.random.default_rng([seed, _VERSION, 10])
    case = _drawn(rng, f"hot seed {seed}", changes=(unequal_domains, with_hot_rows))
    case = _small_enough(rng, hot(rng, case), int(rng.choice(_CAPS[:2])))
    return _with_limits(rng, case)


@lru_cache(maxsize=256)
def draw_together(seed: int) -> Case:
    """A small problem with what any of the others have, and odd sizes and rules beside."""
    rng = np.random.default_rng([seed, _VERSION, 9])
    case = _drawn(rng, f"together seed {seed}", changes=(odd_topology, odd_workload))
    if not is_allowed(case):
        case = _drawn(rng, case.name)
    case = _small_enough(rng, restricted(rng, case), _CAPS[1])
    case = _small_enough(rng, mixed(rng, case), _CAPS[1])
    few = (
        case.topology.world_size <= 4 and max(t.embedding_dim for t in case.workload.tables) <= 256
    )
    if few and rng.random() < 0.4:  # more ranks or columns have too many cuts that no option is
        case = _with_plan_in_use(rng, case, legal=bool(rng.random() < 0.7))
    return _with_tight_memory(rng, case, few=None) if rng.random() < 0.4 else case


def draw_larger(seed: int) -> Case:
    """A problem with too many plans to price: four to twenty tables on four ranks or eight.

    Few constraints; what the planner says of it can only be held against plans that are known.
    """
    rng = np.random.default_rng([seed, _VERSION, 1])
    return _with_limits(rng, _drawn(rng, f"larger seed {seed}", larger=True), larger=True)


Changes = tuple[
    Callable[[np.random.Generator, Topology], Topology],
    Callable[[np.random.Generator, Workload], Workload],
]
"""What becomes of a drawn system and workload before constraints are drawn."""

DRAWINGS: dict[str, Callable[[int], Case]] = {
    "usual": draw,
    "unusual": draw_unusual,
    "rare": draw_rare,
    "replanned": draw_replanned,
    "calibrated": draw_calibrated,
    "days": draw_days,
    "dense": draw_dense,
    "slow links": draw_slow_links,
    "hot": draw_hot,
    "together": draw_together,
    "larger": draw_larger,
}
"""Kinds of problems by name, each drawn by a seed."""


def _drawn(
    rng: np.random.Generator, name: str, *, larger: bool = False, changes: Changes | None = None
) -> Case:
    objective = str(rng.choice(list(_OBJECTIVES), p=list(_OBJECTIVES.values())))
    topology = draw_topology(rng, larger=larger)
    workload = draw_workload(rng, larger=larger)
    if changes:
        topology, workload = changes[0](rng, topology), changes[1](rng, workload)
    case = Case(name=name, workload=workload, topology=topology, objective=objective)
    case = replace(case, constraints=draw_constraints(rng, case))
    if not case.on_torchrecs_terms and rng.random() < 0.12:
        case = draw_scenarios(rng, case)
    return case


def _with_limits(rng: np.random.Generator, case: Case, *, larger: bool = False) -> Case:
    """With a plan in use or tight memory, or both, or neither."""
    if rng.random() < 0.12 and not larger:
        case = _with_plan_in_use(rng, case)
    if rng.random() < 0.4:
        case = _with_tight_memory(rng, case, few=FEW if larger else None)
    return case


# ------------------------------------------------------------------ fewer plans


def _small_enough(rng: np.random.Generator, case: Case, most: int) -> Case:
    """The case with constraints added, and at last tables left out, until plans are few."""
    for attempt in range(100):
        count = math.prod(num_placements(case, t) for t in case.workload.tables)
        if count <= most:
            return case
        if count <= _MIRRORED * most and Enumerator(case).num_plans <= most:
            return case
        case = _fewer_tables(case) if attempt % 4 == 3 else _narrower(rng, case)
    msg = f"{case.name}: too many plans whatever is left out"
    raise AssertionError(msg)


def _narrower(rng: np.random.Generator, case: Case) -> Case:
    """Fewer kernels for all tables, or fewer sharding types."""
    rules = case.constraints
    hosts = (ComputeKernel.FUSED_UVM, ComputeKernel.FUSED_UVM_CACHING)
    if rng.random() < 0.5 and any(k in rules.kernels for k in hosts):
        dropped = {ComputeKernel.FUSED_UVM_CACHING} if rng.random() < 0.4 else set(hosts)
        kernels = tuple(k for k in rules.kernels if k not in dropped)
        if kernels != rules.kernels and set(kernels) - {ComputeKernel.DENSE}:
            return replace(case, constraints=replace(rules, kernels=kernels))
    columns = {ShardingType.TABLE_COLUMN_WISE, ShardingType.GRID_SHARD, ShardingType.COLUMN_WISE}
    chosen = set(rng.choice(sorted(columns), size=int(rng.integers(1, 3)), replace=False))
    types = tuple(t for t in rules.sharding_types if t.value not in chosen)
    if len(types) < 2:
        return case
    return replace(case, constraints=replace(rules, sharding_types=types))


def _fewer_tables(case: Case) -> Case:
    """Without the last table, and without the rules that named it."""
    if len(case.workload.tables) == 1:
        return case
    rules, names = case.constraints, [t.name for t in case.workload.tables[:-1]]
    groups = {
        key: tuple(g for g in getattr(rules, key) if sum(map(g.matches, names)) > 1)
        for key in ("together", "apart")
    }
    groups["counts"] = tuple(c for c in rules.counts if any(map(c.matches, names)))
    groups = {
        key: tuple(replace(g, patterns=_matching(g.patterns, names)) for g in found)
        for key, found in groups.items()
    }
    tables = tuple(c for c in rules.tables if any(map(c.matches, names)))
    shorter = replace(rules, tables=tables, **groups)
    workloads = [replace(w, tables=w.tables[:-1]) for w in (case.workload, *case.scenarios)]
    return replace(case, workload=workloads[0], scenarios=tuple(workloads[1:]), constraints=shorter)


def _matching(patterns: tuple[str, ...], names: list[str]) -> tuple[str, ...]:
    """The patterns that match any of the names."""
    return tuple(p for p in patterns if any(fnmatchcase(name, p) for name in names))


# ------------------------------------------------------------------ what depends on the plans


def _with_plan_in_use(rng: np.random.Generator, case: Case, *, legal: bool = False) -> Case:
    """A random plan in use, often cut as no option is, and a limit on what moves from it.

    With ``legal`` it is one that keeps the rules, where such a plan is soon found.
    """
    tables = case.workload.tables
    own = [placements(case, t) for t in tables]
    if not all(own):
        return case
    if rng.random() < 0.4:
        free = replace(case, constraints=Constraints())
        wide = bool(rng.random() < 0.5)
        own = [placements(free, t, wide=wide) for t in tables]
    for _ in range(_SAMPLE):
        start = Plan(placements=tuple(found[int(rng.integers(len(found)))] for found in own))
        if not legal or not broken_rules(case, start):
            break
    total = sum(t.weight_bytes for t in tables)
    max_bytes = float(total * rng.choice([0.0, 0.2, 0.6, 1.2])) if rng.random() < 0.6 else None
    max_tables = int(rng.integers(0, len(tables) + 1))
    limit = MoveLimit(
        start=start,
        max_bytes=max_bytes,
        max_tables=max_tables if max_bytes is None or rng.random() < 0.3 else None,
    )
    moved = replace(case, moves=limit)  # under a limit on moves no plan has a mirror image
    count = math.prod(num_placements(moved, t) for t in tables)
    return moved if count <= 2 * MOST_PLANS else case


def _with_tight_memory(rng: np.random.Generator, case: Case, *, few: int | None) -> Case:
    """Device memory, and often host memory, of which only few of the plans fit; or none."""
    found = [placements(case, t, few=few) for t in case.workload.tables]
    if not all(found):
        return case
    world = case.topology.world_size
    judge = judge_of(case)
    chosen = [f[int(rng.integers(len(f)))] for _ in range(_SAMPLE) for f in found]
    distinct = list(dict.fromkeys(chosen))
    works = dict(zip(distinct, judge.works(distinct), strict=True))
    used = judge.memory(np.array([works[p] for p in chosen]))
    used = used.reshape(_SAMPLE, len(found), -1).sum(axis=1)
    device = used[:, :world].max(axis=1)
    share = float(rng.choice([0.01, 0.05, 0.2, 0.5]))
    needed = float(np.quantile(device, share)) * float(rng.choice([0.8, 1.0 + 1e-6, 1.3]))
    topology = case.topology
    capacity = float(topology.hbm_capacities().min())
    if case.on_torchrecs_terms:
        # TorchRec keeps 15 % of the device back, and some more besides.
        target = (needed - float(judge.limits[:world].min())) / 0.85 + capacity
    else:
        target = capacity - float(judge.limits[:world].min()) + needed
    ratios = topology.hbm_capacities() / capacity
    changed = replace(
        topology, hbm_capacity_by_rank_bytes=tuple((ratios * max(target, 1.0)).tolist())
    )
    host = used[:, world : world + limited_topology(case).num_hosts].max(axis=1)
    if rng.random() < 0.5 and host.max() > 0:
        bytes_ = float(np.quantile(host, float(rng.choice([0.2, 0.5, 0.9])))) * (1.0 + 1e-6)
        ranks = topology.local_world_size if case.on_torchrecs_terms else 1
        changed = replace(
            changed,
            host=replace(topology.host, ddr_capacity_bytes=bytes_ * ranks),
            ddr_capacity_by_host_bytes=(),
        )
    return replace(case, topology=changed)
