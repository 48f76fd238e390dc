"""TorchRec's plan beside ours: the same at every start, and by its count of memory."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torchrec", reason="plans models of torchrec, which is not installed")

from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.planner.types import ShardingOption as TorchrecOption
from torchrec.distributed.planner.types import Topology as TorchrecTopology
from torchrec.distributed.quant_embedding import QuantEmbeddingCollectionSharder
from torchrec.modules.embedding_configs import DataType, EmbeddingConfig
from torchrec.quant.embedding_modules import EmbeddingCollection as QuantSequences

from planner.integrations.torchrec_planner import ShardPlanner
from tests.integration.models import META, Model, bags

pytestmark = pytest.mark.torchrec


class TwoKernels(EmbeddingBagCollectionSharder):
    """Offers two kernels that cost the same by TorchRec's estimates."""

    def sharding_types(self, device: str) -> list[str]:
        return ["row_wise", "table_wise"]

    def compute_kernels(self, sharding_type: str, device: str) -> list[str]:
        return ["fused", "fused_triton"]


class InOrder(EmbeddingEnumerator):
    """Lists the options of a table by kernel, from either end of the alphabet."""

    from_end = False

    def enumerate(self, *arguments: Any, **named: Any) -> list[TorchrecOption]:
        found = super().enumerate(*arguments, **named)
        by_kernel = sorted(found, key=lambda o: o.compute_kernel, reverse=self.from_end)
        return sorted(by_kernel, key=lambda o: (o.fqn, o.sharding_type))


class FromEnd(InOrder):
    """The other order."""

    from_end = True


def test_the_order_of_torchrecs_options_does_not_change_its_plan() -> None:
    """It takes kernels from a set, so that their order differs between starts of one job."""
    topology = TorchrecTopology(2, "cuda", hbm_cap=2**21)
    model = Model(bags([(f"t{i}", 100, 64) for i in range(4)]))
    found = []
    for kind in (InOrder, FromEnd):
        planner = ShardPlanner(topology, 512, kind(topology, 512), stats=[], max_evaluations=2)
        planner.plan(model, [TwoKernels()])
        found.append(planner._rival)
    assert found[0].plan is not None
    assert found[0] == found[1]


def test_state_that_torchrec_does_not_count_keeps_no_job_from_its_plan(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """3 GiB of weights on two ranks of 2 GiB: with their Adam state they do not fit."""
    adam = EmbeddingBagCollectionSharder({"optimizer": EmbOptimType.ADAM})
    limits = {"t": ParameterConstraints(sharding_types=["row_wise"], compute_kernels=["fused"])}
    planner = ShardPlanner(
        TorchrecTopology(2, "cuda", hbm_cap=2**31, local_world_size=2),
        32,
        stats=[],
        constraints=limits,
        storage_reservation=FixedPercentageStorageReservation(0.0),
    )
    model = Model(bags([("t", 3 * 2**30 // 512, 128)]))
    assert planner.plan(model, [adam]).plan["sparse.bags"]["t"].sharding_type == "row_wise"
    assert "the state of optimizers among fused_params" in caplog.text


def test_a_plan_of_torchrecs_that_its_runtime_refuses_is_not_taken() -> None:
    """A quantized unpooled table cannot be cut by columns on cpu, and TorchRec plans just that."""
    table = EmbeddingConfig(
        name="t",
        num_embeddings=500,
        embedding_dim=64,
        feature_names=["f"],
        data_type=DataType.INT8,
    )
    limit = ParameterConstraints(sharding_types=["table_wise", "column_wise"], min_partition=16)
    planner = ShardPlanner(
        TorchrecTopology(8, "cpu", local_world_size=8),
        32,
        stats=[],
        constraints={"t": limit},
        max_evaluations=20,
    )
    model = Model(QuantSequences(tables=[table], device=META))
    plan = planner.plan(model, [QuantEmbeddingCollectionSharder()]).plan["sparse.bags"]["t"]
    assert planner._rival.reason == "cannot run: table 't' as column_wise on cpu"
    assert plan.sharding_type == "table_wise"
