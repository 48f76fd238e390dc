"""What makes a drawn problem rare: what neither the plain nor the unusual drawings have.

The model in 2D groups, dense parts given by operators, measured laws with all that a profile can
say, slow inputs, days that are trained in another way, ranks that are CPU cores, many constraints
at once, and dozens of tables that are pinned. Each change keeps to what the planner documents as
allowed together; a problem gets one to three of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from costmodels.distribution.base import AbstractIndexDistribution
from costmodels.distribution.empirical import Empirical
from costmodels.distribution.uniform import Uniform
from costmodels.distribution.zipf import Zipf
from costmodels.operators import Operator, OperatorKind
from costmodels.sharding import ComputeKernel, ShardingType
from costmodels.topology import group_topology
from costmodels.units import MIB
from costmodels.workload import (
    DataType,
    DenseArch,
    DenseParallelism,
    Feature,
    OperatorList,
    Optimizer,
    Pipeline,
    Workload,
)
from planner import load_system
from planner.problem import TableConstraint
from planner.scenarios import ScenarioRule
from tests.counted import law_of_counts
from tests.differential.case import Case
from tests.differential.drawing.draw_constraints import one_more_rule
from tests.differential.drawing.options import placements
from tests.differential.drawing.unusual import if_allowed

Change = Callable[[np.random.Generator, Case], Case]


def rare(rng: np.random.Generator, case: Case) -> Case:
    """The case with one to three changes, in random order."""
    chosen = rng.choice(len(_CHANGES), size=int(rng.integers(1, 4)), replace=False)
    for i in chosen:
        case = _CHANGES[int(i)](rng, case)
    return case


# ------------------------------------------------------------------ the system


def _grouped(rng: np.random.Generator, case: Case) -> Case:
    """The ranks as one group of two to four, each of which has a copy of the tables.

    The whole system has more ranks on each host where groups are interleaved, and more hosts where
    a group is a block of consecutive ranks.
    """
    topology, copies = case.topology, int(rng.integers(2, 5))
    if topology.calibration:
        return case
    hosts, local = topology.num_hosts, topology.local_world_size
    blocks = bool(rng.random() < 0.5)
    whole = (
        topology.resized(hosts * copies, local)
        if blocks
        else topology.resized(hosts, local * copies)
    )
    if rng.random() < 0.3:
        speeds = rng.choice([0.5, 1.0, 1.2], size=whole.world_size)
        whole = replace(whole, speed_by_rank_ratio=tuple(speeds.tolist()))
    group = group_topology(whole, hosts * local, between_hosts=blocks)
    if group is None or group.num_hosts != hosts:
        return case
    return replace(case, topology=group)


def _on_cores(rng: np.random.Generator, case: Case) -> Case:
    """Ranks that are CPU cores, which run one thing at a time and have fewer kernels."""
    days = (case.workload, *case.scenarios)
    sharded = any(w.dense_parallelism is DenseParallelism.FSDP for w in days)
    if sharded or any(w.batch_share_ratio for w in days) or case.topology.whole:
        return case
    gpus, local = case.topology.world_size, case.topology.local_world_size
    cores = load_system("cpu_gloo", gpus=gpus, gpus_per_host=local)
    return replace(case, topology=replace(cores, price_per_device_usd_per_hour=1.0))


# ------------------------------------------------------------------ how the step is run


def _traced(rng: np.random.Generator, case: Case) -> Case:
    """A dense part given by operators, such as those of a traced module, for each day's batch."""
    before, after = (_operators(rng) for _ in range(2))
    days = []
    for w in (case.workload, *case.scenarios):
        if w.batch_share_ratio:
            return case
        listed = OperatorList(
            batch_size_per_rank=w.batch_size_per_rank, before_tables=before, after_tables=after
        )
        days.append(replace(w, dense=DenseArch(num_dense_features=13, operators=listed)))
    return replace(case, workload=days[0], scenarios=tuple(days[1:]))


def _operators(rng: np.random.Generator) -> tuple[Operator, ...]:
    """Up to three operators: products with parameters, and kernels that only move bytes."""
    found = []
    for number in range(int(rng.integers(4))):
        size = int(rng.choice([16, 256, 3000]))
        if rng.random() < 0.6:
            count = size * size if rng.random() < 0.8 else 0
            operator = Operator(
                name=f"product {number}",
                kind=OperatorKind.MATMUL,
                shape=(1, int(rng.choice([1, 64, 4096])), size, size),
                num_parameters=count,
                parameter_bytes=4.0 * count,
                left_gradient=bool(rng.random() < 0.7),
                num_repeats=int(rng.choice([1, 1, 5])),
                is_recomputed=bool(rng.random() < 0.3),
            )
        else:
            moved = float(size) * MIB / 256.0
            operator = Operator(
                name=f"kernel {number}",
                kind=OperatorKind.ELEMENTWISE,
                shape=(size, size),
                read_bytes=moved,
                written_bytes=moved,
                saved_bytes=moved if rng.random() < 0.5 else 0.0,
                num_kernels=int(rng.integers(1, 4)),
            )
        found.append(operator)
    return tuple(found)


