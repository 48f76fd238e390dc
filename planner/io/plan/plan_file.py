"""Reads plan files: TorchRec's serialized form, with further keys of this package, and CSV.

CSV has a row for each shard, or only the columns ``table`` and ``rank``. In the short form a table
on one rank is whole there; a table on several ranks is cut into as many equal column pieces, in the
order of its rows.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from costmodels import sharding
from costmodels.fields import Range
from costmodels.topology import Topology
from costmodels.workload import Table, Workload
from planner.errors import InvalidInputError, refuse, refuse_any
from planner.io import documents, schemas
from planner.support.files import csv_text, unguarded
from planner.support.kinds import path_of, require_kind

SCHEMA_VERSION: Final = 1
DEFAULT_LOAD_FACTOR: Final = 0.2
"""Cache load factor if a file names none (TorchRec 1.8 ``constants.py``, UVM_CACHING_RATIO)."""

Count = Annotated[int, Field(ge=0)]
Offsets = Annotated[list[Count], Field(min_length=2, max_length=2)]
Size = Annotated[int, Field(ge=1, le=10**6)]


class ShardSchema(schemas.Loose):
    """One shard of one table: ``[row, column]`` where it begins and how large it is."""

    shard_offsets: Offsets
    shard_sizes: Offsets
    placement: Annotated[str, Field(pattern=r"^rank:[0-9]{1,9}/\S+$")]


class ParameterSchema(schemas.Loose):
    """One table. TorchRec writes no shards for replicated tables, and no load factor.

    Some tools write the load factor as it stands in TorchRec's cache parameters.
    """

    sharding_type: Annotated[sharding.ShardingType, Field(strict=False)]
    compute_kernel: Annotated[sharding.ComputeKernel, Field(strict=False)]
    ranks: list[Count] | None = None
    shards: list[ShardSchema] | None = None
    cache_load_factor: schemas.Ratio | None = schemas.at(
        "cache_load_factor cache_params.load_factor"
    )

    @property
    def cache_ratio(self) -> float | None:
        """The share of the rows that a cache on the device holds; None without a cache."""
        is_cached = self.compute_kernel is sharding.ComputeKernel.FUSED_UVM_CACHING
        return (self.cache_load_factor or DEFAULT_LOAD_FACTOR) if is_cached else None


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
        objective: what was minimized; with scenarios for instance ``worst iteration``.
        torchrec_defaults: whether TorchRec's default figures were used.
        num_scenarios: number of scenarios beside the workload.
        warnings: what had to be assumed to read the file.
    """

    plan: sharding.Plan
    workload_hash: str | None = None
    system: str | None = None
    system_hash: str | None = None
    world_size: Annotated[int, Range(1, 10**6)] | None = None
    local_world_size: Annotated[int, Range(1, 10**6)] | None = None
    whole: tuple[int, int] | None = None
    batch_size_per_rank: float | None = None
    pipeline: str | None = None
    objective: str | None = None
    torchrec_defaults: bool = False
    num_scenarios: int = 0
    warnings: tuple[str, ...] = ()


# How the search went, and all ranks of a job whose plan is for one group.
SolverSchema: Any = schemas.row_schema(
    "SolverSchema", objective=str, torchrec_defaults=(bool, False)
)
WholeSchema: Any = schemas.row_schema("WholeSchema", world_size=Size, local_world_size=Size)


class _PlanKeys(schemas.Loose):
    """The whole file; only ``plan`` is needed, which is what TorchRec itself writes.

    A file of ours has more keys, which nothing reads.
    """

    plan: dict[str, dict[str, ParameterSchema]]
    schema_version: Annotated[int, Field(ge=1)] = SCHEMA_VERSION
    batch_size_per_rank: Annotated[int, Field(ge=1)] | Annotated[float, Field(gt=0)] | None = None
    whole: WholeSchema | None = None
    solver: SolverSchema | None = None
    scenarios: list[dict[str, Any]] = Field(default_factory=list)
    workload: str | None = None


_READ: Final = ("objective", "torchrec_defaults", "num_scenarios", "warnings")
PlanSchema: Any = schemas.schema_of(SavedPlan, "PlanSchema", base=_PlanKeys, without=_READ)


