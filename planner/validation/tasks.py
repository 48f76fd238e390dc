"""Random models and plans that a small machine can train, for ``validate torchrec``."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from costmodels.distribution.zipf import Zipf
from costmodels.errors import CostModelError
from costmodels.sharding import ComputeKernel, Plan, ShardingOption, ShardingType, place
from costmodels.topology import Topology
from costmodels.workload import DenseArch, Feature, Interaction, Pipeline, Table, Workload
from planner import api
from planner.errors import PlannerError
from planner.problem import Constraints
from planner.result import TORCHREC_BASELINE

_DIMS = (8, 16, 32, 64, 128)
"""Numbers of columns that are drawn."""
_MODEL_BYTES = 6e8
"""All tables of a model together have less than this many bytes of weights, so that a small machine
can hold several models."""
_LARGE_BYTES = 1.2e8
"""A table that is to be larger than the caches has 0.6 to 1 times this many bytes."""
_REPLICATED_BYTES = 4e6
"""Tables with more bytes are not replicated in random plans, because the gradients of a replicated
table are exchanged whole."""
_TYPES = (
    ShardingType.TABLE_WISE,
    ShardingType.ROW_WISE,
    ShardingType.COLUMN_WISE,
    ShardingType.DATA_PARALLEL,
)
"""The sharding types that plans may have."""
CONSTRAINTS = Constraints(sharding_types=_TYPES, kernels=(ComputeKernel.FUSED, ComputeKernel.DENSE))
"""The constraints of searched plans."""
_BASELINES = (TORCHREC_BASELINE, "size_lookup_greedy")
"""The baselines whose plans are run."""
MIXES = ((0.0, 0.0, 0.0), (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.3, 0.2, 0.2), (0.4, 0.0, 0.3))
"""Shares of row-wise, column-wise and replicated tables in random plans, used one after the other;
all other tables are table-wise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPlan:
    """A plan and where it comes from.

    Attributes:
        origin: ``searched``, the name of a baseline, or ``random``.
        plan: the plan.
    """

    origin: str
    plan: Plan


def random_workload(seed: int) -> Workload:
    """A random model with 6 to 12 tables of different widths, pooling factors and skews."""
    rng = np.random.default_rng([seed, 7919])
    tables: list[Table] = []
    room = _MODEL_BYTES
    for i in range(int(rng.integers(6, 13))):
        rows, dim = int(10 ** rng.uniform(2.5, 6.2)), int(rng.choice(_DIMS))
        while rows * dim * 4 > room / 2:
            rows //= 2
        room -= rows * dim * 4
        exponent = 0.0 if rng.random() < 0.15 else float(np.round(rng.uniform(0.2, 1.4), 2))
        pooling = float(np.round(np.exp(rng.uniform(0.0, np.log(50.0)))))
        law = Zipf(
            num_embeddings=rows,
            exponent=exponent,
            scattered=bool(rng.random() < 0.6),
        )
        feature = Feature(name=f"f{i}", pooling_factor=pooling)
        tables.append(
            Table(
                name=f"t{i}",
                num_embeddings=rows,
                embedding_dim=dim,
                features=(feature,),
                distribution=law,
            )
        )
    return Workload(
        name=f"random-{seed}",
        tables=tuple(tables),
        local_batch_size=int(rng.choice([1024, 2048, 4096])),
        dense=DenseArch(
            num_dense_features=13,
            bottom_mlp=(int(rng.choice([16, 32])),),
            top_mlp=(int(rng.choice([8, 16, 32])), 1),
            interaction=Interaction.CAT,
        ),
        pipeline=Pipeline.NONE,
    )


