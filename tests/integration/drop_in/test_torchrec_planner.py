"""The planner in TorchRec's place, on one process; the search itself is replaced where marked."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torchrec")

import json
import re
from pathlib import Path

from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.partitioners import GreedyPerfPartitioner
from torchrec.distributed.planner.planners import EmbeddingShardingPlanner
from torchrec.distributed.planner.stats import EmbeddingStats
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import (
    ParameterConstraints,
    PlanLoader,
    PlannerError,
    PlannerErrorType,
    ShardingOption,
)
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import CacheParams, ShardingPlan

import planner.errors
from costmodels.pipeline import CostPipeline
from costmodels.sharding import ComputeKernel, Plan, ShardingType, place
from costmodels.sharding import ShardingOption as Option
from planner.errors import InfeasibleError, NoPlanFoundError
from planner.integrations import drop_in as rival
from planner.integrations import drop_in as sound_plans
from planner.integrations import torchrec_planner
from planner.integrations.drop_in import Job
from planner.integrations.torchrec_planner import ShardPlanner
from planner.integrations.translate.settings import ShardPlannerError
from planner.problem import Constraints
from tests.integration.builders import make_topology
from tests.integration.models import Model, bags, sequences, torchrec_topology

pytestmark = pytest.mark.torchrec

SYSTEM = make_topology(num_hosts=2, local=2)
SHAPES = [("a", 100, 16), ("b", 50, 32)]
SHARDERS = get_default_sharders()


@dataclass
class Search:
    """A search that puts table i on rank i, and remembers what it was asked."""

    kernel: ComputeKernel = ComputeKernel.FUSED
    asked: dict[str, Any] | None = None

    def __call__(self, job: Job) -> Any:
        workload, topology, _ = job.ours
        self.asked = {
            "workload": workload,
            "topology": topology,
            "constraints": job.limits,
            "time_limit_s": job.settings.time_limit_s,
            **{k: getattr(job.search, k) for k in ("strategy", "objective", "seed")},
            "max_evaluations": job.search.max_evaluations,
        }
        ratio = 0.3 if self.kernel is ComputeKernel.FUSED_UVM_CACHING else None
        placements = tuple(
            place(
                Option(
                    table=t.name,
                    sharding_type=ShardingType.TABLE_WISE,
                    kernel=self.kernel,
                    column_widths=(t.embedding_dim,),
                    cache_load_factor_ratio=ratio,
                ),
                t.num_embeddings,
                (i % topology.world_size,),
                world_size=topology.world_size,
                local_world_size=topology.local_world_size,
            )
            for i, t in enumerate(workload.tables)
        )
        return SimpleNamespace(
            plan=Plan(placements=placements),
            warnings=("from the search",),
            solver=SimpleNamespace(evaluations=7),
        )


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> Search:
    fake = Search()
    monkeypatch.setattr(sound_plans, "best_plan", fake)
    monkeypatch.setattr(ShardPlanner, "_told", lambda *_: "")
    return fake


@pytest.fixture(autouse=True)
def hasty_rival(monkeypatch: pytest.MonkeyPatch) -> None:
    """TorchRec's own planner, which answers too, tries few proposals: no test here is about it."""
    monkeypatch.setattr(rival, "_MOST_WORK", 600)


def make(**arguments: Any) -> ShardPlanner:
    arguments.setdefault("topology", torchrec_topology(4, 2))
    return ShardPlanner(**{"batch_size": 8, "system": SYSTEM, "max_evaluations": 20, **arguments})


def model() -> Model:
    return Model(bags(SHAPES), sequences([("c", 10, 8)]))


