"""One rank that sends given ids of hot rows: ``hot_rows_worker.py RANK WORLD FOLDER``; see main."""

from __future__ import annotations

import json
import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from costmodels.datatypes import IntArray
from costmodels.distribution.empirical import Empirical
from costmodels.pipeline import CostPipeline
from costmodels.shard_work.wire import EXCHANGING_TYPES
from costmodels.shard_work.work import INPUT
from costmodels.sharding import ShardingType
from planner.integrations.torchrec_workload import WorkloadHints, describe_model
from tests.integration.builders import make_topology
from tests.integration.on_ranks import gloo_model as gm
from tests.integration.on_ranks.sharding_worker import by_types
from tests.integration.read_back import from_sharding_plan

ROWS, BATCH, HOT = 1024, 64, 8
RANGES = 4


class Pooled(nn.Module):
    """One pooled table and one dense parameter."""

    def __init__(self) -> None:
        super().__init__()
        table = EmbeddingBagConfig(
            name="hot", num_embeddings=ROWS, embedding_dim=gm.DIM, feature_names=["f_hot"]
        )
        self.bags = EmbeddingBagCollection(device=torch.device("meta"), tables=[table])
        self.bias = nn.Parameter(torch.ones(()))

    def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
        return self.bags(features).values().sin().mean() * self.bias


def given_ids(world: int) -> IntArray:
    """``[ranks, indices]``: six in ten are of one row, and small ids are hotter than large ones."""
    rng = np.random.default_rng(world)
    ids = np.minimum(rng.integers(0, 90, (world, BATCH * HOT)) ** 2 // 8, ROWS - 1)
    ids[rng.random(ids.shape) < 0.6] = 700
    return np.asarray(ids, dtype=np.int64)


def law_of(ids: IntArray) -> Empirical:
    """The law of exactly these ids, with the rows of each id range."""
    counts = np.bincount(ids.reshape(-1), minlength=ROWS)
    seen = np.unique(counts)[::-1].astype(float)
    in_range = (counts.reshape(RANGES, -1)[:, :, None] == seen).sum(axis=1).astype(float)
    bins = in_range.sum(axis=0), seen
    return Empirical.from_bins(*bins, ROWS, range_rows=in_range, num_ids_in_ranges=ROWS)


def sent_to_each(model: nn.Module, features: KeyedJaggedTensor, world: int) -> list[float]:
    """Bytes of lengths and ids that this rank sends to each rank, itself among them."""
    total, kept = np.zeros(world), dist.all_to_all_single

    def counting(output: torch.Tensor, given: torch.Tensor, *more: Any, **named: Any) -> Any:
        splits = named.get("input_split_sizes")
        if splits and not given.is_floating_point():
            total[:] += np.array(splits) * given.element_size()
        return kept(output, given, *more, **named)

    def by_name(*given: Any, **named: Any) -> Any:
        first = [named.pop(k) for k in ("output", "input") if k in named]
        return counting(*first, *given, **named)

    dist.all_to_all_single = by_name
    try:
        model(features)
    finally:
        dist.all_to_all_single = kept
    return [float(x) for x in total]


def main(rank: int, world: int, folder: Path) -> None:
    """The bytes counted on this rank, and those that are priced for every rank."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    gm.join(rank, world, str(folder / "store"))
    ids, model, sharders = given_ids(world), Pooled(), gm.make_sharders()
    described = describe_model(
        model,
        sharders,
        batch_size=BATCH,
        compute_device="cpu",
        constraints={"hot": ParameterConstraints(pooling_factors=[float(HOT)])},
        hints=WorkloadHints(distributions={"hot": law_of(ids)}),
    )
    assert described is not None
    workload = described.workload
    plan = by_types(workload, [ShardingType.ROW_WISE], world, world)
    priced = CostPipeline(workload, make_topology(1, world)).plan_work(
        from_sharding_plan(plan, workload)
    )
    features = KeyedJaggedTensor(
        keys=["f_hot"],
        values=torch.from_numpy(ids[rank]),
        lengths=torch.full((BATCH,), HOT, dtype=torch.int32),
    )
    counted = sent_to_each(gm.shard(model, sharders, plan), features, world)
    column = INPUT + EXCHANGING_TYPES.index(ShardingType.ROW_WISE)
    found = {"counted": counted, "priced": (priced[:, column] * world).tolist()}
    (folder / f"hot-{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
