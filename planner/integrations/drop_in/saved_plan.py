"""Loads a plan from a file, and checks that it is a plan for the model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from torchrec.distributed.planner import types as torchrec_types
from torchrec.distributed.planner.planners import extract_plan
from torchrec.distributed.planner.types import (
    ParameterConstraints,
    PlanLoader,
    PlannerErrorType,
    ShardingOption,
)

from costmodels.sharding import ComputeKernel, Plan, TablePlacement, row_blocks
from costmodels.system_models import default_models
from costmodels.topology import Topology
from costmodels.units import format_bytes
from costmodels.workload import Table
from planner import io
from planner.errors import InvalidInputError
from planner.integrations.torchrec_workload import ModelDescription, ShardableTable
from planner.integrations.translate.errors import ShardPlannerError
from planner.integrations.translate.key_value import KERNELS, KeyValuePipeline
from planner.integrations.translate.options import virtual_blocks
from planner.io.documents import read_json
from planner.options.broken_constraints import broken_constraints
from planner.options.torchrec_rules import layout_problems
from planner.options.unpooled_widths import width_problems
from planner.problem import Constraints, PlanningProblem

logger: Final = logging.getLogger(__name__)

_MOST_LINES = 20
_NO_FINGERPRINT: Final = getattr(torchrec_types, "PlannerContextFingerprintError", ())
"""TorchRec 1.9's error for inputs with another hash in every process; 1.8 hashes them anyway."""


def load_for_model(
    path: Path,
    model: ModelDescription,
    topology: Topology,
    device: str,
    constraints: Mapping[str, ParameterConstraints] | None = None,
) -> Plan:
    """Load a plan; it has to be one for exactly this model on this many ranks.

    A plan that breaks constraints, or does not fit in memory, is used with a warning.

    Args:
        path: a ``plan.json``, ours or TorchRec's.
        model: the tables of the model.
        topology: the ranks of the job, with the memory that is left for tables.
        device: ``cuda`` or ``cpu``.
        constraints: TorchRec's constraints by table name.

    Raises:
        ShardPlannerError: the file cannot be read; the plan was made for another number of ranks or
            for other tables (there is a line for each that differs); or TorchRec cannot run it.
    """
    try:
        if _names_key_values(path, model):
            return _load_by_torchrec(path, model, topology)
        loaded = io.load_plan(path, model.workload)
    except (OSError, InvalidInputError) as error:
        raise _refused(path, [str(error)]) from error
    world = loaded.world_size
    if world is not None and world != topology.world_size:
        line = f"made for {world} ranks, the job has {topology.world_size}; plan again for this job"
        raise _refused(path, [line])
    problems = table_differences(loaded.plan, model) or [
        *layout_problems(loaded.plan, model.workload, topology, device=device),
        *width_problems(loaded.plan, model.workload).values(),
    ]
    if problems:
        raise _refused(path, problems)
    for line in (
        *_broken(loaded.plan, model, topology, constraints or {}),
        *_overfull(loaded.plan, model, topology),
    ):
        logger.warning("the plan %s is used, although %s", path, line)
    return loaded.plan


def _broken(
    plan: Plan,
    model: ModelDescription,
    topology: Topology,
    given: Mapping[str, ParameterConstraints],
) -> tuple[str, ...]:
    """A line for each table that is not as its constraint asks."""
    asked = {t.table.name for t in model.tables if given.get(t.parameter_name)}
    limits = tuple(
        limit
        for table, limit in zip(model.workload.tables, model.constraints.tables, strict=True)
        if table.name in asked
    )
    problem = PlanningProblem(
        workload=model.workload, topology=topology, constraints=Constraints(tables=limits)
    )
    return tuple(f"{line}, against its constraint" for line in broken_constraints(problem, plan))


def _overfull(plan: Plan, model: ModelDescription, topology: Topology) -> list[str]:
    """A line if a rank needs more device memory than is left for tables."""
    pipeline = KeyValuePipeline(
        model.workload, topology, default_models(topology), key_values=model.key_values
    )
    fullest = pipeline.memory(plan).fullest
    if fullest.headroom_bytes >= 0:
        return []
    return [
        f"rank {fullest.rank} needs {format_bytes(-fullest.headroom_bytes)} more device memory by "
        "our count than the storage reservation and memory_headroom leave"
    ]


def _names_key_values(path: Path, model: ModelDescription) -> bool:
    """Whether the file names kernels of key-value tables, as TorchRec's own plans do."""
    return any(
        entry.get("compute_kernel") in KERNELS
        for entry in _entries(read_json(path), model).values()
    )


def _entries(values: Any, model: ModelDescription) -> dict[str, dict[str, Any]]:
    """The entries of the model's key-value tables in a plan file, by our name of the table."""
    plan = values.get("plan") if isinstance(values, dict) else None
    modules = plan if isinstance(plan, dict) else {}
    found = {}
    for table in model.tables:
        entries = modules.get(table.path)
        entry = entries.get(table.parameter_name) if isinstance(entries, dict) else None
        if table.key_value and isinstance(entry, dict):
            found[table.table.name] = entry
    return found


