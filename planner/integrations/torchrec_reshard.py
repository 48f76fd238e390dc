"""Turns ``reshard.json`` into the argument of TorchRec's ``DistributedModelParallel.reshard``."""

from pathlib import Path

from torchrec.distributed.types import EmbeddingModuleShardingPlan

from planner.errors import refuse
from planner.integrations.torchrec_plan import sharding_of
from planner.io.documents import read_json
from planner.io.plan.result_json import KIND


def load_reshard(
    path: str | Path, *, compute_device: str = "cuda", partly: bool = False
) -> dict[str, tuple[float, EmbeddingModuleShardingPlan]]:
    """The argument of ``reshard``: for each module the data volume in MiB and the changed tables.

    ``for module, _ in changes.items(): model.reshard(changes, module)`` moves all of them.

    Args:
        path: a file that ``shardplan plan --from PLAN -o DIR`` has written.
        compute_device: ``cuda`` or ``cpu``; part of the placements.
        partly: whether to leave out the tables that TorchRec cannot move while it trains, instead
            of refusing the file. The resulting plan is then not the one that was priced.

    Raises:
        InvalidInputError: it is not such a file, or it has tables that need a restart.
    """
    values = read_json(Path(path))
    if not isinstance(values, dict) or values.get("kind") != KIND:
        refuse(f"{path}: is no file of 'shardplan plan --from': its kind is not {KIND!r}")
    stuck = values["restart"]
    if stuck and not partly:
        problems = [f"{path}: table {name!r} {reason}" for name, reason in stuck.items()]
        refuse([*problems, "restart from a checkpoint under the new plan, or pass partly=True"])
    changes = {}
    for module, entry in values["modules"].items():
        tables = {name: sharding_of(t, compute_device) for name, t in entry["tables"].items()}
        changes[module] = entry["data_volume_mib"], EmbeddingModuleShardingPlan(tables)
    return changes
