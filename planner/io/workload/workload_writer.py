"""Writes a workload as a file that :mod:`planner.io.workload.workload_file` reads back as equal.

A word is written without quotes only if YAML reads it back as exactly this text; everything else is
quoted and escaped. A note for a key becomes a comment behind it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from costmodels import units
from costmodels.distribution.base import AbstractIndexDistribution
from costmodels.distribution.empirical import Empirical
from costmodels.distribution.uniform import Uniform
from costmodels.distribution.zipf import Zipf
from costmodels.sharding import ComputeKernel, ShardingType
from costmodels.training.communication import Communication
from costmodels.training.optimizers import RowUpdate
from costmodels.workload import (
    DenseArch,
    DenseOptimizer,
    DenseParallelism,
    HostProfile,
    Pipeline,
    Pooling,
    Table,
    Workload,
)
from planner.errors import InvalidInputError
from planner.io.documents import parse_scalar
from planner.io.workload.workload_schema import communication_entry, layer_entry, operators_entry
from planner.problem import NO_CONSTRAINTS, Constraints, CountLimit, TableConstraint

_BARE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_LAST_PRINTABLE: Final = 0xFFFF
_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_WIDTH: Final = 100
_LONGEST_LINE: Final = 240
"""A table is written on one line of at most about this many characters."""
_COMMA: Final = re.compile(r", (?! )")

Notes = Mapping[str, str]
"""Comments by key, such as ``training.batch_size_per_rank``, ``dense``, ``tables``, or ``tables.``
with the name of a table."""


class Raw(str):
    """Text that is already YAML."""

    __slots__ = ()


def head_line(key: str, notes: Notes) -> str:
    """The line of a key whose values follow on other lines."""
    return f"{key}:{note_text(notes.get(key))}"


def section_lines(section: str, values: Mapping[str, Any], notes: Notes) -> list[str]:
    """The lines of a section: its keys with their values and comments."""
    lines = []
    for key, value in values.items():
        note = note_text(notes.get(f"{section}.{key}"))
        lines += block_lines(key, value, "  ", note)
    return lines


def block_lines(key: str, value: object, indent: str, note: str = "") -> list[str]:
    """The lines of a key with its value; lists of mappings take several lines."""
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        return [f"{indent}{key}:{note}", *(f"{indent}  - {flow_text(item)}" for item in value)]
    if isinstance(value, dict):
        inner = [line for k, v in value.items() for line in block_lines(k, v, f"{indent}  ")]
        return [f"{indent}{key}:{note}", *inner]
    return [f"{indent}{key}: {flow_text(value)}{note}"]


def flow_text(value: object) -> str:
    """A value in YAML's one-line form."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {flow_text(v)}" for key, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(flow_text(v) for v in value) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value:_}"
    if isinstance(value, float):
        return number_text(value)
    return value if isinstance(value, Raw) else scalar_text(str(value))


