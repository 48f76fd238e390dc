"""Makes the index law of a table from the keys of its ``distribution``, or from statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from costmodels.distribution.base import AbstractIndexDistribution
from costmodels.distribution.empirical import Empirical
from costmodels.distribution.uniform import Uniform
from costmodels.distribution.zipf import Zipf
from planner.errors import InvalidInputError
from planner.io.problems import show
from planner.io.workload.workload_schema import DistributionSchema
from planner.profiling.stats import TableStats, load_stats

_ZIPF_KEYS: Final = ("exponent", "shift", "ids_per_draw")
_CURVES: Final = ("rows_per_range", "ids_in_ranges", "unique_rows", "hot_share")
_BIN_KEYS: Final = ("rows", "probability", *_CURVES)
_KEYS: Final = {
    "uniform": ("scattered",),
    "zipf": ("scattered", *_ZIPF_KEYS),
    "bins": _BIN_KEYS,
}


def law_of(
    entry: DistributionSchema | None, num_embeddings: int, stats: TableStats | None
) -> AbstractIndexDistribution:
    """The law of a table with ``num_embeddings`` rows; uniform without an entry.

    Raises:
        InvalidInputError: keys contradict each other.
        InvalidValueError: a value is outside its range.
    """
    if entry is None:
        return Uniform(num_embeddings=num_embeddings)
    if stats is not None:
        return stats.distribution(num_embeddings)
    if entry.kind is None:
        msg = "distribution: value None of kind: must be uniform or zipf (or bins), or give stats"
        raise InvalidInputError(msg)
    _check_keys(entry, entry.kind)
    if entry.kind == "uniform":
        return Uniform(num_embeddings=num_embeddings, scattered=entry.scattered)
    if entry.kind == "bins":
        return _bins(entry, num_embeddings)
    if entry.exponent is None:
        msg = "distribution.kind: value 'zipf': needs its exponent, such as exponent: 1.05"
        raise InvalidInputError(msg)
    return Zipf(
        num_embeddings=num_embeddings,
        exponent=entry.exponent,
        shift=entry.shift,
        scattered=entry.scattered,
        ids_per_draw=entry.ids_per_draw,
    )


def _check_keys(entry: DistributionSchema, kind: str) -> None:
    for key in (*_ZIPF_KEYS, *_BIN_KEYS, "scattered"):
        if key in entry.model_fields_set and key not in _KEYS[kind]:
            others = [other for other, keys in _KEYS.items() if key in keys]
            msg = (
                f"distribution.{key}: value {show(getattr(entry, key))}: a {kind} law has none; "
                f"remove it or use kind: {' or '.join(others)}"
            )
            raise InvalidInputError(msg)


def _bins(entry: DistributionSchema, num_embeddings: int) -> Empirical:
    if entry.rows is None or entry.probability is None:
        msg = "distribution.kind: value 'bins': needs rows and probability, one entry per bin"
        raise InvalidInputError(msg)
    return Empirical(
        num_embeddings=num_embeddings,
        num_rows_per_bin=tuple(float(n) for n in entry.rows),
        probability_ratio=tuple(float(p) for p in entry.probability),
        num_rows_per_range=tuple(tuple(map(float, line)) for line in entry.rows_per_range),
        num_ids_in_ranges=entry.ids_in_ranges,
        num_unique_curve=tuple((float(n), float(u)) for n, u in entry.unique_rows),
        hot_share_ratio=tuple(entry.hot_share),
    )


def stats_of(
    entry: DistributionSchema | None, table: str, features: tuple[str, ...], folder: Path
) -> TableStats | None:
    """Measured statistics of a table, if its file names any; paths are relative to ``folder``.

    Raises:
        InvalidInputError: there are other keys beside ``stats``, the file cannot be read, or it has
            no statistics of the table.
    """
    if entry is None or entry.stats is None:
        return None
    if entry.model_fields_set != {"stats"}:
        msg = (
            f"distribution.stats: value {entry.stats!r}: distribution takes either stats, or kind "
            "and exponent, not both"
        )
        raise InvalidInputError(msg)
    path = folder / entry.stats
    try:
        path.stat()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        msg = f"distribution.stats: value {entry.stats!r}: {path}: cannot be read: {reason}"
        raise InvalidInputError(msg) from error
    return load_stats(path).table(table, features)
