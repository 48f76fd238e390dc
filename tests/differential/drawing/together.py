"""Whatever the other kinds draw, met together, and the ends of what is allowed: ``--together``.

A problem may have settings of every other kind at once: sharded dense parts, unequal batches, 2D
groups, codecs, unlike days, slow links, measured cores, a plan in use, rules that couple tables.
Beside those it has what no other kind draws: five and six ranks, tables of one row or one column
and very large ones, features that several tables look up, every element type, ranks that are a
thousand times slower, and rules of every kind by patterns, with several limits in one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from costmodels.distribution.base import AbstractIndexDistribution
from costmodels.distribution.uniform import Uniform
from costmodels.distribution.zipf import Zipf
from costmodels.errors import InvalidValueError
from costmodels.pipeline import CostPipeline
from costmodels.sharding import ComputeKernel, ShardingOption, ShardingType
from costmodels.topology import FittedFactors, Topology
from costmodels.units import GIB
from costmodels.workload import DataType, Feature, HostProfile, Table, Workload
from planner.problem import Constraints, CountLimit, Level, MemoryLimit, TableConstraint, TableGroup
from tests.differential.case import Case, models_on
from tests.differential.drawing.calibrated import calibrated_topology
from tests.differential.drawing.days import with_unlike_days
from tests.differential.drawing.dense_parts import may_replicate, with_dense_part
from tests.differential.drawing.draw_constraints import COUPLING, one_more_rule
from tests.differential.drawing.rare import rare
from tests.differential.drawing.slow_links import with_slow_links
from tests.differential.drawing.unusual import every_day, unusual

Change = Callable[[np.random.Generator, Case], Case]

_LAYOUTS = ((1, 5), (5, 1), (1, 6), (6, 1), (2, 3), (3, 2), (4, 1), (1, 1))
_COLLECTIVES = ("hierarchical", "hierarchical", "ramp", "alpha_beta")
_MACHINES = 1000
"""Numbers of calibrated machines."""
_STORED = tuple(d.value for d in DataType if d is not DataType.FP4)
"""Types of tables and of what is sent; fp4 is a type of products only."""
_ROWS = (1, 1, 2, 3, 5, 7, 10**7, 2**31)
_DIMS = (1, 3, 4, 4, 4, 8, 8, 20, 1024, 4096, 16384)
_POOLINGS = (0.0, 1e-6, 0.01, 1.0, 1000.0, 1e5)
_WIDTHS = (1, 2, 3, 5, 6, 12, 1000)
_PATTERNS = ("*", "t?", "t[01]", "t[!0]", "*1", "t0", "t2")


def odd_topology(rng: np.random.Generator, topology: Topology) -> Topology:
    """The system with other numbers of ranks, other ranks, or cores in their place."""
    if rng.random() < 0.4:
        hosts, local = _LAYOUTS[int(rng.integers(len(_LAYOUTS)))]
        topology = topology.resized(hosts, local)
    world, hosts = topology.world_size, topology.num_hosts
    if rng.random() < 0.12:
        number = int(rng.integers(_MACHINES))
        return calibrated_topology(number, hosts, topology.local_world_size)
    if rng.random() < 0.3:
        speeds = rng.choice([1e-3, 0.3, 1.0, 1.0, 1.0, 1e3], size=world)
        topology = replace(topology, speed_by_rank_ratio=tuple(speeds.tolist()))
    if rng.random() < 0.3:
        sizes = topology.device.hbm_capacity_bytes * rng.choice([0.1, 0.5, 1.0, 1e4], size=world)
        topology = replace(topology, hbm_capacity_by_rank_bytes=tuple(sizes.tolist()))
    if rng.random() < 0.2:
        sizes = topology.host.ddr_capacity_bytes * rng.choice([0.0, 0.1, 1.0, 1e4], size=hosts)
        topology = replace(topology, ddr_capacity_by_host_bytes=tuple(sizes.tolist()))
    if rng.random() < 0.2:
        ratios = [float(r) for r in rng.choice([0.01, 0.7, 1.0, 3.0], size=3)]
        found = FittedFactors(
            lookup_ratio=ratios[0], collective_ratio=ratios[1], dense_ratio=ratios[2]
        )
        topology = replace(topology, fitted=found)
    return topology


# ------------------------------------------------------------------ tables


def odd_workload(rng: np.random.Generator, workload: Workload) -> Workload:
    """The workload with odd tables, shared features, other types and another batch."""
    tables = tuple(_odd_table(rng, t) if rng.random() < 0.3 else t for t in workload.tables)
    if rng.random() < 0.35:
        tables = _with_shared_features(rng, tables)
    dtypes = [DataType(str(d)) for d in rng.choice(_STORED, size=2)]
    if rng.random() < 0.3:
        workload = replace(workload, output_dtype=dtypes[0], gradient_dtype=dtypes[1])
    if rng.random() < 0.2:
        workload = replace(workload, batch_size_per_rank=int(rng.choice([1, 1, 2, 3, 10**6])))
    if rng.random() < 0.2:
        profile = HostProfile(str(rng.choice([p.value for p in HostProfile])))
        workload = replace(workload, host_profile=profile, cuda_graph=False)
    if rng.random() < 0.15:
        workload = replace(workload, reserved_bytes=float(rng.choice([0.0, 0.1, 1.0])) * GIB)
    return replace(workload, tables=tables)


def _odd_table(rng: np.random.Generator, table: Table) -> Table:
    """The table with rows, columns, lists of indices or an element type at some end."""
    rows = int(rng.choice(_ROWS)) if rng.random() < 0.5 else table.num_embeddings
    dim = int(rng.choice(_DIMS)) if rng.random() < 0.5 else table.embedding_dim
    features = table.features
    if rng.random() < 0.4:
        factors = rng.choice(_POOLINGS, size=len(features)).tolist()
        features = tuple(
            replace(f, pooling_factor=x) for f, x in zip(features, factors, strict=True)
        )
    dtype = DataType(str(rng.choice(_STORED)))
    law = table.distribution if rows == table.num_embeddings else _law(rng, rows)
    return replace(
        table,
        num_embeddings=rows,
        embedding_dim=dim,
        features=features,
        distribution=law,
        dtype=dtype,
    )


def _law(rng: np.random.Generator, rows: int) -> AbstractIndexDistribution:
    scattered = bool(rng.random() < 0.5)
    if rng.random() < 0.3:
        return Uniform(num_embeddings=rows, scattered=scattered)
    exponent = float(rng.choice([0.0, 0.9, 1.0, 1.2, 10.0]))
    return Zipf(num_embeddings=rows, exponent=exponent, scattered=scattered)


def _with_shared_features(rng: np.random.Generator, tables: tuple[Table, ...]) -> tuple[Table, ...]:
    """Tables that look up one to four features of few, so that most features have several."""
    factors = rng.choice([0.3, 1.0, 5.0, 30.0], size=4)
    pool = [Feature(name=f"f{i}", pooling_factor=float(x)) for i, x in enumerate(factors)]
    found = []
    for table in tables:
        some = sorted(rng.choice(len(pool), size=int(rng.integers(1, 5)), replace=False).tolist())
        found.append(replace(table, features=tuple(pool[i] for i in some)))
    return tuple(found)


# ------------------------------------------------------------------ rules


def odd_rules(rng: np.random.Generator, case: Case) -> Case:
    """The case with one to three rules by patterns, of kinds that seldom are."""
    rules = case.constraints
    for _ in range(int(rng.integers(1, 4))):
        rules = _one_odd_rule(rng, case, rules)
    return replace(case, constraints=rules)


def _one_odd_rule(rng: np.random.Generator, case: Case, rules: Constraints) -> Constraints:
    names = [t.name for t in case.workload.tables]
    known = [p for p in _PATTERNS if any(map(TableConstraint(pattern=p).matches, names))]
    some = tuple(str(p) for p in rng.choice(known, size=int(rng.integers(1, 3))))
    level = Level.RANK if rng.random() < 0.5 else Level.HOST
    kind = int(rng.integers(6))
    if kind == 0:
        most, shards = int(rng.integers(1, 7)), bool(rng.random() < 0.5)
        limit = CountLimit(most=most, level=level, counts_shards=shards, patterns=some)
        return replace(rules, counts=(*rules.counts, limit))
    group = TableGroup(patterns=some, level=level)
    if kind in (1, 2) and sum(map(group.matches, names)) < 2:
        return rules
    if kind == 1:
        return replace(rules, together=(*rules.together, group))
    if kind == 2:
        return replace(rules, apart=(*rules.apart, group))
    if kind == 3:
        limit_bytes = 10.0 ** float(rng.uniform(6.0, 11.0))
        memory = MemoryLimit(most_bytes=limit_bytes, level=level)
        return replace(rules, memory=(*rules.memory, memory))
    if kind == 4:
        kernels = (ComputeKernel.FUSED_UVM_CACHING, ComputeKernel.FUSED_UVM, ComputeKernel.DENSE)
        return replace(rules, kernels=kernels[: int(rng.integers(1, 4))])
    return replace(rules, tables=(*rules.tables, _table_rule(rng, case, some[0])))


def _table_rule(rng: np.random.Generator, case: Case, pattern: str) -> TableConstraint:
    """Several limits on one pattern at once."""
    topology = case.topology
    ranks = rng.choice(topology.world_size, size=int(rng.integers(1, topology.world_size + 1)))
    hosts = rng.choice(topology.num_hosts, size=int(rng.integers(1, topology.num_hosts + 1)))
    factors = rng.choice([1e-6, 0.03, 0.3, 0.999], size=2, replace=False)
    return TableConstraint(
        pattern=pattern,
        ranks=tuple(ranks.tolist()) if rng.random() < 0.4 else (),
        hosts=tuple(hosts.tolist()) if rng.random() < 0.3 else (),
        min_column_width=int(rng.choice(_WIDTHS)) if rng.random() < 0.5 else 4,
        cache_load_factors=tuple(factors.tolist()) if rng.random() < 0.5 else (),
    )


def _coupled(rng: np.random.Generator, case: Case) -> Case:
    """The case with one or two rules that couple tables."""
    rules = case.constraints
    for _ in range(int(rng.integers(1, 3))):
        rules = one_more_rule(rng, case, rules, COUPLING)
    return replace(case, constraints=rules)


# ------------------------------------------------------------------ together


_EARLY: tuple[tuple[Change, float], ...] = (
    (odd_rules, 0.4),
    (_coupled, 0.25),
    (may_replicate, 0.2),
)
"""Changes of what tables may be and be placed on, with the share of problems that have each."""


def _trained(rng: np.random.Generator, case: Case) -> Case:
    return every_day(case, between_steps_s=float(rng.choice([0.0, 1e-5, 1e-3])))


def _other_collectives(rng: np.random.Generator, case: Case) -> Case:
    """The case with another model of collectives than the system's own."""
    if case.topology.calibration or case.on_torchrecs_terms:
        return case
    return replace(case, collective=str(rng.choice(_COLLECTIVES)))


