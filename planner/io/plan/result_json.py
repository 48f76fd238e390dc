"""Writes results and moves as JSON.

The same keys are in ``plan.json``, ``plan --json`` and ``estimate --json``. ``reshard.json`` has
the tables that change, in the form that TorchRec's ``reshard`` takes: ``modules`` maps the path of
each module to the volume that TorchRec counts for it, in MiB of fp32 weights of the shards that
change, and to the new entries of its tables, as in ``plan.json``.
:func:`planner.integrations.torchrec_reshard.load_reshard` makes the argument of
``DistributedModelParallel.reshard`` from it. Tables that TorchRec cannot move while it trains are
listed under ``restart`` with the reason; to move them, load a checkpoint under the new plan.
"""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Final

from pydantic_core import to_jsonable_python

import costmodels
from costmodels.estimates import IterationEstimate
from costmodels.sharding import Plan, ShardingType, TablePlacement
from costmodels.topology import Topology
from costmodels.units import MIB
from costmodels.workload import Workload
from planner.io.plan.plan_file import SCHEMA_VERSION, plan_to_json
from planner.io.system.system_file import measured_hash
from planner.problem import PlanningProblem
from planner.result import PlanningResult
from planner.support.files import write_text_atomic
from planner.support.kinds import path_of, require_kind
from planner.support.status import Status

GIVEN: Final = "given"
"""The strategy of a plan that was read from a file and not searched for; it has only a value."""

_AS_THEY_ARE: Final = (
    "usd_per_billion_samples", "searched", "reshard", "blocked", "scenarios",
    "checkpoint_interval_s", "unfit_baselines", "assumed",
)  # fmt: skip
"""Keys with the values of the result's attributes of these names."""
_LINE_CHARACTERS: Final = 100
_ENCODER: Final = json.JSONEncoder(allow_nan=False)


def result_to_json(result: PlanningResult) -> dict[str, Any]:
    """The result as plain JSON values, in a fixed order; null stands for infinite numbers and NaN.

    The same result gives the same values. The seconds of the search are included only if the clock
    or the user ended it, because they would otherwise be the only difference between two runs with
    the same seed.
    """
    problem, topology = result.problem, result.problem.topology
    workload, whole = problem.workload, topology.whole
    estimate, memory = result.estimate, result.best.memory
    timed = result.solver.status in (Status.TIME_LIMIT, Status.INTERRUPTED)
    values = {
        "plan": plan_to_json(result.plan, workload, topology.local_world_size),
        "schema_version": SCHEMA_VERSION,
        "tool": f"shardplan {costmodels.__version__}",
        "inputs_hash": inputs_hash(problem),
        "workload": workload.name,
        "workload_hash": workload_hash(workload),
        "system": topology.name,
        "system_hash": system_hash(topology),
        "world_size": topology.world_size,
        "local_world_size": topology.local_world_size,
        # The ranks of the whole job, if the plan is that of one group of them.
        "whole": whole and {key: getattr(whole, key) for key in ("world_size", "local_world_size")},
        "batch_size_per_rank": workload.batch_size_per_rank,
        "pipeline": workload.pipeline,
        "predicted": predicted_json(estimate),
        "memory": {
            "per_rank": [
                {**asdict(r), "used_bytes": r.used_bytes, "headroom_bytes": r.headroom_bytes}
                for r in memory.ranks
            ],
            "per_host": memory.hosts,
        },
        "solver": {
            **asdict(result.solver),
            "gap_ratio": result.solver.gap_ratio,
            "seconds": result.solver.seconds if timed else None,
            "progress": result.solver.progress if timed else (),
        },
        **{key: getattr(result, key) for key in _AS_THEY_ARE},
        "curve": [{**asdict(p), "payback_s": p.move.payback_s} for p in result.curve],
        "alternatives": [{"name": c.name, **_times(c.estimate)} for c in result.runners_up],
        "baselines": [{"name": c.name, **_times(c.estimate)} for c in result.baselines],
        "provenance": result.problem.topology.provenance,
        "warnings": list(dict.fromkeys((*result.warnings, *estimate.warnings))),
    }
    plain: dict[str, Any] = _plain(values)
    return plain


def predicted_json(estimate: IterationEstimate) -> dict[str, Any]:
    """The times of a plan, as ``plan.json`` has them."""
    return {
        **_times(estimate),
        "confidence": 0.9,
        "source": estimate.time.source,
        "samples_per_s": estimate.samples_per_s,
        "slowest_rank": estimate.slowest_rank,
        "imbalance_ratio": estimate.imbalance_ratio,
        "exposed_communication_s": estimate.exposed_communication_s,
        "critical_path": estimate.critical_path,
        "per_rank": estimate.ranks,
    }


def _times(estimate: IterationEstimate) -> dict[str, float]:
    time = estimate.time
    return {"iteration_time_s": time.time_s, "low_s": time.low_s, "high_s": time.high_s}


def plan_text(result: PlanningResult) -> str:
    """The text of ``plan.json``."""
    return _render(result_to_json(result), "") + "\n"