def _load_by_torchrec(path: Path, model: ModelDescription, topology: Topology) -> Plan:
    """TorchRec's plan with key-value tables, which become the tables that the search sees.

    Raises:
        InvalidInputError: it is not a plan for this model on this many ranks.
    """
    values = read_json(path)
    entries = _entries(values, model)
    tables = {t.table.name: t for t in model.tables}
    problems = []
    for name, entry in entries.items():
        table = tables[name]
        (limit,) = model.constraints.for_table(name)
        kept = table.key_value
        if kept is None or entry.get("compute_kernel") != kept.kernel:
            wanted = kept.kernel if kept else "none"
            problems.append(
                f"~ {name}: kernel {entry.get('compute_kernel')} in the plan, {wanted} asked for"
            )
            continue
        entry["compute_kernel"] = str(ComputeKernel.FUSED_UVM_CACHING)
        entry["cache_load_factor"] = limit.cache_load_factors[0]
        if kept.is_virtual:
            problems += _to_stand_in(name, entry, table, topology.world_size)
    if problems:
        raise InvalidInputError(problems)
    return io.plan_from_json(values, model.workload, topology, source=str(path))


def _to_stand_in(
    name: str, entry: dict[str, Any], table: ShardableTable, world_size: int
) -> list[str]:
    """Give the entry of a virtual table the rows with which it is priced.

    Returns:
        Lines on what is wrong with the rows that the entry has.
    """
    blocks = virtual_blocks(table, world_size)
    written = entry.get("shards")
    shards = [s for s in written if isinstance(s, dict)] if isinstance(written, list) else []
    found = [(s.get("shard_sizes"), s.get("shard_offsets")) for s in shards]
    if found != blocks or entry.get("sharding_type") != "row_wise":
        return [
            f"~ {name}: {len(found)} {entry.get('sharding_type')} shards in the plan are not the "
            f"row_wise ones of {world_size} ranks; plan again for this job"
        ]
    for shard, (row, rows) in zip(
        shards, row_blocks(table.table.num_embeddings, world_size), strict=True
    ):
        shard["shard_offsets"] = [row, 0]
        shard["shard_sizes"] = [rows, table.table.embedding_dim]
    return []


def stored_options(
    loader: PlanLoader, search_space: list[ShardingOption], current_hash: Callable[[], str]
) -> list[ShardingOption]:
    """The options of the plan in a TorchRec plan loader; empty if it has none.

    They are empty as well, with a warning, if TorchRec 1.9 cannot tell whether the stored plan was
    made for the same inputs; TorchRec's own planner then makes a new plan too.

    Args:
        loader: any loader with TorchRec's interface.
        search_space: TorchRec's options of the model; stored options are found by storage hash.
        current_hash: returns the context hash of this job.

    Raises:
        ShardPlannerError: the stored plan was made for other inputs.
        PlannerError: TorchRec's error if the stored options are not those of this model.
    """
    try:
        current = current_hash()
    except _NO_FINGERPRINT as error:
        logger.warning("the stored plan cannot be checked, so a new one is made: %s", error)
        return []
    stored = loader.plan_context_hash()
    if stored is not None and stored != current:
        message = (
            f"planner input mismatch: the stored plan was made for other inputs (context hash "
            f"{stored}, now {current}); plan again, or remove plan_loader"
        )
        raise ShardPlannerError(message, PlannerErrorType.PLANNER_INPUT_CONTEXT_MISMATCH)
    loaded = loader.load()
    if loaded is None:
        return []
    return extract_plan(search_space=search_space, loaded_sharding_options=loaded)


def table_differences(plan: Plan, model: ModelDescription) -> list[str]:
    """One line for each table that only the plan or the model has, or that differs in shape."""
    planned = {p.table: p for p in plan.placements}
    expected = {t.name: t for t in model.workload.tables}
    lines = [
        f"- {name} ({_extent(p)}): in the plan, not in the model"
        for name, p in planned.items()
        if name not in expected
    ]
    lines += [
        f"+ {name} ({_shape(t)}, module {t.module!r}): in the model, not in the plan"
        for name, t in expected.items()
        if name not in planned
    ]
    lines += [
        f"~ {name}: {_extent(planned[name])} in the plan, {_shape(t)} in the model"
        for name, t in expected.items()
        if name in planned and _extent(planned[name]) != _shape(t)
    ]
    return lines


def _shape(table: Table) -> str:
    return f"{table.num_embeddings} x {table.embedding_dim}"


def _extent(placement: TablePlacement) -> str:
    rows = max((s.row_offset + s.num_rows for s in placement.shards), default=0)
    columns = max((s.col_offset + s.num_cols for s in placement.shards), default=0)
    return f"{rows} x {columns}"


def _refused(path: Path, lines: list[str]) -> ShardPlannerError:
    shown = lines[:_MOST_LINES]
    if len(lines) > len(shown):
        shown.append(f"... and {len(lines) - len(shown)} more")
    message = "\n".join([f"the plan {path} does not fit this job:", *shown])
    return ShardPlannerError(message, PlannerErrorType.PLAN_LOADING_FAILED)
