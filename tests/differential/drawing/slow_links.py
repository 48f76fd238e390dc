"""Problems whose indices or cached rows take longest to arrive: ``--slow-links``.

Pipelines hide both behind the rest of an iteration, as a rule. Here links are slowed down and lists
of indices made longer by drawn factors, so that one of them is hidden, or just outlasts the rest,
or is nearly all that a step takes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.topology import Link
from costmodels.workload import Table, Workload
from tests.differential.case import Case
from tests.differential.drawing.dense_parts import any_pipeline
from tests.differential.drawing.unusual import every_day

_SLOWEST = 3.0
"""Decimal places by which a link is slowed down at most."""
_LONGEST = 1.5
"""The same for how many times longer lists of indices are."""


def with_slow_links(rng: np.random.Generator, case: Case) -> Case:
    """The case under a drawn pipeline, with slower links and longer lists of indices."""
    if case.on_torchrecs_terms:
        case = replace(case, objective="iteration")
    case = every_day(case, **any_pipeline(rng))
    topology = case.topology
    host, device = (float(10 ** -rng.uniform(0, _SLOWEST)) for _ in range(2))
    slower = replace(
        topology,
        host_link=_slower(topology.host_link, host),
        domain_link=_slower(topology.domain_link, host),
        network_link=_slower(topology.network_link, host),
        host=replace(
            topology.host,
            device_link_bandwidth_bytes_per_s=device
            * topology.host.device_link_bandwidth_bytes_per_s,
        ),
    )
    factors = 10 ** rng.uniform(0, _LONGEST, size=len(case.workload.tables))
    days = [_longer(day, factors) for day in (case.workload, *case.scenarios)]
    return replace(case, topology=slower, workload=days[0], scenarios=tuple(days[1:]))


def _slower(link: Link, ratio: float) -> Link:
    return replace(link, bandwidth_bytes_per_s=ratio * link.bandwidth_bytes_per_s)


def _longer(day: Workload, factors: FloatArray) -> Workload:
    tables = (_with_lists(t, float(f)) for t, f in zip(day.tables, factors, strict=True))
    return replace(day, tables=tuple(tables))


def _with_lists(table: Table, factor: float) -> Table:
    features = (
        replace(f, pooling_factor=min(factor * f.pooling_factor, 1e4)) for f in table.features
    )
    return replace(table, features=tuple(features))