_LATE: tuple[tuple[Change, float], ...] = (
    (unusual, 0.5),
    (rare, 0.4),
    (with_dense_part, 0.25),
    (with_slow_links, 0.2),
    (with_unlike_days, 0.2),
    (_trained, 0.2),
    (_other_collectives, 0.3),
)
"""Changes of all the rest."""


def restricted(rng: np.random.Generator, case: Case) -> Case:
    """The case with more rules, as far as the planner allows them beside the rest."""
    return _changed(rng, case, _EARLY)


def mixed(rng: np.random.Generator, case: Case) -> Case:
    """The case with changes of the other kinds, as far as the planner allows them together."""
    return _changed(rng, case, _LATE)


def _changed(
    rng: np.random.Generator, case: Case, changes: tuple[tuple[Change, float], ...]
) -> Case:
    for change, share in changes:
        if rng.random() < share:
            try:
                made = change(rng, case)
            except InvalidValueError:
                continue
            case = made if is_allowed(made) else case
    return case


def is_allowed(case: Case) -> bool:
    """Whether every day of a case can be priced on its system."""
    if case.on_torchrecs_terms and case.scenarios:
        return False
    try:
        for day in (case.workload, *case.scenarios):
            pipeline = CostPipeline(day, case.topology, models_on(case, case.topology))
            pipeline.options_work([_whole(table) for table in day.tables])
    except InvalidValueError:
        return False
    return True


def _whole(table: Table) -> ShardingOption:
    return ShardingOption(
        table=table.name,
        sharding_type=ShardingType.TABLE_WISE,
        kernel=ComputeKernel.FUSED,
        column_widths=(table.embedding_dim,),
    )