def shards_of(entry: ParameterSchema) -> tuple[sharding.Shard, ...]:
    """The shards of an entry as written.

    Raises:
        InvalidInputError: they contradict the list of ranks.
    """
    shards = tuple(
        sharding.Shard(
            rank=int(s.placement.removeprefix("rank:").split("/")[0]),
            row_offset=s.shard_offsets[0],
            num_rows=s.shard_sizes[0],
            col_offset=s.shard_offsets[1],
            num_cols=s.shard_sizes[1],
        )
        for s in entry.shards or ()
    )
    placed = [s.rank for s in shards]
    if entry.ranks is not None and placed != entry.ranks:
        refuse(f"ranks: value {entry.ranks[:8]}: must be those of the placements, {placed[:8]}")
    return shards


def _placement(
    name: str, entry: ParameterSchema, table: Table | None, world: int | None, local: int | None
) -> sharding.TablePlacement:
    """The shards as written, or as TorchRec lays them out on the ranks of the entry.

    Raises:
        InvalidInputError: the shards contradict the list of ranks, or they are missing and cannot
            be computed.
    """
    kind, ranks, step = entry.sharding_type, entry.ranks, 1
    kernel, ratio = entry.compute_kernel, entry.cache_ratio
    same: Any = {"sharding_type": kind, "kernel": kernel, "cache_load_factor_ratio": ratio}
    if entry.shards:
        return sharding.TablePlacement(table=name, shards=shards_of(entry), **same)
    if table is None:
        refuse("has no shards; its shape is only known with the workload")
    spread = sharding.SPREAD[kind]
    if ranks is None and spread is sharding.Spread.UNIFORM:
        ranks = list(range(world or 0))
    if not ranks:
        refuse("has neither shards nor ranks; give one of them")
    if kind is sharding.ShardingType.TABLE_WISE and len(ranks) > 1:
        refuse(f"ranks: value {ranks[:8]}: a table_wise table lives on one rank")
    if spread is sharding.Spread.HOSTS:
        given = len(ranks) if kind is sharding.ShardingType.TABLE_ROW_WISE else local
        if given is None:
            refuse("has no shards; which ranks share a host is not known, give local_world_size")
        step = given
    pieces = 1 if spread is sharding.Spread.UNIFORM else len(ranks[::step])
    width, rest = divmod(table.embedding_dim, pieces)
    if rest:
        columns = f"{table.embedding_dim} columns are no multiple of {pieces}"
        refuse(f"ranks: value {ranks[:8]}: {columns}")
    option = sharding.ShardingOption(table=name, column_widths=(width,) * pieces, **same)
    where, sizes = option.places_of(ranks, step), {"world_size": len(ranks)}
    placed = sharding.place(option, table.num_embeddings, where, local_world_size=step, **sizes)
    if list(placed.ranks) != ranks:
        refuse(f"ranks: value {ranks[:8]}: {kind} needs {list(placed.ranks)[:8]}; give shards")
    return placed


_MOST_LINES: Final = 20


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
) -> sharding.Plan:
    """A plan from plain values, as :func:`plan_to_json` makes them; they are checked like a file.

    Raises:
        InvalidInputError: in the cases of :func:`load_plan`; messages name ``source`` for the file.
    """
    if values == {} and not workload.tables:
        return sharding.Plan(placements=())
    return _saved(_document(Path(source), values), workload, topology).plan


def read_plan_schema(path: Path) -> PlanSchema:
    """The values of a plan file; each is checked by itself, and not yet against the others.

    Raises:
        InvalidInputError: the file is not well formed, or not a plan.
    """
    return schemas.validate(PlanSchema, _document(path, _read(path)))


def _saved(
    document: documents.Document, workload: Workload | None, topology: Topology | None
) -> SavedPlan:
    path = document.path
    schema = schemas.validate(PlanSchema, document)
    if schema.schema_version > SCHEMA_VERSION:
        refuse(
            f"{path}: schema_version: value {schema.schema_version}: newer than {SCHEMA_VERSION}; "
            "update shardplan"
        )
    local = topology.local_world_size if topology else schema.local_world_size
    whole, world, problems = schema.whole, schema.world_size, list[str]()
    placements, bare = [], 0
    for keys, name, entry, table in entries_of(schema, workload):
        where = f"{path}: {documents.dotted(('plan', *keys))}"
        build = partial(_placement, name, entry, table, world, local)
        placements.append(schemas.collect(problems, where, build))
        bare += entry.cache_ratio is not None and entry.cache_load_factor is None
    refuse_any(schemas.shortened(problems, path, _MOST_LINES))
    note = f"{path}: {bare} cached tables name no load factor: {DEFAULT_LOAD_FACTOR} is taken"
    plan = sharding.Plan(placements=tuple(filter(None, placements)))
    if workload is not None and topology is not None:
        _check(path, schema, plan, workload, topology)
    return schemas.noun_of(
        SavedPlan,
        schema,
        plan=plan,
        whole=None if whole is None else (whole.world_size, whole.local_world_size),
        objective=None if schema.solver is None else schema.solver.objective,
        torchrec_defaults=schema.solver is not None and schema.solver.torchrec_defaults,
        num_scenarios=max(len(schema.scenarios) - 1, 0),
        warnings=(note,) if bare else (),
    )


