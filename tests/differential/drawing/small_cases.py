"""Small cases with every answer known, for the tests of the kit itself."""

from __future__ import annotations

from costmodels.sharding import ComputeKernel
from planner.problem import Constraints
from tests.differential.case import Case
from tests.strategies import make_table, make_topology, make_workload

FUSED_ONLY = Constraints(kernels=(ComputeKernel.DENSE, ComputeKernel.FUSED))


def case_of(hosts: int, local: int, *dims: int, **changes: object) -> Case:
    """Small tables of these widths, fused or replicated."""
    tables = [make_table(f"t{i}", embedding_dim=d) for i, d in enumerate(dims)]
    values: dict[str, object] = {
        "name": "test",
        "workload": make_workload(*tables),
        "topology": make_topology(hosts, local),
        "constraints": FUSED_ONLY,
    }
    return Case(**{**values, **changes})  # type: ignore[arg-type]
