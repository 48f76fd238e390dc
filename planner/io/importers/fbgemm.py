"""Imports table-batched lookups: FBGEMM's TBE data configuration, and PARAM's (both JSON).

The keys are those of FBGEMM 1.8 ``tbe/bench/tbe_data_config.py``: ``T`` features with rows ``E`` or
``Es`` and columns ``D`` or ``Ds``; ``batch_params.B``; ``pooling_params.L`` or ``Ls``;
``indices_params`` with the probabilities of the hottest rows and a law (x + q)^-s of the rest; or
``embedding_specs`` and ``feature_table_map``.

PARAM's benchmark of operators reads the form ``{"SplitTableBatchedEmbeddingBagsCodegen": {"config":
[{"build": [{"args", "kwargs"}], "input": [{"args"}]}]}}``. Under ``build`` there are ``num_tables,
rows, dim, pooling, weighted, weights_precision``, and under ``input`` there are ``batch_size,
pooling_factor``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
from pydantic import AfterValidator, Field

from costmodels.distribution.base import AbstractIndexDistribution
from costmodels.distribution.empirical import Empirical
from costmodels.distribution.zipf import Zipf
from costmodels.workload import DataType, Optimizer, Pooling, Table
from planner.errors import refuse
from planner.io.documents import Document, Keys, read_json
from planner.io.importers.base import (
    MAX_IMPORTED_TABLES,
    BatchSize,
    Columns,
    Imported,
    Rows,
    TableCount,
    imported_of,
    plain_table,
)
from planner.io.schemas import Loose, PoolingFactor, each, made, present, validate

_INDEX_BYTES: Final = {"torch.int32": 4, "torch.int64": 8}
_ASSUMED: Final = {
    "training.optimizer": "the file does not name it",
    "training.output_dtype": "fp32; the file does not say it",
    "tables": "fp32, sum pooling and hot rows scattered over the ids; the file does not say it",
    "dense": "none, for the file holds lookups only",
}


def _at_most_all(ratios: list[float]) -> list[float]:
    if sum(ratios) > 1 + 1e-5:
        refuse(f"must sum to at most 1, got {sum(ratios):.6g}")
    return ratios


class _Batch(Loose):
    B: BatchSize | None = None
    Bs: list[BatchSize] | None = None
    sigma_B: Any = None  # noqa: N815 - FBGEMM's name
    vbe_num_ranks: Any = None


class _Pooling(Loose):
    L: PoolingFactor | None = None
    Ls: list[PoolingFactor] | None = None
    sigma_L: Any = None  # noqa: N815 - FBGEMM's name


class _Law(Loose):
    """Probabilities of the hottest rows, hottest first, and the power law of the rest.

    The row at position k, counted from 0 over all rows, has a probability proportional to
    (k + q)^-s (FBGEMM ``tbe/eeg/indices_generator.cpp``: heavy rows shift q by their number). Our
    law counts from 1, hence q - 1.
    """

    heavy_hitters: (
        Annotated[
            list[Annotated[float, Field(ge=0, le=1)]],
            Field(max_length=100),
            AfterValidator(_at_most_all),
        ]
        | None
    ) = None
    zipf_q: Annotated[float, Field(ge=1e-9, le=1e11)]
    zipf_s: Annotated[float, Field(ge=0, le=10)]
    index_dtype: Literal["torch.int32", "torch.int64", "None"] | None = None

    def of(self, rows: int) -> AbstractIndexDistribution:
        """The law of a table of so many rows."""
        heavy = np.sort(np.array((self.heavy_hitters or [])[:rows], dtype=float))[::-1]
        if not len(heavy) or not heavy[0]:
            if self.zipf_q >= 1 or rows == 1:
                shift = max(self.zipf_q - 1, 0.0)
                return Zipf(num_embeddings=rows, exponent=self.zipf_s, shift=shift)
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
        shift = self.zipf_q + num_heavy - 1
        return Zipf(num_embeddings=rows - num_heavy, exponent=self.zipf_s, shift=shift)

    def _first(self, rows: int) -> float:
        """Probability of the first row if q < 1: the shift of a law here cannot be negative."""
        second = float(self._tail(rows, 1).frequency_bins()[1][0])
        others = (1.0 + self.zipf_q) ** -self.zipf_s / second
        return float(1.0 / (1.0 + others * self.zipf_q**self.zipf_s))


class _Config(Loose):
    T: TableCount
    E: Rows | list[Rows] | None = None
    Es: Rows | list[Rows] | None = None
    D: Columns | list[Columns] | None = None
    Ds: Columns | list[Columns] | None = None
    batch_params: _Batch
    pooling_params: _Pooling
    indices_params: _Law | None = None
    indices_params_list: list[_Law] | None = None
    embedding_specs: list[Annotated[tuple[Rows, Columns], Field(strict=False)]] | None = None
    feature_table_map: list[Annotated[int, Field(ge=0)]] | None = None
    weighted: bool = False
    mixed_dim: Any = None


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
    read: list[_Tbe] = []
    for document, prefix in _parts(path, read_json(path)):
        read.append(_tbe(document, prefix, read[0].num_samples if read else None))
    tables = [table for part in read for table in part.tables]
    if len(tables) > MAX_IMPORTED_TABLES:
        refuse(f"{path}: {len(tables):,} tables: must be at most {MAX_IMPORTED_TABLES:,}")
    widths = {part.index_bytes for part in read} - {None}
    assumed = dict(_ASSUMED)
    if len(widths) != 1:
        assumed["training.index_bytes"] = "8; the file does not say one width for all"
    return imported_of(
        path,
        "FBGEMM configuration",
        {
            "tables": tuple(tables),
            "batch_size_per_rank": read[0].num_samples,
            "index_bytes": (widths.pop() if len(widths) == 1 else None) or 8,
        },
        assumed=assumed,
        unsaid=tuple(dict.fromkeys(line for part in read for line in part.unsaid)),
    )


def _parts(path: Path, value: Any) -> list[tuple[Document, str]]:
    """Each configuration with the prefix of its tables' names."""
    named: dict[Any, tuple[str, Any]] = {}
    if isinstance(value, list):
        named = {i: (f"tbe{i}_", part) for i, part in enumerate(value)}
    elif isinstance(value, dict) and all(isinstance(part, dict) for part in value.values()):
        named = {key: (f"{key}_", part) for key, part in value.items()}
    else:
        return [(Document(path, value, {}), "")]
    if not named:
        refuse(f"{path}: holds no configuration")
    return [
        (Document(path, part, {}, above=(key,)), prefix) for key, (prefix, part) in named.items()
    ]


