"""Two calls choose the same groups on a busy machine, and any dense part can be traced."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

pytest.importorskip("torchrec")

import torch
from torch import nn
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from planner import load_system
from planner.errors import InvalidInputError
from planner.integrations.torchrec_2d import group_choices
from planner.integrations.torchrec_workload import WorkloadHints, describe_model
from planner.space import budget
from tests.integration.models import META, bags

pytestmark = pytest.mark.torchrec

SHAPES = [("t0", 1_000_000, 128), ("t1", 1000, 64), ("t2", 300_000, 64)]
HOW_TO = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "torchrec.md"


class Ranker(nn.Module):
    """A model of one's own, whose dense part is no DLRM."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = bags(SHAPES)
        self.over = nn.Sequential(
            nn.Linear(256 + 13, 512, device=META), nn.ReLU(), nn.Linear(512, 1, device=META)
        )

    def forward(self, dense: torch.Tensor, sparse: KeyedJaggedTensor) -> torch.Tensor:
        return self.over(torch.cat([dense, self.bags(sparse).values()], dim=1))  # type: ignore[no-any-return]


def inputs(batch: int) -> tuple[torch.Tensor, KeyedJaggedTensor]:
    keys = [f"f_{name}" for name, _, _ in SHAPES]
    count = batch * len(keys)
    sparse = KeyedJaggedTensor.from_lengths_sync(
        keys, torch.zeros(count, dtype=torch.int64), torch.ones(count, dtype=torch.int64)
    )
    return torch.zeros(batch, 13), sparse


def test_two_calls_choose_the_same_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second call is made on a machine whose clock runs ten times as fast."""
    given = {n: ParameterConstraints(pooling_factors=[10.0]) for n, _, _ in SHAPES}
    described = describe_model(Ranker(), batch_size=512, constraints=given)
    assert described is not None
    system = load_system("h100_sxm", gpus=4)
    asked = {"sync_interval": 10, "sizes": (2, 4), "time_limit_s": 0.3}
    first = group_choices(described, system, **asked)
    real = time.perf_counter
    monkeypatch.setattr(budget.time, "perf_counter", lambda: 10.0 * real())
    second = group_choices(described, system, **asked)
    assert [c.result.plan for c in first] == [c.result.plan for c in second]
    assert [c.time_s for c in first] == [c.time_s for c in second]


def test_a_dense_part_of_ones_own_is_traced() -> None:
    hints = WorkloadHints(inputs=inputs)
    found = describe_model(Ranker(), get_default_sharders(), batch_size=64, hints=hints)
    assert found is not None
    operators = found.workload.dense.operators
    assert operators is not None
    assert operators.batch_size_per_rank == 64
    listed = (*operators.before_tables, *operators.after_tables)
    flop = sum(o.forward_flop for o in listed)
    assert flop >= 2 * 64 * (269 * 512 + 512)
    assert found.workload.reserved_bytes == 0
    assert not any("dense part" in line for line in found.warnings)


def test_who_gives_no_inputs_is_told_how() -> None:
    found = describe_model(Ranker(), batch_size=64)
    assert found is not None
    (line,) = [w for w in found.warnings if "dense part" in w]
    assert "WorkloadHints(inputs=lambda batch: ...)" in line


def test_inputs_have_to_be_a_function() -> None:
    with pytest.raises(InvalidInputError, match="inputs must be a function of the batch size"):
        WorkloadHints(inputs=inputs(2))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "door",
    [
        *("group_choices", "load_reshard", "WorkloadHints", "PredictedCosts"),
        *("PredictedIteration", "DistributionStatistics", "with_cache_statistics"),
    ],
)
def test_every_door_is_in_the_page(door: str) -> None:
    assert f"{door}" in HOW_TO.read_text(encoding="utf-8")
