"""One rank that counts bytes on the wire: ``codec_worker.py RANK WORLD FOLDER``; see main."""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed.fbgemm_qcomm_codec import (
    CommType,
    QCommsConfig,
    get_qcomm_codecs_registry,
)
from torchrec.distributed.planner.types import ParameterConstraints

from costmodels.pipeline import CostPipeline
from costmodels.shard_work.wire import BACKWARD, EXCHANGING_TYPES, FORWARD
from costmodels.shard_work.work import sent_bytes
from costmodels.sharding import ShardingType
from costmodels.workload import Pooling
from planner.integrations.torchrec_workload import describe_model
from planner.options.torchrec_rules import SUMS_ROWS
from tests.integration.builders import make_topology
from tests.integration.on_ranks import gloo_model as gm
from tests.integration.on_ranks.sharding_worker import CUTS, by_types
from tests.integration.read_back import from_sharding_plan

PRECISIONS: Final = (("fp32", "fp32"), ("fp16", "fp32"), ("int8", "fp16"), ("fp16", "int8"))
TYPES: Final = (
    ShardingType.TABLE_WISE,
    ShardingType.COLUMN_WISE,
    ShardingType.ROW_WISE,
    ShardingType.TABLE_ROW_WISE,
)
_WIRE: Final = (torch.float32, torch.float16, torch.bfloat16, torch.uint8)
"""Element types of vectors on the wire; indices and lengths are integers."""
_SENDERS: Final = {
    "all_to_all_single": lambda given, world: given / world,
    "reduce_scatter_tensor": lambda given, world: given / world,
    "all_gather_into_tensor": lambda given, world: given,
}
"""Bytes for each other rank from the bytes of the tensor that a rank gives to a collective."""


@contextmanager
def counted(world: int) -> Iterator[list[float]]:
    """Bytes that this rank sends to the other one meanwhile: of vectors, of lengths and indices."""
    total, kept = [0.0, 0.0], {name: getattr(dist, name) for name in _SENDERS}

    def counting(name: str) -> Any:
        def call(output: torch.Tensor, given: torch.Tensor, *more: Any, **named: Any) -> Any:
            splits = named.get("input_split_sizes")
            if given.dtype in _WIRE or splits:
                total[given.dtype not in _WIRE] += _to_other(name, given, splits, world)
            return kept[name](output, given, *more, **named)

        def named_call(*given: Any, **named: Any) -> Any:
            tensors = [named.pop(k) for k in ("output_tensor", "input_tensor") if k in named]
            inputs = [named.pop(k) for k in ("output", "input") if k in named]
            return call(*tensors, *inputs, *given, **named)

        return named_call

    for name in _SENDERS:
        setattr(dist, name, counting(name))
    try:
        yield total
    finally:
        for name, function in kept.items():
            setattr(dist, name, function)


def _to_other(name: str, given: torch.Tensor, splits: list[int] | None, world: int) -> float:
    size = float(given.numel() * given.element_size())
    if name == "all_to_all_single" and splits:
        return float(splits[1 - dist.get_rank()] * given.element_size())
    return float(_SENDERS[name](size, world))


def exchanged(
    module: nn.Module, sharders: list[Any], kind: ShardingType, batch: Any, size: int
) -> dict[str, list[float]] | None:
    """(counted, predicted) bytes of one step forward and backward; None if it cannot be trained."""
    world, pooling = dist.get_world_size(), {"clicks": 3.0, "pages": 3.0}
    limits = {t: ParameterConstraints(pooling_factors=[p]) for t, p in pooling.items()}
    described = describe_model(
        module, sharders, batch_size=size, compute_device="cpu", constraints=limits
    )
    assert described is not None
    workload, topology = described.workload, make_topology(1, world)
    first = workload.tables[0]
    sums_rows = kind in SUMS_ROWS and first.pooling is not Pooling.NONE
    if sums_rows and not first.codecs.sums_rows:
        return None
    plan = by_types(workload, [kind], world, world)
    ours = from_sharding_plan(plan, workload)
    work = CostPipeline(workload, topology).plan_work(ours)
    predicted = [
        sum(
            float(sent_bytes(work, f, way)[0][dist.get_rank()])
            for f in range(len(EXCHANGING_TYPES))
        )
        for way in (FORWARD, BACKWARD)
    ]
    model = gm.shard(module, sharders, plan)
    with counted(world) as forward:
        loss = model(batch)
        loss = loss[0] if isinstance(loss, tuple) else loss
    with counted(world) as backward:
        loss.backward()
    return {"counted": [forward[0], backward[0]], "predicted": predicted}


def main(rank: int, world: int, folder: Path) -> None:
    """Bytes of pooled and of unpooled tables by type, under every pair of precisions."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    gm.join(rank, world, str(folder / "store"))
    pieces = {"pooled": CUTS[ShardingType.COLUMN_WISE], "unpooled": (gm.DIM // 2,) * 2}
    found: dict[str, dict[str, list[float]]] = {}
    for forward, backward in PRECISIONS:
        config = QCommsConfig(
            forward_precision=CommType(forward), backward_precision=CommType(backward)
        )
        codecs = get_qcomm_codecs_registry(config, device=torch.device("cpu"))
        CUTS[ShardingType.COLUMN_WISE] = pieces["pooled"]
        for kind in TYPES:
            sharders = gm.make_sharders()
            sharders[0]._qcomm_codecs_registry = codecs
            made = exchanged(gm.make_model(), sharders, kind, gm.make_batches(rank)[0], gm.BATCH)
            if made is not None:
                found[f"{forward}/{backward} {kind}"] = made
        CUTS[ShardingType.COLUMN_WISE] = pieces["unpooled"]  # they must be equally wide
        for kind in TYPES[:3]:
            sharders = gm.sequence_sharders()
            sharders[0]._qcomm_codecs_registry = codecs
            made = exchanged(gm.Sequences(), sharders, kind, gm.sequence_batch(rank), 4)
            if made is not None:
                found[f"{forward}/{backward} unpooled {kind}"] = made
    (folder / f"bytes-{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
