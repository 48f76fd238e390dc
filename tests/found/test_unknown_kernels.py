"""A kernel without a cost model is planned under its own name, priced as the nearest known one."""

from __future__ import annotations

import logging

import pytest

pytest.importorskip("torchrec")

from torch import nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner.types import ParameterConstraints, Topology

from costmodels.sharding import ComputeKernel
from planner import load_system
from planner.integrations.torchrec_2d import group_choices
from planner.integrations.torchrec_planner import ShardPlanner
from planner.integrations.torchrec_workload import describe_model
from planner.integrations.translate.settings import ShardPlannerError, our_kernel
from tests.integration.models import bags, sequences

pytestmark = pytest.mark.torchrec

GB = 2**30


class Offers(EmbeddingBagCollectionSharder):
    """Offers a kernel beside TorchRec's."""

    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
        return [*super().compute_kernels(sharding_type, compute_device_type), "fused_triton"]


class OffersOwn(EmbeddingCollectionSharder):
    """As of dynamicemb."""

    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
        return ["customized_kernel", *super().compute_kernels(sharding_type, compute_device_type)]


class OffersOnly(EmbeddingBagCollectionSharder):
    """Offers no kernel of TorchRec's."""

    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
        return ["fused_triton"]


def planner(**constraints: ParameterConstraints) -> ShardPlanner:
    topology = Topology(2, "cuda", hbm_cap=32 * GB, local_world_size=2)
    return ShardPlanner(topology, 64, stats=[], constraints=constraints, max_evaluations=50)


def model(module: nn.Module) -> nn.Module:
    made = nn.Module()
    made.e = module
    return made


def test_fused_triton_is_planned_where_a_constraint_names_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tables = bags([("a", 5_000_000, 128), ("b", 1000, 128)])
    only = ParameterConstraints(compute_kernels=["fused_triton"])
    made = planner(a=only)
    with caplog.at_level(logging.WARNING, "planner"):
        plan = made.plan(model(tables), [Offers()]).plan["e"]
    assert plan["a"].compute_kernel == "fused_triton"
    assert plan["b"].compute_kernel in ("fused", "dense")
    assert made.result is not None
    assert made.result.plan.placement("a").kernel is ComputeKernel.FUSED
    lines = [r.getMessage() for r in caplog.records]
    said = "kernel fused_triton has no cost model: 1 tables that run it are priced as fused: ['a']"
    assert said in lines


def test_a_customized_kernel_is_planned() -> None:
    only = ParameterConstraints(sharding_types=["row_wise"], compute_kernels=["customized_kernel"])
    made = planner(dyn=only)
    plan = made.plan(model(sequences([("dyn", 10_000_000, 64), ("s", 1000, 64)])), [OffersOwn()])
    assert plan.plan["e"]["dyn"].compute_kernel == "customized_kernel"
    assert plan.plan["e"]["dyn"].sharding_type == "row_wise"
    assert made._best_plan is not None
    assert all(s.perf is not None and s.storage is not None for s in made._best_plan[0].shards)


def test_a_sharder_may_offer_that_kernel_alone() -> None:
    made = planner().plan(model(bags([("a", 5_000_000, 128)])), [OffersOnly()])
    assert made.plan["e"]["a"].compute_kernel == "fused_triton"


def test_a_kernel_that_no_sharder_offers_is_still_refused() -> None:
    only = ParameterConstraints(compute_kernels=["fused_triton"])
    with pytest.raises(ShardPlannerError, match="fused_triton") as error:
        planner(a=only).plan(model(bags([("a", 1000, 128)])), [EmbeddingBagCollectionSharder()])
    offers = str(error.value).split("its sharder offers")[1]
    assert "fused_triton" not in offers


def test_groups_keep_the_kernel_of_a_constraint() -> None:
    only = {"a": ParameterConstraints(compute_kernels=["fused_triton"])}
    described = describe_model(
        model(bags([("a", 5000, 128)])), [Offers()], batch_size=64, constraints=only
    )
    assert described is not None
    best = group_choices(described, load_system("h100_sxm", gpus=8), sync_interval=10)[0]
    assert best.sharding_plan(only).plan["e"]["a"].compute_kernel == "fused_triton"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fused_triton", ComputeKernel.FUSED),
        ("customized_kernel", ComputeKernel.FUSED),
        ("unfused_tpu", ComputeKernel.FUSED),
        ("own_uvm_caching", ComputeKernel.FUSED_UVM_CACHING),
        ("own_uvm", ComputeKernel.FUSED_UVM),
        ("quant_uvm", ComputeKernel.FUSED_UVM),
        ("dense", ComputeKernel.DENSE),
    ],
)
def test_the_nearest_kernel_keeps_rows_in_the_same_memory(
    name: str, expected: ComputeKernel
) -> None:
    assert our_kernel(name) is expected


@pytest.mark.parametrize("name", ["key_value", "ssd_virtual_table"])
def test_kernels_of_key_value_tables_are_planned_in_another_way(name: str) -> None:
    with pytest.raises(ValueError, match="key-value"):
        our_kernel(name)
