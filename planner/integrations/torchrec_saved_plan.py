"""A plan from a file, checked against the model before TorchRec sees it."""

from __future__ import annotations

from pathlib import Path

from torchrec.distributed.planner.planners import extract_plan
from torchrec.distributed.planner.types import PlanLoader, PlannerErrorType, ShardingOption

from costmodels.sharding import Plan, TablePlacement
from costmodels.topology import Topology
from costmodels.workload import Table
from planner import io
from planner.errors import InvalidInputError
from planner.integrations.torchrec_errors import ShardPlannerError
from planner.integrations.torchrec_workload import ModelDescription
from planner.torchrec_rules import layout_problems

_MOST_LINES = 20


def load_for_model(path: Path, model: ModelDescription, topology: Topology, device: str) -> Plan:
    """Load a plan and refuse it unless it is one of exactly this model on this many ranks.

    Args:
        path: a ``plan.json``, ours or TorchRec's.
        model: the tables of the model.
        topology: ranks of the job.
        device: ``cuda`` or ``cpu``.

    Raises:
        ShardPlannerError: the file cannot be read, was made for another number of ranks, for other
            tables (with a line for each table that differs), or TorchRec cannot run it.
    """
    try:
        loaded = io.load_plan(path, model.workload)
    except (OSError, InvalidInputError) as error:
        raise _refused(path, [str(error)]) from error
    world = loaded.world_size
    if world is not None and world != topology.world_size:
        line = f"made for {world} ranks, the job has {topology.world_size}; plan again for this job"
        raise _refused(path, [line])
    problems = table_differences(loaded.plan, model) or layout_problems(
        loaded.plan, model.workload, topology, device=device
    )
    if problems:
        raise _refused(path, problems)
    return loaded.plan


def stored_options(
    loader: PlanLoader, search_space: list[ShardingOption], current_hash: str
) -> list[ShardingOption]:
    """Options of the plan that a TorchRec plan loader holds; empty if it holds none.

    Args:
        loader: any loader of TorchRec's interface.
        search_space: TorchRec's options of the model; a stored option is matched by storage hash.
        current_hash: context hash of this job.

    Raises:
        ShardPlannerError: the stored plan was made for other inputs.
        PlannerError: TorchRec's own, if the stored options are not those of this model.
    """
    stored = loader.plan_context_hash()
    if stored is not None and stored != current_hash:
        message = (
            f"planner input mismatch: the stored plan was made for other inputs (context hash "
            f"{stored}, now {current_hash}); plan again, or remove plan_loader"
        )
        raise ShardPlannerError(message, PlannerErrorType.PLANNER_INPUT_CONTEXT_MISMATCH)
    loaded = loader.load()
    if loaded is None:
        return []
    return extract_plan(search_space=search_space, loaded_sharding_options=loaded)


def table_differences(plan: Plan, model: ModelDescription) -> list[str]:
    """One line for each table that the plan and the model do not share, or share in other shape."""
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