def save_plan(path: str | Path, result: PlanningResult) -> None:
    """Write a result as ``plan.json``, whole or not at all.

    Args:
        path: the file to write; an existing file is replaced.
        result: what :func:`planner.plan` returned.

    Raises:
        InvalidInputError: the file cannot be written, or ``result`` is something else.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> workload, system = load_workload("small_demo"), load_system("h100_sxm", gpus=8)
        >>> result = plan(workload, system, max_evaluations=50, with_baselines=False)
        >>> with TemporaryDirectory() as folder:
        ...     save_plan(Path(folder) / "plan.json", result)
        ...     [path.name for path in Path(folder).iterdir()]
        ['plan.json']
    """
    require_kind("result", result, PlanningResult, "planner.plan(...) gives one")
    write_text_atomic(path_of(path, "output"), plan_text(result))


def inputs_hash(problem: PlanningProblem) -> str:
    """SHA-256 over the whole problem: workload, topology and constraints.

    Files that a system names count with their contents, because a new calibration can have the name
    of the old one.
    """
    models = problem.models
    own = "" if models is None else models.description or repr(models)
    values = _canonical(replace(problem, models=None))
    return _digest(values, measured_hash(problem.topology), own)


def workload_hash(workload: Workload) -> str:
    """SHA-256 over what is trained and how, beside its name and what commands change by flags.

    It tells a file that has changed since, and laws that came from statistics.
    """
    flags = {"name": "", "batch_size_per_rank": 1, "reserved_bytes": 0.0}
    return _digest({**_canonical(workload), **flags, "pipeline": "", "lookahead_batches": 0})


def system_hash(topology: Topology) -> str:
    """SHA-256 over everything in a system except its size, price, and memories of single ranks.

    It tells a shipped system from a changed copy that has the same name. Constraints change the
    memories of single ranks too, so that these do not count.
    """
    links = (topology.host_link, topology.domain_link, topology.network_link)
    shipped = [name for name in topology.collective_curves if not name.endswith(".csv")]
    parts = [topology.device, topology.host, *links, topology.fitted, shipped]
    is_wide = topology.domain_size > topology.local_world_size
    seldom = (is_wide and topology.domain_size, topology.speed_by_rank_ratio)
    return _digest(_canonical([*parts, *filter(None, seldom)]), measured_hash(topology))


def _digest(values: object, *texts: str) -> str:
    """SHA-256 over plain values and texts."""
    text = json.dumps(values, sort_keys=True) + "".join(texts)
    return hashlib.sha256(text.encode()).hexdigest()


def _canonical(value: object) -> Any:
    """A value as JSON that is the same for equal values, including the types of dataclasses."""
    if is_dataclass(value) and not isinstance(value, type):
        items = {f.name: _canonical(getattr(value, f.name)) for f in fields(value) if f.compare}
        return {"type": type(value).__name__, **items}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_canonical(v) for v in value]
    return _plain(value)


def _plain(value: Any) -> Any:
    """The value in the types of JSON."""
    return to_jsonable_python(value, inf_nan_mode="null", fallback=lambda other: other.item())


def _render(value: Any, indent: str) -> str:
    """JSON for people and for diffs: each value that fits on one line is on one line."""
    flat = _ENCODER.encode(value)
    if len(indent) + len(flat) <= _LINE_CHARACTERS or not isinstance(value, dict | list):
        return flat
    inner = f"{indent} "
    if isinstance(value, dict):
        items = [f"{_ENCODER.encode(k)}: {_render(v, inner)}" for k, v in value.items()]
    else:
        items = [_render(v, inner) for v in value]
    body = ",\n".join(f"{inner}{item}" for item in items)
    return f"{flat[0]}\n{body}\n{indent}{flat[-1]}"


KIND: Final = "shardplan_reshard"
_MOVABLE: Final = (ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE)
_COUNTED_BYTES: Final = 4


def reshard_text(before: Plan, after: Plan, workload: Workload, local_world_size: int) -> str:
    """The text of the file.

    Args:
        before: the plan in use.
        after: the new plan of the same tables.
        workload: says to which module each table belongs.
        local_world_size: ranks per host, for the names of devices.
    """
    moved: list[TablePlacement] = []
    restart: dict[str, str] = {}
    for placement in after.placements:
        old = before.placement(placement.table)
        if replace(old, table=placement.table) == placement:
            continue
        if reason := _obstacle(old, placement):
            restart[placement.table] = reason
        else:
            moved.append(placement)
    modules = {}
    tree = plan_to_json(Plan(placements=tuple(moved)), workload, local_world_size)
    for module, tables in tree.items():
        cells = sum(math.prod(s["shard_sizes"]) for e in tables.values() for s in e["shards"])
        modules[module] = {"data_volume_mib": cells * _COUNTED_BYTES / MIB, "tables": tables}
    values = {"kind": KIND, "schema_version": 1, "modules": modules, "restart": restart}
    return json.dumps(values, indent=1) + "\n"


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
