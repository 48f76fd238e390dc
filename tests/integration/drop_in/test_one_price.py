"""TorchRec's adapter gives the price that every other way gives, on every shipped system."""

from __future__ import annotations

import pytest
from torchrec.distributed.sharding_plan import get_default_sharders

from costmodels.pipeline import CostPipeline
from planner import estimate
from planner.integrations.torchrec_planner import ShardPlanner
from planner.io.documents import names
from tests.integration.models import bags, torchrec_topology

SHARDERS = get_default_sharders()
TABLES = [("b", 6000, 64), ("c", 10_000, 96)]


@pytest.mark.parametrize("name", names("systems"))
def test_the_adapter_gives_the_price_of_the_pipeline(name: str) -> None:
    topology = torchrec_topology(4, 4)
    planner = ShardPlanner(topology, 256, stats=[], max_evaluations=5, system=name)
    planner.plan(bags(TABLES), SHARDERS)
    found = planner.result
    assert found is not None
    workload, system = found.problem.workload, found.problem.topology
    price = found.estimate.time.time_s
    assert CostPipeline(workload, system).estimate(found.plan).time.time_s == price
    assert estimate(workload, system, found.plan).estimate.time.time_s == price
