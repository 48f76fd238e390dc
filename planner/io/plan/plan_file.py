"""Reads plan files: TorchRec's serialized form, with further keys of this package."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from costmodels.sharding import ComputeKernel, Plan, TablePlacement, check_plan
from costmodels.topology import Topology
from costmodels.workload import Table, Workload
from planner.errors import InvalidInputError
from planner.io.documents import Document, read_json, read_yaml
from planner.io.file_kinds import PLAN, refuse_other_kind
from planner.io.plan.plan_csv import read_plan_csv
from planner.io.plan.plan_schema import SCHEMA_VERSION, ParameterSchema, PlanSchema
from planner.io.plan.plan_shards import shards_of
from planner.io.problems import collect, validate
from planner.io.yaml_reader import dotted
from planner.support.kinds import path_of, require_kind

DEFAULT_LOAD_FACTOR: Final = 0.2
"""Cache load factor if a file names none (TorchRec 1.8 ``constants.py``, UVM_CACHING_RATIO)."""

_MOST_LINES: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPlan:
    """A plan from a file, and what the plan was made for; None for what the file does not say.

    Attributes:
        plan: the plan.
        system: name of the system.
        system_hash: hash of the numbers of that system.
        world_size: number of ranks.
        local_world_size: ranks per host.
        whole: ranks of the whole job and of each of its hosts, where the plan is that of one group.
        batch_size_per_rank: samples per rank.
        pipeline: the training pipeline.
        inputs_hash: hash of everything that was asked.
        predicted_s: iteration time in seconds.
        objective: what was minimized; with scenarios for instance ``worst iteration``.
        torchrec_defaults: whether TorchRec's default figures were used.
        num_scenarios: number of scenarios beside the workload.
        warnings: what had to be assumed to read the file.
    """

    plan: Plan
    workload_hash: str | None = None
    system: str | None = None
    system_hash: str | None = None
    world_size: int | None = None
    local_world_size: int | None = None
    whole: tuple[int, int] | None = None
    batch_size_per_rank: float | None = None
    pipeline: str | None = None
    inputs_hash: str | None = None
    predicted_s: float | None = None
    objective: str | None = None
    torchrec_defaults: bool = False
    num_scenarios: int = 0
    warnings: tuple[str, ...] = ()


def load_plan(
    path: str | Path, workload: Workload | None = None, topology: Topology | None = None
) -> SavedPlan:
    """Read a plan in our format or in TorchRec's.

    Args:
        path: the file.
        workload: gives shapes that the file does not have (those of replicated tables), and tells
            tables of one name in several modules apart.
        topology: if it and the workload are given, the plan must be one of this workload on these
            ranks.

    Raises:
        InvalidInputError: the file is not well formed, or not a plan of this workload on this many
            ranks; there is one line for each table that differs.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> workload, system = load_workload("small_demo"), load_system("h100_sxm", gpus=8)
        >>> result = plan(workload, system, max_evaluations=50, with_baselines=False)
        >>> with TemporaryDirectory() as folder:
        ...     save_plan(Path(folder) / "plan.json", result)
        ...     saved = load_plan(Path(folder) / "plan.json", workload, system)
        >>> saved.plan == result.plan, saved.system
        (True, 'h100_sxm')
    """
    path = path_of(path, "plan")
    hint = "planner.{}(...) reads one from a file or by the name of a shipped one"
    require_kind("workload", workload, Workload, hint.format("load_workload"), optional=True)
    require_kind("topology", topology, Topology, hint.format("load_system"), optional=True)
    return _saved(_document(path, _read(path)), workload, topology)


def plan_from_json(
    values: object, workload: Workload, topology: Topology, *, source: str = "plan"
) -> Plan:
    """A plan from plain values, as :func:`plan_to_json` makes them; they are checked like a file.

    Raises:
        InvalidInputError: in the cases of :func:`load_plan`; messages name ``source`` for the file.
    """
    if values == {} and not workload.tables:
        return Plan(placements=())
    return _saved(_document(Path(source), values), workload, topology).plan


def read_plan_schema(path: Path) -> PlanSchema:
    """The values of a plan file; each is checked by itself, and not yet against the others.

    Raises:
        InvalidInputError: the file is not well formed, or not a plan.
    """
    return validate(PlanSchema, _document(path, _read(path)))


def _saved(document: Document, workload: Workload | None, topology: Topology | None) -> SavedPlan:
    path = document.path
    schema = validate(PlanSchema, document)
    if schema.schema_version > SCHEMA_VERSION:
        message = (
            f"{path}: schema_version: value {schema.schema_version}: newer than {SCHEMA_VERSION}; "
            "update shardplan"
        )
        raise InvalidInputError(message)
    local = topology.local_world_size if topology else schema.local_world_size
    whole = schema.whole
    names = _Names(schema, workload)
    placements, warnings = _placements(schema, names, path, local)
    plan = Plan(placements=placements)
    if workload is not None and topology is not None:
        _check(path, schema, plan, workload, topology)
    return SavedPlan(
        plan=plan,
        system=schema.system,
        workload_hash=schema.workload_hash,
        system_hash=schema.system_hash,
        world_size=schema.world_size,
        local_world_size=schema.local_world_size,
        whole=None if whole is None else (whole.world_size, whole.local_world_size),
        batch_size_per_rank=schema.batch_size_per_rank,
        pipeline=schema.pipeline,
        inputs_hash=schema.inputs_hash,
        predicted_s=None if schema.predicted is None else schema.predicted.iteration_time_s,
        objective=None if schema.solver is None else schema.solver.objective,
        torchrec_defaults=schema.solver is not None and schema.solver.torchrec_defaults,
        num_scenarios=max(len(schema.scenarios) - 1, 0),
        warnings=warnings,
    )


def plan_json_schema() -> dict[str, Any]:
    """JSON Schema of a plan file."""
    return PlanSchema.model_json_schema()


def plan_to_json(plan: Plan, workload: Workload, local_world_size: int) -> dict[str, Any]:
    """The plan in the form of TorchRec's ``ShardingPlan._serialize()``, with sorted modules.

    In addition to TorchRec's keys it has the shards of replicated tables, and
    ``cache_load_factor``.
    """
    tables = {t.name: t for t in workload.tables}
    tree: dict[str, dict[str, Any]] = {}
    for placement in plan.placements:
        table = tables[placement.table]
        entry: dict[str, Any] = {
            "sharding_type": placement.sharding_type.value,
            "compute_kernel": placement.kernel.value,
            "ranks": list(placement.ranks),
            "shards": [
                {
                    "shard_offsets": [s.row_offset, s.col_offset],
                    "shard_sizes": [s.num_rows, s.num_cols],
                    "placement": f"rank:{s.rank}/cuda:{s.rank % local_world_size}",
                }
                for s in placement.shards
            ],
        }
        if placement.cache_load_factor_ratio is not None:
            entry["cache_load_factor"] = placement.cache_load_factor_ratio
        tree.setdefault(table.module, {})[parameter_name(table)] = entry
    return tree


def parameter_name(table: Table) -> str:
    """The name of a table inside its module: without the path that tells equal names apart."""
    return table.name.removeprefix(f"{table.module}.") if table.module else table.name


class _Names:
    """Finds the table of the workload that an entry of the file means.

    Module paths can differ, because a workload written by hand often has not those of the model.
    The name then decides, if only one table has it.
    """

    def __init__(self, schema: PlanSchema, workload: Workload | None) -> None:
        tables = workload.tables if workload else ()
        counts = Counter(parameter_name(t) for t in tables)
        self._exact = {(t.module, parameter_name(t)): t for t in tables}
        self._unique = {parameter_name(t): t for t in tables if counts[parameter_name(t)] == 1}
        self._planned = Counter(name for entries in schema.plan.values() for name in entries)

    def table(self, module: str, name: str) -> Table | None:
        """The table of the workload, if there is one."""
        unique = self._unique.get(name) if self._planned[name] == 1 else None
        return self._exact.get((module, name), unique)

    def name(self, module: str, name: str) -> str:
        """The name of the table in the workload; without one, a name made from the file's."""
        table = self.table(module, name)
        if table is not None:
            return table.name
        return name if self._planned[name] == 1 or not module else f"{module}.{name}"


