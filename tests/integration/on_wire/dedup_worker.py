"""One rank that exchanges distinct indices: ``dedup_worker.py RANK WORLD FOLDER``; see main.

FBGEMM finds distinct indices on GPUs only, so ``jagged_unique_indices`` has a stand-in here that
gives what the kernel gives: sorted ids, their places, and lengths of the type of the offsets, which
share a table's distinct ids out evenly.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import fbgemm_gpu  # noqa: F401 - declares the operator
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from costmodels.distribution.base import AbstractIndexDistribution
from costmodels.distribution.empirical import Empirical
from costmodels.distribution.zipf import Zipf
from costmodels.pipeline import CostPipeline
from costmodels.shard_work.wire import EXCHANGING_TYPES
from costmodels.shard_work.work import INPUT, sent_bytes
from costmodels.sharding import ShardingType
from planner.integrations.torchrec_workload import WorkloadHints, describe_model
from tests.integration.builders import make_topology
from tests.integration.models import sequences
from tests.integration.on_ranks import gloo_model as gm
from tests.integration.on_ranks.sharding_worker import CUTS, by_types
from tests.integration.on_wire.codec_worker import counted
from tests.integration.read_back import from_sharding_plan

ROWS: Final = {"clicks": 50, "pages": 8}
TYPES: Final = (ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE, ShardingType.ROW_WISE)
BATCH, HOT = 4, 6
LARGE_ROWS, LARGE_BATCH, LARGE_HOT = 20_000, 512, 20


@torch.library.impl("fbgemm::jagged_unique_indices", "cpu")
def distinct(
    hash_size_cumsum: torch.Tensor,
    hash_size_offsets: torch.Tensor,
    offsets: torch.Tensor,
    indices: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """Lengths, offsets, distinct indices, and the place of each index among them."""
    first, ends = hash_size_cumsum.tolist(), hash_size_offsets.tolist()
    bags = len(offsets) - 1
    batch = bags // (len(first) - 1)
    feature = torch.repeat_interleave(torch.arange(bags) // batch, offsets.diff())
    ids, places = torch.unique(indices + hash_size_cumsum[feature], return_inverse=True)
    lengths = torch.zeros(bags, dtype=offsets.dtype)
    for begin, end in pairwise(ends):
        size = (end - begin) * batch
        if size:
            found = int(((ids >= first[begin]) & (ids < first[end])).sum())
            share = torch.full((size,), found // size)
            share[: found % size] += 1
            lengths[begin * batch : end * batch] = share
    owner = torch.searchsorted(hash_size_cumsum, ids, right=True) - 1
    total = torch.cat([torch.zeros(1, dtype=lengths.dtype), lengths.cumsum(0)])
    return lengths, total, ids - hash_size_cumsum[owner], places


class Sequences(nn.Module):
    """Unpooled tables and one dense parameter."""

    def __init__(self, rows: dict[str, int]) -> None:
        super().__init__()
        self.history = sequences([(name, count, gm.DIM) for name, count in rows.items()])
        self.bias = nn.Parameter(torch.ones(()))

    def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
        means = [v.values().sin().mean() for v in self.history(features).values()]
        return torch.stack(means).sum() * self.bias


def features(ids: dict[str, np.ndarray], batch: int) -> KeyedJaggedTensor:  # type: ignore[type-arg]
    """As many indices for every sample."""
    values = np.concatenate(list(ids.values()))
    hot = len(next(iter(ids.values()))) // batch
    return KeyedJaggedTensor(
        keys=[f"f_{name}" for name in ids],
        values=torch.from_numpy(values),
        lengths=torch.full((batch * len(ids),), hot, dtype=torch.int32),
    )


def repeated(rank: int) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    """24 indices of a table with 6 distinct ones, 3 in either half of its rows, on every rank."""
    rng = np.random.default_rng(rank)
    found = {}
    for name, rows in ROWS.items():
        halves = [rng.choice(rows // 2, 3, replace=False) + half for half in (0, rows // 2)]
        found[name] = rng.permutation(np.repeat(np.concatenate(halves), BATCH))
    return found


def compared(
    kind: ShardingType,
    ids: dict[str, np.ndarray],  # type: ignore[type-arg]
    laws: dict[str, AbstractIndexDistribution],
    batch: int,
    *,
    use_index_dedup: bool,
) -> dict[str, list[float]]:
    """Bytes of vectors, and of lengths and indices, in one forward pass, and the loss before it."""
    world = dist.get_world_size()
    sharders: list[Any] = [
        EmbeddingCollectionSharder(fused_params=gm.FUSED_PARAMS, use_index_dedup=use_index_dedup)
    ]
    rows = {name: law.num_embeddings for name, law in laws.items()}
    model = Sequences(rows)
    limits = {
        name: ParameterConstraints(pooling_factors=[len(found) / batch])
        for name, found in ids.items()
    }
    described = describe_model(
        model,
        sharders,
        batch_size=batch,
        compute_device="cpu",
        constraints=limits,
        hints=WorkloadHints(distributions=laws),
    )
    assert described is not None
    workload = described.workload
    plan = by_types(workload, [kind], world, world)
    work = CostPipeline(workload, make_topology(1, world)).plan_work(
        from_sharding_plan(plan, workload)
    )
    me, family = dist.get_rank(), EXCHANGING_TYPES.index(kind)
    sharded = gm.shard(model, sharders, plan)
    with counted(world) as sent:
        loss = sharded(features(ids, batch))
        value = float(loss)
    loss.backward()
    again = float(sharded(features(ids, batch)))
    return {
        "counted": list(sent),
        "predicted": [
            float(sent_bytes(work, family)[0][me]),
            float(work[1 - me, INPUT + family]),
        ],
        "losses": [value, again],
    }


def main(rank: int, world: int, folder: Path) -> None:
    """Given data on which the distinct indices are known, and data of a law."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    gm.join(rank, world, str(folder / "store"))
    CUTS[ShardingType.COLUMN_WISE] = (gm.DIM // 2,) * 2  # unpooled pieces must be equally wide
    ids = repeated(rank)
    known = {
        name: Empirical.from_bins(
            *(np.array([rows]), np.array([1.0]), rows),
            num_unique_curve=((float(BATCH * HOT), 6.0),),
        )
        for name, rows in ROWS.items()
    }
    found = {
        f"{kind} {use_index_dedup}": compared(
            kind, ids, known, BATCH, use_index_dedup=use_index_dedup
        )
        for kind in TYPES
        for use_index_dedup in (False, True)
    }
    law = Zipf(num_embeddings=LARGE_ROWS, exponent=1.05)
    rng = np.random.default_rng(rank)
    bins, probability = law.frequency_bins()
    drawn = rng.choice(len(bins), LARGE_BATCH * LARGE_HOT, p=bins * probability)
    places = (np.cumsum(bins) - bins)[drawn] + np.floor(rng.random(len(drawn)) * bins[drawn])
    scattered = np.random.default_rng(0).permutation(LARGE_ROWS)[places.astype(np.int64)]
    for kind in TYPES:
        found[f"{kind} law"] = compared(
            kind, {"large": scattered}, {"large": law}, LARGE_BATCH, use_index_dedup=True
        )
    (folder / f"dedup-{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
