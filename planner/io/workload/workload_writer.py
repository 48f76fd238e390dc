"""A workload as a file that :mod:`planner.io.workload.workload_file` reads back as the same.

Words are written bare only where YAML gives exactly that text back; everything else is quoted and
escaped. A note beside a key becomes a comment.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from costmodels import units
from costmodels.communication import Communication
from costmodels.distribution.base import AbstractIndexDistribution
from costmodels.distribution.empirical import Empirical
from costmodels.distribution.uniform import Uniform
from costmodels.distribution.zipf import Zipf
from costmodels.sharding import ComputeKernel, ShardingType
from costmodels.workload import (
    DenseArch,
    DenseOptimizer,
    DenseParallelism,
    HostProfile,
    Pooling,
    Table,
    Workload,
)
from planner.errors import InvalidInputError
from planner.io.atomic import write_text_atomic
from planner.io.workload.codec_entries import communication_entry
from planner.io.workload.layer_entries import entry_of
from planner.io.workload.operator_schema import operators_entry
from planner.io.yaml_reader import parse_scalar
from planner.problem import NO_CONSTRAINTS, Constraints, CountLimit, TableConstraint

_BARE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_NAME: Final = re.compile(r"\S(.*\S)?", re.DOTALL)
_LONGEST_NAME: Final = 500
_LAST_PRINTABLE: Final = 0xFFFF
_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_WIDTH: Final = 100
_LONGEST_LINE: Final = 240
"""A table on one line is easy to read and to compare up to about here."""
_COMMA: Final = re.compile(r", (?! )")

Notes = Mapping[str, str]
"""Comments by key: ``training.batch_size_per_rank``, ``dense``, ``tables``, or a table's name
after ``tables.``."""


def workload_text(
    workload: Workload,
    constraints: Constraints = NO_CONSTRAINTS,
    *,
    header: Sequence[str] = (),
    notes: Notes | None = None,
    law_is_known: bool = True,
) -> str:
    """A workload as YAML; ``load_workload`` of it is equal to ``workload``.

    Args:
        workload: what to write.
        constraints: written below it. Types and kernels that no table may have become a rule for
            all tables.
        header: lines of comment at the top.
        notes: comments beside keys.
        law_is_known: False leaves plain uniform laws out, so that the reader is told about them.

    Raises:
        InvalidInputError: a name that a file cannot hold, such as one that begins with a space.
    """
    _check_names(workload)
    beside = dict(notes or {})
    lines = [*_comments(header), f"name: {_scalar(workload.name)}", _head("training", beside)]
    lines += _keys("training", _training(workload), beside)
    if workload.dense != DenseArch():
        lines += [_head("dense", beside), *_keys("dense", _dense(workload.dense), beside)]
    elif "dense" in beside:
        lines += _comments([f"dense: {beside['dense']}"])
    if workload.reserved_bytes:
        note = _note(beside.get("memory"))
        lines.append(f"memory: {{reserve: {_bytes(workload.reserved_bytes)}}}{note}")
    if workload.tables:
        lines.append(_head("tables", beside))
    shared = _shared(workload)
    for table in workload.tables:
        note = _note(beside.get(f"tables.{table.name}"))
        entry = _table(table, law_is_known=law_is_known)
        if table.communication != shared:
            entry |= _communication(table.communication)
        *first, last = _folded(f"  - {_flow(entry)}", "    ")
        lines += [*first, last + note]
    rules = _rules(constraints)
    if rules:
        lines += [_head("constraints", beside), *(f"  - {_flow(rule)}" for rule in rules)]
    return "\n".join(lines) + "\n"


def save_workload(
    path: Path,
    workload: Workload,
    constraints: Constraints = NO_CONSTRAINTS,
    *,
    header: Sequence[str] = (),
    notes: Notes | None = None,
) -> None:
    """Write :func:`workload_text`, whole or not at all.

    Raises:
        InvalidInputError: a name that a file cannot hold, or a folder that cannot be written.
    """
    write_text_atomic(path, workload_text(workload, constraints, header=header, notes=notes))


# ------------------------------------------------------------------ the parts


def _training(workload: Workload) -> dict[str, Any]:
    values: dict[str, Any] = {
        "batch_size_per_rank": workload.local_batch_size,
        "optimizer": workload.optimizer.value,
        "output_dtype": workload.output_dtype.value,
        "gradient_dtype": workload.gradient_dtype.value,
        **_communication(_shared(workload)),
        "pipeline": workload.pipeline.value,
        "index_bytes": workload.index_bytes,
    }
    if workload.cuda_graph:
        values["cuda_graph"] = True
    if workload.host_profile is not HostProfile.EAGER:
        values["host_profile"] = workload.host_profile.value
    if workload.between_steps_s is not None:
        values["between_steps"] = f"{workload.between_steps_s!r} s"
    if workload.dense_optimizer is not DenseOptimizer.ADAGRAD:
        values["dense_optimizer"] = workload.dense_optimizer.value
    if workload.dense_parallelism is not DenseParallelism.DDP:
        values["dense_parallelism"] = workload.dense_parallelism.value
    if workload.gradient_accumulation > 1:
        values["gradient_accumulation"] = workload.gradient_accumulation
    if workload.tensor_parallel > 1:
        values["tensor_parallel"] = workload.tensor_parallel
    if workload.input_samples_per_s is not None:
        values["input_samples_per_s"] = workload.input_samples_per_s
    return values


def _shared(workload: Workload) -> Communication | None:
    """The codecs that every table has, or None where some has none or others."""
    found = {table.communication for table in workload.tables}
    return found.pop() if len(found) == 1 else None


def _communication(communication: Communication | None) -> dict[str, Any]:
    if communication is None:
        return {}
    return {"communication": _Raw(_flow(communication_entry(communication)))}


def _dense(dense: DenseArch) -> dict[str, Any]:
    if dense.layers or dense.operators is not None:
        return _listed(dense)
    values: dict[str, Any] = {
        "num_dense_features": dense.num_dense_features,
        "bottom_mlp": list(dense.bottom_mlp),
        "top_mlp": list(dense.top_mlp),
        "interaction": dense.interaction.value,
    }
    if dense.dcn_num_layers or dense.dcn_low_rank_dim:
        values["dcn_num_layers"] = dense.dcn_num_layers
        values["dcn_low_rank_dim"] = dense.dcn_low_rank_dim
    values["dtype"] = dense.dtype.value
    return values


def _listed(dense: DenseArch) -> dict[str, Any]:
    """A dense part of layers or of operators."""
    values: dict[str, Any] = {"dtype": dense.dtype.value}
    if dense.num_dense_features:
        values["num_dense_features"] = dense.num_dense_features
    if dense.layers:
        values["layers"] = [entry_of(layer) for layer in dense.layers]
    if dense.operators is not None:
        values["operators"] = operators_entry(dense.operators)
    return values


def _table(table: Table, *, law_is_known: bool) -> dict[str, Any]:
    names = [f.name for f in table.features]
    factors = [f.pooling_factor for f in table.features]
    values: dict[str, Any] = {
        "name": table.name,
        "num_embeddings": table.num_embeddings,
        "embedding_dim": table.embedding_dim,
    }
    if names != [table.name]:
        values["features"] = names
    values["pooling_factor"] = factors[0] if len(set(factors)) == 1 else factors
    if law_is_known or table.distribution != Uniform(num_embeddings=table.num_embeddings):
        values["distribution"] = _law(table.distribution)
    values["dtype"] = table.dtype.value
    if table.pooling is not Pooling.SUM:
        values["pooling"] = table.pooling.value
    if table.is_weighted:
        values["is_weighted"] = True
    if table.module != "embedding_bag_collection":
        values["module"] = table.module
    return values


def _law(law: AbstractIndexDistribution) -> dict[str, Any]:
    """The keys under ``distribution``.

    Raises:
        InvalidInputError: a kind of law that files do not have.
    """
    if isinstance(law, Uniform):
        return {"kind": "uniform"} | ({} if law.scattered else {"scattered": False})
    if isinstance(law, Zipf):
        values: dict[str, Any] = {"kind": "zipf", "exponent": law.exponent}
        extra = {"shift": law.shift, "ids_per_draw": law.ids_per_draw}
        values |= {k: v for k, v in extra.items() if v != (1 if k == "ids_per_draw" else 0)}
        return values | ({} if law.scattered else {"scattered": False})
    if isinstance(law, Empirical):
        values = {
            "kind": "bins",
            "rows": list(law.num_rows_per_bin),
            "probability": list(law.probability_ratio),
        }
        if law.num_rows_per_range:
            values["rows_per_range"] = [list(line) for line in law.num_rows_per_range]
            values["ids_in_ranges"] = law.num_ids_in_ranges
        if law.num_unique_curve:
            values["unique_rows"] = [list(point) for point in law.num_unique_curve]
        return values
    message = f"a law of kind {type(law).__name__} cannot be written to a workload file"
    raise InvalidInputError(message)


def _rules(constraints: Constraints) -> list[dict[str, Any]]:
    """Constraints as entries of a list, in the order in which they are read back."""
    rules = []
    everywhere: dict[str, Any] = {}
    if set(constraints.sharding_types) != set(ShardingType):
        everywhere["sharding_types"] = [t.value for t in constraints.sharding_types]
    if set(constraints.kernels) != set(ComputeKernel):
        everywhere["kernels"] = [k.value for k in constraints.kernels]
    if everywhere:
        rules.append({"tables": "*"} | everywhere)
    rules += [_table_rule(rule) for rule in constraints.tables]
    for key, groups in (("together", constraints.together), ("apart", constraints.apart)):
        rules += [{key: list(g.patterns), "on": g.level.value} for g in groups]
    rules += [_count_rule(rule) for rule in constraints.counts]
    for limit in constraints.memory:
        key, places = {"rank": ("device_memory", "ranks"), "host": ("host_memory", "hosts")}[
            limit.level.value
        ]
        entry: dict[str, Any] = {key: _Raw(_bytes(limit.most_bytes))}
        rules.append(entry | ({places: list(limit.places)} if limit.places else {}))
    return rules


def _table_rule(rule: TableConstraint) -> dict[str, Any]:
    lists: dict[str, Iterable[Any]] = {
        "sharding_types": [t.value for t in rule.sharding_types],
        "kernels": [k.value for k in rule.kernels],
        "ranks": rule.ranks,
        "hosts": rule.hosts,
        "cache_load_factors": rule.cache_load_factors,
        "pairs": [[t.value, k.value] for t, k in rule.pairs],
    }
    entry: dict[str, Any] = {"tables": rule.pattern}
    entry |= {key: list(values) for key, values in lists.items() if values}
    if rule.min_column_width != TableConstraint(pattern="*").min_column_width or len(entry) == 1:
        entry["min_column_width"] = rule.min_column_width
    return entry


def _count_rule(rule: CountLimit) -> dict[str, Any]:
    what = "shards" if rule.counts_shards else "tables"
    return {"tables": list(rule.patterns), f"max_{what}_per_{rule.level.value}": rule.most}


# ------------------------------------------------------------------ YAML


class _Raw(str):
    """Text that is already YAML."""

    __slots__ = ()


def _head(key: str, notes: Notes) -> str:
    return f"{key}:{_note(notes.get(key))}"


def _keys(section: str, values: Mapping[str, Any], notes: Notes) -> list[str]:
    lines = []
    for key, value in values.items():
        note = _note(notes.get(f"{section}.{key}"))
        lines += _block(key, value, "  ", note)
    return lines


def _block(key: str, value: object, indent: str, note: str = "") -> list[str]:
    """A key with its value; lists of mappings and mappings that hold such lists over many lines."""
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        return [f"{indent}{key}:{note}", *(f"{indent}  - {_flow(item)}" for item in value)]
    if isinstance(value, dict):
        inner = [line for k, v in value.items() for line in _block(k, v, f"{indent}  ")]
        return [f"{indent}{key}:{note}", *inner]
    return [f"{indent}{key}: {_flow(value)}{note}"]


def _flow(value: object) -> str:
    """A value in YAML's one-line form."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(v)}" for key, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_flow(v) for v in value) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value:_}"
    if isinstance(value, float):
        return _number(value)
    return value if isinstance(value, _Raw) else _scalar(str(value))


