"""One planner on one instance, judged by TorchRec's own code and by our pipeline.

Prints one line, ``ROW`` and a JSON object; :mod:`benchmarks.search.torchrec` runs it in a process
of its own, so that it can be ended.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
import warnings
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fbgemm_qcomm_codec import (
    CommType,
    QCommsConfig,
    get_qcomm_codecs_registry,
)
from torchrec.distributed.planner.partitioners import GreedyPerfPartitioner, SortBy
from torchrec.distributed.planner.planners import EmbeddingShardingPlanner
from torchrec.distributed.planner.proposers import DynamicProgrammingProposer
from torchrec.distributed.planner.stats import NoopEmbeddingStats, _calculate_critical_path
from torchrec.distributed.planner.storage_reservations import HeuristicalStorageReservation
from torchrec.distributed.planner.types import ParameterConstraints, PlannerError, ShardingOption
from torchrec.distributed.types import CacheParams, ModuleSharder
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.optim import RowWiseAdagrad

from benchmarks.search.torchrec_instances import Instance, instance
from costmodels.sharding import Plan, ShardingType
from costmodels.torchrec_estimates import MIN_COLUMN_WIDTH
from costmodels.workload import DataType as OurType
from planner import api
from planner.errors import PlannerError as OurError
from planner.integrations.torchrec_plan import plan_of, to_sharding_options
from planner.integrations.torchrec_topology import topology_to_torchrec
from planner.integrations.torchrec_workload import describe_model
from planner.options.torchrec_rules import COLUMN_MULTIPLE
from planner.problem import Constraints, TableConstraint
from planner.search.base import SearchProgress

THEIRS: Final = ("default", "hbm", "perf", "dp")
OURS: Final = {
    "ours": "torchrec",
    "ours-critical": "torchrec-critical-path",
    "ours-their-options": "torchrec",
}
_DTYPES: Final = {OurType.FP32: DataType.FP32, OurType.FP16: DataType.FP16}
_MS: Final = 1e3
_RESERVED: Final = 0.15


class _Model(nn.Module):  # type: ignore[misc]
    """Tables on the meta device, with the optimizer where TorchRec's estimator looks for it."""

    def __init__(self, case: Instance) -> None:
        super().__init__()
        tables = [
            EmbeddingBagConfig(
                name=t.name,
                embedding_dim=t.embedding_dim,
                num_embeddings=t.num_embeddings,
                feature_names=[f.name for f in t.features],
                data_type=_DTYPES[t.dtype],
            )
            for t in case.workload.tables
        ]
        meta = torch.device("meta")
        self.embedding_bag_collection = EmbeddingBagCollection(tables=tables, device=meta)
        for parameter in self.parameters():
            parameter._optimizer_classes = [RowWiseAdagrad]
            parameter._optimizer_kwargs = [{}]


def _constraints(case: Instance, kernels: list[str] | None) -> dict[str, ParameterConstraints]:
    ratio = case.cache_load_factor_ratio
    return {
        t.name: ParameterConstraints(
            pooling_factors=[f.pooling_factor for f in t.features],
            compute_kernels=kernels,
            cache_params=None if ratio is None else CacheParams(load_factor=ratio),
        )
        for t in case.workload.tables
    }


def _sharders(case: Instance) -> list[ModuleSharder[nn.Module]]:
    """TorchRec's, with the codecs that the tables travel with."""
    codecs = case.workload.tables[0].communication
    if codecs is None or codecs.all_to_all is None:
        return [EmbeddingBagCollectionSharder()]
    both = codecs.all_to_all
    config = QCommsConfig(
        forward_precision=CommType(both.forward.precision.value),
        backward_precision=CommType(both.backward.precision.value),
    )
    registry = get_qcomm_codecs_registry(config, device=torch.device("cpu"))
    return [EmbeddingBagCollectionSharder(qcomm_codecs_registry=registry)]


def _theirs(case: Instance, name: str, limit_s: float) -> dict[str, Any]:
    kernels = ["fused", "dense"] if name == "hbm" else None
    more: dict[str, Any] = {}
    if name == "perf":
        more["partitioner"] = GreedyPerfPartitioner(sort_by=SortBy.PERF)
    if name == "dp":
        more["proposer"] = DynamicProgrammingProposer()
    planner = EmbeddingShardingPlanner(
        topology=topology_to_torchrec(case.topology, "cuda"),
        batch_size=case.workload.batch_size_per_rank,
        constraints=_constraints(case, kernels),
        stats=NoopEmbeddingStats(),
        debug=False,
        timeout_seconds=int(limit_s),
        **more,
    )
    model = _Model(case)
    started = time.perf_counter()
    best_s = _watch(planner, started)
    try:
        planner.plan(model, _sharders(case))
    except PlannerError as error:
        return {"seconds": time.perf_counter() - started, "error": error.error_type.value}
    seconds = time.perf_counter() - started
    row = {"seconds": seconds, "best_s": best_s[-1], "proposals": planner._num_proposals}
    best = planner._best_plan or []
    row |= _judged_by_torchrec(case, best)
    return row | _judged_by_us(case, plan_of(best))


