"""Problems with hot rows, samples that repeat ids, and domains of unequal size: ``--hot``.

Hashed laws whose hottest row weighs as much as a rank's even share or far more, batches with fewer
distinct rows than independent draws would have, and hosts in domains as a system file lists them.
"""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from costmodels.distribution.empirical import Empirical
from costmodels.distribution.zipf import Zipf
from costmodels.errors import InvalidValueError
from costmodels.topology import Topology
from costmodels.workload import Pipeline, Pooling, Table, Workload
from planner import load_system
from tests.differential.case import Case
from tests.differential.drawing.dense_parts import with_dense_part
from tests.differential.drawing.unusual import distinct, unusual

_LAYOUTS = ((3, 1), (3, 1), (4, 1), (5, 1), (3, 2))
"""(hosts, ranks of each) among which some hosts can be in a larger domain than others."""
_EXPONENTS = (1.05, 1.2, 1.4, 2.0, 4.0)
_LEAST_LOG = -6.0
"""Logarithm of the least share of a batch's expected distinct rows that a batch has."""


def unequal_domains(rng: np.random.Generator, topology: Topology) -> Topology:
    """The system, as a rule with several hosts in domains of unequal size."""
    if topology.calibration or rng.random() < 0.3:
        return topology
    hosts, local = _LAYOUTS[int(rng.integers(len(_LAYOUTS)))]
    first = int(rng.integers(1, hosts))
    topology = topology.resized(hosts, local)
    return replace(topology, domain_size=_domain_size((first, hosts - first), local))


@lru_cache
def _domain_size(hosts: tuple[int, ...], local: int) -> int:
    """What a system file makes of domains with so many hosts."""
    sizes = [n * local for n in hosts]
    layout = f"layout: {{gpus_per_host: {local}, domain_size: {sizes}}}"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "box.yaml"
        path.write_text(f"base: gb300\nname: box\n{layout}\n", encoding="utf-8")
        return load_system(str(path), gpus=sum(sizes)).domain_size


def with_hot_rows(rng: np.random.Generator, workload: Workload) -> Workload:
    """The workload with hashed hot rows, and batches that repeat ids, in most tables."""
    tables = (_hot(rng, t, workload.batch_size_per_rank) for t in workload.tables)
    return replace(workload, tables=tuple(tables))


def _hot(rng: np.random.Generator, table: Table, samples: int) -> Table:
    law, rows = table.distribution, table.num_embeddings
    if rng.random() < 0.7:
        law = Zipf(num_embeddings=rows, exponent=float(rng.choice(_EXPONENTS)))
    own = getattr(law, "num_unique_curve", ()) or getattr(law, "ids_per_draw", 1) > 1
    if law.is_ordered or own or rng.random() < 0.25:
        return replace(table, distribution=law)
    bins, probability = law.frequency_bins()
    if not isinstance(law, Empirical):
        law = Empirical.from_bins(bins, probability, rows)
    share = float(np.exp(rng.uniform(_LEAST_LOG, 0.0)))
    full = max(samples * table.pooling_factor, 2.0)
    sizes = (full / 8.0, full) if full > 16.0 and rng.random() < 0.4 else (full,)
    curve = tuple((n, max(share * law.expected_unique_rows(n), 1.0)) for n in sizes)
    return replace(table, distribution=replace(law, num_unique_curve=curve))


def prioritized(rng: np.random.Generator, case: Case) -> Case:
    """The case under the pipeline that sends first what the batch before has updated."""
    pooled = {
        t.name
        for t in case.workload.tables
        if t.pooling is not Pooling.NONE and rng.random() >= 0.7
    }

    def unpooled(table: Table) -> Table:
        share = (None, 0.0, 1.0, float(rng.random()))[int(rng.integers(4))]
        if table.name in pooled:
            return replace(table, next_batch_ratio=None)
        return replace(table, pooling=Pooling.NONE, next_batch_ratio=share)

    def ahead(day: Workload) -> Workload:
        tables = tuple(map(unpooled, day.tables))
        return replace(day, tables=tables, pipeline=Pipeline.PRIORITIZED, lookahead_batches=0)

    days = (case.workload, *case.scenarios)
    first, *others = map(ahead, days)
    return replace(case, workload=first, scenarios=tuple(others))


def hot(rng: np.random.Generator, case: Case) -> Case:
    """The case with hot rows on every other day too, often deduplicated or otherwise unusual."""
    days = tuple(with_hot_rows(rng, day) for day in case.scenarios)
    case = replace(case, scenarios=days)
    changes = (distinct, 0.35), (unusual, 0.3), (with_dense_part, 0.15), (prioritized, 0.2)
    for change, share in changes:
        if rng.random() < share:
            with contextlib.suppress(InvalidValueError):  # what the case has rules out the change
                case = change(rng, case)
    return case
