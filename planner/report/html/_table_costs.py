"""What each table costs: the times of stages, shared out by the work that tables bring to them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.pipeline import CostPipeline
from costmodels.shard_work.work import CALLS, INPUT, OUTPUT, REPLICATED
from planner.report.html import _stages
from planner.result import Candidate

_LOOKUPS = ("cache", "lookup", "lookup-b")
_EXCHANGES = {"input": slice(INPUT, OUTPUT), "output": slice(OUTPUT, CALLS),
              "gradient": slice(OUTPUT, CALLS)}  # fmt: skip
_DENSE_GRADIENT_BYTES = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCost:
    """Mean seconds per rank and iteration that a table causes."""

    lookup_s: float
    exchange_s: float

    @property
    def total_s(self) -> float:
        """Both together."""
        return self.lookup_s + self.exchange_s


def table_costs(plan: Candidate, pipeline: CostPipeline) -> dict[str, TableCost]:
    """The cost of each table of a plan, as a mean over ranks.

    On each rank, the time of lookups is shared out in proportion to what the lookups of each table
    would take alone, and the time of an exchange in proportion to bytes. The time of the all-reduce
    is shared out in proportion to bytes among replicated tables and the dense part.
    """
    spent = _family_durations_s(plan)
    placements = plan.plan.placements
    work = pipeline.placements_work(plan.plan)
    rows, index = work.rows, work.index
    forward, backward = pipeline.lookup_times(rows)
    lookup = _shared((forward + backward)[index], sum(spent[f] for f in _LOOKUPS))
    exchange = np.zeros(len(placements))
    for family, columns in _EXCHANGES.items():
        exchange += _shared(rows[:, columns].sum(axis=-1)[index], spent[family])
    replicated = rows[:, REPLICATED][index]
    dense = pipeline.dense_parameters * _DENSE_GRADIENT_BYTES
    exchange += _shared(replicated, spent["reduce"], others=dense)
    return {
        p.table: TableCost(lookup_s=float(a), exchange_s=float(b))
        for p, a, b in zip(placements, lookup, exchange, strict=True)
    }


def _family_durations_s(plan: Candidate) -> dict[str, FloatArray]:
    """Seconds of each family of stages on each rank, ``[W]``."""
    found = {name: np.zeros(len(plan.estimate.ranks)) for name in _stages.FAMILIES}
    for stage in plan.estimate.stages:
        found[_stages.family(stage.name)] += np.array(stage.duration_s)
    return found


def _shared(parts: FloatArray, total_s: FloatArray | int, others: float = 0.0) -> FloatArray:
    """``[T]`` shares of ``total_s [W]`` in proportion to ``parts [T, W]``, as means over ranks."""
    whole = parts.sum(axis=0) + others
    return np.asarray((parts / np.where(whole > 0, whole, 1.0) * total_s).mean(axis=1))