def _document(path: Path, value: object) -> Document:
    if not isinstance(value, dict) or not value:
        message = f"{path}: must hold a plan: an object with the key 'plan'"
        raise InvalidInputError(message)
    refuse_other_kind(path, value, PLAN)
    if "plan" not in value or _is_module(value["plan"]):
        value = {"plan": value}
    return Document(path, value, {})


def _read(path: Path) -> object:
    """The values of a plan, from JSON or from CSV.

    Raises:
        InvalidInputError: the file is not well formed. If it is a YAML file of another kind, the
            message says which.
    """
    if path.suffix.lower() == ".csv":
        return read_plan_csv(path)
    try:
        return read_json(path)
    except InvalidInputError as error:
        try:
            found = read_yaml(path).value
        except InvalidInputError:
            raise error from None
        refuse_other_kind(path, found, PLAN)
        raise


def _is_module(value: object) -> bool:
    """Whether this has the tables of one module, and not the modules of a plan."""
    entries = value.values() if isinstance(value, dict) else ()
    return any(isinstance(entry, dict) and "sharding_type" in entry for entry in entries)


def _placements(
    schema: PlanSchema, names: _Names, path: Path, local_world_size: int | None
) -> tuple[tuple[TablePlacement, ...], tuple[str, ...]]:
    placements: list[TablePlacement] = []
    problems: list[str] = []
    bare_caches = 0
    for module, entries in schema.plan.items():
        for name, entry in entries.items():
            where = f"{path}: {dotted(('plan', module, name))}"
            build = partial(_placement, entry, module, name, names, schema, local_world_size)
            placement = collect(problems, where, build)
            if placement is not None:
                placements.append(placement)
                bare_caches += _given_load_factor(entry) is None and _load_factor(entry) is not None
    if problems:
        raise InvalidInputError(_shortened(path, problems))
    note = f"{bare_caches} cached tables name no load factor: {DEFAULT_LOAD_FACTOR} is taken"
    return tuple(placements), (f"{path}: {note}",) if bare_caches else ()


