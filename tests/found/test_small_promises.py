"""Time limits, stashed weights, warnings about nothing, and module names of one's own."""

from __future__ import annotations

import logging

import pytest

pytest.importorskip("torchrec")

from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner.types import ParameterConstraints, Proposer, Topology

from planner.integrations import drop_in as rival
from planner.integrations.torchrec_planner import ShardPlanner
from planner.integrations.translate.constraints import offered_pairs
from tests.integration.models import bags, torchrec_topology

pytestmark = pytest.mark.torchrec

GB = 2**30
SHARDERS = [EmbeddingBagCollectionSharder()]


def model(count: int) -> nn.Module:
    made = nn.Module()
    made.e = bags([(f"t{i}", 1000 * (i + 1), 64) for i in range(count)])
    return made


def test_a_short_limit_leaves_torchrecs_planner_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """TorchRec's plan alone took 2 s of a limit of 1 s."""
    topology = Topology(8, "cuda", hbm_cap=80 * GB, local_world_size=8)
    arguments = {"topology": topology, "batch_size": 64, "stats": [], "max_evaluations": 5}
    made = ShardPlanner(**arguments, timeout_seconds=1)
    made.plan(model(20), SHARDERS)
    assert made._rival.reason == "not asked for: more than 102 tables times ranks within 1 s"
    made.plan(model(3), SHARDERS)
    assert made._rival.plan is not None
    proposals: list[int] = []
    honest = rival.ended

    def noted(proposer: Proposer, most: int) -> Proposer:
        proposals.append(most)
        return honest(proposer, 1)

    monkeypatch.setattr(rival, "ended", noted)
    for seconds in (1, None):
        ShardPlanner(**arguments, timeout_seconds=seconds).plan(model(3), SHARDERS)
    assert proposals == [250] * 4 + [1250] * 4


def test_no_warning_of_the_sharding_spec_that_a_copied_table_has_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    copied = {"t0": ParameterConstraints(sharding_types=["data_parallel"])}
    planner = ShardPlanner(torchrec_topology(2, 2), 64, stats=[], constraints=copied)
    with caplog.at_level(logging.WARNING):
        plan = planner.plan(model(1), SHARDERS)
        logging.warning("Another line")
    assert plan.plan["e"]["t0"].sharding_spec is None
    lines = [r.getMessage() for r in caplog.records]
    assert "Another line" in lines
    assert not any("Sharding spec" in line for line in lines)


def test_stashed_weights_reach_the_options() -> None:
    made = model(2)
    made.e.embedding_bag_configs()[1].stash_weights = True
    planner = ShardPlanner(torchrec_topology(2, 2), 64, stats=[], max_evaluations=5)
    planner.plan(made, SHARDERS)
    stashed = [getattr(o, "stash_weights", False) for o in planner.get_selected_options()]
    assert stashed == [False, True]


class Own(EmbeddingBagCollectionSharder):
    """Asks what device it is planned for."""

    asked: list[str] = []  # noqa: RUF012

    def sharding_types(self, compute_device_type: str) -> list[str]:
        self.asked.append(compute_device_type)
        return ["table_wise"]


@pytest.mark.parametrize("name", ["torchrec.mine", "torchrec.distributed.mine", "mine"])
def test_the_name_of_a_module_does_not_decide_the_device(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Own.sharding_types, "__module__", name)
    Own.asked.clear()
    pairs = offered_pairs(Own(), "cpu")
    assert Own.asked == ["cpu"]
    assert {kind for kind, _ in pairs} == {"table_wise"}


def test_torchrecs_own_methods_are_known_under_any_name(monkeypatch: pytest.MonkeyPatch) -> None:
    known = offered_pairs(EmbeddingBagCollectionSharder(), "cpu")
    assert ("row_wise", "fused") in known
    for method in ("sharding_types", "compute_kernels"):
        function = getattr(EmbeddingBagCollectionSharder, method)
        monkeypatch.setattr(function, "__module__", "somewhere.else")
    assert offered_pairs(EmbeddingBagCollectionSharder(), "cpu") == known
