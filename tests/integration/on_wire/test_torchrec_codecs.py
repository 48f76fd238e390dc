"""Quantized communication of TorchRec's sharders: read, priced, and rated as TorchRec does."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchrec")

from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fbgemm_qcomm_codec import (
    CommType,
    QCommsConfig,
    get_qcomm_codecs,
    get_qcomm_codecs_registry,
)
from torchrec.distributed.planner.perf_models import NoopPerfModel
from torchrec.distributed.planner.planners import EmbeddingShardingPlanner
from torchrec.distributed.planner.types import ParameterConstraints, Topology
from torchrec.distributed.planner.utils import build_sharder_data

from benchmarks.search.drop_in import case_of, outcome_of
from costmodels.training.communication import Codec, Codecs, Communication, Precision
from planner.errors import InvalidInputError
from planner.integrations.torchrec_planner import ShardPlanner
from planner.integrations.torchrec_workload import describe_model
from planner.integrations.translate.reading import communication_of
from planner.integrations.translate.settings import ShardPlannerError
from tests.integration.models import Model, bags, sequences, torchrec_topology
from tests.integration.on_ranks.ranks import run_ranks

pytestmark = [pytest.mark.torchrec, pytest.mark.usefixtures("no_process_beside")]

TABLES = [(f"t{i}", 20_000 * (i + 1), 64) for i in range(6)]


def registry(forward: str, backward: str, **more: Any) -> Any:
    config = QCommsConfig(
        forward_precision=CommType(forward), backward_precision=CommType(backward), **more
    )
    return get_qcomm_codecs_registry(config)


def sharder(forward: str, backward: str, **more: Any) -> EmbeddingBagCollectionSharder:
    return EmbeddingBagCollectionSharder(qcomm_codecs_registry=registry(forward, backward, **more))


def warnings_of(*sharders: Any, batch_size: int = 64, **more: Any) -> str:
    found = describe_model(Model(bags(TABLES)), list(sharders), batch_size=batch_size, **more)
    assert found is not None
    return "\n".join(found.warnings)


def test_codecs_of_a_sharder_are_priced() -> None:
    """Each sharder's own: pooled tables travel in fp16 and bf16 here, unpooled ones as they are."""
    model = Model(bags(TABLES), sequences([("s", 500, 4)]))
    names = [n for n, _, _ in TABLES] + ["s"]
    limits = {n: ParameterConstraints(sharding_types=["table_wise"]) for n in names}
    times = []
    for pooled in (sharder("fp16", "bf16"), EmbeddingBagCollectionSharder()):
        planner = ShardPlanner(
            *(torchrec_topology(8, 4), 16_384), constraints=limits, stats=[], max_evaluations=50
        )
        planner.plan(model, [pooled, EmbeddingCollectionSharder()])
        assert planner.result is not None
        times.append(planner.result.solver.value)
        told = {t.name: t.communication for t in planner.result.problem.workload.tables}
        assert told.pop("s") is None
        asked = communication_of(pooled)
        assert set(told.values()) == {asked}
        assert asked in (None, Communication.of(Precision.FP16, Precision.BF16))
    assert times[0] < 0.9 * times[1]


@pytest.mark.parametrize("precision", list(Precision))
def test_a_codec_is_read_as_fbgemm_counts_it(precision: Precision) -> None:
    """Bytes on the wire as FBGEMM's codec counts them, bytes in the rating as TorchRec does."""
    rows = {"fp8_quantize_dim": 64, "mx4_quantize_dim": 64}
    for more in ({}, rows):
        config = QCommsConfig(
            forward_precision=CommType(precision.value),
            backward_precision=CommType(precision.value),
            **more,
        )
        codecs = get_qcomm_codecs(config)
        used = EmbeddingBagCollectionSharder(
            qcomm_codecs_registry={"POOLED_EMBEDDINGS_ALL_TO_ALL": codecs}
        )
        found = communication_of(used)
        assert found is not None
        assert found.all_to_all is not None
        assert found.reduce_scatter is None
        ours, theirs = found.all_to_all.forward, codecs.forward
        size = theirs.calc_quantized_size(64 * 96, theirs.create_context())
        size *= theirs.quantized_dtype.itemsize
        assert ours.wire_bytes * 64 * 96 == pytest.approx(size, rel=1e-12)
        data = build_sharder_data(used).qcomm_dtype_sizes["POOLED_EMBEDDINGS_ALL_TO_ALL"]
        assert (ours.torchrec_bytes, found.all_to_all.backward.torchrec_bytes) == data


def test_a_snapshot_of_a_sharder_is_read_by_its_sizes() -> None:
    found = communication_of(build_sharder_data(sharder("fp16", "int8")))
    assert found is not None
    assert found.all_to_all == Codecs(
        forward=Codec(precision=Precision.FP16), backward=Codec(precision=Precision.FP8)
    )
    assert communication_of(EmbeddingBagCollectionSharder()) is None


