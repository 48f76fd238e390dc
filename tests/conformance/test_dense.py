"""What every dense model must satisfy; new files in the folder are tested at once."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given

import costmodels.dense
from costmodels import discovery
from costmodels.dense.base import AbstractDenseModel, dense_layers
from costmodels.topology import Topology
from costmodels.workload import DataType, DenseArch, Interaction, Workload
from tests.conformance.instances import build
from tests.strategies import (
    make_dense,
    make_device,
    make_topology,
    make_workload,
    topologies,
    workloads,
)

MODELS = discovery.names(costmodels.dense)


@pytest.fixture(params=MODELS, scope="module")
def model(request: pytest.FixtureRequest) -> AbstractDenseModel:
    """Every model in the folder."""
    return build(costmodels.dense, request.param, AbstractDenseModel)


def total(model: AbstractDenseModel, workload: Workload, topology: Topology) -> float:
    return sum(dataclasses.astuple(model.times(workload, topology)))


@given(workload=workloads(), topology=topologies())
def test_times_are_finite_not_negative_and_repeatable(
    model: AbstractDenseModel, workload: Workload, topology: Topology
) -> None:
    times = model.times(workload, topology)
    assert all(0 <= t < 3600 for t in dataclasses.astuple(times))
    assert times == model.times(workload, topology)


@given(workload=workloads(), topology=topologies())
def test_no_model_beats_the_matrix_units(
    model: AbstractDenseModel, workload: Workload, topology: Topology
) -> None:
    layers = dense_layers(workload)
    forward, backward = model.times(workload, topology), model.times(workload, topology)
    flops = sum(x.flops for x in (*layers.bottom, *layers.top))
    least_s = flops / topology.device.matrix_rate(workload.dense.dtype)
    assert forward.bottom_forward_s + forward.top_forward_s >= least_s * (1 - 1e-9)
    assert backward.bottom_backward_s + backward.top_backward_s >= 2 * least_s * (1 - 1e-9)


def test_no_dense_part_takes_no_time(model: AbstractDenseModel) -> None:
    times = model.times(make_workload(dense=DenseArch()), make_topology())
    assert dataclasses.astuple(times) == (0.0,) * 5


@pytest.mark.parametrize("interaction", list(Interaction))
@pytest.mark.parametrize("num_multiprocessors", [0, 108])
def test_larger_batches_and_layers_never_take_less_time(
    model: AbstractDenseModel, interaction: Interaction, num_multiprocessors: int
) -> None:
    cross = interaction is Interaction.DCN
    topology = make_topology(device=make_device(num_multiprocessors=num_multiprocessors))
    sizes = {"dcn_num_layers": 3, "dcn_low_rank_dim": 64} if cross else {}
    arch = make_dense(interaction=interaction, **sizes)
    batches = [
        total(model, make_workload(dense=arch, batch_size_per_rank=b), topology)
        for b in (1, 64, 100, 1000, 1024, 8192, 65536)
    ]
    assert batches == sorted(batches)
    widths = [
        total(
            model,
            make_workload(dense=dataclasses.replace(arch, top_mlp=(w, 1))),
            topology,
        )
        for w in (16, 100, 128, 1024, 4096)
    ]
    assert widths == sorted(widths)


def test_faster_devices_and_shorter_elements_are_never_slower(model: AbstractDenseModel) -> None:
    big = make_dense(bottom_mlp=(512, 256, 64), top_mlp=(1024, 1024, 1))
    workload = make_workload(dense=big, batch_size_per_rank=8192)
    usual = make_device(num_multiprocessors=108)
    time = total(model, workload, make_topology(device=usual))
    for field in ("hbm_bandwidth_bytes_per_s", "flops_efficiency_ratio"):
        better = dataclasses.replace(usual, **{field: 1.3 * getattr(usual, field)})
        assert total(model, workload, make_topology(device=better)) < time
    half = dataclasses.replace(big, dtype=DataType.FP16)
    halved = make_workload(dense=half, batch_size_per_rank=8192)
    assert total(model, halved, make_topology(device=usual)) < time


def test_every_model_names_its_sources(model: AbstractDenseModel) -> None:
    assert "\n    Sources:\n        " in (type(model).__doc__ or "")
