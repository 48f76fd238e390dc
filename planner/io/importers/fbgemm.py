"""Imports FBGEMM's TBE data configuration: one or several table-batched lookups, as JSON.

The keys are those of FBGEMM 1.8 ``tbe/bench/tbe_data_config.py``: ``T`` features with rows ``E`` or
``Es`` and columns ``D`` or ``Ds``; ``batch_params.B``; ``pooling_params.L`` or ``Ls``;
``indices_params`` with the probabilities of the hottest rows and a law (x + q)^-s of the rest; or
``embedding_specs`` and ``feature_table_map``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from costmodels.distribution.base import AbstractIndexDistribution
from costmodels.distribution.empirical import Empirical
from costmodels.distribution.zipf import Zipf
from costmodels.workload import Feature, Table
from planner.errors import InvalidInputError
from planner.io.documents import Document, Keys, read_json
from planner.io.importers.base import (
    MAX_COLUMNS,
    MAX_IMPORTED_TABLES,
    Imported,
    Reader,
    make_workload,
)
from planner.io.schemas import collect

_MOST_SAMPLES: Final = 10**8
_MOST_HEAVY: Final = 100
_INDEX_BYTES: Final = {"torch.int32": 4, "torch.int64": 8}
_ASSUMED: Final = {
    "training.optimizer": "the file does not name it",
    "training.output_dtype": "fp32; the file does not say it",
    "tables": "fp32, sum pooling and hot rows scattered over the ids; the file does not say it",
    "dense": "none, for the file holds lookups only",
}
_UNUSED: Final = {
    "batch_params": ("sigma_B", "vbe_num_ranks"),
    "pooling_params": ("sigma_L",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tbe:
    """One configuration: its tables, its batch and the width of its indices."""

    tables: tuple[Table, ...]
    num_samples: int
    index_bytes: int | None
    unsaid: tuple[str, ...]


def import_fbgemm(path: Path) -> Imported:
    """Import the tables of one configuration, of a list of them, or of an object with names.

    The batch is that of the first configuration; the indices of others are scaled to it.

    Raises:
        InvalidInputError: a value is missing or out of range; the message names its key path.
    """
    reader = Reader(Document(path, read_json(path), {}))
    parts = _parts(reader)
    read = [_tbe(reader, value, keys, prefix) for value, keys, prefix in parts]
    tables = [t for part in read for t in _scaled(part, read[0].num_samples)]
    if len(tables) > MAX_IMPORTED_TABLES:
        message = f"{path}: {len(tables):,} tables: must be at most {MAX_IMPORTED_TABLES:,}"
        raise InvalidInputError(message)
    widths = {part.index_bytes for part in read} - {None}
    assumed = dict(_ASSUMED)
    if len(widths) != 1:
        assumed["training.index_bytes"] = "8; the file does not say one width for all"
    workload = make_workload(
        str(path),
        name=path.stem,
        tables=tuple(tables),
        batch_size_per_rank=read[0].num_samples,
        index_bytes=next(iter(widths)) if len(widths) == 1 else 8,
    )
    return Imported(
        workload=workload,
        source=f"the FBGEMM configuration {path.name}",
        assumed=assumed,
        unsaid=tuple(dict.fromkeys(line for part in read for line in part.unsaid)),
    )


def _parts(reader: Reader) -> list[tuple[dict[str, Any], Keys, str]]:
    """Each configuration with its place and the prefix of its tables' names."""
    value = reader.document.value
    if isinstance(value, list):
        named: list[tuple[Any, Keys, str]] = [
            (part, (i,), f"tbe{i}_") for i, part in enumerate(value)
        ]
    elif isinstance(value, dict) and "T" not in value and "embedding_specs" not in value:
        named = [(part, (key,), f"{key}_") for key, part in value.items()]
        if value and not all(isinstance(part, dict) for part in value.values()):
            reader.required(value, "T", ())
    else:
        named = [(value, (), "")]
    if not named:
        message = f"{reader.document.path}: holds no configuration"
        raise InvalidInputError(message)
    return [(reader.mapping(part, keys), keys, prefix) for part, keys, prefix in named]