def _fed(rng: np.random.Generator, case: Case) -> Case:
    """Inputs that arrive too slowly, or nearly so."""
    rate = float(10.0 ** rng.uniform(3.0, 8.0))
    days = [replace(w, input_samples_per_s=rate) for w in (case.workload, *case.scenarios)]
    return replace(case, workload=days[0], scenarios=tuple(days[1:]))


def _other_days(rng: np.random.Generator, case: Case) -> Case:
    """Days on which the same tables are trained in another way than on the first."""
    if case.on_torchrecs_terms:
        return case
    days = case.scenarios or (replace(case.workload, name="other day"),)
    robust = ScenarioRule(str(rng.choice([r.value for r in ScenarioRule])))
    changed = tuple(_trained_otherwise(rng, case, day) for day in days)
    return replace(case, scenarios=changed, robust=robust)


def _trained_otherwise(rng: np.random.Generator, case: Case, day: Workload) -> Workload:
    """A day with another pipeline, optimizer, dense part, types on the wire or batch shares.

    Of these only what the planner allows beside the rest of the day.
    """
    world = case.topology.world_size
    half = DataType.FP16
    choices: tuple[dict[str, object], ...] = (
        {"batch_share_ratio": tuple(rng.choice([0.5, 1.0, 4.0], size=world).tolist())},
        {"pipeline": Pipeline(str(rng.choice(["none", "sparse_dist", "hugectr"])))},
        {"optimizer": Optimizer(str(rng.choice([o.value for o in Optimizer])))},
        {"dense": DenseArch(bottom_mlp=(64,), top_mlp=(int(rng.choice([8, 4096])), 1))},
        {"output_dtype": half, "gradient_dtype": half, "index_bytes": 4},
    )
    for values in choices:
        if rng.random() < 0.4:
            day = if_allowed(case, day, values)
    return day


# ------------------------------------------------------------------ the tables


def _profiled(rng: np.random.Generator, case: Case) -> Case:
    """Laws with all that a profile can say, and tuples of ids that come together."""
    tables = tuple(
        replace(t, distribution=_law(rng, t.num_embeddings)) for t in case.workload.tables
    )
    return replace(case, workload=replace(case.workload, tables=tables))


def _law(rng: np.random.Generator, rows: int) -> AbstractIndexDistribution:
    if rng.random() < 0.3:
        return Zipf(
            num_embeddings=rows,
            exponent=float(rng.choice([0.0, 0.7, 1.0, 3.0])),
            shift=float(rng.choice([0.0, 50.0])),
            scattered=bool(rng.random() < 0.5),
            ids_per_draw=int(rng.choice([2, 10, 500])),
        )
    seen = max(1, rows // int(rng.choice([1, 2, 10])))
    counts = rng.zipf(1.5, size=min(seen, 200)).clip(max=10_000)
    drawn = np.array([2.0, 50.0, 3000.0])
    distinct = np.minimum(drawn * np.array([1.0, 0.8, 0.3]), float(rows)).clip(min=1.0)
    curve = tuple((float(n), float(d)) for n, d in zip(drawn, distinct, strict=True))
    law = law_of_counts(counts, rows, num_unique_curve=curve if rng.random() < 0.5 else ())
    if rng.random() < 0.5:
        return law
    bins, probability = law.frequency_bins()
    lots = rng.dirichlet(np.ones(int(rng.integers(2, 6))), size=len(bins)).T
    return Empirical.from_bins(
        bins,
        probability,
        rows,
        range_rows=lots * bins,
        num_ids_in_ranges=seen,
        num_unique_curve=law.num_unique_curve,
        hot_share_ratio=(0.1, 0.6) if rng.random() < 0.5 else (),
    )


# ------------------------------------------------------------------ constraints


def _crowded(rng: np.random.Generator, case: Case) -> Case:
    """Several more rules than usual, which often speak of the same tables."""
    rules = case.constraints
    for _ in range(int(rng.integers(2, 6))):
        rules = one_more_rule(rng, case, rules)
    return replace(case, constraints=rules)


def _many_pinned(rng: np.random.Generator, case: Case) -> Case:
    """Dozens of small tables more, of which each may be in one way alone."""
    first = case.workload.tables[0]
    names = [f"pinned{i}" for i in range(int(rng.integers(62, 70)))]
    more = tuple(
        replace(
            first,
            name=name,
            num_embeddings=500,
            embedding_dim=8,
            features=(Feature(name=name, pooling_factor=float(rng.choice([0.3, 2.0]))),),
            distribution=Uniform(num_embeddings=500),
        )
        for name in names
    )
    days = [replace(w, tables=(*more, *w.tables)) for w in (case.workload, *case.scenarios)]
    kernel = ComputeKernel.FUSED_UVM if rng.random() < 0.5 else ComputeKernel.FUSED
    rule = TableConstraint(
        pattern="pinned*", sharding_types=(ShardingType.ROW_WISE,), kernels=(kernel,)
    )
    rules = case.constraints
    made = replace(
        case,
        workload=days[0],
        scenarios=tuple(days[1:]),
        constraints=replace(rules, tables=(*rules.tables, rule)),
    )
    return made if all(placements(made, t) for t in more) else case


_CHANGES: tuple[Change, ...] = (
    _grouped,
    _on_cores,
    _traced,
    _fed,
    _other_days,
    _profiled,
    _crowded,
    _many_pinned,
)
