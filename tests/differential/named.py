"""Cases with names: those that broke a promise once, made here, and those kept as files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from costmodels.distribution.uniform import Uniform
from costmodels.sharding import ShardingType
from costmodels.workload import DenseArch, Feature, Optimizer, Pipeline, Table, Workload
from planner import load_system
from planner.problem import Constraints, TableConstraint, TableGroup
from tests.differential.asking import Run
from tests.differential.case import Case
from tests.differential.stored import FOLDER, faults_found, load, stored_names


def _table(name: str, rows: int, dim: int, pooling: float) -> Table:
    return Table(
        name=name,
        num_embeddings=rows,
        embedding_dim=dim,
        features=(Feature(name=name, pooling_factor=pooling),),
        distribution=Uniform(num_embeddings=rows),
    )


def _prefetch() -> Case:
    """Tables that have to be cached from host memory, fetched before the lookup."""
    tables = tuple(_table(f"t{i}", 60_000_000, 128, (1.0, 10.0, 50.0)[i % 3]) for i in range(12))
    workload = Workload(
        name="pf",
        tables=tables,
        batch_size_per_rank=4096,
        dense=DenseArch(num_dense_features=13, bottom_mlp=(512, 128), top_mlp=(1024, 1)),
        pipeline=Pipeline.PREFETCH_SPARSE_DIST,
    )
    return Case(name="pf", workload=workload, topology=load_system("h100_sxm", gpus=4))


def _no_dense() -> Case:
    """Small tables and nothing else."""
    tables = tuple(_table(f"t{i}", 1000 * (i + 1), 16, 1.0) for i in range(26))
    workload = Workload(name="nodense", tables=tables, batch_size_per_rank=2048)
    return Case(name="nd", workload=workload, topology=load_system("h100_sxm", gpus=8))


def _one_table_wise() -> Case:
    """One of four tables has to be ``table_wise``."""
    tables = tuple(_table(f"t{i}", 2_000_000, 16, 1.0) for i in range(4))
    workload = Workload(
        name="tw",
        tables=tables,
        batch_size_per_rank=512,
        dense=DenseArch(num_dense_features=13, bottom_mlp=(64,), top_mlp=(64, 1)),
    )
    rule = TableConstraint(pattern="t0", sharding_types=(ShardingType.TABLE_WISE,))
    return Case(
        name="tw",
        workload=workload,
        topology=load_system("h100_sxm", gpus=4),
        constraints=Constraints(tables=(rule,)),
    )


def _infinite() -> Case:
    """Tables of a few rows on TorchRec's terms: coefficients of 1e-10."""
    sizes = ((4, 32, 5.0), (4, 8, 0.0), (4, 4, 5.0), (4, 4, 5.0), (3, 8, 0.0), (3, 4, 0.0))
    tables = tuple(_table(f"t{i}", *size) for i, size in enumerate(sizes))
    workload = Workload(
        name="inf",
        tables=tables,
        batch_size_per_rank=1,
        pipeline=Pipeline.NONE,
        optimizer=Optimizer.ROWWISE_ADAGRAD,
    )
    topology = load_system("b200_sxm", gpus=4)
    return Case(name="inf", workload=workload, topology=topology, objective="torchrec")


def _pinned(constraints: Constraints, name: str) -> Case:
    """Tables that fit one device only with weights in host memory."""
    sizes = (20_000_000, *(50_000_000,) * 4)
    tables = tuple(_table(n, rows, 128, 1.0) for n, rows in zip("abcde", sizes, strict=True))
    return Case(
        name=name,
        workload=Workload(name="pin", tables=tables, batch_size_per_rank=1024),
        topology=load_system("h100_sxm", gpus=8),
        constraints=constraints,
    )


def _nothing_looked_up() -> Case:
    tables = (_table("a", 1000, 16, 0.0), _table("b", 2000, 16, 0.0))
    workload = Workload(name="z", tables=tables, batch_size_per_rank=64)
    topology = load_system("h100_sxm", gpus=2)
    return Case(name="z", workload=workload, topology=topology, objective="torchrec")


_MADE: dict[str, Callable[[], Case]] = {
    "pf": _prefetch,
    "nd": _no_dense,
    "tw": _one_table_wise,
    "inf": _infinite,
    "pin": lambda: _pinned(Constraints(), "pin"),
    "pinc": lambda: _pinned(
        Constraints(tables=(TableConstraint(pattern="*", ranks=(0,)),)), "pinc"
    ),
    "pinc3": lambda: _pinned(Constraints(together=(TableGroup(patterns=("*",)),)), "pinc3"),
    "z": _nothing_looked_up,
}


_TOO_LARGE = ("pf", "nd", "tw", "inf", "pin", "pinc", "pinc3")


def names() -> list[str]:
    """All named cases."""
    return [*_MADE, *stored_names()]


def named(name: str) -> Case:
    """The case of that name."""
    if name in _MADE:
        return _MADE[name]()
    return replace(load(FOLDER / f"{name}.json"), name=name)


def only_users_saw(name: str) -> bool:
    """Whether a stored case found faults of the planner as users ask it, and none of its engine."""
    found = [] if name in _MADE else faults_found(FOLDER / f"{name}.json")
    return bool(found) and all(text.startswith(f"{Run.USERS}:") for text in found)


def has_every_plan(name: str) -> bool:
    """Whether a named case has few enough plans to price them all."""
    return name not in _TOO_LARGE and not name.startswith("larger")