def _tbe(reader: Reader, config: dict[str, Any], keys: Keys, prefix: str) -> _Tbe:
    num = reader.whole(reader.required(config, "T", keys), (*keys, "T"), high=MAX_IMPORTED_TABLES)
    batch = _section(reader, config, "batch_params", keys)
    samples = _samples(reader, batch, (*keys, "batch_params"), num)
    factors = _factors(reader, config, keys, num)
    base = (
        samples[0]
        if batch.get("B") is None
        else reader.whole(batch["B"], (*keys, "batch_params", "B"), high=_MOST_SAMPLES)
    )
    factors = [f * n / base for f, n in zip(factors, samples, strict=True)]
    shapes, owner = _shapes(reader, config, keys, num)
    is_weighted = reader.flag(config.get("weighted", False), (*keys, "weighted"))
    laws = _law_params(reader, config, keys, num)
    features_of: list[list[int]] = [[] for _ in shapes]
    for feature, table in enumerate(owner):
        features_of[table].append(feature)
    tables: list[Table] = []
    problems: list[str] = []
    where = reader.document.where(keys)
    for table, (rows, columns) in enumerate(shapes):
        name = f"{prefix}t{table}"
        mine = features_of[table]
        if not mine:
            raise reader.fail(
                (*keys, "feature_table_map"), owner, f"no feature is looked up in table {table}"
            )
        build = partial(
            _table, name, rows, columns, [(f"{prefix}f{f}", factors[f]) for f in mine],
            laws[mine[0]], is_weighted=is_weighted,
        )  # fmt: skip
        made = collect(problems, where, build)
        tables += [made] if made is not None else []
    if problems:
        raise InvalidInputError(problems)
    return _Tbe(
        tables=tuple(tables),
        num_samples=base,
        index_bytes=_index_bytes(reader, config, keys),
        unsaid=_unsaid(config),
    )


def _section(reader: Reader, config: dict[str, Any], key: str, keys: Keys) -> dict[str, Any]:
    return reader.mapping(reader.required(config, key, keys), (*keys, key))


def _samples(reader: Reader, batch: dict[str, Any], keys: Keys, num: int) -> list[int]:
    """Samples of each feature."""
    if batch.get("Bs") is not None:
        given = reader.sequence(batch["Bs"], (*keys, "Bs"), length=num)
        return [reader.whole(n, (*keys, "Bs", i), high=_MOST_SAMPLES) for i, n in enumerate(given)]
    value = reader.required(batch, "B", keys)
    return [reader.whole(value, (*keys, "B"), high=_MOST_SAMPLES)] * num


def _factors(reader: Reader, config: dict[str, Any], keys: Keys, num: int) -> list[float]:
    """Indices per sample of each feature."""
    section = _section(reader, config, "pooling_params", keys)
    keys = (*keys, "pooling_params")
    if section.get("Ls") is not None:
        given = reader.sequence(section["Ls"], (*keys, "Ls"), length=num)
        return [reader.number(n, (*keys, "Ls", i)) for i, n in enumerate(given)]
    return [reader.number(reader.required(section, "L", keys), (*keys, "L"))] * num


def _shapes(
    reader: Reader, config: dict[str, Any], keys: Keys, num: int
) -> tuple[list[tuple[int, int]], list[int]]:
    """Rows and columns of each table, and the table of each feature."""
    specs, given = config.get("embedding_specs"), config.get("feature_table_map")
    where = (*keys, "embedding_specs")
    if specs is not None:
        pairs = [
            reader.sequence(pair, (*where, i), length=2)
            for i, pair in enumerate(reader.sequence(specs, where))
        ]
        shapes = [
            (
                reader.whole(rows, (*where, i, 0)),
                reader.whole(columns, (*where, i, 1), high=MAX_COLUMNS),
            )
            for i, (rows, columns) in enumerate(pairs)
        ]
    else:
        rows_of = _per_feature(reader, config, "E", keys, num, 2**48)
        columns_of = _per_feature(reader, config, "D", keys, num, MAX_COLUMNS)
        shapes = list(zip(rows_of, columns_of, strict=True))
    where = (*keys, "feature_table_map")
    if given is None:
        if len(shapes) != num:
            raise reader.fail((*keys, "embedding_specs"), specs, f"must have T = {num} entries")
        return shapes, list(range(num))
    listed = reader.sequence(given, where, length=num)
    if specs is not None:
        most = len(shapes) - 1
        return shapes, [reader.whole(t, (*where, i), 0, most) for i, t in enumerate(listed)]
    owner = [reader.whole(t, (*where, i), 0, num - 1) for i, t in enumerate(listed)]
    merged: dict[int, tuple[int, int]] = {}
    for feature, table in enumerate(owner):
        if merged.setdefault(table, shapes[feature]) != shapes[feature]:
            raise reader.fail(
                (*where, feature), table, "features of one table must agree in E and D"
            )
    order = sorted(merged)
    return [merged[t] for t in order], [order.index(t) for t in owner]


def _per_feature(
    reader: Reader, config: dict[str, Any], key: str, keys: Keys, num: int, high: int
) -> list[int]:
    """``Es`` if it is given, else ``E`` for all features; in older files ``E`` can be a list."""
    name = f"{key}s" if config.get(f"{key}s") is not None else key
    value, where = reader.required(config, name, keys), (*keys, name)
    if isinstance(value, list):
        listed = reader.sequence(value, where, length=num)
        return [reader.whole(n, (*where, i), high=high) for i, n in enumerate(listed)]
    return [reader.whole(value, where, high=high)] * num