def plan_json_schema() -> dict[str, Any]:
    """JSON Schema of a plan file."""
    return dict(PlanSchema.model_json_schema())


def plan_to_json(plan: sharding.Plan, workload: Workload, local_world_size: int) -> dict[str, Any]:
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
            "shards": [_shard_entry(shard, local_world_size) for shard in placement.shards],
        }
        if placement.cache_load_factor_ratio is not None:
            entry["cache_load_factor"] = placement.cache_load_factor_ratio
        tree.setdefault(table.module, {})[parameter_name(table)] = entry
    return tree


def _shard_entry(shard: sharding.Shard, local_world_size: int) -> dict[str, Any]:
    return {
        "shard_offsets": [shard.row_offset, shard.col_offset],
        "shard_sizes": [shard.num_rows, shard.num_cols],
        "placement": f"rank:{shard.rank}/cuda:{shard.rank % local_world_size}",
    }


def parameter_name(table: Table) -> str:
    """The name of a table inside its module: without the path that tells equal names apart."""
    return table.name.removeprefix(f"{table.module}.") if table.module else table.name


def entries_of(
    schema: PlanSchema, workload: Workload | None = None
) -> Iterator[tuple[tuple[str, str], str, ParameterSchema, Table | None]]:
    """Each entry of a plan: module and parameter, the name of its table, its values, and the table.

    Module paths can differ, because a workload written by hand often has not those of the model.
    The name then decides which table of the workload is meant, if only one table has it. Without
    one, a name is made from the file's.
    """
    tables = workload.tables if workload else ()
    exact = {(t.module, parameter_name(t)): t for t in tables}
    counts = Counter(map(parameter_name, tables))
    alone = {parameter_name(t): t for t in tables if counts[parameter_name(t)] == 1}
    planned = Counter(name for entries in schema.plan.values() for name in entries)
    for module, entries in schema.plan.items():
        for parameter, entry in entries.items():
            is_alone = planned[parameter] == 1
            table = exact.get((module, parameter), alone.get(parameter) if is_alone else None)
            name = parameter if is_alone or not module else f"{module}.{parameter}"
            yield (module, parameter), table.name if table else name, entry, table


def _document(path: Path, value: object) -> documents.Document:
    if not isinstance(value, dict) or not value:
        refuse(f"{path}: must hold a plan: an object with the key 'plan'")
    documents.refuse_other_kind(path, value, documents.PLAN)
    if "plan" not in value or _is_module(value["plan"]):
        value = {"plan": value}
    return documents.Document(path, value, {})


def _read(path: Path) -> object:
    """The values of a plan, from JSON or from CSV.

    Raises:
        InvalidInputError: the file is not well formed. If it is a YAML file of another kind, the
            message says which.
    """
    if path.suffix.lower() == ".csv":
        return read_plan_csv(path)
    try:
        return documents.read_json(path)
    except InvalidInputError as error:
        try:
            found = documents.read_yaml(path).value
        except InvalidInputError:
            raise error from None
        documents.refuse_other_kind(path, found, documents.PLAN)
        raise


def _is_module(value: object) -> bool:
    """Whether this has the tables of one module, and not the modules of a plan."""
    entries = value.values() if isinstance(value, dict) else ()
    return any(isinstance(entry, dict) and "sharding_type" in entry for entry in entries)


def _check(
    path: Path, schema: PlanSchema, plan: sharding.Plan, workload: Workload, topology: Topology
) -> None:
    made_for, world = schema.world_size, topology.world_size
    if made_for is not None and made_for != world:
        refuse(
            f"{path}: world_size: value {made_for}: made for {made_for} ranks, not for {world}; "
            f"plan again, or use --gpus {made_for}"
        )
    planned = {p.table: p for p in plan.placements}
    expected = {t.name: t for t in workload.tables}
    problems: list[str] = []
    for name in sorted({**planned, **expected}, key=lambda name: name in expected):
        placement, table = planned.get(name), expected.get(name)
        where = f"{path}: table {name!r}"
        shape = table and f"{table.num_embeddings} x {table.embedding_dim}"
        extent = placement and _extent_text(placement)
        if placement is None:
            problems.append(f"{where} ({shape}): in the workload, not in the plan")
        elif table is None:
            problems.append(f"{where} ({extent}): in the plan, not in the workload")
        elif extent != shape:
            problems.append(f"{where}: {extent} in the plan, {shape} in the workload")
        else:
            alone, one = replace(workload, tables=(table,)), sharding.Plan(placements=(placement,))
            schemas.collect(problems, str(path), partial(sharding.check_plan, one, alone, world))
    refuse_any(schemas.shortened(problems, path, _MOST_LINES))


