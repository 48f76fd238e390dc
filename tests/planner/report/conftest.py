"""Results to report on."""

from __future__ import annotations

import pytest

from planner.result import PlanningResult
from tests.planner.report.report_samples import make_result, make_topology, make_workload


@pytest.fixture
def result() -> PlanningResult:
    """Four tables on one host of four ranks."""
    return make_result()


@pytest.fixture
def large_result() -> PlanningResult:
    """Sixty tables with long names on 16 hosts of eight ranks."""
    workload = make_workload(60, prefix="a_table_whose_name_is_rather_long_for_any_terminal")
    return make_result(workload, make_topology(16, 8))
