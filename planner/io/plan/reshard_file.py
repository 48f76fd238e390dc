"""Writes ``reshard.json``: the tables that change, in the form that TorchRec's ``reshard`` takes.

``modules`` maps the path of each module to the volume that TorchRec counts for it, in MiB of fp32
weights of the shards that change, and to the new entries of its tables, as in ``plan.json``.
:func:`planner.integrations.torchrec_reshard.load_reshard` makes the argument of
``DistributedModelParallel.reshard`` from it. Tables that TorchRec cannot move while it trains are
listed under ``restart`` with the reason; to move them, load a checkpoint under the new plan.
"""

from __future__ import annotations

import json
from typing import Any, Final

from costmodels.sharding import Plan, ShardingType, TablePlacement
from costmodels.workload import Workload
from planner.io.plan.plan_file import parameter_name, plan_to_json

KIND: Final = "shardplan_reshard"
_MOVABLE: Final = (ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE)
_COUNTED_BYTES: Final = 4
_MIB: Final = 1024 * 1024


def reshard_text(before: Plan, after: Plan, workload: Workload, local_world_size: int) -> str:
    """The text of the file.

    Args:
        before: the plan in use.
        after: the new plan of the same tables.
        workload: says to which module each table belongs.
        local_world_size: ranks per host, for the names of devices.
    """
    tree = plan_to_json(after, workload, local_world_size)
    modules: dict[str, dict[str, Any]] = {}
    restart: dict[str, str] = {}
    for placement in after.placements:
        old = before.placement(placement.table)
        if _entry(old) == _entry(placement):
            continue
        reason = _obstacle(old, placement)
        if reason:
            restart[placement.table] = reason
            continue
        table = workload.table(placement.table)
        name = parameter_name(table)
        module = modules.setdefault(table.module, {"data_volume_mib": 0.0, "tables": {}})
        cells = sum(s.num_rows * s.num_cols for s in placement.shards)
        module["data_volume_mib"] += cells * _COUNTED_BYTES / _MIB
        module["tables"][name] = tree[table.module][name]
    values = {"kind": KIND, "schema_version": 1, "modules": modules, "restart": restart}
    return json.dumps(values, indent=1) + "\n"


def _entry(placement: TablePlacement) -> tuple[object, ...]:
    """The values of a placement that TorchRec compares."""
    return (
        placement.sharding_type,
        placement.kernel,
        placement.shards,
        placement.cache_load_factor_ratio,
    )


def _obstacle(old: TablePlacement, new: TablePlacement) -> str:
    """Why TorchRec's ``reshard`` cannot move the table; empty if it can."""
    kinds = f"{old.sharding_type.value} to {new.sharding_type.value}"
    if old.sharding_type is not new.sharding_type:
        return f"changes from {kinds}: TorchRec's reshard keeps the sharding type"
    if new.sharding_type not in _MOVABLE:
        known = " and ".join(t.value for t in _MOVABLE)
        return f"is {new.sharding_type.value}: TorchRec's reshard moves {known} tables"
    if (old.kernel, old.cache_load_factor_ratio) != (new.kernel, new.cache_load_factor_ratio):
        return "changes its kernel or cache, which TorchRec's reshard does not"
    return ""
