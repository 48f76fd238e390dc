"""A made-up machine whose constants are round numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from costmodels.calibration.points import zipf_table
from costmodels.lookup.base import LookupShards, TableColumns
from costmodels.measured.cpu_constants import (
    CollectiveConstants,
    CpuConstants,
    DenseConstants,
    ExchangeConstants,
    GradientConstants,
    GroupConstants,
    LookupConstants,
)
from costmodels.topology import Topology
from costmodels.workload import Optimizer
from tests.strategies import make_topology

_FORWARD = (1e-4, 1e-8, 1e-10, 2e-9, 1e-11, 4e-9, 1e-10, 3e-9, 1e-9)
_BACKWARD = (5e-5, 1e-8, 1e-9, 2e-9, 2e-11, 3e-10, 1e-8, 2e-10, 1e-9, 1e-10, 1e-9, 1e-10)

MACHINE = CpuConstants(
    machine="made up",
    world_size=2,
    l2_bytes=1e6,
    l3_bytes=1.6e7,
    call_s=2e-4,
    group=GroupConstants(
        forward_s=(1.1, 1e-5, 1e-8, 1e-10, 1e-10), backward_s=(1.0, 1e-5, 1e-8, 0.0, 1e-10)
    ),
    replicated_group=GroupConstants(
        forward_s=(1.2, 2e-5, 1e-8, 2e-10, 0.0), backward_s=(1.1, 1e-5, 2e-8, 0.0, 2e-10)
    ),
    fused=LookupConstants(forward_s=_FORWARD, backward_s=_BACKWARD),
    replicated=LookupConstants(forward_s=_FORWARD, backward_s=(*_BACKWARD, 1e-10, 1e-10)),
    exchange_s=(5e-4, 1e-4, 1e-4),
    table_wise=ExchangeConstants(
        input_s=(4e-4, 1e-9, 3e-9, 3e-10, 5e-11),
        output_s=(2e-4, 1e-10, 2e-10, 1e-10),
        gradient_s=(1e-4, 0.0, 4e-10, 1e-10),
    ),
    column_wise=ExchangeConstants(
        input_s=(4e-4, 2e-9, 3e-9, 3e-10, 7e-11),
        output_s=(2e-4, 1e-10, 3e-10, 1e-10),
        gradient_s=(1e-4, 0.0, 5e-10, 1e-10),
    ),
    row_wise=ExchangeConstants(
        input_s=(5e-4, 4e-9, 0.0, 8e-10, 0.0),
        output_s=(2e-4, 4e-10, 0.0, 1e-10),
        gradient_s=(1e-4, 3e-10, 0.0, 1e-10),
    ),
    collective=CollectiveConstants(
        all_to_all_s=(1e-4, 2e-10, 1e-10, 1e-10, 3e-11, 2e-5),
        reduce_scatter_s=(2e-4, 4e-10, 1e-10, 4e-10),
        all_gather_s=(2e-4, 3e-10, 1e-10, 3e-10),
        all_reduce_s=(2e-4, 3e-10, 1e-10, 0.0),
    ),
    dense=DenseConstants(
        forward_s=(1e-4, 1e-5, 2e-11, 4e-11, 2e-10, 3e-10),
        backward_s=(1e-4, 2e-5, 4e-11, 6e-10, 6e-10, 3e-11),
        update_s=(4e-4, 3e-5, 2e-11, 1e-9, 0.0, 4e-10, 2e-5, 2e-10, 5e-10),
    ),
    gradient=GradientConstants(fixed_s=3e-4, per_byte_s=5e-10),
    sequence=LookupConstants(forward_s=_FORWARD, backward_s=(2e-4, 2e-8, 3e-10, 1e-8, 1e-9, 4e-7)),
    sigmas_ratio=(("lookup", 0.08), ("collective", 0.06), ("dense", 0.05), ("host", 0.0)),
)


def whole_shards(
    rows: int, cols: int, indices: float, exponent: float, *, bags: float = 1024.0
) -> LookupShards:
    """One whole table, pooled into so many bags."""
    table = zipf_table(0, rows, cols, 1.0, exponent)
    return LookupShards.whole(
        TableColumns((table,)), np.array([indices]), np.array([bags]), optimizer=Optimizer.SGD
    )


def cpu_topology(ranks: int = 2) -> Topology:
    """One host whose ranks run one thing at a time."""
    topology = make_topology(1, ranks)
    device = replace(topology.device, single_stream=True)
    return replace(topology, device=device, host=replace(topology.host, eager_call_s=0.0))