def folded_lines(line: str, indent: str) -> list[str]:
    """A long line, broken after commas that one blank follows, so that YAML reads the same value.

    A quoted text can be broken too, because YAML reads a line's end there as a blank.
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


def number_text(value: float) -> str:
    """The shortest text that reads back as exactly this number."""
    whole = value.is_integer() and abs(value) < 10**15
    return str(int(value)) if whole else repr(value)


def bytes_text(value: float) -> str:
    """Bytes as text, in the largest unit in which they are a whole number."""
    for unit, size in (("GiB", units.GIB), ("MiB", units.MIB)):
        if value and value % size == 0:
            return f"{value / size:.0f} {unit}"
    return f"{number_text(float(value))} B"


def scalar_text(text: str) -> str:
    """A word without quotes if it reads back as this text; otherwise quoted, with escapes."""
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


def note_text(text: str | None) -> str:
    """A comment to write behind a value; empty for no text."""
    return f" # {on_one_line(text)}" if text else ""


def comment_lines(lines: Iterable[str]) -> list[str]:
    """Wrapped lines of a comment."""
    import textwrap

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
        message = "a workload file takes pipeline lookahead with 1 batch or more; give their number"
        raise InvalidInputError(message)
    beside = dict(notes or {})
    lines = [
        *comment_lines(header),
        f"name: {scalar_text(workload.name)}",
        *_assumed_lines(assumed or {}),
        head_line("training", beside),
    ]
    lines += section_lines("training", _training(workload), beside)
    if workload.dense != DenseArch():
        lines += [
            head_line("dense", beside),
            *section_lines("dense", _dense(workload.dense), beside),
        ]
    elif "dense" in beside:
        lines += comment_lines([f"dense: {beside['dense']}"])
    if workload.reserved_bytes:
        note = note_text(beside.get("memory"))
        lines.append(f"memory: {{reserve: {bytes_text(workload.reserved_bytes)}}}{note}")
    if workload.tables:
        lines.append(head_line("tables", beside))
    bare = set((assumed or {}).get("tables.pooling_factor", ()))
    lines += _table_lines(workload, beside, bare, law_is_known=law_is_known)
    rules = _rules(constraints)
    if rules:
        lines += [head_line("constraints", beside), *(f"  - {flow_text(rule)}" for rule in rules)]
    return "\n".join(lines) + "\n"


# ------------------------------------------------------------------ the parts


def _table_lines(
    workload: Workload, notes: Notes, bare: Collection[str], *, law_is_known: bool
) -> list[str]:
    """The entries of the tables; those named in ``bare`` have no pooling factor."""
    lines: list[str] = []
    shared = _shared(workload)
    entries = [_table(table, law_is_known=law_is_known) for table in workload.tables]
    _name_equal_laws(entries)
    for table, entry in zip(workload.tables, entries, strict=True):
        if table.name in bare:
            del entry["pooling_factor"]
        note = note_text(notes.get(f"tables.{table.name}"))
        if table.communication != shared:
            entry |= _communication(table.communication)
        *first, last = folded_lines(f"  - {flow_text(entry)}", "    ")
        lines += [*first, last + note]
    return lines


def _assumed_lines(assumed: Mapping[str, Sequence[str]]) -> list[str]:
    keys = [key for key in assumed if not key.startswith("tables.")]
    note = "until you put other values there"
    return [f"assumed: # {note}", *(f"  - {key}" for key in keys)] if keys else []


def _training(workload: Workload) -> dict[str, Any]:
    values: dict[str, Any] = {
        "batch_size_per_rank": workload.batch_size_per_rank,
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
    shares = workload.batch_share_ratio
    seldom = {
        "gradient_accumulation": workload.gradient_accumulation > 1
        and workload.gradient_accumulation,
        "tensor_parallel": workload.tensor_parallel > 1 and workload.tensor_parallel,
        "input_samples_per_s": workload.input_samples_per_s,
        "lookahead": workload.lookahead_batches,
        "batch_shares": shares if isinstance(shares, str) else list(shares),
    }
    return values | {key: value for key, value in seldom.items() if value}


def _shared(workload: Workload) -> Communication | None:
    """The codecs that all tables have; None if they have different ones."""
    found = {table.communication for table in workload.tables}
    return found.pop() if len(found) == 1 else None


def _communication(communication: Communication | None) -> dict[str, Any]:
    if communication is None:
        return {}
    return {"communication": Raw(flow_text(communication_entry(communication)))}


def _dense(dense: DenseArch) -> dict[str, Any]:
    if dense.layers or dense.operators is not None:
        return _listed(dense)
    values: dict[str, Any] = {
        "num_dense_features": dense.num_dense_features,
        "bottom_mlp": list(dense.bottom_mlp),
        "top_mlp": list(dense.top_mlp),
        "interaction": dense.interaction.value,
    }
    values |= _kernels(dense)
    if dense.dcn_num_layers or dense.dcn_low_rank_dim:
        values["dcn_num_layers"] = dense.dcn_num_layers
        values["dcn_low_rank_dim"] = dense.dcn_low_rank_dim
    values["dtype"] = dense.dtype.value
    return values


def _kernels(dense: DenseArch) -> dict[str, Any]:
    """The entries of the software that runs the dense part, as far as they are given."""
    given: dict[str, Any] = {}
    if dense.interaction_kernel is not None:
        given["interaction_kernel"] = dense.interaction_kernel.value
    if dense.compiled:
        given["compiled"] = True
    if dense.framework is not None:
        given["framework"] = dense.framework.value
    return given


def _listed(dense: DenseArch) -> dict[str, Any]:
    """The entry of a dense part that consists of layers or of operators."""
    values: dict[str, Any] = {"dtype": dense.dtype.value}
    if dense.num_dense_features:
        values["num_dense_features"] = dense.num_dense_features
    values |= _kernels(dense)
    if dense.layers:
        values["layers"] = [layer_entry(layer) for layer in dense.layers]
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
    if table.row_update is not RowUpdate.DEDUPLICATED:
        values["row_update"] = table.row_update.value
    if table.deduplicates_indices:
        values["deduplicate_indices"] = True
    if table.optimizer is not None:
        values["optimizer"] = table.optimizer.value
    return values


def _name_equal_laws(entries: list[dict[str, Any]]) -> None:
    """Write bins that several tables have in common once, with a name (YAML's anchors)."""
    texts = [
        flow_text(law)
        for entry in entries
        if isinstance(law := entry.get("distribution"), dict) and law["kind"] == "bins"
    ]
    counts, names = Counter(texts), dict[str, str]()
    for entry in entries:
        law = entry.get("distribution")
        if not isinstance(law, dict) or law["kind"] != "bins":
            continue
        text = flow_text(law)
        if text in names:
            entry["distribution"] = Raw(f"*{names[text]}")
        elif counts[text] > 1:
            names[text] = f"law{len(names)}"
            entry["distribution"] = Raw(f"&{names[text]} {text}")


def _law(law: AbstractIndexDistribution) -> dict[str, Any]:
    """The keys under ``distribution``.

    Raises:
        InvalidInputError: files do not have this kind of law.
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
        if law.hot_share_ratio:
            values["hot_share"] = list(law.hot_share_ratio)
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
        entry: dict[str, Any] = {key: Raw(bytes_text(limit.most_bytes))}
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
