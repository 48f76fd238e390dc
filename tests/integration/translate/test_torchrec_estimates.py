"""Our copy of TorchRec's estimates equals TorchRec's on random shards."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torchrec", reason="compares with torchrec, which is not installed")

import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner.constants import DEFAULT_PERF_ESTIMATOR
from torchrec.distributed.planner.enumerators import get_partition_by_type
from torchrec.distributed.planner.perf_models import NoopPerfModel
from torchrec.distributed.planner.shard_estimators import (
    EmbeddingPerfEstimatorFactory,
    EmbeddingStorageEstimator,
)
from torchrec.distributed.planner.stats import _calculate_critical_path
from torchrec.distributed.planner.storage_reservations import HeuristicalStorageReservation
from torchrec.distributed.planner.types import ParameterConstraints, SharderData, StorageUsageType
from torchrec.distributed.planner.types import Shard as TheirShard
from torchrec.distributed.planner.types import ShardingOption as TheirOption
from torchrec.distributed.planner.types import Topology as TheirTopology
from torchrec.distributed.planner.utils import sharder_name
from torchrec.distributed.types import CacheParams
from torchrec.distributed.types import ShardingType as TheirType
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.optim import SGD, Adagrad, Adam, RowWiseAdagrad

from costmodels.dense.base import dense_parameters
from costmodels.sharding import SPREAD, ComputeKernel, ShardingType, Spread, row_block_columns
from costmodels.torchrec_estimates import (
    TorchrecInputs,
    TorchrecMachine,
    TorchrecShard,
    TorchrecTable,
)
from planner import api
from planner.integrations.measure.runs import Model
from planner.integrations.torchrec_plan import to_sharding_options
from planner.integrations.torchrec_topology import topology_to_torchrec
from planner.integrations.torchrec_workload import describe_model
from planner.options.torchrec_rules import SEQUENCE_TYPES
from tests.integration.builders import make_topology
from tests.strategies import make_workload

pytestmark = pytest.mark.torchrec

SAME = 1e-6
MS = 1e-3


def ratio(optimizer: type[torch.optim.Optimizer] | None, dim: int) -> float:
    known = {None: 0.0, SGD: 0.0, Adam: 2.0, Adagrad: 1.0, RowWiseAdagrad: 1.0 / dim}
    return known[optimizer]


def module_of(
    dim: int, rows: int, features: int, dtype: DataType, *, pooled: bool, weighted: bool
) -> nn.Module:
    names = [f"f{i}" for i in range(features)]
    shape = {"name": "t", "embedding_dim": dim, "num_embeddings": rows, "feature_names": names}
    meta = torch.device("meta")
    if not pooled:
        return EmbeddingCollection(tables=[EmbeddingConfig(**shape, data_type=dtype)], device=meta)
    tables = [EmbeddingBagConfig(**shape, data_type=dtype)]
    return EmbeddingBagCollection(tables=tables, device=meta, is_weighted=weighted)


def shapes(
    kind: ShardingType, rows: int, dim: int, widths: list[int], world: int, group: int
) -> list[tuple[int, int]]:
    """Rows and columns of the shards, as TorchRec's enumerator lists them."""
    if kind is ShardingType.DATA_PARALLEL:
        return [(rows, dim)] * world
    if kind is ShardingType.TABLE_WISE:
        return [(rows, dim)]
    if SPREAD[kind] is Spread.RANKS:
        return [(rows, width) for width in widths]
    parts = world if kind is ShardingType.ROW_WISE else group
    blocks = [*zip(*(c.tolist() for c in row_block_columns(rows, parts)), strict=True)]
    columns = widths if kind is ShardingType.GRID_SHARD else [dim]
    return [(size, width) for width in columns for _, size in blocks]