@dataclass(frozen=True, slots=True, kw_only=True)
class _Law:
    """Probabilities of the hottest rows, hottest first, and the power law of the rest.

    The row at position k, counted from 0 over all rows, has a probability proportional to
    (k + q)^-s (FBGEMM ``tbe/eeg/indices_generator.cpp``: heavy rows shift q by their number). Our
    law counts from 1, hence q - 1.
    """

    heavy: tuple[float, ...]
    shift: float
    exponent: float

    def of(self, rows: int) -> AbstractIndexDistribution:
        """The law of a table of so many rows."""
        heavy = np.sort(np.array(self.heavy[:rows]))[::-1]
        if not len(heavy) or not heavy[0]:
            if self.shift >= 1 or rows == 1:
                shift = max(self.shift - 1, 0.0)
                return Zipf(num_embeddings=rows, exponent=self.exponent, shift=shift)
            heavy = np.array([self._first(rows)])
        counts, probability = np.ones(len(heavy)), heavy
        if rows > len(heavy):
            tail_rows, tail_probability = self._tail(rows, len(heavy)).frequency_bins()
            mass = max(1.0 - float(heavy.sum()), 0.0)
            counts = np.concatenate([counts, tail_rows])
            probability = np.concatenate([heavy, tail_probability * mass])
        order = np.argsort(-probability, kind="stable")
        return Empirical.from_bins(counts[order], probability[order], rows)

    def _tail(self, rows: int, num_heavy: int) -> Zipf:
        shift = self.shift + num_heavy - 1
        return Zipf(num_embeddings=rows - num_heavy, exponent=self.exponent, shift=shift)

    def _first(self, rows: int) -> float:
        """Probability of the first row if q < 1: the shift of a law here cannot be negative."""
        second = float(self._tail(rows, 1).frequency_bins()[1][0])
        others = (1.0 + self.shift) ** -self.exponent / second
        return float(1.0 / (1.0 + others * self.shift**self.exponent))


def _law_params(reader: Reader, config: dict[str, Any], keys: Keys, num: int) -> list[_Law]:
    if config.get("indices_params_list") is not None:
        where = (*keys, "indices_params_list")
        given = reader.sequence(config["indices_params_list"], where, length=num)
        return [_law(reader, part, (*where, i)) for i, part in enumerate(given)]
    where = (*keys, "indices_params")
    return [_law(reader, reader.required(config, "indices_params", keys), where)] * num


def _law(reader: Reader, value: object, keys: Keys) -> _Law:
    params = reader.mapping(value, keys)
    where = (*keys, "heavy_hitters")
    heavy = reader.sequence(params.get("heavy_hitters") or [], where)
    if len(heavy) > _MOST_HEAVY:
        raise reader.fail(where, heavy, f"must have at most {_MOST_HEAVY} entries")
    ratios = tuple(reader.number(p, (*where, i), high=1.0) for i, p in enumerate(heavy))
    if sum(ratios) > 1 + 1e-5:
        raise reader.fail(where, heavy, f"must sum to at most 1, got {sum(ratios):.6g}")
    return _Law(
        heavy=ratios,
        shift=reader.number(
            reader.required(params, "zipf_q", keys), (*keys, "zipf_q"), low=1e-9, high=1e11
        ),
        exponent=reader.number(
            reader.required(params, "zipf_s", keys), (*keys, "zipf_s"), high=10.0
        ),
    )


def _table(
    name: str,
    rows: int,
    columns: int,
    features: list[tuple[str, float]],
    law: _Law,
    *,
    is_weighted: bool,
) -> Table:
    return Table(
        name=name,
        num_embeddings=rows,
        embedding_dim=columns,
        features=tuple(Feature(name=n, pooling_factor=p) for n, p in features),
        distribution=law.of(rows),
        is_weighted=is_weighted,
    )


def _scaled(part: _Tbe, num_samples: int) -> tuple[Table, ...]:
    """The tables with their indices per sample of another batch."""
    ratio = part.num_samples / num_samples
    if ratio == 1:
        return part.tables
    return tuple(
        replace(
            t,
            features=tuple(replace(f, pooling_factor=f.pooling_factor * ratio) for f in t.features),
        )
        for t in part.tables
    )


def _index_bytes(reader: Reader, config: dict[str, Any], keys: Keys) -> int | None:
    params = config.get("indices_params")
    given = params.get("index_dtype") if isinstance(params, dict) else None
    if given in (None, "None"):
        return None
    if not isinstance(given, str) or given not in _INDEX_BYTES:
        known = " or ".join(_INDEX_BYTES)
        raise reader.fail((*keys, "indices_params", "index_dtype"), given, f"must be {known}")
    return _INDEX_BYTES[given]


def _unsaid(config: dict[str, Any]) -> tuple[str, ...]:
    spread = tuple(
        f"{section}.{key}: a workload holds means, not their spread"
        for section, unused in _UNUSED.items()
        for key in unused
        if isinstance(config.get(section), dict) and config[section].get(key)
    )
    columns = config.get("embedding_specs") or config.get("Ds") or config.get("D")
    if config.get("mixed_dim") and not isinstance(columns, list):
        return (*spread, "mixed_dim: the benchmark draws the columns of each table around D")
    return spread
