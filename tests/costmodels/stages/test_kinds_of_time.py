"""Each kind of time has a factor of its own, and exchanges priced as a whole cost what they say."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import pytest

from costmodels.collective.alpha_beta import AlphaBeta
from costmodels.cpu.exchange import CpuExchange, Traffic
from costmodels.datatypes import FloatArray
from costmodels.measured.cpu_constants import CpuConstants
from costmodels.shard_work.work import (
    EXCHANGING_TYPES,
    INPUT,
    NUM_COLUMNS,
    OUTPUT,
    call_column,
)
from costmodels.sharding import ComputeKernel, ShardingType
from costmodels.stages.models import CostModels
from costmodels.stages.stage_model import StageModel
from costmodels.topology import FITTED_KINDS as KINDS
from costmodels.uncertainty import UNSCALED, Scale
from costmodels.workload import HostProfile
from tests.costmodels.cpu.machines import MACHINE
from tests.costmodels.stages.stand_ins import Given, Weighted, stage_model, system
from tests.strategies import make_workload

FIELDS = {
    "lookup": ("lookup_forward_s", "lookup_backward_s", "cache_fetch_s"),
    "collective": ("input_splits_s", "tail_bucket_s", "bucket_s"),
    "dense": ("optimizer_s",),
    "host": (
        *("bottom_host_s", "top_host_s", "top_backward_host_s", "bottom_backward_host_s"),
        *("optimizer_host_s", "lookup_host_s", "lookup_backward_host_s", "collective_host_s"),
        *("input_copy_s", "copy_host_s"),
    ),
}
"""Times of a stage that are of one kind alone."""


def work_of(ranks: int, *types: ShardingType) -> FloatArray:
    work = np.random.default_rng(3).uniform(1e5, 1e6, (ranks, NUM_COLUMNS))
    work[:, call_column(ShardingType.TABLE_WISE, ComputeKernel.FUSED) :] = 0.0
    for kind in types:
        work[:, call_column(kind, ComputeKernel.FUSED)] = 1.0
    return work


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_time_grows_with_its_own_factor_alone(kind: str) -> None:
    model = stage_model(system((2, 2, 1)))
    work = work_of(4, ShardingType.TABLE_WISE, ShardingType.ROW_WISE)
    plain = model.times(work, UNSCALED)
    scaled = model.times(work, Scale(**{f"{kind}_ratio": np.full(1, 3.0)}))
    for other, names in FIELDS.items():
        factor = 3.0 if other == kind else 1.0
        for name in names:
            before, after = getattr(plain, name), getattr(scaled, name)
            np.testing.assert_allclose(after, np.asarray(before) * factor, rtol=1e-12, err_msg=name)
    assert float(np.max(plain.collective_host_s)) > 0
    for before, after in zip(plain.families, scaled.families, strict=True):
        factor = 3.0 if kind == "collective" else 1.0
        np.testing.assert_allclose(after.input_s, before.input_s * factor)


def test_one_rank_issues_no_collectives() -> None:
    model = stage_model(system((1, 1, 1)))
    times = model.times(work_of(1, ShardingType.TABLE_WISE), UNSCALED)
    assert float(np.max(times.collective_host_s)) == 0.0


def test_where_ranks_are_cores_there_is_no_copy_to_a_device() -> None:
    """A batch is read where it is; on a device it is copied first."""
    topology = system((1, 2, 1))
    assert stage_model(topology).input_copy_s > 0.0
    cores = replace(topology, device=replace(topology.device, single_stream=True))
    assert stage_model(cores).input_copy_s == 0.0


@pytest.mark.parametrize("shape", [(2, 2, 1), (3, 4, 1), (4, 2, 2)])
def test_many_plans_at_once_are_each_alone(shape: tuple[int, int, int]) -> None:
    """Also where exchanges go by lanes of hosts, in which ranks and hosts change places."""
    model = stage_model(system(shape))
    ranks = shape[0] * shape[1]
    rng = np.random.default_rng(7)
    used = (ShardingType.TABLE_ROW_WISE, ShardingType.TABLE_WISE)
    works = np.stack([work_of(ranks, *used) * rng.uniform(0.5, 2.0, (ranks, 1)) for _ in range(3)])
    together = model.times(works, UNSCALED)
    kinds = [EXCHANGING_TYPES.index(kind) for kind in used]
    growth = [model.exchanges.growth(works, kind) for kind in kinds]
    for i, work in enumerate(works):
        for kind, all_parts in zip(kinds, growth, strict=True):
            for all_s, one_s in zip(all_parts, model.exchanges.growth(work, kind), strict=True):
                np.testing.assert_allclose(all_s[i], one_s)
        alone = model.times(work, UNSCALED)
        for field in dataclasses.fields(alone):
            one, all_ = getattr(alone, field.name), getattr(together, field.name)
            if isinstance(one, np.ndarray) and np.ndim(all_) == works.ndim - 1:
                np.testing.assert_allclose(all_[i], one, err_msg=field.name)
        for one_family, family in zip(alone.families, together.families, strict=True):
            np.testing.assert_allclose(family.input_s[i], one_family.input_s)
            for (_, one_s), (_, all_s) in zip(one_family.outputs_s, family.outputs_s, strict=True):
                np.testing.assert_allclose(all_s[i], one_s)


@final
@dataclass(frozen=True, slots=True)
class Known(CpuExchange):
    """Seconds that are easy to tell apart in a sum."""

    constants: CpuConstants = MACHINE

    def seconds(
        self, kind: ShardingType, traffic: Traffic, batch_size_per_rank: float, *, whole: bool
    ) -> tuple[FloatArray, FloatArray]:
        """Those of the bytes that leave and 100 for each shard, and of the bytes that arrive."""
        if not whole:
            return traffic.leaving_bytes, traffic.arriving_bytes
        indices_s, vectors_s = self.fixed_s(kind)
        vectors = traffic.leaving_bytes + 100.0 * traffic.num_shards + vectors_s
        return vectors, traffic.arriving_bytes + indices_s

    def fixed_s(self, sharding_type: ShardingType) -> tuple[float, float]:
        """Of indices and of vectors."""
        return 1000.0, 2000.0

    @property
    def once_s(self) -> float:
        """Once."""
        return 5.0

    def gradient_growth(self, num_bytes: FloatArray) -> FloatArray:
        """As many seconds as bytes."""
        return np.asarray(num_bytes, dtype=float)

    @property
    def gradient_fixed_s(self) -> float:
        """Where there is a replicated table."""
        return 7.0


def test_exchanges_priced_as_a_whole_are_growth_and_extra_and_fixed() -> None:
    """The slowest of two ranks: 20 bytes of indices arrive, 40 of vectors leave, two shards."""
    models = CostModels(lookup=Weighted(), collective=AlphaBeta(), dense=Given(), exchange=Known())
    model = StageModel(make_workload(), system((1, 2, 1)), models)
    work = np.zeros((2, NUM_COLUMNS))
    work[:, call_column(ShardingType.TABLE_WISE, ComputeKernel.FUSED)] = (1.0, 2.0)
    work[:, INPUT], work[:, OUTPUT] = (10.0, 20.0), (30.0, 40.0)
    times = model.times(work, UNSCALED)
    (family,) = times.families
    assert float(family.input_s.squeeze()) == 20.0 + 1000.0
    ((_, output_s),) = family.outputs_s
    assert float(output_s.squeeze()) == 40.0 + 200.0 + 2000.0
    assert float(np.squeeze(times.input_splits_s)) == 5.0
    assert float(model.reduction.growth(np.array(3.0))) == 3.0


def test_nothing_to_reduce_takes_no_time() -> None:
    reduction = stage_model(system((1, 4, 1))).reduction
    nothing, one_byte, some = reduction.all_reduce_s(np.array([0.0, 1.0, 1e6]))
    assert nothing == 0.0
    assert 0.0 < one_byte < some


def test_the_loss_keeps_the_host_busy_in_both_passes() -> None:
    model = stage_model(system((1, 2, 1)), host_profile=HostProfile.EAGER_2021)
    times = model.times(work_of(2, ShardingType.TABLE_WISE), UNSCALED)
    top = model._layers.top
    forward_s = float(np.max(times.top_host_s)) - model._host.forward_s(top)
    backward_s = float(np.max(times.top_backward_host_s)) - model._host.backward_s(top)
    assert 0 < forward_s < backward_s
    assert forward_s + backward_s == pytest.approx(model._host.call_s("loss"))