def test_the_search_is_asked_the_right_question(search: Search) -> None:
    shard_planner = make(timeout_seconds=9, strategy="s", objective="o", seed=3, max_evaluations=5)
    plan = shard_planner.plan(model(), SHARDERS)
    assert search.asked is not None
    assert [t.name for t in search.asked["workload"].tables] == ["a", "b", "c"]
    assert search.asked["workload"].batch_size_per_rank == 8
    assert search.asked["topology"].world_size == 4
    assert search.asked["topology"].local_world_size == 2
    kept = int(0.85 * 2**30)
    assert search.asked["topology"].device.hbm_capacity_bytes == pytest.approx(kept, abs=1)
    asked = {k: search.asked[k] for k in ("strategy", "objective", "seed", "max_evaluations")}
    assert asked == {"strategy": "s", "objective": "o", "seed": 3, "max_evaluations": 5}
    assert 0 < search.asked["time_limit_s"] <= 9.0
    assert isinstance(search.asked["constraints"], Constraints)
    assert isinstance(plan, ShardingPlan)
    assert set(plan.plan) == {"sparse.bags", "history"}
    assert plan.plan["sparse.bags"]["b"].ranks == [1]
    assert shard_planner.result is not None


def test_a_model_without_tables_has_an_empty_plan(search: Search) -> None:
    assert make().plan(nn.Linear(2, 2), SHARDERS) == ShardingPlan({})
    assert make().plan(model(), []) == ShardingPlan({})
    assert search.asked is None


def test_parts_of_another_search_are_refused_aloud() -> None:
    with pytest.warns(UserWarning, match="not use partitioner: its search places shards"):
        make(partitioner=GreedyPerfPartitioner())


def test_a_storage_reservation_is_obeyed(search: Search) -> None:
    make(storage_reservation=FixedPercentageStorageReservation(percentage=0.5)).plan(
        model(), SHARDERS
    )
    assert search.asked is not None
    left = CostPipeline(search.asked["workload"], search.asked["topology"]).device_limits
    assert left.tolist() == pytest.approx([2.0**29] * 4)


def test_an_enumerator_narrows_the_search(search: Search) -> None:
    topology = torchrec_topology(4, 2)
    allowed = {
        "a": ParameterConstraints(sharding_types=["table_wise"], compute_kernels=["fused"]),
    }
    enumerator = EmbeddingEnumerator(topology, batch_size=8, constraints=allowed)
    make(topology=topology, enumerator=enumerator).plan(model(), SHARDERS)
    assert search.asked is not None
    (limit,) = search.asked["constraints"].for_table("a")
    assert limit.sharding_types == (ShardingType.TABLE_WISE,)
    assert limit.kernels == (ComputeKernel.FUSED,)
    (other,) = search.asked["constraints"].for_table("b")
    assert ShardingType.GRID_SHARD not in other.sharding_types


def test_callbacks_have_the_last_word(search: Search) -> None:
    def to_rank_3(options: list[ShardingOption]) -> list[ShardingOption]:
        assert all(o.shards[0].perf.total > 0 for o in options)
        for option in options:
            option.shards[0].rank = 3
        return options

    shard_planner = make(callbacks=[to_rank_3])
    plan = shard_planner.plan(model(), SHARDERS)
    assert [plan.plan["sparse.bags"][t].ranks for t in ("a", "b")] == [[3], [3]]
    best = shard_planner._best_plan
    assert best is not None
    assert [o.name for o in best] == ["a", "b", "c"]


def test_statistics_are_logged(search: Search) -> None:
    stats = EmbeddingStats()
    make(stats=stats).plan(model(), SHARDERS)
    assert any("Evaluated 7 proposal(s)" in line for line in stats._stats_table)
    assert any("Top HBM" in line for line in stats._stats_table)


def test_settings_of_constraints_reach_the_plan(search: Search) -> None:
    search.kernel = ComputeKernel.FUSED_UVM_CACHING
    constraints = {
        "a": ParameterConstraints(cache_params=CacheParams(reserved_memory=2.0), enforce_hbm=True)
    }
    plan = make(constraints=constraints).plan(bags(SHAPES), SHARDERS)
    assert plan.plan[""]["a"].cache_params == CacheParams(load_factor=0.3, reserved_memory=2.0)
    assert plan.plan[""]["a"].enforce_hbm is True
    assert plan.plan[""]["b"].cache_params == CacheParams(load_factor=0.3)


