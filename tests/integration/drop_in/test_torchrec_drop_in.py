"""What a user of TorchRec's planner relies on: its signatures, reservations and stored plans."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from importlib.metadata import version

import pytest

pytest.importorskip("torchrec")

from torchrec.distributed.planner import types as torchrec_types
from torchrec.distributed.planner.planners import EmbeddingShardingPlanner
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import (
    ParameterConstraints,
    PlanLoader,
    PlannerErrorType,
    ShardingOption,
)
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import (
    CacheAlgorithm,
    CacheParams,
    CacheStatistics,
    ShardingPlan,
)

from planner.integrations.torchrec_planner import ShardPlanner
from planner.integrations.translate.settings import ShardPlannerError
from tests.integration.models import bags, torchrec_topology

pytestmark = pytest.mark.torchrec

SHARDERS = get_default_sharders()


@pytest.mark.parametrize("method", ["__init__", "plan", "collective_plan"])
def test_signatures_are_those_of_the_installed_torchrec(method: str) -> None:
    theirs = inspect.signature(getattr(EmbeddingShardingPlanner, method)).parameters
    ours = inspect.signature(getattr(ShardPlanner, method)).parameters
    assert list(ours)[: len(theirs)] == list(theirs)
    for name, parameter in theirs.items():
        found = ours[name].default, ours[name].kind, ours[name].annotation
        assert found == (parameter.default, parameter.kind, parameter.annotation)
    more = list(ours.values())[len(theirs) :]
    assert all(p.kind is p.KEYWORD_ONLY and p.default is not p.empty for p in more)


def test_the_provider_says_which_torchrec_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchrec.distributed.planner.provider", None)
    monkeypatch.delitem(sys.modules, "planner.integrations.torchrec_provider", raising=False)
    installed = re.escape(version("torchrec"))
    with pytest.raises(
        ImportError, match=rf"needs torchrec 1\.9.*installed is torchrec {installed}"
    ):
        importlib.import_module("planner.integrations.torchrec_provider")


def test_public_methods_of_the_installed_planner_are_there() -> None:
    theirs = inspect.getmembers(EmbeddingShardingPlanner, inspect.isfunction)
    public = {name for name, _ in theirs if not name.startswith("_")}
    assert {"plan", "collective_plan", "hash_planner_context_inputs"} <= public
    assert public <= set(dir(ShardPlanner))


@pytest.mark.parametrize("objective", ["torchrec", "torchrec-critical-path"])
def test_torchrecs_objectives_reserve_once(objective: str) -> None:
    """Tables of 0.55 GiB a rank fit in the 0.6 GiB left, and not in 85 % of that."""
    half = int(0.55 * 2**30 / (64 * 4))
    fused = {n: ParameterConstraints(["table_wise"], ["fused"]) for n in ("a", "b")}
    small = torchrec_topology(2, 2)

    def made(kept_ratio: float, rows: int) -> ShardingPlan:
        shard_planner = ShardPlanner(
            small,
            8,
            storage_reservation=FixedPercentageStorageReservation(percentage=kept_ratio),
            constraints=fused,
            stats=[],
            timeout_seconds=2,
            objective=objective,
        )
        return shard_planner.plan(bags([("a", rows, 64), ("b", rows, 64)]), SHARDERS)

    shardings = made(0.4, half).plan[""].values()
    assert sorted(s.ranks[0] for s in shardings) == [0, 1]
    with pytest.raises(ShardPlannerError) as caught:
        made(0.46, half)
    assert caught.value.error_type is PlannerErrorType.INSUFFICIENT_STORAGE


def test_tables_larger_than_all_memory_are_told_with_what_is_left_of_it() -> None:
    topology = torchrec_types.Topology(world_size=1, compute_device="cpu")
    huge = bags([("a", 10**10, 64)])
    with pytest.raises(ShardPlannerError, match="table 'a' exceeds the device memory") as caught:
        ShardPlanner(topology, 8, stats=[]).plan(huge, SHARDERS)
    assert "left for tables: 128 GiB on each of 1 ranks, after Heuristical" in str(caught.value)
    assert caught.value.error_type is PlannerErrorType.INSUFFICIENT_STORAGE


class NoFingerprint(CacheStatistics):
    """Statistics that say nothing of themselves that is the same in every process."""

    @property
    def expected_lookups(self) -> float:
        return 1.0

    def expected_miss_rate(self, clf: float) -> float:
        return 1.0 - clf

    @property
    def cacheability(self) -> float:
        return 0.5


class OfOtherInputs(PlanLoader):
    """An empty plan, made for other inputs."""

    def load(self) -> dict[int, ShardingOption]:
        return {}

    def plan_context_hash(self) -> str:
        return "other"


def test_a_stored_plan_that_cannot_be_checked_is_replaced(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """TorchRec 1.9 refuses to hash such inputs; 1.8 hashes them, and finds another context."""
    params = CacheParams(algorithm=CacheAlgorithm.LRU, stats=NoFingerprint())
    made = ShardPlanner(
        torchrec_topology(2, 2),
        8,
        stats=[],
        timeout_seconds=2,
        plan_loader=OfOtherInputs(),
        constraints={"a": ParameterConstraints(cache_params=params)},
    )
    if not hasattr(torchrec_types, "PlannerContextFingerprintError"):
        with pytest.raises(ShardPlannerError, match="made for other inputs"):
            made.plan(bags([("a", 100, 16)]), SHARDERS)
        return
    made.plan(bags([("a", 100, 16)]), SHARDERS)
    assert made.result is not None
    assert "the stored plan cannot be checked" in caplog.text
