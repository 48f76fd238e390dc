"""What makes a drawn problem unusual: settings that the other drawings leave as they are.

Each change keeps to what the planner documents as allowed together; a problem gets two to five of
them, so that they also meet one another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from costmodels.dense.base import dense_layers
from costmodels.errors import InvalidValueError
from costmodels.layers.base import AbstractLayer
from costmodels.layers.dlrm import Dlrm
from costmodels.layers.mlp import Mlp
from costmodels.layers.mmoe import Mmoe
from costmodels.layers.moe import Moe
from costmodels.layers.transformer import Transformer
from costmodels.layers.two_tower import TwoTower
from costmodels.sharding import ComputeKernel, ShardingType
from costmodels.topology import PROPORTIONAL, FittedFactors, Link, batch_ratios
from costmodels.training.communication import Codec, Codecs, Communication, Precision
from costmodels.training.optimizers import RowUpdate
from costmodels.units import GB, MIB, US
from costmodels.workload import (
    DataType,
    DenseArch,
    DenseOptimizer,
    DenseParallelism,
    Pipeline,
    Pooling,
    Workload,
)
from planner.problem import TableConstraint
from tests.differential.case import Case

Change = Callable[[np.random.Generator, Case], Case]


def unusual(rng: np.random.Generator, case: Case) -> Case:
    """The case with two to five changes, in random order."""
    chosen = rng.choice(len(_CHANGES), size=int(rng.integers(2, 6)), replace=False)
    for i in chosen:
        case = _CHANGES[int(i)](rng, case)
    return case


def every_day(case: Case, **changes: object) -> Case:
    """The case with another setting of training, in every scenario."""
    days = [replace(w, **changes) for w in (case.workload, *case.scenarios)]  # type: ignore[arg-type]
    return replace(case, workload=days[0], scenarios=tuple(days[1:]))


def if_allowed(case: Case, day: Workload, values: dict[str, object]) -> Workload:
    """The day with other values; as it is where the planner refuses them."""
    try:
        made = replace(day, **values)  # type: ignore[arg-type]
        batch_ratios(made, case.topology)
        dense_layers(made)  # some layers need vectors of one width
    except InvalidValueError:
        return day
    return made


def _with_samples(case: Case, made: Case) -> Case:
    """The changed case; as it was where a rank would have no sample in some scenario."""
    try:
        for day in (made.workload, *made.scenarios):
            batch_ratios(day, made.topology)
    except InvalidValueError:
        return case
    return made


def _with_tables(rng: np.random.Generator, case: Case, **choices: tuple[object, ...]) -> Case:
    """The case with one of the choices for each table, the same in every scenario."""
    drawn = [
        {key: values[int(rng.integers(len(values)))] for key, values in choices.items()}
        for _ in case.workload.tables
    ]
    days = [
        replace(w, tables=tuple(replace(t, **d) for t, d in zip(w.tables, drawn, strict=True)))  # type: ignore[arg-type]
        for w in (case.workload, *case.scenarios)
    ]
    return replace(case, workload=days[0], scenarios=tuple(days[1:]))


# ------------------------------------------------------------------ how the step is run


def _lookahead(rng: np.random.Generator, case: Case) -> Case:
    batches = int(rng.choice([0, 1, 3, 50, 2000]))
    return every_day(case, pipeline=Pipeline.LOOKAHEAD, lookahead_batches=batches)


def _sharded(rng: np.random.Generator, case: Case) -> Case:
    """A dense part of which each rank keeps a share, and large enough that it counts."""
    if case.workload.pipeline is Pipeline.HUGECTR or case.topology.calibration:
        return case
    if not case.workload.dense.is_given or rng.random() < 0.5:
        case = every_day(case, dense=_large(rng))
    return every_day(case, dense_parallelism=DenseParallelism.FSDP)


def _buckets(rng: np.random.Generator, case: Case) -> Case:
    """A dense part whose gradients travel in several buckets, among unlike layers."""
    dense, kinds = _large(rng), [o.value for o in DenseOptimizer]
    return every_day(case, dense=dense, dense_optimizer=DenseOptimizer(str(rng.choice(kinds))))


def _large(rng: np.random.Generator) -> DenseArch:
    wide = int(rng.choice([256, 2048, 5000]))
    return DenseArch(
        num_dense_features=13,
        bottom_mlp=(wide, 64) if rng.random() < 0.5 else (),
        top_mlp=(wide,) * int(rng.integers(1, 4)),
        dtype=DataType(str(rng.choice(["fp32", "bf16", "tf32", "fp8"]))),
    )


def _layered(rng: np.random.Generator, case: Case) -> Case:
    """A dense part given by layers, which need no more than that something reaches them."""
    kinds: list[AbstractLayer] = [
        Mlp(name="a", sizes=(256, 64)),
        Moe(name="b", experts=4, top=2, ffn=128),
        Mmoe(name="c", experts=3, tasks=2, expert_sizes=(64,), tower_sizes=(32, 1)),
        Dlrm(name="d", bottom_mlp=(64, 16), top_mlp=(64, 2), interaction="cat"),
    ]
    layers = [kinds[int(i)] for i in rng.choice(len(kinds), size=int(rng.integers(1, 3)))]
    layers += [TwoTower(name="e", sizes=(64, 32))] if rng.random() < 0.3 else []
    if rng.random() < 0.4:
        size = int(rng.choice([32, 256]))
        text = Transformer(
            name="t", layers=2, hidden=size, heads=4, ffn=4 * size, seq=16, vocabulary=1000
        )
        layers = [replace(text, before_tables=bool(rng.random() < 0.5))]
    named = [replace(layer, name=f"{layer.name}{i}") for i, layer in enumerate(layers)]
    return every_day(case, dense=DenseArch(num_dense_features=13, layers=tuple(named)))


def shares(rng: np.random.Generator, case: Case) -> Case:
    """Unequal batches, on ranks that often differ in speed too."""
    w, world = case.workload, case.topology.world_size
    barred = w.pipeline is Pipeline.HUGECTR or case.topology.device.single_stream
    barred |= case.on_torchrecs_terms
    barred |= any(t.deduplicates_indices or t.communication for t in w.tables)
    if barred:
        return case
    topology = case.topology
    if rng.random() < 0.5:
        speeds = tuple(rng.choice([0.4, 0.8, 1.0, 1.3], size=world).tolist())
        topology = replace(topology, speed_by_rank_ratio=speeds)
    drawn = tuple(rng.choice([0.5, 1.0, 1.5, 4.0], size=world).tolist())
    given = PROPORTIONAL if rng.random() < 0.4 else drawn
    made = every_day(replace(case, topology=topology), batch_share_ratio=given)
    return _with_samples(case, made)


def distinct(rng: np.random.Generator, case: Case) -> Case:
    """Unpooled tables of which ranks exchange distinct indices."""
    if case.workload.batch_share_ratio:
        return case
    case = _with_tables(rng, case, pooling=(Pooling.NONE,))
    return _with_tables(rng, case, deduplicates_indices=(True, True, False))


def _updates(rng: np.random.Generator, case: Case) -> Case:
    case = _with_tables(rng, case, row_update=tuple(RowUpdate))
    return every_day(case, between_steps_s=float(rng.choice([0.0, 1e-4, 1e-2])))


def _coded(rng: np.random.Generator, case: Case) -> Case:
    """Codecs whose rows have other sizes than the default, of one direction or both."""
    if case.workload.batch_share_ratio:
        return case

    def codec(kinds: tuple[Precision, ...]) -> Codec:
        rows = int(rng.choice([0, 4, 7, 128]))
        return Codec(precision=kinds[int(rng.integers(len(kinds)))], row_dim=rows)

    def pair(kinds: tuple[Precision, ...]) -> Codecs:
        return Codecs(forward=codec(kinds), backward=codec(kinds))

    summed = (Precision.FP32, Precision.FP16, Precision.BF16)
    every = tuple(Precision)
    each = tuple(
        Communication(all_to_all=pair(every), reduce_scatter=pair(summed), sequence=pair(every))
        for _ in range(2)
    )
    return _with_tables(rng, case, communication=(*each, None))


# ------------------------------------------------------------------ the system


def linked(rng: np.random.Generator, case: Case) -> Case:
    """Links with half-size messages and pods, hosts in domains."""
    topology = case.topology
    if topology.calibration:
        return case

    def link() -> Link:
        return Link(
            latency_s=float(rng.choice([0.0, 5.0, 100.0])) * US,
            bandwidth_bytes_per_s=float(rng.choice([1.0, 12.5, 50.0, 400.0])) * GB,
            half_size_bytes=float(rng.choice([0.0, 0.01, 1.0, 30.0])) * MIB,
            fabric=str(rng.choice(["", "infiniband", "efa", "tcpx"])),
            pod_hosts=int(rng.integers(0, 3)),
            oversubscription_ratio=float(rng.choice([1.0, 2.0, 8.0])),
        )

    hosts = int(rng.integers(1, topology.num_hosts + 1))
    return replace(
        case,
        topology=replace(
            topology,
            domain_size=hosts * topology.local_world_size,
            host_link=link() if rng.random() < 0.3 else topology.host_link,
            domain_link=link(),
            network_link=link(),
            collective_curves=topology.collective_curves if rng.random() < 0.5 else (),
        ),
    )


def fitted(rng: np.random.Generator, case: Case) -> Case:
    """A system whose times were fitted to runs of its own."""
    factors = [float(f) for f in rng.choice([0.3, 0.9, 1.0, 1.7, 5.0], size=3)]
    found = FittedFactors(
        lookup_ratio=factors[0], collective_ratio=factors[1], dense_ratio=factors[2]
    )
    return replace(case, topology=replace(case.topology, fitted=found))


def unlike(rng: np.random.Generator, case: Case) -> Case:
    """Ranks of other speeds and slow compute beside communication."""
    world = case.topology.world_size
    device = replace(
        case.topology.device, overlap_slowdown_ratio=float(rng.choice([0.0, 0.2, 0.9]))
    )
    speeds = tuple(rng.choice([0.2, 0.9, 1.0, 2.0], size=world).tolist())
    topology = replace(case.topology, device=device, speed_by_rank_ratio=speeds)
    return _with_samples(case, replace(case, topology=topology))


def lean(rng: np.random.Generator, case: Case) -> Case:
    """Nothing to launch and to start up, and a large batch: what ranks do is all that counts.

    Small problems wait for the host otherwise, and a bound on what ranks do is never reached.
    """
    topology = case.topology
    device = replace(topology.device, kernel_latency_s=0.0)
    host = replace(topology.host, eager_call_s=0.0, eager_pass_s=None)
    kept = {
        name: replace(getattr(topology, name), latency_s=0.0)
        for name in ("host_link", "domain_link", "network_link")
        if rng.random() < 0.8
    }
    curves = () if rng.random() < 0.7 else topology.collective_curves
    topology = replace(topology, device=device, host=host, collective_curves=curves, **kept)
    batch = int(rng.choice([1, 500, 20_000, 200_000]))
    made = every_day(replace(case, topology=topology), batch_size_per_rank=batch)
    return _with_samples(case, made)


# ------------------------------------------------------------------ constraints


def _paired(rng: np.random.Generator, case: Case) -> Case:
    """Combinations of sharding types and kernels, for all tables or those of one name."""
    every = [
        (kind, kernel)
        for kind in ShardingType
        for kernel in ComputeKernel
        if (kind is ShardingType.DATA_PARALLEL) == (kernel is ComputeKernel.DENSE)
    ]
    kept = [p for p in every if rng.random() < 0.6] or every[:2]
    pattern = str(rng.choice(["*", "t?", "t[01]", "t0", "*0"]))
    rule = TableConstraint(pattern=pattern, pairs=tuple(kept))
    rules = case.constraints
    return replace(case, constraints=replace(rules, tables=(*rules.tables, rule)))


def replicated(rng: np.random.Generator, case: Case) -> Case:
    """Types that load all ranks, or none of those that add row blocks up."""
    menus = (
        (ShardingType.DATA_PARALLEL,),
        (ShardingType.DATA_PARALLEL, ShardingType.ROW_WISE),
        (ShardingType.ROW_WISE, ShardingType.TABLE_ROW_WISE),
        (ShardingType.GRID_SHARD, ShardingType.TABLE_ROW_WISE),
        (ShardingType.DATA_PARALLEL, ShardingType.TABLE_WISE),
        (ShardingType.TABLE_COLUMN_WISE, ShardingType.DATA_PARALLEL),
    )
    menu = menus[int(rng.integers(len(menus)))]
    rules = case.constraints
    kept = tuple(c for c in rules.tables if not (c.sharding_types or c.pairs or c.kernels))
    return replace(case, constraints=replace(rules, sharding_types=menu, tables=kept))


_CHANGES: tuple[Change, ...] = (
    _lookahead,
    _sharded,
    _buckets,
    _layered,
    shares,
    distinct,
    _updates,
    _coded,
    linked,
    fitted,
    unlike,
    lean,
    _paired,
    replicated,
)
