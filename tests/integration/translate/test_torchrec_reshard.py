"""``reshard.json`` against TorchRec's own difference of two plans."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torchrec")

from torchrec.distributed.sharding.dynamic_sharding import output_sharding_plans_delta

from costmodels.sharding import Plan, ShardingType
from planner import api
from planner.errors import InvalidInputError
from planner.integrations.torchrec_plan import to_sharding_plan
from planner.integrations.torchrec_reshard import load_reshard
from planner.io.plan.result_json import reshard_text
from planner.problem import Constraints
from tests.planner import cases

pytestmark = pytest.mark.torchrec
WHOLE = Constraints(sharding_types=(ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE))


def plan(seed: int) -> Plan:
    model = cases.synthetic(6, seed=1)
    found = api.plan(
        model,
        cases.topology(1, 4),
        strategy="random",
        constraints=replace(WHOLE, kernels=cases.DEVICE_ONLY.kernels),
        max_evaluations=1,
        with_baselines=False,
        seed=seed,
    ).plan
    return Plan(
        placements=tuple(
            replace(p, sharding_type=ShardingType.COLUMN_WISE) for p in found.placements
        )
    )


@pytest.mark.parametrize("seed", range(4))
def test_the_file_is_what_torchrec_computes(seed: int, tmp_path: Path) -> None:
    model = cases.synthetic(6, seed=1)
    before, after = plan(seed), plan(seed + 10)
    path = tmp_path / "reshard.json"
    path.write_text(reshard_text(before, after, model, 4))
    ours = load_reshard(path, compute_device="cpu")
    made = [
        to_sharding_plan(p, model, compute_device="cpu", local_world_size=4)
        for p in (before, after)
    ]
    theirs = output_sharding_plans_delta(made[0].plan, made[1].plan, return_data_volume=True)
    for module, (volume, tables) in theirs.items():
        named = {
            n: t for n, t in ours[module][1].items() if t.ranks != made[0].plan[module][n].ranks
        }
        assert dict(tables) == named  # beyond TorchRec's: tables cut anew on the same ranks
        counted = sum(
            s.shard_sizes[0] * s.shard_sizes[1] * 4 / 2**20
            for t in ours[module][1].values()
            for s in t.sharding_spec.shards
        )
        assert ours[module][0] == pytest.approx(counted)
        assert ours[module][0] >= volume * (1 - 1e-9)


def test_tables_that_need_a_restart_are_refused(tmp_path: Path) -> None:
    model = cases.synthetic(6, seed=1)
    before = plan(0)
    first = before.placements[0]
    retyped = replace(first, sharding_type=ShardingType.TABLE_WISE)
    path = tmp_path / "reshard.json"
    path.write_text(
        reshard_text(before, Plan(placements=(retyped, *before.placements[1:])), model, 4)
    )
    with pytest.raises(InvalidInputError, match="partly=True"):
        load_reshard(path)
    assert load_reshard(path, partly=True) == {}
    path.write_text("{}")
    with pytest.raises(InvalidInputError, match="its kind"):
        load_reshard(path)