def large_workload(seed: int) -> Workload:
    """A random model in which lookups take longer than all else.

    It has five tables, each larger than the caches, with 15 to 30 indices per bag. Indices are
    uniform; :func:`with_skew` changes that.
    """
    rng = np.random.default_rng([seed, 6007])
    tables = []
    for i, dim in enumerate(int(d) for d in rng.choice((16, 32, 64), 5)):
        rows = int(_LARGE_BYTES * rng.uniform(0.6, 1.0) / (4 * dim))
        pooling = float(rng.integers(15, 31))
        tables.append(
            Table(
                name=f"t{i}",
                num_embeddings=rows,
                embedding_dim=dim,
                features=(Feature(name=f"f{i}", pooling_factor=pooling),),
                distribution=Zipf(num_embeddings=rows, exponent=0.0, scattered=True),
            )
        )
    return Workload(
        name=f"large-{seed}",
        tables=tuple(tables),
        local_batch_size=2048,
        dense=DenseArch(
            num_dense_features=13,
            bottom_mlp=(16,),
            top_mlp=(8, 1),
            interaction=Interaction.CAT,
        ),
        pipeline=Pipeline.NONE,
    )


def choose_plans(workload: Workload, topology: Topology, count: int, seed: int) -> list[NamedPlan]:
    """Different plans of a model: the searched plan, the plans of two baselines, and random plans.

    If the search fails, all plans are random.

    Args:
        workload: the model.
        topology: the system.
        count: number of plans; fewer if there are not as many different ones.
        seed: decides the search and the random plans.
    """
    found: list[NamedPlan] = []

    def add(origin: str, plan: Plan) -> None:
        if len(found) < count and all(plan != other.plan for other in found):
            found.append(NamedPlan(origin=origin, plan=plan))

    try:
        result = api.plan(workload, topology, constraints=CONSTRAINTS, time_limit_s=5.0, seed=seed)
        add("searched", result.best.plan)
        for baseline in result.baselines:
            if baseline.name in _BASELINES:
                add(baseline.name, baseline.plan)
    except (PlannerError, CostModelError):
        pass
    rng = np.random.default_rng([seed, 104729])
    for attempt in range(20 * count):
        row, column, replicated = MIXES[attempt % len(MIXES)]
        plan = random_plan(workload, topology.world_size, (row, column, replicated), rng)
        add("random", plan)
    return found


def random_plan(
    workload: Workload,
    world_size: int,
    shares: tuple[float, float, float],
    rng: np.random.Generator,
) -> Plan:
    """A plan with a random sharding type and random ranks for each table.

    Args:
        workload: the model.
        world_size: number of ranks, all on one host.
        shares: probabilities of row-wise, column-wise and replicated tables; the rest is
            table-wise. Large tables are never replicated.
        rng: random numbers.
    """
    kinds = (ShardingType.ROW_WISE, ShardingType.COLUMN_WISE, ShardingType.DATA_PARALLEL)
    probabilities = (*shares, 1.0 - sum(shares))
    placements = []
    for table in workload.tables:
        kind = (*kinds, ShardingType.TABLE_WISE)[int(rng.choice(4, p=probabilities))]
        large = table.weight_bytes > _REPLICATED_BYTES
        if kind is ShardingType.DATA_PARALLEL and large:
            kind = ShardingType.TABLE_WISE
        widths: tuple[int, ...] = (table.embedding_dim,)
        if kind is ShardingType.COLUMN_WISE:
            widths = (table.embedding_dim // 2,) * 2
        replicated = kind is ShardingType.DATA_PARALLEL
        option = ShardingOption(
            table=table.name,
            sharding_type=kind,
            kernel=ComputeKernel.DENSE if replicated else ComputeKernel.FUSED,
            column_widths=widths,
        )
        where = tuple(int(r) for r in rng.choice(world_size, option.num_pieces, replace=True))
        if kind is ShardingType.COLUMN_WISE:
            where = tuple(int(r) for r in rng.permutation(world_size)[:2])
        placements.append(
            place(
                option,
                table.num_embeddings,
                where,
                world_size=world_size,
                local_world_size=world_size,
            )
        )
    return Plan(placements=tuple(placements))


def with_skew(workload: Workload, exponent: float) -> Workload:
    """The same model with the indices of all tables drawn from a Zipf law with one exponent."""
    tables = tuple(
        replace(
            t,
            distribution=Zipf(num_embeddings=t.num_embeddings, exponent=exponent, scattered=True),
        )
        for t in workload.tables
    )
    return replace(workload, name=f"{workload.name}-{exponent:g}", tables=tables)
