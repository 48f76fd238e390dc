"""Reads and writes workload files: YAML, or a CSV list of tables.

What is written reads back as equal; a note for a key becomes a comment behind it.
"""

import glob
import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final

from costmodels import units
from costmodels.dense.base import dense_layers
from costmodels.distribution.base import AbstractIndexDistribution
from costmodels.distribution.empirical import Empirical
from costmodels.distribution.uniform import Uniform
from costmodels.topology import refuse_contradictions
from costmodels.training.communication import Communication
from costmodels.workload import DenseArch, Feature, OperatorList, Pipeline, Pooling, Table, Workload
from planner import problem
from planner.errors import refuse, refuse_any
from planner.io import documents
from planner.io.constraints import constraints_of, table_constraint, unmatched
from planner.io.schemas import as_noun, collect, each, entry_of, made, noun_of, validate
from planner.io.system.system_file import load_system
from planner.io.workload import workload_schema as spec
from planner.io.workload.table_list import LIST_ENDINGS, document_of, read_table_list
from planner.profiling.stats import TableStats, load_stats, undersampled_remark
from planner.support.text import counted

_WORTH_SAYING: Final = ("optimizer", "output_dtype", "pipeline")
"""Keys of ``training`` that are assumed where a file leaves them out; those of the others are
defaults of the format that hardly change a step."""


@lru_cache(maxsize=1024)
def _repeating(
    law: AbstractIndexDistribution, curve: tuple[tuple[float, float], ...]
) -> AbstractIndexDistribution:
    """A law whose batches have the distinct rows of ``distinct_per_batch``.

    Args:
        law: how popular rows are.
        curve: pairs of indices and distinct rows of a batch.

    Raises:
        InvalidInputError: the law has an order of its ids or a repetition of its own, or its rows
            are so popular, or so few, that no batch has as many distinct ones.
        InvalidValueError: the curve does not ascend.
    """
    own = {"num_unique_curve": "unique_rows", "ids_per_draw": "ids_per_draw above 1"}
    said = [key for field, key in own.items() if getattr(law, field, ()) not in ((), 1)]
    said += ["scattered: false"] * law.is_ordered
    if said:
        refuse(f"distinct_per_batch goes with no distribution that has {said[0]}; keep one of them")
    if isinstance(law, Empirical):
        found = replace(law, num_unique_curve=curve)
    else:
        bins = law.frequency_bins()
        found = Empirical.from_bins(*bins, law.num_embeddings, num_unique_curve=curve)
    for indices, distinct in curve:
        given = found.expected_unique_rows(indices)
        if abs(given - distinct) > _DISTINCT_RATIO * distinct:
            refuse(
                f"distinct_per_batch: {distinct:,.6g} distinct rows in {indices:,.6g} indices: by "
                f"the distribution there are {given:,.6g} at most; correct one of the two"
            )
    return found


