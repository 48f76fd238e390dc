"""One rank of a job in which one is lost: ``lost_rank_worker.py RANK WORLD FOLDER CASE``."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torchrec.distributed.planner.types import PlannerError

from planner.integrations.torchrec_planner import ShardPlanner
from tests.integration.models import Model, bags

GROUP_TIMEOUT_S = {"slow": 4, "late": 300, "cut short": 10}
"""Of the collectives. A plan takes less than 4 s."""


def sleep(options: Any) -> Any:
    time.sleep(12)
    return options


def main(rank: int, world: int, folder: Path, case: str) -> None:
    logging.disable(logging.CRITICAL)
    os.environ.update(LOCAL_WORLD_SIZE=str(world), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'store'}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=GROUP_TIMEOUT_S[case]),
    )
    if case == "late" and rank == world - 1:
        os._exit(3)
    callbacks = {"slow": [sleep]}.get(case, [])
    limit_s = 3600 if case == "cut short" else 1
    planner = ShardPlanner(batch_size=8, callbacks=callbacks, timeout_seconds=limit_s)
    start = time.monotonic()
    answer: dict[str, Any] = {}
    try:
        plan = planner.collective_plan(Model(bags([("a", 100, 16), ("b", 50, 32)])))
        answer["planned"] = sorted(plan.plan)
    except PlannerError as error:
        answer["error"] = f"{type(error).__name__}: {error}"
    answer["limit_s"] = planner._planning_limit_s
    answer["seconds"] = time.monotonic() - start
    (folder / f"rank-{rank}.json").write_text(json.dumps(answer))
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