def test_assumptions_and_warnings_are_logged(
    search: Search, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger=torchrec_planner.__name__):
        make().plan(model(), SHARDERS)
    assert "uniform assumed" in caplog.text
    assert "from the search" in caplog.text


class Loader(PlanLoader):
    def __init__(self, options: list[ShardingOption], context: str | None) -> None:
        self.options, self.context = options, context

    def load(self) -> dict[int, ShardingOption]:
        return {o.storage_hash(): o for o in self.options}

    def plan_context_hash(self) -> str | None:
        return self.context


def test_a_stored_plan_is_used_if_made_for_the_same_inputs(search: Search) -> None:
    sharders = [EmbeddingBagCollectionSharder()]
    theirs = EmbeddingShardingPlanner(
        topology=torchrec_topology(4, 2),
        batch_size=8,
        storage_reservation=FixedPercentageStorageReservation(percentage=0.15),
    )
    expected = theirs.plan(bags(SHAPES), sharders)
    stored = theirs._best_plan
    assert stored is not None
    plan = make(plan_loader=Loader(stored, None)).plan(bags(SHAPES), sharders)
    assert plan._serialize() == expected._serialize()
    assert search.asked is None
    with pytest.raises(ShardPlannerError, match="made for other inputs") as caught:
        make(plan_loader=Loader(stored, "other")).plan(bags(SHAPES), sharders)
    assert caught.value.error_type is PlannerErrorType.PLANNER_INPUT_CONTEXT_MISMATCH


