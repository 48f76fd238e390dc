"""Writes workload files; what is written reads back as equal.

A note for a key becomes a comment behind it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from costmodels import units
from costmodels.distribution.empirical import Empirical
from costmodels.distribution.uniform import Uniform
from costmodels.sharding import ComputeKernel, ShardingType
from costmodels.training.communication import Communication
from costmodels.workload import DenseArch, Workload
from planner.errors import refuse
from planner.io.documents import as_yaml, yaml_items, yaml_text
from planner.io.schemas import entry_of
from planner.io.workload.workload_file import workload_file_of
from planner.io.workload.workload_schema import LAW_KINDS, communication_entry
from planner.problem import NO_CONSTRAINTS, Constraints, Level

_WIDTH: Final = 100
_ALWAYS: Final = (
    "batch_size_per_rank", "optimizer", "output_dtype", "gradient_dtype", "pipeline", "index_bytes",
)  # fmt: skip
_DLRM: Final = ("num_dense_features", "bottom_mlp", "top_mlp", "interaction")

Notes = Mapping[str, str]
"""Comments by key, such as ``training.batch_size_per_rank``, ``dense``, ``tables``, or ``tables.``
with the name of a table."""


def workload_text(
    workload: Workload,
    constraints: Constraints = NO_CONSTRAINTS,
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
    sections: dict[str, Any] = {
        "assumed": [key for key in given if not key.startswith("tables.")],
        "training": _training(workload, shared),
        "dense": {} if workload.dense == DenseArch() else _dense(workload.dense),
        "memory": {"reserve": bytes_text(reserved)} if reserved else {},
        "tables": list(_tables(workload, shared, bare, law_is_known=law_is_known)),
        "constraints": _rules(constraints),
    }
    try:
        lines = [*comment_lines(header), f"name: {yaml_text(workload.name)}"]
        for key, value in sections.items():
            if value:
                lines += _block(key, value, beside)
            elif key == "dense" and key in beside:
                lines += comment_lines([f"dense: {beside[key]}"])
        text = "\n".join(lines) + "\n"
        read = workload_file_of(as_yaml(Path(f"workload {workload.name!r} as a file"), text))
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
    text = "" if is_long else f" {yaml_text(value, f'{indent}  ')}"
    yield f"{indent}{key}:{text}{_note(notes.get(path))}"
    if is_long and isinstance(value, dict):
        for inner, item in value.items():
            yield from (f"{indent}{line}" for line in _block(inner, item, notes, path))
    elif is_long:
        for item, text in zip(value, yaml_items(value), strict=True):
            name = item.get("name") if isinstance(item, dict) else None
            text = text.replace("\n", f"\n{indent}  ")
            yield f"{indent}  {text}{_note(notes.get(f'{path}.{name}'))}"


def bytes_text(value: float) -> str:
    """Bytes as text, in the largest unit in which they are a whole number."""
    for unit, size in (("GiB", units.GIB), ("MiB", units.MIB)):
        if value and value % size == 0:
            return f"{value / size:.0f} {unit}"
    return f"{yaml_text(float(value))} B"


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


def _training(workload: Workload, shared: Communication | None) -> dict[str, Any]:
    found = entry_of(workload, always=_ALWAYS)
    if shared is not None:
        found["communication"] = communication_entry(shared)
    if "between_steps" in found:
        found["between_steps"] = f"{workload.between_steps_s!r} s"
    return found


def _dense(dense: DenseArch) -> dict[str, Any]:
    is_listed = bool(dense.layers) or dense.operators is not None
    return entry_of(dense, always=("dtype", *(() if is_listed else _DLRM)))


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
        kind = LAW_KINDS.get(type(law), type(law).__name__)
        written = {"kind": kind, **entry["distribution"]}
        is_left_out = not law_is_known and law == Uniform(num_embeddings=table.num_embeddings)
        codecs = None if table.communication == shared else table.communication
        entry |= {
            "features": None if names == [table.name] else names,
            "pooling_factor": factors[0] if len({*factors}) == 1 else factors,
            "distribution": None if is_left_out else written,
            "communication": codecs and communication_entry(codecs),
        }
        if isinstance(law, Empirical):
            entry["distribution"] = bins.setdefault(law, written)
        if table.name in bare:
            entry["pooling_factor"] = None
        ordered = {key: entry[key] for key in (*first, *entry)}
        yield {key: value for key, value in ordered.items() if value is not None}


def _rules(constraints: Constraints) -> list[dict[str, Any]]:
    """Constraints as entries of a list, in the order in which they are read back."""
    every = {"sharding_types": ShardingType, "kernels": ComputeKernel}
    listed = entry_of(constraints, always=every)
    everywhere = {k: listed[k] for k, kind in every.items() if {*listed[k]} != {*kind}}
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
        what, at = ("device", "ranks") if limit.level is Level.RANK else ("host", "hosts")
        places = {at: list(limit.places)} if limit.places else {}
        rules.append({f"{what}_memory": bytes_text(limit.most_bytes), **places})
    return rules