@st.composite
def cases(draw: DrawFn) -> dict[str, Any]:
    pooled = draw(st.booleans())
    pieces = draw(st.integers(1, 4))
    widths = [4 * draw(st.integers(1, 64)) for _ in range(pieces)]
    kinds = tuple(ShardingType) if pooled else SEQUENCE_TYPES["cuda"]
    kind = draw(st.sampled_from(kinds))
    replicated = kind is ShardingType.DATA_PARALLEL
    fused = [k for k in ComputeKernel if k is not ComputeKernel.DENSE]
    kernel = ComputeKernel.DENSE if replicated else draw(st.sampled_from(fused))
    caching = kernel is ComputeKernel.FUSED_UVM_CACHING
    local = draw(st.sampled_from([1, 2, 8]))
    hosts = draw(st.sampled_from([1, 2, 3, 4]))
    pod = draw(st.sampled_from([p for p in (1, 2, 4) if hosts % p == 0]))
    return {
        "pooled": pooled,
        "weighted": pooled and draw(st.booleans()),
        "widths": widths,
        "rows": draw(st.integers(1, 10**7)),
        "dtype": draw(st.sampled_from([DataType.FP32, DataType.FP16, DataType.BF16])),
        "lengths": draw(st.lists(st.floats(0.01, 200), min_size=1, max_size=3)),
        "batch": draw(st.integers(1, 10_000)),
        "kind": kind,
        "kernel": kernel,
        "factor": draw(st.sampled_from([None, 0.05, 0.37, 0.9])) if caching else None,
        "world": local * hosts,
        "local": local,
        "pod": pod,
        "optimizer": draw(st.sampled_from([None, SGD, Adam, Adagrad, RowWiseAdagrad])),
        "wire": draw(st.sampled_from([None, (2.0, 2.0), (2.0, 4.0)])),
        "prefetches": caching and draw(st.booleans()),
    }


def their_option(case: dict[str, Any], module: nn.Module) -> TheirOption:
    parameter = next(module.parameters())
    if case["optimizer"] is not None:
        parameter._optimizer_classes = [case["optimizer"]]
    cache = CacheParams(
        load_factor=case["factor"], prefetch_pipeline=True if case["prefetches"] else None
    )
    group = case["local"] * case["pod"]
    sizes = shapes(
        case["kind"], case["rows"], sum(case["widths"]), case["widths"], case["world"], group
    )
    return TheirOption(
        name="t",
        tensor=parameter,
        module=("m", module),
        input_lengths=list(case["lengths"]),
        batch_size=case["batch"],
        sharding_type=str(case["kind"]),
        partition_by=get_partition_by_type(str(case["kind"])),
        compute_kernel=str(case["kernel"]),
        shards=[TheirShard(size=list(s), offset=[0, 0]) for s in sizes],
        cache_params=cache,
        is_pooled=case["pooled"],
    )


def estimate(case: dict[str, Any], option: TheirOption) -> None:
    wire = case["wire"]
    names = (
        "POOLED_EMBEDDINGS_ALL_TO_ALL",
        "SEQUENCE_EMBEDDINGS_ALL_TO_ALL",
        "POOLED_EMBEDDINGS_REDUCE_SCATTER",
    )
    data = SharderData(
        fused_params={},
        qcomm_dtype_sizes={} if wire is None else dict.fromkeys(names, wire),
        storage_usage_type=StorageUsageType.BASE,
    )
    known = {sharder_name(type(option.module[1])): data}
    topology = TheirTopology(
        world_size=case["world"],
        local_world_size=case["local"],
        pod_size=case["pod"],
        compute_device="cuda",
    )
    perf = EmbeddingPerfEstimatorFactory.create(DEFAULT_PERF_ESTIMATOR, topology=topology)
    storage = EmbeddingStorageEstimator(topology=topology)
    for estimator in (perf, storage):
        estimator.estimate([option], sharder_data_map=known)


def our_table(case: dict[str, Any]) -> TorchrecTable:
    element = float(4 if case["dtype"] is DataType.FP32 else 2)
    lengths, batch, pooled = case["lengths"], case["batch"], case["pooled"]
    wire = case["wire"] or (element, element)
    dim = sum(case["widths"])
    return TorchrecTable(
        num_embeddings=case["rows"],
        embedding_dim=dim,
        element_bytes=int(element),
        is_pooled=pooled,
        all_to_all_bytes=wire,
        row_sum_bytes=wire if pooled else (element, element),
        inputs=TorchrecInputs(
            num_ids=sum(x * batch for x in lengths),
            num_outputs=sum((min(1.0, x) if pooled else x) * batch for x in lengths),
            is_weighted=case["weighted"],
            output_bytes=element,
            optimizer_ratio=ratio(case["optimizer"], dim),
            prefetches=case["prefetches"],
        ),
    )