def _watch(planner: EmbeddingShardingPlanner, started: float) -> list[float]:
    """Seconds after which the planner's best rating fell, as they come."""
    best = [float("inf"), 0.0]
    rate = planner._perf_model.rate

    def watched(plan: list[ShardingOption]) -> float:
        value = float(rate(plan))
        if value < best[0]:
            best[:] = [value, time.perf_counter() - started]
        return value

    planner._perf_model.rate = watched
    return best


def _ours(case: Instance, name: str, limit_s: float) -> dict[str, Any]:
    history: list[tuple[float, float]] = []
    started = time.perf_counter()

    def note(progress: SearchProgress) -> None:
        value = progress.incumbent
        if value is not None and (not history or value * _MS < history[-1][1]):
            history.append((round(time.perf_counter() - started, 3), value * _MS))

    try:
        result = api.plan(
            case.workload,
            case.topology,
            constraints=_our_constraints(case, name),
            objective=OURS[name],
            time_limit_s=limit_s,
            progress=note,
            with_baselines=False,
        )
    except OurError as error:
        return {"seconds": time.perf_counter() - started, "error": str(error)[:160]}
    row: dict[str, Any] = {"seconds": time.perf_counter() - started, "best_s": history[-1][0]}
    row["bound_ms"] = (result.solver.bound or 0.0) * _MS
    row["value_ms"] = result.solver.value * _MS
    row["progress"] = json.dumps(history)
    row |= _judged_by_torchrec(case, _their_options(case, result.plan))
    return row | _judged_by_us(case, result.plan)


def _our_constraints(case: Instance, name: str) -> Constraints:
    """The size of caches, if the instance has one; for one of ours, only TorchRec's options too."""
    ratio = case.cache_load_factor_ratio
    theirs = name == "ours-their-options"
    rule = TableConstraint(
        pattern="*",
        min_column_width=MIN_COLUMN_WIDTH if theirs else COLUMN_MULTIPLE,
        cache_load_factors=() if ratio is None else (ratio,),
    )
    left_out = {ShardingType.GRID_SHARD} if theirs else set()
    kinds = tuple(t for t in ShardingType if t not in left_out)
    return Constraints(tables=(rule,), sharding_types=kinds)


def _their_options(case: Instance, plan: Plan) -> list[ShardingOption]:
    sharders = _sharders(case)
    batch, constraints = case.workload.batch_size_per_rank, _constraints(case, None)
    model = describe_model(_Model(case), sharders, batch_size=batch, constraints=constraints)
    if model is None:
        return []
    topology = topology_to_torchrec(case.topology, "cuda")
    return to_sharding_options(plan, model, topology)


def _judged_by_torchrec(case: Instance, options: Sequence[ShardingOption]) -> dict[str, Any]:
    """Its rating, its critical path, and whether every rank fits after its reservation."""
    load: dict[int, float] = defaultdict(float)
    hbm: dict[int, int] = defaultdict(int)
    ddr: dict[int, int] = defaultdict(int)
    for option in options:
        for shard in option.shards:
            if shard.rank is None or shard.perf is None or shard.storage is None:
                msg = f"a shard of {option.name} is not placed or not priced"
                raise ValueError(msg)
            load[shard.rank] += shard.perf.total
            hbm[shard.rank] += shard.storage.hbm
            ddr[shard.rank] += shard.storage.ddr
    left = HeuristicalStorageReservation(percentage=_RESERVED).reserve(
        topology_to_torchrec(case.topology, "cuda"),
        case.workload.batch_size_per_rank,
        _Model(case),
        _sharders(case),
        _constraints(case, None),
    )
    fits = all(
        hbm[r] <= d.storage.hbm and ddr[r] <= d.storage.ddr for r, d in enumerate(left.devices)
    )
    return {
        "found": 1,
        "rating_ms": max(load.values()),
        "critical_path_ms": _calculate_critical_path(list(options)).total(),
        "fits": int(fits),
    }


def _judged_by_us(case: Instance, plan: Plan) -> dict[str, Any]:
    priced = api.estimate(case.workload, case.topology, plan)
    return {"iteration_ms": priced.estimate.time.time_s * _MS}


def main() -> None:
    """Run one planner on one instance."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instance", required=True)
    parser.add_argument("--planner", required=True, choices=[*THEIRS, *OURS])
    parser.add_argument("--limit-s", type=float, required=True)
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    case = instance(chosen.instance)
    run = _ours if chosen.planner in OURS else _theirs
    run(instance("synthetic10@8"), chosen.planner, chosen.limit_s)  # some imports wait for a search
    print("ROW " + json.dumps(run(case, chosen.planner, chosen.limit_s)))


if __name__ == "__main__":
    main()
