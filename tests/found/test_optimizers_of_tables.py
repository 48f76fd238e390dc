"""Optimizers belong to tables, and an optimizer of one's own is that of its nearest known class."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torchrec")

import torch
import torchrec
from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner.planners import EmbeddingShardingPlanner
from torchrec.distributed.planner.types import ParameterConstraints, Topology
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

from costmodels.workload import Optimizer
from planner.integrations.torchrec_planner import ShardPlanner
from planner.integrations.torchrec_workload import ModelDescription, describe_model
from planner.io import load_workload
from planner.io.workload.workload_file import workload_text
from tests.integration.models import bags
from tests.strategies import make_table, make_workload

pytestmark = pytest.mark.torchrec

GB = 2**30
SHARDERS = [EmbeddingBagCollectionSharder()]
BIG = [f"t{i}" for i in range(12)]


class OwnAdagrad(torch.optim.Adagrad):
    """Of one's own, with the state of its base."""


class OwnRowWise(torchrec.optim.RowWiseAdagrad):
    """TorchRec's count gives it one state for each weight, ours one for each row."""


class OwnAdam(torch.optim.Adam):
    """TorchRec's count gives it one state for each weight, ours two."""


class Unheard(torch.optim.Optimizer):
    """Derived from no known optimizer; TorchRec counts one state for each weight."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float = 0.01) -> None:
        super().__init__(params, {"lr": lr})


def model(rows: int, kind: type[object], small: type[object] | None = None) -> nn.Module:
    """Twelve large tables, and perhaps a tiny one with another optimizer."""
    made = nn.Module()
    made.e = bags([(name, rows, 128) for name in BIG])
    apply_optimizer_in_backward(kind, made.e.parameters(), {"lr": 0.01})  # type: ignore[arg-type]
    if small is not None:
        made.small = bags([("tiny", 1000, 16)])
        apply_optimizer_in_backward(small, made.small.parameters(), {"lr": 0.01})  # type: ignore[arg-type]
    return made


def described(made: nn.Module) -> ModelDescription:
    found = describe_model(made, SHARDERS, batch_size=1024)
    assert found is not None
    return found


@pytest.mark.parametrize("objective", ["iteration", "torchrec"])
@pytest.mark.parametrize(
    ("rows", "kind", "small"),
    [
        (20_000_000, torchrec.optim.RowWiseAdagrad, torch.optim.Adam),
        (20_000_000, torchrec.optim.RowWiseAdagrad, OwnAdam),
        (15_000_000, OwnAdagrad, None),
        (15_000_000, OwnRowWise, torch.optim.SGD),
        (15_000_000, Unheard, None),
        (15_000_000, OwnAdam, None),
    ],
)
def test_what_torchrec_plans_is_planned_in_device_memory(
    rows: int, kind: type[object], small: type[object] | None, objective: str
) -> None:
    topology = Topology(4, "cuda", hbm_cap=60 * GB, ddr_cap=64 * GB, local_world_size=4)
    arguments = {
        "topology": topology,
        "batch_size": 1024,
        "stats": [],
        "constraints": {name: ParameterConstraints(compute_kernels=["fused"]) for name in BIG},
    }
    if objective == "iteration":  # TorchRec's planner knows one objective
        EmbeddingShardingPlanner(**arguments).plan(model(rows, kind, small), SHARDERS)
    ours = ShardPlanner(**arguments, objective=objective, max_evaluations=20)
    plan = ours.plan(model(rows, kind, small), SHARDERS)
    assert {plan.plan["e"][name].compute_kernel for name in BIG} == {"fused"}


def test_each_table_has_the_state_of_its_own_optimizer() -> None:
    found = described(model(1000, torchrec.optim.RowWiseAdagrad, torch.optim.Adam))
    workload = found.workload
    assert workload.optimizer is Optimizer.ROWWISE_ADAGRAD
    own = {t.name: t.optimizer for t in workload.tables if t.optimizer is not None}
    assert own == {"tiny": Optimizer.ADAM}
    assert workload.trained_row_bytes(workload.table("tiny")) == 16 * 4 * 3
    assert workload.trained_row_bytes(workload.table("t0")) == 128 * 4 + 4
    assert not any("optimizers" in line for line in found.warnings)


@pytest.mark.parametrize(
    ("kind", "expected", "is_known"),
    [
        (OwnAdagrad, Optimizer.ADAGRAD, True),
        (OwnRowWise, Optimizer.ROWWISE_ADAGRAD, True),
        (OwnAdam, Optimizer.ADAM, True),
        (type("Deeper", (OwnAdam,), {}), Optimizer.ADAM, True),
        (torch.optim.AdamW, Optimizer.ADAM, True),
        (Unheard, Optimizer.ADAGRAD, False),
    ],
)
def test_a_class_of_ones_own_is_its_nearest_known_base(
    kind: type[object], expected: Optimizer, is_known: bool
) -> None:
    found = described(model(10, kind))
    assert found.workload.optimizer is expected
    assert found.knows_optimizer is is_known


def test_files_keep_the_optimizer_of_a_table(tmp_path: Path) -> None:
    adam = replace(make_table("a"), optimizer=Optimizer.ADAM)
    workload = make_workload(adam, make_table("b"))
    path = tmp_path / "workload.yaml"
    path.write_text(workload_text(workload), encoding="utf-8")
    read = load_workload(path)
    assert [t.optimizer for t in read.tables] == [Optimizer.ADAM, None]
    assert read.trained_row_bytes(read.tables[0]) == 3 * read.tables[0].row_bytes
