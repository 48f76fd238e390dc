"""Writes a workload as a file that :mod:`planner.io.workload.workload_file` reads back as equal.

A note for a key becomes a comment behind it.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from costmodels import units
from costmodels.distribution.base import AbstractIndexDistribution
from costmodels.distribution.uniform import Uniform
from costmodels.sharding import ComputeKernel, ShardingType
from costmodels.training.communication import Communication
from costmodels.workload import DenseArch, Pipeline, Table, Workload
from planner.errors import InvalidInputError, refuse
from planner.io.documents import yaml_text
from planner.io.schemas import entry_of
from planner.io.workload.workload_schema import (
    LAW_KEYS,
    LAWS,
    TRAINING_KEYS,
    TableSchema,
    TrainingSchema,
    communication_entry,
)
from planner.problem import NO_CONSTRAINTS, Constraints, Level, TableConstraint, TableGroup

_WIDTH: Final = 100
_SHARED_LAW: Final = re.compile(r'distribution:\s+"\\0"')
"""Stands for a law that several tables have, until it is written by its name."""

Notes = Mapping[str, str]
"""Comments by key, such as ``training.batch_size_per_rank``, ``dense``, ``tables``, or ``tables.``
with the name of a table."""


def section_lines(section: str, values: Mapping[str, Any], notes: Notes) -> list[str]:
    """The lines of a section: its keys with their values and comments."""
    lines = [f"{section}:{note_text(notes.get(section))}"]
    for key, value in values.items():
        note = note_text(notes.get(f"{section}.{key}"))
        lines += block_lines(key, value, "  ", note)
    return lines


def block_lines(key: str, value: object, indent: str, note: str = "") -> list[str]:
    """The lines of a key with its value; lists of mappings take several lines."""
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        items = [f"{indent}  - {yaml_text(item, f'{indent}    ')}" for item in value]
        return [f"{indent}{key}:{note}", *items]
    if isinstance(value, dict) and any(isinstance(v, list | dict) for v in value.values()):
        inner = [line for k, v in value.items() for line in block_lines(k, v, f"{indent}  ")]
        return [f"{indent}{key}:{note}", *inner]
    return [f"{indent}{key}: {yaml_text(value, f'{indent}  ')}{note}"]


def bytes_text(value: float) -> str:
    """Bytes as text, in the largest unit in which they are a whole number."""
    for unit, size in (("GiB", units.GIB), ("MiB", units.MIB)):
        if value and value % size == 0:
            return f"{value / size:.0f} {unit}"
    return f"{yaml_text(float(value))} B"


def note_text(text: str | None) -> str:
    """A comment to write behind a value; empty for no text."""
    return f" # {on_one_line(text)}" if text else ""


def comment_lines(lines: Iterable[str]) -> list[str]:
    """Wrapped lines of a comment."""
    wrapped = []
    for line in lines:
        wrapped += textwrap.wrap(on_one_line(line), _WIDTH - 2, subsequent_indent="  ") or [""]
    return [f"# {line}".rstrip() for line in wrapped]


def on_one_line(text: str) -> str:
    """The text on one line, so that it cannot end a comment early."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


_NAME: Final = re.compile(r"\S(.*\S)?", re.DOTALL)
_LONGEST_NAME: Final = 500


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
    _check_names(workload)
    if workload.pipeline is Pipeline.LOOKAHEAD and not workload.lookahead_batches:
        refuse("a workload file takes pipeline lookahead with 1 batch or more; give their number")
    beside = dict(notes or {})
    lines = [
        *comment_lines(header),
        f"name: {yaml_text(workload.name)}",
        *_assumed_lines(assumed or {}),
        *section_lines("training", _training(workload), beside),
    ]
    if workload.dense != DenseArch():
        lines += section_lines("dense", _dense(workload.dense), beside)
    elif "dense" in beside:
        lines += comment_lines([f"dense: {beside['dense']}"])
    if workload.reserved_bytes:
        note = note_text(beside.get("memory"))
        lines.append(f"memory: {{reserve: {bytes_text(workload.reserved_bytes)}}}{note}")
    bare = set((assumed or {}).get("tables.pooling_factor", ()))
    lines += _table_lines(workload, beside, bare, law_is_known=law_is_known)
    if rules := _rules(constraints):
        lines += block_lines("constraints", rules, "", note_text(beside.get("constraints")))
    return "\n".join(lines) + "\n"


# ------------------------------------------------------------------ the parts


def _table_lines(
    workload: Workload, notes: Notes, bare: Collection[str], *, law_is_known: bool
) -> list[str]:
    """The entries of the tables; those named in ``bare`` have no pooling factor.

    Bins that several tables have in common are written once, with a name (YAML's anchors).
    """
    lines = [f"tables:{note_text(notes.get('tables'))}"] if workload.tables else []
    shared = _shared(workload)
    entries = [_table(table, law_is_known=law_is_known) for table in workload.tables]
    laws = [e.get("distribution", {}) for e in entries]
    texts = [yaml_text(law, "      ") if law.get("kind") == "bins" else "" for law in laws]
    counts, names = Counter(texts), dict[str, str]()
    for table, entry, law in zip(workload.tables, entries, texts, strict=True):
        if table.name in bare:
            del entry["pooling_factor"]
        if table.communication is not None and table.communication != shared:
            entry["communication"] = communication_entry(table.communication)
        called = f"distribution: *{names.get(law)}"
        if law and counts[law] > 1:
            entry["distribution"] = "\0"
            if law not in names:
                names[law] = f"law{len(names)}"
                called = f"distribution: &{names[law]} {law}"
        text = _SHARED_LAW.sub(called.replace("\\", r"\\"), yaml_text(entry, "    "))
        lines.append(f"  - {text}{note_text(notes.get(f'tables.{table.name}'))}")
    return lines