def test_rows_are_not_cut_where_their_sums_have_no_codec() -> None:
    used = sharder("int8", "bf16")
    assert "FBGEMM cannot sum: 6 tables" in warnings_of(used)
    assert "qcomm" not in warnings_of(sharder("fp16", "bf16"))
    limits = {n: ParameterConstraints(sharding_types=["row_wise"]) for n, _, _ in TABLES}
    with pytest.raises(InvalidInputError, match="its sharder offers") as caught:
        warnings_of(used, constraints=limits)
    assert len(caught.value.problems) == len(TABLES)


def test_rows_of_a_codec_that_a_batch_does_not_fill_are_warned_of() -> None:
    used = sharder("int8", "int8")
    assert "a batch of 7 times" in warnings_of(used, batch_size=7)
    found = describe_model(Model(bags(TABLES)), [used], batch_size=7)
    assert found is not None
    assert {c.min_column_width for c in found.constraints.tables} == {64}
    assert "a batch of" not in warnings_of(used, batch_size=8)


def test_a_codec_of_unknown_type_is_warned_of() -> None:
    import torch

    class Odd:
        quantized_dtype = torch.float64

    codecs = get_qcomm_codecs(QCommsConfig())
    codecs.forward = Odd()
    used = EmbeddingBagCollectionSharder(
        qcomm_codecs_registry={"POOLED_EMBEDDINGS_ALL_TO_ALL": codecs}
    )
    assert "cannot be priced, priced as fp32: ['torch.float64']" in warnings_of(used)


# ------------------------------------------------------------------ TorchRec's rating


def rated(world: int, local: int, model: Model, sharders: Any, **more: Any) -> ShardPlanner:
    """A search for TorchRec's rating, whose value TorchRec's own code confirms."""
    topology = Topology(world, "cuda", local_world_size=local)
    planner = ShardPlanner(
        topology, 512, stats=[], objective="torchrec", **{"max_evaluations": 50, **more}
    )
    planner.plan(model, sharders)
    assert planner.result is not None
    theirs = NoopPerfModel(topology).rate(planner.get_selected_options())
    assert planner.result.solver.value * 1e3 == pytest.approx(theirs, rel=1e-9)
    return planner


@pytest.mark.parametrize(("forward", "backward"), [("fp16", "fp8"), ("int8", "bf16")])
def test_the_rating_is_torchrecs(forward: str, backward: str) -> None:
    model = Model(bags(TABLES), sequences([("s", 500, 64)]))
    used = [
        sharder(forward, backward),
        EmbeddingCollectionSharder(qcomm_codecs_registry=registry(backward, forward)),
    ]
    rated(4, 2, model, used, max_evaluations=100)


def test_hosts_that_ranks_do_not_fill_are_rated_as_torchrec_does(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """12 ranks on hosts of 8: TorchRec plans whole hosts there that its runtime does not have."""
    few = [(n, rows, 64) for n, rows, _ in TABLES[:3]] + [("small", 40, 64)]
    with caplog.at_level(logging.WARNING):
        planner = rated(12, 8, Model(bags(few)), None, max_evaluations=100)
    assert "without table_row_wise and grid_shard" in caplog.text
    assert "cannot run" in planner._rival.reason or planner._rival.plan is not None
    types = {o.sharding_type for o in planner.get_selected_options()}
    assert not types & {"table_row_wise", "grid_shard"}
    limits = {n: ParameterConstraints(sharding_types=["table_row_wise"]) for n, _, _ in few}
    with pytest.raises(ShardPlannerError, match="table_row_wise"):
        rated(12, 8, Model(bags(few)), None, constraints=limits)


@pytest.mark.slow
def test_72_tables_on_16_ranks_are_never_rated_worse() -> None:
    tables = [(f"t{i}", 10_000 * (i % 9 + 1), 32 * (i % 4 + 1)) for i in range(72)]
    model, used = Model(bags(tables)), [sharder("int8", "bf16")]
    topology = Topology(16, "cuda", local_world_size=8)
    theirs = EmbeddingShardingPlanner(topology=topology, batch_size=512, stats=[], debug=False)
    theirs.plan(model, used)
    planner = rated(16, 8, model, used, max_evaluations=None)
    assert planner.result is not None
    value_ms = planner.result.solver.value * 1e3
    assert value_ms <= NoopPerfModel(topology).rate(theirs._best_plan) * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_random_models_are_never_rated_worse(seed: int) -> None:
    """``python -m benchmarks.search.drop_in`` has more of them."""
    found = outcome_of(case_of(seed))
    assert found.ratio >= 1 - 1e-9
    assert found.claimed_ms == pytest.approx(found.ours_ms, rel=1e-9)


# ------------------------------------------------------------------ on real ranks


@pytest.mark.slow
def test_bytes_on_the_wire_are_those_of_the_model(tmp_path: Path) -> None:
    run_ranks(Path(__file__).with_name("codec_worker.py"), [str(tmp_path)], tmp_path, timeout_s=300)
    for rank in range(2):
        found = json.loads((tmp_path / f"bytes-{rank}.json").read_text())
        assert len(found) == 24
        for name, bytes_ in found.items():
            assert bytes_["counted"] == bytes_["predicted"], name
            assert all(b > 0 for b in bytes_["counted"]), name