def _tbe(document: Document, prefix: str, base: int | None) -> _Tbe:
    """One configuration; its indices per sample are for batches of ``base``, if it is given."""
    config = validate(_Config, document)
    num, batch, pooling = config.T, config.batch_params, config.pooling_params
    own: Any = batch.B if batch.Bs is None else batch.Bs
    samples = each(present(own, document, ("batch_params", "B")), num, document, ("batch_params",))
    num_samples = batch.B or samples[0]
    key = "L" if pooling.Ls is None else "Ls"
    where = ("pooling_params", key)
    given = present(getattr(pooling, key), document, where)
    factors = [
        factor * n / num_samples * (num_samples / base if base else 1.0)
        for factor, n in zip(each(given, num, document, where), samples, strict=True)
    ]
    shapes, owner = _shapes(document, config)
    laws = config.indices_params_list
    if laws is None:
        laws = [present(config.indices_params, document, ("indices_params",))] * num
    laws = each(laws, num, document, ("indices_params_list",))
    features_of: list[list[int]] = [[] for _ in shapes]
    for feature, table in enumerate(owner):
        features_of[table].append(feature)
    if [] in features_of:
        empty = features_of.index([])
        document.refuse(("feature_table_map",), owner, f"no feature is looked up in table {empty}")
    tables = made(
        document.where(()),
        lambda: tuple(
            plain_table(
                f"{prefix}t{number}",
                rows,
                columns,
                [(f"{prefix}f{f}", factors[f]) for f in features_of[number]],
                distribution=laws[features_of[number][0]].of(rows),
                is_weighted=config.weighted,
            )
            for number, (rows, columns) in enumerate(shapes)
        ),
    )
    width = config.indices_params and config.indices_params.index_dtype
    return _Tbe(
        tables=tables,
        num_samples=num_samples,
        index_bytes=_INDEX_BYTES.get(width or ""),
        unsaid=_unsaid(config),
    )


