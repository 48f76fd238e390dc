"""One rank that runs ``dlrm_main.py`` of the public DLRM repository under both planners.

``public_dlrm_worker.py RANK WORLD FOLDER CHECKOUT``. The script itself is not changed: its name
``EmbeddingShardingPlanner`` is given to the other planner, its sharded model gets tables whose
values do not depend on the plan, and its training pipeline notes every loss.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torchrec.distributed import TrainPipelineSparseDist
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner.planners import EmbeddingShardingPlanner

from planner.integrations.torchrec_planner import ShardPlanner
from tests.integration.on_ranks import gloo_model as gm

PLANNERS = {"theirs": EmbeddingShardingPlanner, "ours": ShardPlanner}
TABLES = 26
COMMON = [
    "--num_embeddings_per_feature",
    ",".join(str(3 + 97 * (i % 7) ** 3) for i in range(TABLES)),
    *("--embedding_dim", "16", "--batch_size", "8"),
    *("--dense_arch_layer_sizes", "32,16", "--over_arch_layer_sizes", "32,1"),
    *("--limit_train_batches", "6", "--limit_val_batches", "2", "--limit_test_batches", "2"),
    *("--learning_rate", "0.5"),
]
RUNS = {
    "original": [],
    "original, Adagrad": ["--adagrad", "--learning_rate", "0.01"],
    "dcn": ["--interaction_type", "dcn", "--dcn_num_layers", "2", "--dcn_low_rank_dim", "8"],
    "projection": [
        *("--interaction_type", "projection"),
        *("--interaction_branch1_layer_sizes", "32,16"),
        *("--interaction_branch2_layer_sizes", "32,16"),
    ],
    "many indices": [
        *("--multi_hot_sizes", ",".join(str(1 + i % 5) for i in range(TABLES))),
        *("--multi_hot_distribution_type", "uniform"),
    ],
}


def run(script: ModuleType, name: str, rank: int) -> dict[str, Any]:
    """Losses of every step and plans, by planner."""
    answer: dict[str, Any] = {"losses": {}, "plans": {}}
    for planner, kind in PLANNERS.items():
        losses: list[float] = []
        plans: list[str] = []

        def sharded(
            *, plan: Any, plans: list[str] = plans, **arguments: Any
        ) -> DistributedModelParallel:
            plans.append(str(plan))
            model = DistributedModelParallel(plan=plan, **arguments)
            gm.fill_tables(model)
            return model

        class Noting(TrainPipelineSparseDist):
            """The pipeline of the script, which keeps what its steps return."""

            def progress(self, batches: Iterator[Any], losses: list[float] = losses) -> Any:
                found = super().progress(batches)
                mean = found[0].detach().clone()
                dist.all_reduce(mean)
                losses.append(mean.item() / dist.get_world_size())
                return found

        script.EmbeddingShardingPlanner = kind
        script.DistributedModelParallel = sharded
        script.TrainPipelineSparseDist = Noting
        torch.manual_seed(0)
        script.main([*COMMON, "--seed", str(rank), *RUNS[name]])
        answer["losses"][planner] = losses
        answer["plans"][planner] = plans
    return answer


def main(rank: int, world: int, folder: Path, checkout: Path) -> None:
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    gm.join(rank, world, str(folder / "store"))
    dist.init_process_group = lambda **_: None  # the ranks have met already
    sys.path.insert(0, str(checkout / "torchrec_dlrm"))
    script = importlib.import_module("dlrm_main")
    answers = {name: run(script, name, rank) for name in RUNS}
    (folder / f"rank-{rank}.json").write_text(json.dumps(answers))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]))
