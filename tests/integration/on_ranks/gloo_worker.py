"""One rank of the training test: ``gloo_worker.py RANK WORLD FOLDER``; answers in rank-R.json.

Then both do what a rank of ``examples/03_use_in_torchrec.py`` does, and print what it prints.
At the end rank 0 dies while it plans, with exit code 3, and rank 1 says what it made of that.
"""

from __future__ import annotations

import json
import logging
import os
import runpy
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed._shard.sharding_spec import EnumerableShardingSpec, ShardMetadata
from torchrec.distributed.planner.types import ParameterConstraints, PlannerError
from torchrec.distributed.types import EmbeddingModuleShardingPlan, ShardingPlan

from costmodels.errors import InvalidValueError
from costmodels.workload import Workload
from planner import io
from planner.integrations.torchrec_planner import ShardPlanner
from planner.integrations.torchrec_workload import describe_model
from planner.options.torchrec_rules import layout_problems
from tests.integration.builders import make_topology
from tests.integration.on_ranks import gloo_model as gm
from tests.integration.read_back import from_sharding_plan

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "03_use_in_torchrec.py"


def planned(folder: Path, rank: int) -> dict[str, ShardingPlan]:
    """Plans of the planner: searched, with forced types, and read from a file."""
    made = {}
    for name, types in {
        "searched": None,
        "mixed": ["row_wise", "column_wise", "data_parallel", "table_wise"],
    }.items():
        constraints = gm.make_constraints()
        if types is not None:
            for i, limit in enumerate(constraints.values()):
                limit.sharding_types = [types[i % len(types)]]
        planner = new_planner(constraints)
        made[name] = planner.collective_plan(gm.make_model(), gm.make_sharders())
        if name == "searched" and rank == 0:
            assert planner.result is not None
            io.save_plan(folder / "plan.json", planner.result)
    dist.barrier()
    from_file = ShardPlanner.from_plan(
        folder / "plan.json", batch_size=gm.BATCH, constraints=gm.make_constraints()
    )
    made["from file"] = from_file.collective_plan(gm.make_model(), gm.make_sharders())
    return made


def trained_sequences(rank: int) -> dict[str, list[float]]:
    """Losses of the unpooled model by sharding type, under plans of the planner."""
    losses = {}
    for name in ("table_wise", "row_wise", "column_wise"):
        limit = ParameterConstraints(sharding_types=[name], pooling_factors=[3.0])
        planner = new_planner({"clicks": limit, "pages": limit})
        plan = planner.collective_plan(gm.Sequences(), gm.sequence_sharders())
        assert gm.types_of(plan) == [name]
        losses[name] = gm.train_sequences(plan, rank)
    return losses


def new_planner(constraints: dict[str, ParameterConstraints]) -> ShardPlanner:
    return ShardPlanner(batch_size=gm.BATCH, constraints=constraints, max_evaluations=30)


def caught(action: Callable[[], object]) -> dict[str, Any]:
    """The planner's error and its reason; a rank that waited on would end with the test's limit."""
    try:
        action()
    except PlannerError as error:
        return {
            "type": type(error).__name__,
            "message": str(error),
            "reason": error.error_type.value,
        }
    return {"message": "no error"}


def failing() -> dict[str, Any]:
    """Planning that fails on rank 0 in three ways: bad input, a missing file, a bug."""
    impossible = {
        "t0": ParameterConstraints(sharding_types=["row_wise"], compute_kernels=["dense"])
    }

    class Broken(nn.Module):
        def named_children(self) -> Any:
            message = "broken model"
            raise RuntimeError(message)

    model, sharders = gm.make_model(), gm.make_sharders()
    absent = ShardPlanner.from_plan("/nonexistent/plan.json", batch_size=gm.BATCH)
    return {
        "constraints": caught(lambda: new_planner(impossible).collective_plan(model, sharders)),
        "file": caught(lambda: absent.collective_plan(model, sharders)),
        "bug": caught(lambda: new_planner({}).collective_plan(Broken(), sharders)),
    }


def without_the_planning_rank() -> dict[str, Any]:
    """What a rank that waits for a plan is told when the one that makes it dies."""
    planner = ShardPlanner(
        batch_size=gm.BATCH, max_evaluations=30, callbacks=[lambda _: os._exit(3)]
    )
    start = time.monotonic()
    told = caught(lambda: planner.collective_plan(gm.make_model(), gm.make_sharders()))
    return {**told, "seconds": time.monotonic() - start}