def _placement(
    entry: ParameterSchema,
    module: str,
    name: str,
    names: _Names,
    schema: PlanSchema,
    local_world_size: int | None,
) -> TablePlacement:
    table = names.table(module, name)
    return TablePlacement(
        table=names.name(module, name),
        sharding_type=entry.sharding_type,
        kernel=entry.compute_kernel,
        shards=shards_of(entry, table, schema.world_size, local_world_size),
        cache_load_factor_ratio=_load_factor(entry),
    )


def _given_load_factor(entry: ParameterSchema) -> float | None:
    if entry.cache_load_factor is not None or entry.cache_params is None:
        return entry.cache_load_factor
    return entry.cache_params.load_factor


def _load_factor(entry: ParameterSchema) -> float | None:
    if entry.compute_kernel is not ComputeKernel.FUSED_UVM_CACHING:
        return None
    given = _given_load_factor(entry)
    return DEFAULT_LOAD_FACTOR if given is None else given


def _check(
    path: Path, schema: PlanSchema, plan: Plan, workload: Workload, topology: Topology
) -> None:
    made_for, world = schema.world_size, topology.world_size
    if made_for is not None and made_for != world:
        message = (
            f"{path}: world_size: value {made_for}: made for {made_for} ranks, not for {world}; "
            f"plan again, or use --gpus {made_for}"
        )
        raise InvalidInputError(message)
    planned = {p.table: p for p in plan.placements}
    expected = {t.name: t for t in workload.tables}
    problems = [
        f"{path}: table {n!r} ({_extent(p)}): in the plan, not in the workload"
        for n, p in planned.items()
        if n not in expected
    ]
    problems += [
        f"{path}: table {n!r} ({_shape(t)}): in the workload, not in the plan"
        for n, t in expected.items()
        if n not in planned
    ]
    for name, placement in planned.items():
        if name in expected:
            _check_table(problems, path, placement, workload, world)
    if problems:
        raise InvalidInputError(_shortened(path, problems))


def _check_table(
    problems: list[str], path: Path, placement: TablePlacement, workload: Workload, world: int
) -> None:
    table = workload.table(placement.table)
    if _extent(placement) != _shape(table):
        problems.append(
            f"{path}: table {table.name!r}: {_extent(placement)} in the plan, {_shape(table)} "
            "in the workload"
        )
        return
    alone = replace(workload, tables=(table,))
    collect(problems, str(path), lambda: check_plan(Plan(placements=(placement,)), alone, world))


def _shape(table: Table) -> str:
    return f"{table.num_embeddings} x {table.embedding_dim}"


def _extent(placement: TablePlacement) -> str:
    rows = max((s.row_offset + s.num_rows for s in placement.shards), default=0)
    columns = max((s.col_offset + s.num_cols for s in placement.shards), default=0)
    return f"{rows} x {columns}"


def _shortened(path: Path, problems: list[str]) -> list[str]:
    if len(problems) <= _MOST_LINES:
        return problems
    return [*problems[:_MOST_LINES], f"{path}: and {len(problems) - _MOST_LINES} more"]