_DISTINCT_RATIO: Final = 0.01
"""How far a law may be from the distinct rows that a file gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadFile:
    """The contents of a workload file.

    Attributes:
        workload: tables, dense part and how a step is run.
        constraints: the rules of the file.
        warnings: what the file leaves open, one sentence each.
        assumed: keys whose values are assumed, such as ``training.pipeline``, ``dense`` and
            ``tables.pooling_factor``; for those of tables the names of the tables.
    """

    workload: Workload
    constraints: problem.Constraints
    warnings: tuple[str, ...] = ()
    assumed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def load_workload(source: str | Path) -> Workload:
    """Read the workload of a file without constraints.

    A workload cannot hold constraints, so a file with some is refused; ``load_problem`` and
    :func:`load_workload_file` return them too.

    Args:
        source: path of a ``.yaml`` or ``.csv`` file, or the name of a shipped workload.

    Raises:
        InvalidInputError: lists every broken rule with file, line, key and value; or the file has
            constraints.

    Example:
        >>> load_workload("small_demo").name
        'small_demo'
    """
    file = load_workload_file(source)
    if file.constraints != problem.Constraints():
        refuse(
            f"{source}: key 'constraints': load_workload returns the workload alone, and these "
            "constraints would be lost; call load_problem(workload, system, gpus=N) and solve that "
            "problem, or load_workload_file(workload) and pass its constraints on"
        )
    return file.workload


def load_workload_file(
    source: str | Path, *, overrides: tuple[tuple[str, str], ...] = ()
) -> WorkloadFile:
    """Read a workload file: the workload, its constraints, and warnings.

    Args:
        source: path of a ``.yaml`` or ``.csv`` file, or the name of a shipped workload.
        overrides: changes of single values, as pairs of a key path and a YAML text, such as
            ``("tables.3.embedding_dim", "64")``.

    Raises:
        InvalidInputError: lists every broken rule with file, line, key and value.

    Example:
        >>> change = ("training.batch_size_per_rank", "4096")
        >>> load_workload_file("small_demo", overrides=(change,)).workload.batch_size_per_rank
        4096
    """
    path = documents.locate(source, "workloads")
    is_list = path.suffix.lower() in LIST_ENDINGS
    document = read_table_list(path) if is_list else documents.read_yaml(path)
    documents.override_all(document, overrides)
    listed = document.value.get("assumed")
    if isinstance(listed, list):
        given = [f"{key}." for key, _ in overrides]
        keys = [(key, f"{key}.") for key in listed]
        document.value["assumed"] = [
            key for key, k in keys if not any(g.startswith(k) or k.startswith(g) for g in given)
        ]
    return workload_file_of(document)


def workload_json_schema() -> dict[str, Any]:
    """JSON Schema of a workload file, for editors."""
    return spec.WorkloadSchema.model_json_schema()


def workload_file_of(document: documents.Document) -> WorkloadFile:
    """The workload, constraints and warnings of a document in the form of a workload file.

    Raises:
        InvalidInputError: lists every broken rule with place, key and value.
    """
    schema = validate(spec.WorkloadSchema, document)
    total = sum(entry.count for entry in schema.tables)
    if total > (most := spec.MAX_TABLES):
        where = document.where(("tables",))
        refuse(f"{where}: value {total:,} tables: must be at most {most:,}")
    problems: list[str] = []
    tables: list[Table | None] = []
    measured: dict[str, TableStats] = {}
    limits: list[problem.TableConstraint] = []
    every = [(i, name, e) for i, e in enumerate(schema.tables) for name in spec.names_of(e)]
    counts = Counter(name for _, name, _ in every)
    for index, name, entry in every:
        build = partial(_table, entry, name, index, schema, document, measured)
        tables.append(collect(problems, document.where(("tables", index)), build))
        if entry.constraints.model_fields_set:
            limits.append(table_constraint(glob.escape(name), entry.constraints))
    problems += [
        f"{document.where(('tables', index, 'name'))}: value {name!r}: {counts[name]} tables have "
        "this name; give each its own"
        for index, name, _ in every
        if counts[name] > 1
    ]
    problems += unmatched(schema.constraints, document, list(counts))
    layers = spec.layers_of(schema.dense.layers, document, problems)
    place = document.where(("dense",))
    operators = collect(problems, place, lambda: _operators(schema.dense, document))
    refuse_any(list(dict.fromkeys(problems)))
    both = {"layers": layers, "operators": operators}
    dense = made(place, lambda: noun_of(DenseArch, schema.dense, **both))
    workload = made(str(document.path), lambda: _workload(schema, filter(None, tables), dense))
    made(place, partial(dense_layers, workload))
    return WorkloadFile(
        workload=workload,
        constraints=constraints_of(schema.constraints, limits),
        warnings=_left_open(schema, workload, measured),
        assumed=_assumed(schema, [(n, e) for _, n, e in every if n not in measured]),
    )


# ------------------------------------------------------------------ rules across tables


def _assumed(
    schema: spec.WorkloadSchema,
    unmeasured: Sequence[tuple[str, spec.TableSchema]],
) -> dict[str, tuple[str, ...]]:
    """The assumed keys: those that the file lists and did not change, and those it leaves out.

    A section ``dense`` that is missing means that there is no dense part.
    """
    bare = {"name": "any", "num_embeddings": 1, "embedding_dim": 1}
    listed = validate(spec.WorkloadSchema, document_of(Path("list"), [bare], {}))
    says_type = {"output_dtype"} if schema.training.communication else set()
    found: dict[str, tuple[str, ...]] = {}
    for key in spec.ASSUMED:
        section, _, name = key.partition(".")
        ours, usual = getattr(schema, section), getattr(listed, section)
        is_same = getattr(ours, name) == getattr(usual, name) if name else ours == usual
        said = ours.model_fields_set | says_type
        if (key in schema.assumed and is_same) or (name in _WORTH_SAYING and name not in said):
            found[key] = ()
    for key in ("pooling_factor", "distribution"):
        names = tuple(name for name, entry in unmeasured if key not in entry.model_fields_set)
        found |= {f"tables.{key}": names} if names else {}
    return found


def _left_open(
    schema: spec.WorkloadSchema, workload: Workload, measured: Mapping[str, TableStats]
) -> tuple[str, ...]:
    undersampled = undersampled_remark(measured)
    bare = sum(entry.count for entry in schema.tables if entry.distribution is None)
    pooled = sum(table.pooling is not Pooling.NONE for table in workload.tables)
    remarks = {
        undersampled: undersampled is not None,
        f"{counted(bare, 'table')} {'has' if bare == 1 else 'have'} no distribution: every row is "
        "taken as equally likely": bare,
        "no memory.reserve: nothing is kept for framework, allocator and NCCL": (
            workload.reserved_bytes == 0
        ),
        "communication: fp8, int8 and mx4 cannot be summed, so pooled tables are not cut by rows; "
        "give reduce_scatter fp16 or bf16 to allow it": (
            not all(table.codecs.sums_rows for table in workload.tables)
        ),
        f"deduplicate_indices is for unpooled tables, as in TorchRec: {pooled} pooled tables "
        "exchange all of their indices": schema.training.deduplicate_indices and pooled,
    }
    return tuple(str(remark) for remark, is_open in remarks.items() if is_open)


# ------------------------------------------------------------------ schema to nouns


def _operators(schema: spec.DenseSchema, document: documents.Document) -> OperatorList | None:
    if schema.ops is None:
        return None if schema.operators is None else noun_of(OperatorList, schema.operators)
    if schema.operators is not None:
        refuse("operators and ops both list the operators; keep one of them")
    path = document.path.parent / schema.ops
    found = validate(spec.OperatorListSchema, documents.read_yaml(path))
    return made(str(path), partial(noun_of, OperatorList, found))


def _workload(schema: spec.WorkloadSchema, tables: Iterable[Table], dense: DenseArch) -> Workload:
    training = schema.training
    if training.pipeline is Pipeline.LOOKAHEAD and training.lookahead is None:
        refuse("pipeline lookahead needs lookahead, the number of batches; add lookahead: 8")
    kept = {"reserved_bytes": as_noun(schema.memory.reserve) or 0.0, "dense": dense}
    found = noun_of(Workload, training, name=schema.name, tables=tuple(tables), **kept)
    refuse_contradictions(found)
    return found


def _table(
    entry: spec.TableSchema,
    name: str,
    index: int,
    schema: spec.WorkloadSchema,
    document: documents.Document,
    measured: dict[str, TableStats],
) -> Table:
    """Make the table; its statistics, if it has any, are added to ``measured``."""
    features = spec.features_of(entry, name)
    training, stats = schema.training, None
    if isinstance(entry.distribution, spec.StatsSchema):
        stats = load_stats(document.path.parent / entry.distribution.stats).table(name, features)
        measured[name] = stats
    keys = ("tables", index, "pooling_factor")
    factors = each(entry.pooling_factor, len(features), document, keys)
    if stats is not None and keys[-1] not in entry.model_fields_set:
        factors = [stats.features.get(f, stats.pooling).mean for f in features]
    rows = entry.num_embeddings
    law: Any = stats.distribution(rows) if stats else Uniform(num_embeddings=rows)
    if stats is None and entry.distribution is not None:
        law = as_noun(entry.distribution, num_embeddings=rows)
    if (given := entry.distinct_per_batch) is not None:
        if not isinstance(given, list):
            indices = training.batch_size_per_rank * float(sum(factors))
            given = [[indices, max(given * indices, 1.0)]]
        law = _repeating(law, tuple((float(n), float(distinct)) for n, distinct in given))
    once = entry.deduplicate_indices
    once = training.deduplicate_indices and entry.pooling is Pooling.NONE if once is None else once
    shared = entry.next_batch_ratio
    if shared is None and stats is not None and entry.pooling is Pooling.NONE:
        shared = stats.next_batch_ratio(distinct=once)
    codecs = entry.communication or training.communication
    return noun_of(
        Table,
        entry,
        name=name,
        features=tuple(
            Feature(name=f, pooling_factor=float(p)) for f, p in zip(features, factors, strict=True)
        ),
        distribution=law,
        dtype=entry.dtype or training.embedding_dtype,
        communication=codecs and spec.communication_of(codecs),
        row_update=entry.row_update or training.row_update,
        deduplicates_indices=once,
        next_batch_ratio=shared,
    )


def load_problem(
    workload: str | Path,
    system: str | Path,
    *,
    gpus: int | None = None,
    gpus_per_host: int | None = None,
) -> problem.PlanningProblem:
    """Read a workload with its constraints, and the system to plan it for.

    ``planner.solve`` plans the problem.

    Args:
        workload: path of a ``.yaml`` or ``.csv`` file, or the name of a shipped workload.
        system: path of a ``.yaml`` file, or the name of a shipped system.
        gpus: number of ranks; None for one host.
        gpus_per_host: ranks per host; None for those of the system.

    Raises:
        InvalidInputError: lists every broken rule with file, line, key and value.

    Example:
        >>> problem = load_problem("small_demo", "h100_sxm", gpus=16)
        >>> problem.topology.num_hosts
        2
    """
    file = load_workload_file(workload)
    topology = load_system(system, gpus=gpus, gpus_per_host=gpus_per_host)
    return problem.PlanningProblem(
        workload=file.workload, topology=topology, constraints=file.constraints
    )


# ------------------------------------------------------------------ writing

_WIDTH: Final = 100
_ALWAYS: Final = (
    "batch_size_per_rank", "optimizer", "output_dtype", "gradient_dtype", "pipeline", "index_bytes",
)  # fmt: skip
_DLRM: Final = ("dtype", "num_dense_features", "bottom_mlp", "top_mlp", "interaction")

Notes = Mapping[str, str]
"""Comments by key, such as ``training.batch_size_per_rank``, ``dense``, ``tables``, or ``tables.``
with the name of a table."""


def workload_text(
    workload: Workload,
    constraints: problem.Constraints = problem.NO_CONSTRAINTS,
    *,
    header: Sequence[str] = (),
    notes: Notes | None = None,
    law_is_known: bool = True,
    assumed: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """A workload as YAML; :func:`planner.io.load_workload` reads an equal workload from it.

    Args:
        workload: the workload to write.
        constraints: rules to write below it. Types and kernels that no table may have become a rule
            for all tables.
        header: lines of comment at the top.
        notes: comments for keys.
        law_is_known: False to leave plain uniform laws out, so that a reader of the file is warned
            that they are assumed.
        assumed: the assumed keys, as in :class:`planner.io.WorkloadFile`: sections are listed under
            ``assumed``, and pooling factors are left out.

    Raises:
        InvalidInputError: a file cannot hold some value, such as a name that begins with a space,
            or the pipeline ``lookahead`` with 0 batches.
    """
    given, beside = assumed or {}, {"assumed": "until you put other values there", **(notes or {})}
    found = {table.communication for table in workload.tables}
    shared = found.pop() if len(found) == 1 else None
    bare, reserved = {*given.get("tables.pooling_factor", ())}, workload.reserved_bytes
    dense, training = workload.dense, entry_of(workload, always=_ALWAYS)
    if shared is not None:
        training["communication"] = spec.communication_entry(shared)
    if "between_steps" in training:
        training["between_steps"] = f"{workload.between_steps_s!r} s"
    always = ("dtype",) if dense.layers or dense.operators else _DLRM
    sections: dict[str, Any] = {
        "assumed": [key for key in given if not key.startswith("tables.")],
        "training": training,
        "dense": {} if dense == DenseArch() else entry_of(dense, always=always),
        "memory": {"reserve": bytes_text(reserved)} if reserved else {},
        "tables": list(_tables(workload, shared, bare, law_is_known=law_is_known)),
        "constraints": _rules(constraints),
    }
    try:
        lines = [*comment_lines(header), f"name: {documents.yaml_text(workload.name)}"]
        for key, value in sections.items():
            if value:
                lines += _block(key, value, beside)
            elif key == "dense" and key in beside:
                lines += comment_lines([f"dense: {beside[key]}"])
        text = "\n".join(lines) + "\n"
        read = workload_file_of(
            documents.as_yaml(Path(f"workload {workload.name!r} as a file"), text)
        )
    except UnicodeEncodeError as error:
        refuse(f"{error.object!r} holds half of a surrogate pair, which no file can hold")
    if read.workload != workload:
        refuse(f"workload {workload.name!r}: a file has no key for one of its values")
    return text


def _block(key: str, value: Any, notes: Notes, above: str = "") -> Iterator[str]:
    """The lines of a key with its value and its comment.

    At the top, several values in a list or mapping have a line each; below it, if they hold others.
    """
    indent, path = "  " * bool(above), f"{above}.{key}" if above else key
    held = value.values() if isinstance(value, dict) else value
    is_long = isinstance(value, dict | list) and (
        not (above or len(held) < 2) or any(isinstance(item, dict) for item in held)
    )
    text = "" if is_long else f" {documents.yaml_text(value, f'{indent}  ')}"
    yield f"{indent}{key}:{text}{_note(notes.get(path))}"
    if is_long and isinstance(value, dict):
        for inner, item in value.items():
            yield from (f"{indent}{line}" for line in _block(inner, item, notes, path))
    elif is_long:
        for item, text in zip(value, documents.yaml_items(value), strict=True):
            name = item.get("name") if isinstance(item, dict) else None
            text = text.replace("\n", f"\n{indent}  ")
            yield f"{indent}  {text}{_note(notes.get(f'{path}.{name}'))}"


def bytes_text(value: float) -> str:
    """Bytes as text, in the largest unit in which they are a whole number."""
    for unit, size in (("GiB", units.GIB), ("MiB", units.MIB)):
        if value and value % size == 0:
            return f"{value / size:.0f} {unit}"
    return f"{documents.yaml_text(float(value))} B"


def _note(text: str | None) -> str:
    """A comment to write behind a value; empty for no text."""
    return f" # {_on_one_line(text)}" if text else ""


def comment_lines(lines: Iterable[str]) -> list[str]:
    """Wrapped lines of a comment."""
    wrapped = []
    for line in lines:
        wrapped += textwrap.wrap(_on_one_line(line), _WIDTH - 2, subsequent_indent="  ") or [""]
    return [f"# {line}".rstrip() for line in wrapped]


def _on_one_line(text: str) -> str:
    """The text on one line, so that it cannot end a comment early."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _tables(
    workload: Workload, shared: Communication | None, bare: Collection[str], *, law_is_known: bool
) -> Iterator[dict[str, Any]]:
    """The entries of the tables; those in ``bare`` have no pooling factor."""
    first = ("name", "num_embeddings", "embedding_dim", "features", "pooling_factor")
    bins: dict[Empirical, dict[str, Any]] = {}
    for table in workload.tables:
        names, law = [f.name for f in table.features], table.distribution
        factors = [f.pooling_factor for f in table.features]
        entry = entry_of(table, always=("dtype",))
        kind = spec.LAW_KINDS.get(type(law), type(law).__name__)
        written = {"kind": kind, **entry["distribution"]}
        is_left_out = not law_is_known and law == Uniform(num_embeddings=table.num_embeddings)
        codecs = None if table.communication == shared else table.communication
        entry |= {
            "features": None if names == [table.name] else names,
            "pooling_factor": factors[0] if len({*factors}) == 1 else factors,
            "distribution": None if is_left_out else written,
            "communication": codecs and spec.communication_entry(codecs),
        }
        if isinstance(law, Empirical):
            entry["distribution"] = bins.setdefault(law, written)
        if table.name in bare:
            entry["pooling_factor"] = None
        ordered = {key: entry[key] for key in (*first, *entry)}
        yield {key: value for key, value in ordered.items() if value is not None}


def _rules(constraints: problem.Constraints) -> list[dict[str, Any]]:
    """problem.Constraints as entries of a list, in the order in which they are read back."""
    listed = entry_of(constraints, always=problem.CHOICES)
    everywhere = {k: listed[k] for k, kind in problem.CHOICES.items() if {*listed[k]} != {*kind}}
    rules: list[dict[str, Any]] = [{"tables": "*", **everywhere}] if everywhere else []
    for rule in constraints.tables:
        entry = entry_of(rule, always=("min_column_width",))
        rules.append({"tables": entry.pop("pattern"), **entry})
    for key, groups in (("together", constraints.together), ("apart", constraints.apart)):
        rules += [{key: list(g.patterns), "on": g.level.value} for g in groups]
    for count in constraints.counts:
        what = "shards" if count.counts_shards else "tables"
        rules.append({"tables": list(count.patterns), f"max_{what}_per_{count.level}": count.most})
    for limit in constraints.memory:
        what, at = ("device", "ranks") if limit.level is problem.Level.RANK else ("host", "hosts")
        places = {at: list(limit.places)} if limit.places else {}
        rules.append({f"{what}_memory": bytes_text(limit.most_bytes), **places})
    return rules