def _shapes(document: Document, config: _Config) -> tuple[list[tuple[int, int]], list[int]]:
    """Rows and columns of each table, and the table of each feature."""
    specs, num, where = config.embedding_specs, config.T, ("feature_table_map",)
    shapes = specs or [
        (rows, columns)
        for rows, columns in zip(
            _per_feature(document, config, "E"), _per_feature(document, config, "D"), strict=True
        )
    ]
    if config.feature_table_map is None:
        return each(shapes, num, document, ("embedding_specs",)), list(range(num))
    owner = each(config.feature_table_map, num, document, where)
    if max(owner) >= len(shapes):
        document.refuse(where, owner, f"must be below {len(shapes)}, the number of tables")
    if specs is not None:
        return shapes, owner
    merged: dict[int, tuple[int, int]] = {}
    for feature, table in enumerate(owner):
        if merged.setdefault(table, shapes[feature]) != shapes[feature]:
            document.refuse((*where, feature), table, "features of one table must agree in E and D")
    order = sorted(merged)
    return [merged[t] for t in order], [order.index(t) for t in owner]


def _per_feature(document: Document, config: _Config, key: str) -> list[int]:
    """``Es`` if it is given, else ``E`` for all features; in older files ``E`` can be a list."""
    name = f"{key}s" if getattr(config, f"{key}s") is not None else key
    value: int | list[int] = present(getattr(config, name), document, (name,))
    return each(value, config.T, document, (name,))


def _unsaid(config: _Config) -> tuple[str, ...]:
    spread = {
        "batch_params.sigma_B": config.batch_params.sigma_B,
        "batch_params.vbe_num_ranks": config.batch_params.vbe_num_ranks,
        "pooling_params.sigma_L": config.pooling_params.sigma_L,
    }
    told = [f"{key}: a workload holds means, not their spread" for key, v in spread.items() if v]
    columns = config.embedding_specs or config.Ds or config.D
    if config.mixed_dim and not isinstance(columns, list):
        told.append("mixed_dim: the benchmark draws the columns of each table around D")
    return tuple(told)


# ------------------------------------------------------------------ PARAM


OPERATORS: Final = (
    "SplitTableBatchedEmbeddingBagsCodegen",
    "SplitTableBatchedEmbeddingBagsCodegenOp",
)
_BUILD: Final = ("num_tables", "rows", "dim", "pooling", "weighted", "weights_precision")
_INPUT: Final = ("batch_size", "pooling_factor")
_POOLING: Final = (Pooling.SUM, Pooling.MEAN, Pooling.NONE)
_UNSAID_BY_PARAM: Final = {
    "tables": "uniform indices; the file does not say how they fall on rows",
    "training.output_dtype": "fp32; the file does not say it",
    "dense": "none, for the file holds lookups only",
}


class _Argument(Loose):
    name: str | None = None
    value: Any = None
    swept: Any = Field(default=None, validation_alias="__range__")
    listed: Any = Field(default=None, validation_alias="__list__")


class _Part(Loose):
    args: list[_Argument]
    kwargs: dict[str, _Argument] = Field(default_factory=dict)


class _Setup(Loose):
    build: Annotated[list[_Part], Field(min_length=1, max_length=1)]
    input: Annotated[list[_Part], Field(min_length=1, max_length=1)]