@given(case=cases())
def test_estimates_equal_torchrec(case: dict[str, Any]) -> None:
    module = module_of(
        sum(case["widths"]),
        case["rows"],
        len(case["lengths"]),
        case["dtype"],
        pooled=case["pooled"],
        weighted=case["weighted"],
    )
    option = their_option(case, module)
    estimate(case, option)
    table = our_table(case)
    machine = TorchrecMachine(
        world_size=case["world"],
        local_world_size=case["local"],
        group_size=case["local"] * case["pod"],
    )
    kind, kernel, factor = case["kind"], case["kernel"], case["factor"]
    for shard in option.shards:
        rows, cols = shard.size
        ours = TorchrecShard(
            table, machine, kind, kernel, num_cols=cols, cache_load_factor_ratio=factor
        )
        perf = ours.perf()
        theirs = shard.perf
        assert [
            perf.fwd_compute_s,
            perf.fwd_comms_s,
            perf.bwd_compute_s,
            perf.bwd_comms_s,
            perf.total_s,
        ] == pytest.approx(
            [
                theirs.fwd_compute * MS,
                theirs.fwd_comms * MS,
                theirs.bwd_compute * MS,
                theirs.bwd_comms * MS,
                theirs.total * MS,
            ],
            rel=SAME,
            abs=0.0,
        )
        hbm_bytes, ddr_bytes = ours.storage(rows)
        # TorchRec rounds up quotients of integers that are not always exact: a byte or two.
        assert hbm_bytes == pytest.approx(shard.storage.hbm, rel=SAME, abs=4)
        assert ddr_bytes == pytest.approx(shard.storage.ddr, rel=SAME, abs=4)


def test_every_type_has_an_estimator() -> None:
    assert {str(t) for t in ShardingType} == {t.value for t in TheirType}


def test_memory_left_equals_the_heuristical_reservation() -> None:
    workload, topology = make_workload(), make_topology(2, 4)
    constraints = {
        t.name: ParameterConstraints(pooling_factors=[f.pooling_factor for f in t.features])
        for t in workload.tables
    }
    with pytest.warns(FutureWarning):
        reservation = HeuristicalStorageReservation(
            percentage=0.15, dense_tensor_estimate=6 * 4 * dense_parameters(workload)
        )
    left = reservation.reserve(
        topology_to_torchrec(topology, "cuda"),
        workload.batch_size_per_rank,
        Model(workload),
        [EmbeddingBagCollectionSharder()],
        constraints,
    )
    machine = TorchrecMachine.of(topology)
    ours = machine.device_limits_bytes(workload)
    assert ours == tuple(d.storage.hbm for d in left.devices)
    assert machine.ddr_limits_bytes[0] == left.devices[0].storage.ddr


@pytest.mark.parametrize("name", ["torchrec", "torchrec-critical-path"])
def test_plans_are_worth_what_torchrec_says(name: str) -> None:
    workload, topology = make_workload(), make_topology(2, 4)
    found = api.plan(workload, topology, objective=name, max_evaluations=500, time_limit_s=None)
    sharders = [EmbeddingBagCollectionSharder()]
    constraints = {
        t.name: ParameterConstraints(pooling_factors=[f.pooling_factor for f in t.features])
        for t in workload.tables
    }
    batch = workload.batch_size_per_rank
    model = describe_model(Model(workload), sharders, batch_size=batch, constraints=constraints)
    assert model is not None
    options = to_sharding_options(found.plan, model, topology_to_torchrec(topology, "cuda"))
    rating = NoopPerfModel(topology_to_torchrec(topology, "cuda")).rate(options)
    path = _calculate_critical_path(options).total()
    theirs = rating if name == "torchrec" else path
    assert found.solver.value == pytest.approx(theirs * MS, rel=SAME)