def traps(good: ShardingPlan) -> dict[str, dict[str, Any]]:
    """Broken plans of table t0: what our rules say, and what TorchRec does with them."""
    tables = good.plan[gm.PATH]
    rows = gm.ROWS[0]
    cases: dict[str, dict[str, Any]] = {
        "dp fused": {"sharding_type": "data_parallel", "ranks": [0, 1], "sharding_spec": None},
        "rw short": {"sharding_spec": spec([0, 0, rows // 2, gm.DIM]), "ranks": [0]},
        "twrw short": {
            "sharding_type": "table_row_wise",
            "sharding_spec": spec([0, 0, rows // 2, gm.DIM]),
            "ranks": [0],
        },
        "grid short": {
            "sharding_type": "grid_shard",
            "sharding_spec": spec([0, 0, rows // 2, gm.DIM]),
            "ranks": [0],
        },
        "width of 6": {
            "sharding_type": "column_wise",
            "sharding_spec": spec([0, 0, rows, 6], [0, 6, rows, gm.DIM - 6]),
            "ranks": [0, 1],
        },
    }
    model = describe_model(
        gm.make_model(), gm.make_sharders(), batch_size=gm.BATCH, compute_device="cpu"
    )
    assert model is not None
    answers = {}
    for name, changes in {**cases, "unequal": {}}.items():
        changed = EmbeddingModuleShardingPlan(tables)
        changed["t0"] = replace(tables["t0"], **changes)
        if name == "unequal":  # on every rank, for a rank alone with an error hangs the others
            for rank in range(2):
                cells = [[0, 0, gm.ROWS[rank], 12], [0, 12, gm.ROWS[rank], 4]]
                changed[f"t{rank}"] = replace(
                    tables[f"t{rank}"],
                    sharding_type="column_wise",
                    ranks=[rank, rank],
                    sharding_spec=spec(*cells, ranks=(rank, rank)),
                )
        plan = ShardingPlan({gm.PATH: changed})
        answers[name] = {"rules": rules(plan, model.workload), "torchrec": gm.attempt(plan)}
    return answers


def rules(plan: ShardingPlan, workload: Workload) -> list[str]:
    """What our rules say of a plan of TorchRec's."""
    try:
        ours = from_sharding_plan(plan, workload)
    except InvalidValueError as error:
        return [str(error)]
    return layout_problems(ours, workload, make_topology(num_hosts=1, local=2), device="cpu")


def spec(*shards: list[int], ranks: Sequence[int] = (0, 1)) -> EnumerableShardingSpec:
    """Shards given as row, column, rows, columns, with the rank of each."""
    return EnumerableShardingSpec(
        [
            ShardMetadata(
                shard_offsets=[row, column],
                shard_sizes=[rows, columns],
                placement=f"rank:{rank}/cpu",
            )
            for rank, (row, column, rows, columns) in zip(ranks, shards, strict=False)
        ]
    )


def main(rank: int, world: int, folder: Path) -> None:
    logging.disable(logging.CRITICAL)
    gm.join(rank, world, str(folder / "store"))
    hand = gm.hand_built_plans()
    plans = {**hand, **planned(folder, rank)}
    answer = {
        "losses": {name: gm.train(plan, rank) for name, plan in plans.items()},
        "types": {name: gm.types_of(plan) for name, plan in plans.items()},
        "plans": {name: json.dumps(plan._serialize()) for name, plan in plans.items()},
        "sequences": trained_sequences(rank),
        "failing": failing(),
        "traps": traps(hand["row_wise"]),
    }
    if rank == 0:
        (folder / "rank-0.json").write_text(json.dumps(answer))
    dist.barrier()
    dist.destroy_process_group()
    runpy.run_path(str(EXAMPLE))["train"](rank, str(folder / "example-store"))
    gm.join(rank, world, str(folder / "last-store"))
    answer["lost"] = without_the_planning_rank()
    (folder / f"rank-{rank}.json").write_text(json.dumps(answer))
    os._exit(0)  # the group has lost a rank and cannot be closed


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