def _assumed_lines(assumed: Mapping[str, Sequence[str]]) -> list[str]:
    keys = [key for key in assumed if not key.startswith("tables.")]
    note = "until you put other values there"
    return [f"assumed: # {note}", *(f"  - {key}" for key in keys)] if keys else []


def _training(workload: Workload) -> dict[str, Any]:
    always = ("batch_size_per_rank", "optimizer", "output_dtype", "gradient_dtype", "pipeline")
    found = entry_of(workload, TRAINING_KEYS, always=(*always, "index_bytes"))
    if (shared := _shared(workload)) is not None:
        found["communication"] = communication_entry(shared)
    if "between_steps" in found:
        found["between_steps"] = f"{workload.between_steps_s!r} s"
    return {key: found[key] for key in TrainingSchema.model_fields if key in found}


def _shared(workload: Workload) -> Communication | None:
    """The codecs that all tables have; None if they have different ones."""
    found = {table.communication for table in workload.tables}
    return found.pop() if len(found) == 1 else None


def _dense(dense: DenseArch) -> dict[str, Any]:
    is_listed = bool(dense.layers) or dense.operators is not None
    dlrm = ("num_dense_features", "bottom_mlp", "top_mlp", "interaction")
    return entry_of(dense, always=("dtype", *(() if is_listed else dlrm)))


def _table(table: Table, *, law_is_known: bool) -> dict[str, Any]:
    names = [f.name for f in table.features]
    factors = [f.pooling_factor for f in table.features]
    found = entry_of(table, {"deduplicates_indices": "deduplicate_indices"}, always=("dtype",))
    found["pooling_factor"] = factors[0] if len(set(factors)) == 1 else factors
    found["features"] = None if names == [table.name] else names
    is_plain = table.distribution == Uniform(num_embeddings=table.num_embeddings)
    found["distribution"] = None if is_plain and not law_is_known else _law(table.distribution)
    found.pop("communication", None)
    return {k: found[k] for k in TableSchema.model_fields if found.get(k) is not None}


def _law(law: AbstractIndexDistribution) -> dict[str, Any]:
    """The keys under ``distribution``.

    Raises:
        InvalidInputError: files do not have this kind of law.
    """
    kind = next((kind for kind, known in LAWS.items() if type(law) is known), None)
    if kind is None:
        refuse(f"a law of kind {type(law).__name__} cannot be written to a workload file")
    found = entry_of(law, LAW_KEYS)
    del found["num_embeddings"]
    return {"kind": kind, **found}


def _rules(constraints: Constraints) -> list[dict[str, Any]]:
    """Constraints as entries of a list, in the order in which they are read back."""
    every = {"sharding_types": ShardingType, "kernels": ComputeKernel}
    listed = entry_of(constraints, always=every)
    everywhere = {k: listed[k] for k, kind in every.items() if {*listed[k]} != {*kind}}
    rules: list[dict[str, Any]] = [{"tables": "*", **everywhere}] if everywhere else []
    for rule in constraints.tables:
        always = ("min_column_width",) if rule == TableConstraint(pattern=rule.pattern) else ()
        rules.append(entry_of(rule, {"pattern": "tables"}, always=always))
    for key in ("together", "apart"):
        groups: Iterable[TableGroup] = getattr(constraints, key)
        rules += [{key: list(g.patterns), "on": g.level.value} for g in groups]
    for count in constraints.counts:
        what = "shards" if count.counts_shards else "tables"
        rules.append({"tables": list(count.patterns), f"max_{what}_per_{count.level}": count.most})
    for limit in constraints.memory:
        is_rank = limit.level is Level.RANK
        amount = bytes_text(limit.most_bytes)
        places = {"ranks" if is_rank else "hosts": list(limit.places)} if limit.places else {}
        rules.append({"device_memory" if is_rank else "host_memory": amount, **places})
    return rules


# ------------------------------------------------------------------ YAML


def _check_names(workload: Workload) -> None:
    """Refuse names that reading the file would refuse or change."""
    named = [("workload", workload.name)]
    named += [("table", t.name) for t in workload.tables]
    named += [("feature", f.name) for t in workload.tables for f in t.features]
    problems = [
        f"{what} name {name!r}: a workload file takes 1 to {_LONGEST_NAME} characters on one line, "
        "without spaces at either end; rename it"
        for what, name in named
        if len(name) > _LONGEST_NAME or "\n" in name or not _NAME.fullmatch(name)
    ]
    modules = [t.module for t in workload.tables]
    texts = [name for _, name in named] + modules
    problems += [
        f"name {text!r} holds half of a surrogate pair, which no file can hold; rename it"
        for text in texts
        if any("\ud800" <= c <= "\udfff" for c in text)
    ]
    for table in workload.tables:
        names = [f.name for f in table.features]
        problems += [
            f"table {table.name!r}: feature {name!r} is there twice; name each feature once"
            for name in sorted({n for n in names if names.count(n) > 1})
        ]
    if problems:
        raise InvalidInputError(list(dict.fromkeys(problems)))