def _folded(line: str, indent: str) -> list[str]:
    """A long line broken after commas that one blank follows, as YAML reads it back unchanged.

    A quoted text may be broken too: there a line's end stands for the blank.
    """
    if len(line) <= _LONGEST_LINE:
        return [line]
    lines = [""]
    for part in _COMMA.split(line):
        if lines[-1].strip() and len(lines[-1]) + len(part) + 2 > _WIDTH:
            lines[-1] += ","
            lines.append(f"{indent}{part}")
        else:
            lines[-1] += f", {part}" if lines[-1] else part
    return lines


def _number(value: float) -> str:
    """The shortest text that reads back as exactly this number."""
    whole = value.is_integer() and abs(value) < 10**15
    return str(int(value)) if whole else repr(value)


def _bytes(value: float) -> str:
    """In the largest unit that holds it as a whole number."""
    for unit, size in (("GiB", units.GIB), ("MiB", units.MIB)):
        if value and value % size == 0:
            return f"{value / size:.0f} {unit}"
    return f"{_number(float(value))} B"


def _scalar(text: str) -> str:
    """A word as it stands if it reads back as this text; otherwise quoted, with escapes."""
    if _BARE.fullmatch(text) and parse_scalar(text) == text:
        return text
    return '"' + "".join(_escaped(c) for c in text) + '"'


def _escaped(character: str) -> str:
    code = ord(character)
    if character in _ESCAPES:
        return _ESCAPES[character]
    if code <= _LAST_PRINTABLE and not character.isprintable():
        return f"\\u{code:04x}"
    return character if character.isprintable() else f"\\U{code:08x}"


def _note(text: str | None) -> str:
    return f" # {_one_line(text)}" if text else ""


def _comments(lines: Iterable[str]) -> list[str]:
    """Lines of comment, wrapped."""
    import textwrap

    wrapped = []
    for line in lines:
        wrapped += textwrap.wrap(_one_line(line), _WIDTH - 2, subsequent_indent="  ") or [""]
    return [f"# {line}".rstrip() for line in wrapped]


def _one_line(text: str) -> str:
    """Text that cannot end a comment early."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _check_names(workload: Workload) -> None:
    """Refuse names that the reader would refuse or change."""
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