def _extent_text(placement: sharding.TablePlacement) -> str:
    """Rows and columns that the shards of a table reach, for messages."""
    rows = max((s.row_offset + s.num_rows for s in placement.shards), default=0)
    columns = max((s.col_offset + s.num_cols for s in placement.shards), default=0)
    return f"{rows} x {columns}"


# ------------------------------------------------------------------ CSV

_SHORT: Final = ("table", "rank")
_SHORT_KINDS: Final = (sharding.ShardingType.TABLE_WISE, sharding.ShardingType.COLUMN_WISE)
_CELLS: Final = ("row_offset", "num_rows", "col_offset", "num_cols")
COLUMNS: Final = (
    "table", "sharding_type", "compute_kernel", "cache_load_factor", "rank", *_CELLS,
)  # fmt: skip


def shards_csv(plan: sharding.Plan) -> str:
    """The shards of all tables in the plan's order, with the columns of :data:`COLUMNS`."""
    cells = attrgetter("rank", *_CELLS)
    rows = [
        (p.table, p.sharding_type, p.kernel, p.cache_load_factor_ratio, *cells(shard))
        for p in plan.placements
        for shard in p.shards
    ]
    return csv_text(COLUMNS, rows)


def ranks_csv(plan: sharding.Plan) -> str:
    """Table and rank of each shard, for plans that the short form can hold.

    Raises:
        InvalidInputError: names each table that is neither whole nor cut into equal column pieces,
            or not in device memory.
    """
    problems = [
        f"table {p.table!r}: {p.sharding_type} with kernel {p.kernel} and pieces of "
        f"{sorted({s.num_cols for s in p.shards})} columns is more than columns table and rank can "
        "say; use 'export csv', or plan with table_wise, column_wise and kernel fused"
        for p in plan.placements
        if p.sharding_type not in _SHORT_KINDS
        or p.kernel is not sharding.ComputeKernel.FUSED
        or len({s.num_cols for s in p.shards}) > 1
    ]
    refuse_any(problems)
    return csv_text(_SHORT, [(p.table, s.rank) for p in plan.placements for s in p.shards])


def read_plan_csv(path: Path) -> dict[str, Any]:
    """The values of a plan file, from CSV with either set of columns.

    Raises:
        InvalidInputError: a column is unknown or missing, or a cell is no number.
    """
    columns, rows = documents.csv_rows(path, documents.read_text(path))
    tables: dict[str, dict[str, Any]] = {}
    is_short = sorted(columns) == sorted(_SHORT)
    if not is_short and sorted(columns) != sorted(COLUMNS):
        refuse(
            f"{path}:1: columns {', '.join(columns) or 'none'}: a plan has table and rank, or "
            f"{', '.join(COLUMNS)}"
        )
    for line, cells in rows:
        where = f"{path}:{line}"
        if len(cells) != len(columns):
            refuse(f"{where}: has more or fewer cells than the first line has columns")
        row = dict(zip(columns, cells, strict=True))
        name, numbered = unguarded(row["table"]), [k for k in ("rank", *_CELLS) if k in row]
        numbers = {key: _whole(row[key], f"{where}: {key}") for key in numbered}
        said = {key: documents.parse_scalar(row[key]) for key in COLUMNS[1:4] if row.get(key)}
        entry = tables.setdefault(name, {**said, "ranks" if is_short else "shards": []})
        if {**entry, **said} != entry:
            refuse(f"{where}: table {name!r} has another type, kernel or cache above; keep one")
        if is_short:
            entry["ranks"].append(numbers["rank"])
        else:
            entry["shards"].append(_shard_entry(sharding.Shard(**numbers), 1))
    for entry in tables.values() if is_short else ():
        kind = _SHORT_KINDS[len(entry["ranks"]) > 1]
        entry |= {"sharding_type": kind, "compute_kernel": sharding.ComputeKernel.FUSED}
    return {"plan": {"": tables}}


def _whole(text: str, where: str) -> int:
    if not (text.isascii() and text.strip().isdigit() and len(text) < 19):
        refuse(f"{where}: value {text[:40]!r}: must be a whole number")
    return int(text)
