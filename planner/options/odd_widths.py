"""Tables whose columns are no multiple of 4, which FBGEMM's fused kernels do not take.

FBGEMM asserts it when it makes the state of its tables (``construct_split_state``: "embedding_dim
must be a multiple of 4"). TorchRec can then only copy such a table to every rank, with the dense
kernel (torchrec#1495, torchrec#1612). HugeCTR has no such rule.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from costmodels.units import format_bytes, format_time
from costmodels.workload import Table, Workload
from planner.options.torchrec_rules import column_multiple
from planner.support.text import counted

_NAMED: Final = 5


def odd_tables(workload: Workload) -> tuple[Table, ...]:
    """The tables that can only be copied because of their columns."""
    multiple = column_multiple(workload)
    return tuple(t for t in workload.tables if t.embedding_dim % multiple)


def widened(workload: Workload) -> Workload:
    """The workload with the columns of such tables rounded up to the next multiple."""
    odd = {t.name for t in odd_tables(workload)}
    return replace(
        workload,
        tables=tuple(
            replace(t, embedding_dim=_next(t, workload)) if t.name in odd else t
            for t in workload.tables
        ),
    )


def width_remarks(workload: Workload) -> tuple[str, ...]:
    """What FBGEMM's rule does to the tables, with their names and the next widths; often empty."""
    odd = odd_tables(workload)
    if not odd:
        return ()
    pairs = {t.embedding_dim: _next(t, workload) for t in odd}
    named = _listed(f"{t.name!r} ({t.embedding_dim})" for t in odd)
    more_bytes = sum(t.weight_bytes * (_next(t, workload) / t.embedding_dim - 1) for t in odd)
    next_widths = _listed(f"{wide} for {width}" for width, wide in sorted(pairs.items()))
    have = "has" if len(odd) == 1 else "have"
    return (
        f"{counted(len(odd), 'table')} {have} columns that are no multiple of "
        f"{column_multiple(workload)}, which FBGEMM's fused kernels refuse: {named}; TorchRec can "
        f"only copy them to every rank (data_parallel), or fails; embedding_dim {next_widths} "
        f"would allow every sharding type, for {format_bytes(more_bytes)} more weights; HugeCTR "
        "(training.pipeline: hugectr) has no such rule",
    )


def priced_remark(workload: Workload, time_s: float, widened_s: float) -> str:
    """What the step takes with the widened tables, beside the time of the plan."""
    sizes = _listed(f"{_next(t, workload)} for {t.name!r}" for t in odd_tables(workload))
    return (
        f"with embedding_dim {sizes}, a short search finds a step of {format_time(widened_s)} "
        f"instead of {format_time(time_s)}; the bound of this plan holds for the widths as they are"
    )


def _next(table: Table, workload: Workload) -> int:
    return table.embedding_dim + -table.embedding_dim % column_multiple(workload)


def _listed(parts: Iterable[str]) -> str:
    shown = list(parts)
    rest = f" and {len(shown) - _NAMED} more" if len(shown) > _NAMED else ""
    return ", ".join(shown[:_NAMED]) + rest
