"""Draws TorchRec models with their settings from a seed, and plans each by both planners."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
import torchrec
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import storage_reservations as reservations
from torchrec.distributed.planner.planners import EmbeddingShardingPlanner
from torchrec.distributed.planner.types import (
    ParameterConstraints,
    PlannerError,
    StorageReservation,
    Topology,
)
from torchrec.distributed.types import CacheParams, ModuleSharder, ShardingPlan
from torchrec.modules.embedding_configs import DataType, EmbeddingConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

from costmodels.pipeline import CostPipeline
from planner.integrations.drop_in import emptier, host_bytes
from planner.integrations.torchrec_planner import ShardPlanner

GB: Final = 2**30
META: Final = torch.device("meta")
MEMORIES: Final = {"fused_uvm_caching": 1, "fused_uvm": 2}
"""How slow the memory of a kernel is; 0 for device memory."""


class OwnAdagrad(torch.optim.Adagrad):
    """Of one's own."""


class Unheard(torch.optim.Optimizer):
    """Of no known base."""

    def __init__(self, params: Any, lr: float = 0.01) -> None:
        super().__init__(params, {"lr": lr})


OPTIMIZERS: Final = (
    torchrec.optim.RowWiseAdagrad,
    torchrec.optim.RowWiseAdagrad,
    torch.optim.SGD,
    torch.optim.Adagrad,
    torch.optim.Adam,
    torchrec.optim.PartialRowWiseAdam,
    OwnAdagrad,
    Unheard,
)


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A model, and what a job would give both planners."""

    model: nn.Module
    sharders: list[ModuleSharder[nn.Module]]
    arguments: dict[str, Any]
    reservation: tuple[str, float]

    def reserve(self) -> StorageReservation | None:
        """A new reservation; both planners keep what they have counted in theirs."""
        return made_reservation(*self.reservation, self.arguments["topology"])


Kind = tuple[str, float]
"""The kind of a storage reservation, and the share of a device that it keeps."""


def made_reservation(kind: str, share: float, topology: Topology) -> StorageReservation | None:
    """A new reservation of a kind; None for TorchRec's default."""
    hbm = topology.devices[0].storage.hbm
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        if kind == "percentage":
            return reservations.FixedPercentageStorageReservation(share)
        if kind == "absolute":
            return reservations.FixedAbsoluteStorageReservation(int(share * hbm))
        if kind == "heuristical":
            return reservations.HeuristicalStorageReservation(share)
        if kind == "inference":
            return reservations.InferenceStorageReservation(share)
    return None


def drawn_reservation(rng: np.random.Generator) -> Kind:
    """The kind and the share of a reservation."""
    kinds = ["default", "default", "percentage", "percentage", "absolute", "heuristical"]
    return str(rng.choice([*kinds, "inference"])), float(rng.uniform(0.05, 0.4))


def drawn(seed: int) -> Drawn:
    """The model of a seed."""
    rng = np.random.default_rng(seed)
    world = int(rng.choice([2, 4, 8]))
    local = world if world == 2 or rng.random() < 0.6 else world // 2
    hbm = float(rng.choice([16, 32, 80])) * GB
    topology = Topology(
        world, "cuda", hbm_cap=int(hbm), ddr_cap=int(128 * GB), local_world_size=local
    )
    model, names = nn.Module(), list[str]()
    most = 0.6 if rng.random() < 0.7 else 1.5
    room = hbm * world * rng.uniform(0.02, most)
    model.bags = drawn_bags(rng, names, room)
    if rng.random() < 0.25:
        model.sequences = drawn_sequences(rng, names)
    width = int(rng.choice([64, 1024, 8192, 16384]))
    model.over = nn.Sequential(nn.Linear(width, width, device=META), nn.ReLU())
    if rng.random() < 0.7:
        _optimize(rng, model)
    fused = {"cache_load_factor": 0.3} if rng.random() < 0.1 else None
    return Drawn(
        model=model,
        sharders=[EmbeddingBagCollectionSharder(fused), EmbeddingCollectionSharder()],
        arguments={
            "topology": topology,
            "batch_size": int(rng.choice([64, 256, 512, 2048, 8192])),
            "constraints": drawn_constraints(rng, names) or None,
            "stats": [],
        },
        reservation=drawn_reservation(rng),
    )


def _rows(rng: np.random.Generator, dim: int, room: float) -> int:
    return int(min(10 ** rng.uniform(2, 8.2), room / (4 * dim)))


