"""A reservation that the user chose keeps room for all that is not a table: nothing else does."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torchrec")

from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import storage_reservations as reservations
from torchrec.distributed.planner.planners import EmbeddingShardingPlanner
from torchrec.distributed.planner.types import ParameterConstraints, StorageReservation, Topology
from torchrec.models.dlrm import DLRM

from costmodels.pipeline import CostPipeline
from planner.integrations.torchrec_planner import ShardPlanner
from planner.integrations.translate.pricing import default_reservation
from planner.io import save_plan
from tests.integration.models import META, bags

pytestmark = pytest.mark.torchrec

GB = 2**30
SHARDERS = [EmbeddingBagCollectionSharder()]
TABLES = [(f"t{i}", 94_000_000, 128) for i in range(2)]
CONSTRAINTS = {f"t{i}": ParameterConstraints(pooling_factors=[20.0]) for i in range(2)}


class OwnReservation(StorageReservation):
    """A class of one's own, which knows the whole of what is not a table."""

    def __init__(self) -> None:
        self._inner = reservations.FixedPercentageStorageReservation(percentage=0.3)

    def reserve(self, *arguments: object, **named: object) -> Topology:
        return self._inner.reserve(*arguments, **named)  # type: ignore[arg-type]

    @property
    def last_reserved_topology(self) -> Topology | None:
        return self._inner.last_reserved_topology


def sku_aware() -> StorageReservation:
    """Of torchrec 1.9; with ``model_base_bytes`` it measures no dense part itself."""
    made = getattr(reservations, "SKUAwareStorageReservation", None)
    if made is None:
        pytest.skip("needs torchrec 1.9")
    return made(margin_bytes=0, model_base_bytes=24 * GB)  # type: ignore[no-any-return]


def some_model() -> nn.Module:
    """Tables of 45 GB beside 0.5 B dense weights: 2 GB, or 12 GB by TorchRec's factor of 6."""
    model = nn.Module()
    model.e = bags(TABLES)
    model.over = nn.Linear(16384, 32768, device=META)
    return model


def dlrm() -> nn.Module:
    """The same tables beside a dense part whose memory our ledger counts."""
    return DLRM(bags(TABLES), 16, [16384, 4096, 128], [4096, 1], dense_device=META)


@pytest.mark.parametrize("make_model", [some_model, dlrm])
@pytest.mark.parametrize(
    "reserve",
    [
        lambda: reservations.FixedPercentageStorageReservation(percentage=0.3),
        lambda: reservations.FixedAbsoluteStorageReservation.from_gb(24),
        default_reservation,
        OwnReservation,
        sku_aware,
    ],
    ids=["percentage", "absolute", "heuristical", "own", "sku_aware"],
)
def test_tables_stay_where_torchrec_keeps_them(
    make_model: Callable[[], nn.Module], reserve: Callable[[], StorageReservation]
) -> None:
    topology = Topology(2, "cuda", hbm_cap=80 * GB, local_world_size=2)
    arguments = {"topology": topology, "batch_size": 4096, "constraints": CONSTRAINTS, "stats": []}
    ours = ShardPlanner(**arguments, storage_reservation=reserve(), max_evaluations=200)
    theirs = EmbeddingShardingPlanner(**arguments, storage_reservation=reserve())
    kernels = [
        {s.compute_kernel for module in plan.plan.values() for s in module.values()}
        for plan in (ours.plan(make_model(), SHARDERS), theirs.plan(make_model(), SHARDERS))
    ]
    assert kernels == [{"fused"}, {"fused"}]
    result, left = ours.result, theirs._storage_reservation.last_reserved_topology
    assert result is not None
    assert left is not None
    limits = CostPipeline(result.problem.workload, result.problem.topology).device_limits
    assert limits.tolist() == pytest.approx([d.storage.hbm for d in left.devices])


def test_a_saved_plan_is_held_against_the_same_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The plan fits under the reservation that it was made with, so no warning says otherwise."""
    topology = Topology(2, "cuda", hbm_cap=80 * GB, local_world_size=2)
    arguments = {"topology": topology, "batch_size": 4096, "constraints": CONSTRAINTS, "stats": []}
    reservation = reservations.FixedPercentageStorageReservation(percentage=0.3)
    first = ShardPlanner(**arguments, storage_reservation=reservation, max_evaluations=50)
    plan = first.plan(some_model(), SHARDERS)
    assert first.result is not None
    save_plan(tmp_path / "plan.json", first.result)
    again = ShardPlanner.from_plan(
        tmp_path / "plan.json", **arguments, storage_reservation=reservation
    )
    caplog.clear()
    with caplog.at_level(logging.WARNING, "planner"):
        assert again.plan(some_model(), SHARDERS).plan.keys() == plan.plan.keys()
    assert not [r.getMessage() for r in caplog.records if "memory" in r.getMessage()]


def test_a_reservation_below_our_count_is_said(caplog: pytest.LogCaptureFixture) -> None:
    topology = Topology(2, "cuda", hbm_cap=80 * GB, local_world_size=2)
    reservation = reservations.FixedPercentageStorageReservation(percentage=0.05)
    planner = ShardPlanner(
        topology, 64, storage_reservation=reservation, stats=[], max_evaluations=20
    )
    with caplog.at_level(logging.WARNING, "planner"):
        planner.plan(some_model(), SHARDERS)
    (line,) = [r.getMessage() for r in caplog.records if "keeps" in r.getMessage()]
    assert line.startswith("FixedPercentageStorageReservation: 5% of each device keeps 4 GiB, and")
    assert "needs 12 GiB" in line