class _Benchmark(Loose):
    config: Annotated[list[_Setup], Field(min_length=1, max_length=1)]


class _Values(Loose):
    """The arguments by their names."""

    num_tables: TableCount
    rows: Rows | list[Rows]
    dim: Columns | list[Columns]
    pooling: Annotated[int, Field(ge=0, lt=len(_POOLING))]
    weighted: bool
    weights_precision: Literal["fp32", "fp16", "bf16", "fp8", "int8"]
    batch_size: BatchSize
    pooling_factor: PoolingFactor | list[PoolingFactor]


def import_param(path: Path) -> Imported:
    """Import the tables of one configured lookup.

    Raises:
        InvalidInputError: there is no such operator, there are several configurations, or a value
            is missing, a range, or out of range; the message names the key path.
    """
    top = read_json(path)
    names = list(top) if isinstance(top, dict) else []
    operator = next((name for name in OPERATORS if name in names), None)
    if operator is None:
        refuse(f"{path}: has no operator {OPERATORS[0]!r}; it holds {', '.join(names[:5])}")
    document = Document(path, top[operator], {}, above=(operator,))
    setup = validate(_Benchmark, document).config[0]
    found = Document(path, {}, {})
    _add_named(found, document, "build", setup.build[0], _BUILD)
    _add_named(found, document, "input", setup.input[0], _INPUT)
    values = validate(_Values, found)
    assumed = dict(_UNSAID_BY_PARAM)
    optimizer: Any = Optimizer.ROWWISE_ADAGRAD
    if "optimizer" in setup.build[0].kwargs:
        given = setup.build[0].kwargs["optimizer"].value
        optimizer = str(given).removeprefix("exact_").replace("row_wise", "rowwise")
        if optimizer not in list(Optimizer):
            keys = ("config", 0, "build", 0, "kwargs", "optimizer")
            document.refuse(keys, given, f"must be one of {', '.join(Optimizer)}")
    else:
        assumed["training.optimizer"] = "the file does not name it"
    others = [name for name in names if name != operator]
    return imported_of(
        path,
        "PARAM configuration",
        {
            "tables": _tables(values, found),
            "batch_size_per_rank": values.batch_size,
            "optimizer": optimizer,
        },
        assumed=assumed,
        unsaid=(f"operators {', '.join(others[:5])}",) if others else (),
        law_is_known=False,
    )


def _tables(values: _Values, found: Document) -> tuple[Table, ...]:
    rows, columns, factors = (
        each(getattr(values, key), values.num_tables, found, (key,))
        for key in ("rows", "dim", "pooling_factor")
    )
    return tuple(
        plain_table(
            f"t{i}",
            rows[i],
            columns[i],
            [(f"t{i}", factors[i])],
            dtype=DataType(values.weights_precision),
            pooling=_POOLING[values.pooling],
            is_weighted=values.weighted,
        )
        for i in range(values.num_tables)
    )


def _add_named(
    found: Document, document: Document, section: str, part: _Part, names: tuple[str, ...]
) -> None:
    """Add each argument by its name; arguments without names are taken in order."""
    where: Keys = ("config", 0, section, 0, "args")
    for position, argument in enumerate(part.args):
        place = (*where, position)
        if argument.swept is not None or argument.listed is not None:
            document.refuse(place, argument.value, "sweeps over values; write one")
        name = argument.name or (names[position] if position < len(names) else None)
        if name not in names or name in found.value:
            document.refuse((*place, "name"), name, f"must be one of {', '.join(names)}, once")
        value = argument.value
        if isinstance(value, list):
            value = [v["value"] if isinstance(v, dict) and "value" in v else v for v in value]
        found.value[name] = value
        found.origins[name,] = document.where((*place, "value"))
    for name in names:
        if name not in found.value:
            given = [a.name for a in part.args]
            document.refuse(where, given, f"argument {name!r} is missing; add it")