def drawn_bags(rng: np.random.Generator, names: list[str], room: float) -> EmbeddingBagCollection:
    tables = []
    count = int(rng.integers(1, 13))
    mean = rng.random() < 0.15
    for i in range(count):
        dim = int(rng.choice([16, 32, 64, 128, 256]))
        names.append(f"t{i}")
        tables.append(
            EmbeddingBagConfig(
                name=f"t{i}",
                num_embeddings=max(_rows(rng, dim, room / count * rng.uniform(0.5, 1.5)), 100),
                embedding_dim=dim,
                feature_names=[f"f{i}_{j}" for j in range(int(rng.choice([1, 1, 1, 2])))],
                pooling=PoolingType.MEAN if mean else PoolingType.SUM,
                data_type=DataType.FP16 if rng.random() < 0.15 else DataType.FP32,
            )
        )
    return EmbeddingBagCollection(tables, is_weighted=bool(rng.random() < 0.1), device=META)


def drawn_sequences(
    rng: np.random.Generator, names: list[str], most_rows: float = 7.0
) -> EmbeddingCollection:
    """Unpooled tables of up to ``10 ** most_rows`` rows."""
    count = int(rng.integers(1, 4))
    names += [f"s{i}" for i in range(count)]
    tables = [
        EmbeddingConfig(
            name=f"s{i}",
            num_embeddings=int(10 ** rng.uniform(2, most_rows)),
            embedding_dim=64,
            feature_names=[f"h{i}"],
        )
        for i in range(count)
    ]
    return EmbeddingCollection(tables, device=META)


def _optimize(rng: np.random.Generator, model: nn.Module) -> None:
    most = OPTIMIZERS[rng.integers(len(OPTIMIZERS))]
    for module in (model.bags, getattr(model, "sequences", None)):
        for parameter in () if module is None else module.parameters():
            other = OPTIMIZERS[rng.integers(len(OPTIMIZERS))]
            kind = most if rng.random() < 0.8 else other
            apply_optimizer_in_backward(kind, [parameter], {"lr": 0.01})  # type: ignore[arg-type]


def drawn_constraints(
    rng: np.random.Generator, names: list[str]
) -> dict[str, ParameterConstraints]:
    found = {}
    for name in names:
        if rng.random() < 0.4:
            continue
        limit = ParameterConstraints(pooling_factors=[float(rng.choice([0.5, 1, 5, 20, 80]))])
        if rng.random() < 0.15:
            limit.sharding_types = ["table_wise", "row_wise"]
        if rng.random() < 0.1:
            limit.compute_kernels = ["fused", "fused_uvm_caching"]
            limit.cache_params = CacheParams(load_factor=0.2)
        elif rng.random() < 0.1:
            limit.compute_kernels = ["fused"]
        if rng.random() < 0.1:
            limit.min_partition = 32
        found[name] = limit
    return found


def planned_by_both(seed: int) -> tuple[ShardingPlan | None, ShardPlanner, ShardingPlan | str]:
    """TorchRec's plan (None if it refuses), our planner, and our plan (or why there is none)."""
    given = drawn(seed)
    theirs: ShardingPlan | None
    try:
        theirs = EmbeddingShardingPlanner(
            **given.arguments, storage_reservation=given.reserve()
        ).plan(given.model, given.sharders)
    except PlannerError:
        theirs = None
    given = drawn(seed)
    planner = ShardPlanner(**given.arguments, storage_reservation=given.reserve())
    try:
        return theirs, planner, planner.plan(given.model, given.sharders)
    except PlannerError as error:
        return theirs, planner, str(error)


def slower_memories(seed: int) -> list[str]:
    """What is wrong with our plan: a refusal, or slower memory than TorchRec's with room left."""
    theirs, planner, ours = planned_by_both(seed)
    if theirs is None:
        return []
    if isinstance(ours, str):
        return [f"refused: {ours}"]
    lines = []
    for path, module in theirs.plan.items():
        for name, sharding in module.items():
            mine = ours.plan[path][name].compute_kernel
            if MEMORIES.get(mine, 0) > MEMORIES.get(sharding.compute_kernel, 0):
                lines.append(f"{name}: {mine} where TorchRec has {sharding.compute_kernel}")
    return lines if _has_room(planner) else []


def _has_room(planner: ShardPlanner) -> bool:
    """Whether a table of the plan that is in host memory would fit in some device's memory."""
    result = planner.result
    if result is None:
        return True
    pipeline = CostPipeline(result.problem.workload, result.problem.topology)
    found = emptier(result.plan, result.problem, CostPipeline, math.inf)
    return host_bytes(pipeline, found) < host_bytes(pipeline, result.plan)
