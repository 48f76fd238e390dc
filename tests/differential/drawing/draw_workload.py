"""Random workloads of one to four tables, and the same tables on other days."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np

from costmodels.distribution.base import AbstractIndexDistribution
from costmodels.distribution.empirical import Empirical
from costmodels.distribution.uniform import Uniform
from costmodels.distribution.zipf import Zipf
from costmodels.training.communication import Codec, Codecs, Communication, Precision
from costmodels.units import GIB
from costmodels.workload import (
    DataType,
    DenseArch,
    Feature,
    HostProfile,
    Interaction,
    Optimizer,
    Pipeline,
    Pooling,
    Table,
    Workload,
)
from planner.scenarios import ScenarioRule
from tests.differential.case import Case

T = TypeVar("T")

_DIMS = (4, 8, 16, 32, 64, 128, 256, 12, 24, 48, 96, 100, 192, 10)
_POOLINGS = (0.0, 0.3, 1.0, 1.0, 2.0, 10.0, 35.0, 100.0)
_PLAIN = 0.7
"""Share of workloads whose exchanges are not compressed."""

_EVEN = 12
"""Rows that are a multiple of this are cut into equal blocks by up to four ranks."""


_PIPELINES = [p.value for p in Pipeline if p not in (Pipeline.LOOKAHEAD, Pipeline.PRIORITIZED)]
"""Those that need no further key, and that are not drawn with hot rows."""


def draw_workload(rng: np.random.Generator, *, larger: bool = False) -> Workload:
    """Any small workload; a larger one has up to twenty tables."""
    count = int(rng.choice([1, 2, 3, 4], p=[0.12, 0.4, 0.33, 0.15]))
    if larger:
        count = int(rng.integers(4, 21))
    alike = rng.random() < 0.2
    large = rng.random() < 0.25
    even = rng.random() < 0.6
    tables = [_table(rng, f"t{i}", large=large, even=even) for i in range(count)]
    if alike:
        tables = [
            replace(tables[0], name=t.name, features=_renamed(tables[0], t.name)) for t in tables
        ]
    batch = int(np.exp(rng.uniform(0, np.log(8192.5))))
    workload = Workload(
        name="random",
        tables=tuple(tables),
        batch_size_per_rank=int(
            rng.choice([batch, 1, 64, 512, 4096], p=[0.5, 0.05, 0.1, 0.15, 0.2])
        ),
        dense=_dense(rng),
        optimizer=Optimizer(str(rng.choice([o.value for o in Optimizer]))),
        output_dtype=_either(rng, DataType.FP32, DataType.FP16),
        gradient_dtype=_either(rng, DataType.FP32, DataType.FP16),
        index_bytes=int(rng.choice([4, 8])),
        pipeline=Pipeline(str(rng.choice(_PIPELINES))),
        cuda_graph=bool(rng.random() < 0.3),
        reserved_bytes=float(rng.choice([0.0, 0.0, 1.0])) * GIB,
        input_samples_per_s=1e7 if rng.random() < 0.04 else None,
    )
    workload = _compressed(workload)
    if workload.cuda_graph or batch % 4:  # no draw of its own: cases of known seeds stay
        return workload
    return replace(workload, host_profile=HostProfile.EAGER_2021)


def _compressed(workload: Workload) -> Workload:
    """With quantized communication, of all tables alike or of each, or mostly as it is."""
    sizes = [t.num_embeddings for t in workload.tables]
    rng = np.random.default_rng([workload.batch_size_per_rank, *sizes])
    if rng.random() < _PLAIN:
        return workload
    if rng.random() < 0.5:
        return workload.communicating(Communication.of(_precision(rng), _precision(rng)))
    tables = tuple(replace(t, communication=_communication(rng)) for t in workload.tables)
    return replace(workload, tables=tables)


def _communication(rng: np.random.Generator) -> Communication | None:
    exchanges = [
        Codecs(forward=Codec(precision=_precision(rng)), backward=Codec(precision=_precision(rng)))
        if rng.random() < 0.8
        else None
        for _ in range(3)
    ]
    if rng.random() < 0.2:
        return None
    sums = exchanges[1] if Communication(reduce_scatter=exchanges[1]).sums_rows else None
    return Communication(all_to_all=exchanges[0], reduce_scatter=sums, sequence=exchanges[2])


def _precision(rng: np.random.Generator) -> Precision:
    return Precision(str(rng.choice([p.value for p in Precision])))


def draw_scenarios(rng: np.random.Generator, case: Case) -> Case:
    """One or two other days: other laws, pooling factors or batches of the same tables."""
    scenarios = []
    for number in range(int(rng.integers(1, 3))):
        tables = []
        for table in case.workload.tables:
            scale = float(rng.choice([0.3, 1.0, 3.0]))
            features = tuple(
                replace(f, pooling_factor=f.pooling_factor * scale) for f in table.features
            )
            law = _law(rng, table.num_embeddings)
            tables.append(replace(table, features=features, distribution=law))
        batch = max(1, int(case.workload.batch_size_per_rank * float(rng.choice([0.5, 1.0, 2.0]))))
        scenarios.append(
            replace(
                case.workload,
                name=f"day {number}",
                tables=tuple(tables),
                batch_size_per_rank=batch,
            )
        )
    how = _either(rng, ScenarioRule.WORST, ScenarioRule.MEAN)
    return replace(case, scenarios=tuple(scenarios), robust=how)


def _table(rng: np.random.Generator, name: str, *, large: bool, even: bool) -> Table:
    exponent = rng.uniform(6, 9) if large else rng.uniform(0.5, 7)
    rows = max(3, int(10**exponent))
    if even:
        rows += -rows % _EVEN
    features = tuple(
        Feature(name=f"{name}_f{i}", pooling_factor=float(rng.choice(_POOLINGS)))
        for i in range(int(rng.choice([1, 1, 1, 2, 3])))
    )
    pooled = rng.random() < 0.8
    module = "embedding_bag_collection" if rng.random() < 0.8 else "other.ebc"
    return Table(
        name=name,
        num_embeddings=rows,
        embedding_dim=int(rng.choice(_DIMS)),
        features=features,
        distribution=_law(rng, rows),
        dtype=DataType(str(rng.choice(["fp32", "fp16", "int8"], p=[0.6, 0.25, 0.15]))),
        pooling=_either(rng, Pooling.SUM, Pooling.MEAN) if pooled else Pooling.NONE,
        is_weighted=bool(rng.random() < 0.15),
        module=module if pooled else "embedding_collection",
    )


def _renamed(table: Table, name: str) -> tuple[Feature, ...]:
    return tuple(replace(f, name=f"{name}_f{i}") for i, f in enumerate(table.features))


def _law(rng: np.random.Generator, rows: int) -> AbstractIndexDistribution:
    scattered = bool(rng.random() < 0.7)
    kind = rng.random()
    if kind < 0.25:
        return Uniform(num_embeddings=rows, scattered=scattered)
    if kind < 0.85:
        return Zipf(
            num_embeddings=rows,
            exponent=float(rng.choice([0.3, 0.8, 1.0, 1.05, 1.2, 2.0])),
            shift=float(rng.choice([0.0, 0.0, 2.7, 100.0])),
            scattered=scattered,
        )
    return _measured(rng, rows, scattered=scattered)


def _measured(rng: np.random.Generator, rows: int, *, scattered: bool) -> Empirical:
    """A few bins of rows that grow colder, by ranges of ids where hot rows are in one place."""
    shares = np.sort(rng.dirichlet(np.ones(3)))
    sizes = np.maximum(np.floor(shares * rows), 1.0)
    sizes[-1] = max(rows - sizes[:-1].sum(), 0.0)
    hotness = np.array([100.0, 10.0, 1.0]) ** rng.uniform(0.2, 1.0)
    if scattered:
        return Empirical.from_bins(sizes, hotness, rows)
    lots = rng.dirichlet(np.ones(4), size=len(sizes)).T
    return Empirical.from_bins(
        sizes, hotness, rows, range_rows=lots * sizes, num_ids_in_ranges=rows
    )


def _dense(rng: np.random.Generator) -> DenseArch:
    """No dense part, or a DLRM around the tables."""
    if rng.random() < 0.4:
        return DenseArch()
    cross = rng.random() < 0.25
    interaction = _either(rng, Interaction.DOT, Interaction.CAT)
    sizes = ((64,), (64, 64), (512, 128), (), (1024, 1024, 256))
    return DenseArch(
        num_dense_features=int(rng.choice([0, 13])),
        bottom_mlp=sizes[int(rng.integers(len(sizes)))],
        top_mlp=(*sizes[int(rng.integers(len(sizes)))], 1),
        interaction=Interaction.DCN if cross else interaction,
        dcn_num_layers=2 if cross else 0,
        dcn_low_rank_dim=16 if cross else 0,
        dtype=_either(rng, DataType.FP32, DataType.FP16),
    )


def _either(rng: np.random.Generator, one: T, other: T) -> T:
    return one if rng.random() < 0.5 else other