def test_a_planner_forgets_the_options_of_the_model_before(
    search: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a stored plan of the first model would be taken for one of the second."""
    monkeypatch.setattr(rival, "MOST_COMPARED", 8)
    many = [(f"t{i}", 100 + i, 8) for i in range(6)]
    first, second = bags(many[:-1]), bags(many)
    reused, fresh = (make() for _ in range(2))
    reused.plan(first, SHARDERS)
    before = reused.hash_planner_context_inputs_str()
    reused.plan(second, SHARDERS)
    fresh.plan(second, SHARDERS)
    assert reused.hash_planner_context_inputs_str() == fresh.hash_planner_context_inputs_str()
    assert reused.hash_planner_context_inputs_str() != before
    names = {o.name for o in reused.get_search_space() or ()}
    assert names == {name for name, *_ in many}


# ------------------------------------------------------------------ plans from files


def saved(plan: ShardingPlan, folder: Path, **header: Any) -> Path:
    path = folder / "plan.json"
    path.write_text(json.dumps({**plan._serialize(), **header}))
    return path


def from_file(path: Path) -> ShardPlanner:
    return ShardPlanner.from_plan(
        path, batch_size=8, system=SYSTEM, topology=torchrec_topology(4, 2)
    )


def test_a_bare_plan_of_torchrecs_comes_back(search: Search, tmp_path: Path) -> None:
    made = make().plan(model(), SHARDERS)
    search.asked = None
    read = from_file(saved(made, tmp_path)).plan(model(), SHARDERS)
    assert read._serialize() == made._serialize()
    assert search.asked is None


def refused(path: Path, of: nn.Module) -> list[str]:
    with pytest.raises(ShardPlannerError, match=re.escape(str(path))) as caught:
        from_file(path).plan(of, SHARDERS)
    assert caught.value.error_type is PlannerErrorType.PLAN_LOADING_FAILED
    return str(caught.value).splitlines()[1:]


def test_a_plan_of_other_tables_is_refused_with_a_difference(
    search: Search, tmp_path: Path
) -> None:
    path = saved(
        make().plan(bags([("a", 100, 16), ("b", 50, 32), ("old", 7, 4)]), SHARDERS), tmp_path
    )
    lines = refused(path, bags([("a", 100, 16), ("b", 60, 32), ("new", 9, 8)]))
    assert lines == [
        f"{path}: table 'old' (7 x 4): in the plan, not in the workload",
        f"{path}: table 'b': 50 x 32 in the plan, 60 x 32 in the workload",
        f"{path}: table 'new' (9 x 8): in the workload, not in the plan",
    ]


def test_long_differences_are_cut(search: Search, tmp_path: Path) -> None:
    path = saved(make().plan(bags([(f"t{i}", 10, 8) for i in range(30)]), SHARDERS), tmp_path)
    lines = refused(path, bags([("a", 10, 8)]))
    assert len(lines) == 21
    assert lines[-1].endswith("and 11 more")


def test_a_plan_for_other_ranks_is_refused(search: Search, tmp_path: Path) -> None:
    path = saved(make().plan(model(), SHARDERS), tmp_path, world_size=16)
    (line,) = refused(path, model())
    assert "made for 16 ranks, not for 4; plan again" in line


def test_a_plan_that_torchrec_cannot_run_is_refused(search: Search, tmp_path: Path) -> None:
    made = make().plan(bags(SHAPES), SHARDERS)
    made.plan[""]["a"].sharding_type = "row_wise"
    (line,) = refused(saved(made, tmp_path), bags(SHAPES))
    assert "table 'a': row_wise needs exactly one shard per rank in order" in line


@pytest.mark.parametrize("text", ["", "[]", "{", '{"plan": {"m": {"t": {}}}}'])
def test_files_that_are_no_plans_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    assert refused(path, model())


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert refused(tmp_path / "plan.json", model())


# ------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (InfeasibleError("too big", shortfall_bytes=5), PlannerErrorType.INSUFFICIENT_STORAGE),
        (NoPlanFoundError("too slow"), PlannerErrorType.PARTITION),
        (planner.errors.InvalidInputError("wrong"), PlannerErrorType.STRICT_CONSTRAINTS),
    ],
)
def test_errors_are_torchrecs_and_ours_at_once(
    monkeypatch: pytest.MonkeyPatch, error: Exception, reason: PlannerErrorType
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(sound_plans, "best_plan", fail)
    with pytest.raises(ShardPlannerError, match=str(error)) as caught:
        make().plan(model(), SHARDERS)
    assert isinstance(caught.value, PlannerError)
    assert isinstance(caught.value, planner.errors.PlannerError)
    assert caught.value.error_type is reason
    assert caught.value.__cause__ is error


def test_no_memory_after_the_reservation(search: Search) -> None:
    everything = FixedPercentageStorageReservation(percentage=1.0)
    with pytest.raises(ShardPlannerError, match="after the storage reservation") as caught:
        make(storage_reservation=everything).plan(model(), SHARDERS)
    assert caught.value.error_type is PlannerErrorType.INSUFFICIENT_STORAGE
    assert search.asked is None


def test_a_failed_planner_can_plan_again(search: Search) -> None:
    shard_planner = make()
    both = {"a": ParameterConstraints(sharding_types=["row_wise"], compute_kernels=["dense"])}
    shard_planner._constraints = both
    with pytest.raises(ShardPlannerError, match="no sharding option is left"):
        shard_planner.plan(model(), SHARDERS)
    shard_planner._constraints = None
    assert set(shard_planner.plan(model(), SHARDERS).plan) == {"sparse.bags", "history"}


def test_a_search_that_breaks_the_rules_is_stopped(search: Search) -> None:
    search.kernel = ComputeKernel.FUSED_UVM
    with pytest.raises(ShardPlannerError, match="not on device cpu; use fused"):
        make(topology=torchrec_topology(4, 2, device="cpu")).plan(model(), SHARDERS)


def test_without_a_process_group() -> None:
    with pytest.raises(planner.errors.InvalidInputError, match="number of ranks is not known"):
        ShardPlanner(batch_size=8)
    with pytest.raises(ShardPlannerError, match="collective_plan needs a process group"):
        make().collective_plan(model())
