"""Host time: what each profile adds up to by hand, and the copies of a batch to the device."""

from __future__ import annotations

import csv
from dataclasses import replace

import pytest

from costmodels.dense.base import Layer, dense_layers
from costmodels.errors import InvalidValueError
from costmodels.layers.transformer import Transformer
from costmodels.operators import OperatorKind
from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan, ShardingType
from costmodels.stages.host import _UNPROFILED, PROFILES, HostCosts, input_bytes, is_cast
from costmodels.topology import Host, with_host_factor
from costmodels.training.optimizers import DenseOptimizer
from costmodels.workload import DataType, DenseArch, HostProfile, Pipeline, Workload
from planner.io.documents import configs_folder
from tests.strategies import make_host, make_placement, make_table, make_topology, make_workload

CALL_S = 5e-6
LAYERS, WIDTH = 12, 768
GPT = Transformer(
    layers=LAYERS, hidden=WIDTH, heads=12, ffn=3072, seq=256, vocabulary=50257, causal=True
)

# ------------------------------------------------------------------ profiles by hand


def test_the_profile_of_2021_is_what_the_shipped_overheads_add_up_to() -> None:
    path = configs_folder() / "published" / "lin22_host_overheads.csv"
    rows = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    us = {(row["type"], row["operator"]): float(row["mean_us"]) for row in rows}
    gap, launch = us["T1", "(all ops)"], us["T4", "cudaLaunchKernel"]

    def around(operator: str, *, last: str = "") -> float:
        return gap + us["T2", operator] + us["T3", last or operator]

    linear, relu = around("aten::linear"), around("aten::relu")
    addmm = around("AddmmBackward0", last="AddmmBackward") + us["T5", "AddmmBackward"] + 2 * launch
    backward = addmm + around("ReluBackward0") + launch + gap + us["T5", "TBackward"]
    gradient = "torch::autograd::AccumulateGrad"
    step, zero = "Optimizer.step#SGD.step", "Optimizer.zero_grad#SGD.zero_grad"
    loss = around("aten::mse_loss") + around("aten::ones_like")
    expected = {
        "operator": (linear + relu) / 2,
        "per_gradient": around(gradient) + us["T5", gradient],
        "per_update": us["T5", step] + us["T5", zero] + 2 * launch,
        "update": around(step) + around(zero),
        "lookup_forward": around("LookupFunction"),
        "lookup_backward": around("LookupFunctionBackward"),
        "collective": gap + us["T2", "All2All_Req"],
        "copy": around("aten::to") + us["T4", "cudaMemcpyAsync"],
        "loss": loss + around("MseLossBackward0", last="MseLossBackward") + 3 * launch,
        "launch": launch,
    }
    profile = PROFILES[HostProfile.EAGER_2021]
    operator = profile[OperatorKind.OTHER]
    shipped = {
        "operator": operator[0, 0],
        "launch": operator[0, 1],
        "per_gradient": profile["gradient"],
        **{name: calls for name, calls in profile.items() if name in expected},
        **dict(zip(("update", "per_update"), profile["update"], strict=True)),
    }
    for name, microseconds in expected.items():
        more = 3 * launch if name.startswith("lookup") else 0.0
        found = shipped[name][1] * 5.0 / _UNPROFILED
        assert found == pytest.approx(microseconds + more, rel=0.01), name
        assert shipped[name][1] == shipped[name][0]
    ratio = backward / (linear + relu + 2 * launch)
    assert operator[1, 0, 1] / operator[0, 0, 1] == pytest.approx(ratio, rel=0.01)


def costs_of(profile: HostProfile, *, reduces: bool = False) -> HostCosts:
    return HostCosts(host=make_host(eager_call_s=CALL_S), issued_by=profile, reduces=reduces)


def bottom_layers() -> tuple[Layer, ...]:
    """Two layers 13 -> 64 -> 64, each a product with a bias and an activation."""
    return dense_layers(make_workload()).bottom


def gpt_layers() -> tuple[Layer, ...]:
    """The token tables, 12 blocks of attention and feed-forward, a norm and the head."""
    dense = DenseArch(layers=(GPT,), dtype=DataType.FP16)
    gpt = Workload(name="gpt", tables=(), batch_size_per_rank=4, dense=dense)
    return dense_layers(gpt).top


def test_software_of_2021_by_hand() -> None:
    """Microseconds of the traces, times the share of them that remains without the profiler.

    The bottom has four operators of one kernel each and four trained tensors.
    """
    costs, layers = costs_of(HostProfile.EAGER_2021), bottom_layers()

    def traced(microseconds: float) -> object:
        return pytest.approx(_UNPROFILED * microseconds * 1e-6, rel=1e-9)

    forward_us = 4 * 58.0 + 4 * 10.4
    backward_us = 1.67 * forward_us + 4 * 39.0
    assert costs.forward_s(layers) == traced(forward_us)
    assert costs.backward_s(layers) == traced(backward_us)
    assert costs.passes_s(layers) == traced(forward_us + backward_us + 190.0)
    assert costs.optimizer_s(layers, DenseOptimizer.ADAM) == traced(4 * 60.0 + 172.0)
    assert costs.optimizer_s((), DenseOptimizer.ADAM) == 0.0
    assert costs.operator_s == traced(58.0 + 10.4)
    assert costs.call_s("lookup_forward") == traced(105.3 + 3 * 10.4)
    assert costs.call_s("lookup_backward") == traced(135.2 + 3 * 10.4)
    assert costs.call_s("collective") == traced(91.6)
    assert costs.call_s("loss") == traced(190.0)


def test_software_of_today_by_hand() -> None:
    """Two products and two activations, four tensors; counts of the profile ``eager``."""
    costs, layers = costs_of(HostProfile.EAGER), bottom_layers()

    def seconds(dispatches: float, launches: float) -> object:
        return pytest.approx(
            dispatches * costs.host.dispatch_s + launches * costs.host.launch_s, rel=1e-9
        )

    assert costs.host.dispatch_s + costs.host.launch_s == pytest.approx(CALL_S)
    assert costs.forward_s(layers) == seconds(2 * (3.2 + 2.2), 2 * (1.0 + 1.2))
    backward = 2 * (4.8 + 3.3) + 4 * 1.8, 2 * (3.6 + 1.9)
    assert costs.backward_s(layers) == seconds(*backward)
    wrapped = costs_of(HostProfile.EAGER, reduces=True)
    assert wrapped.backward_s(layers) == seconds(backward[0] + 4, backward[1] + 4)
    assert costs.optimizer_s(layers, DenseOptimizer.SGD) == seconds(10.4 + 4 * 0.4, 2.0)
    assert costs.optimizer_s(layers, DenseOptimizer.ADAM) == seconds(12.4 + 4 * 1.5, 3.0)
    assert costs.call_s("collective") == pytest.approx(8 * CALL_S)
    workload = make_workload(pipeline=Pipeline.NONE)
    assert costs.copies_s(workload) == seconds(4 * 2.5, 4.0)
    assert costs.input_s(workload) == seconds(110.0, 6.0)
    pipelined = replace(workload, pipeline=Pipeline.SPARSE_DIST)
    assert costs.input_s(pipelined) == seconds(210.0, 13.0)
    assert costs.input_s(replace(workload, tables=())) == 0.0
    assert costs.between_steps_s(workload) == 0.0


def test_casts_are_counted_where_no_operator_says_so() -> None:
    """Autocast on parameters of four bytes; transformers list their casts themselves."""
    costs = costs_of(HostProfile.EAGER)
    dense = replace(make_workload().dense, dtype=DataType.BF16)
    half, full = dense_layers(make_workload(dense=dense)).bottom, bottom_layers()
    assert [is_cast(layer) for layer in half] == [True] * len(half)
    assert not any(is_cast(layer) for layer in full)
    cast_s = 2 * (3.0 * costs.host.dispatch_s + 2.1 * costs.host.launch_s)
    assert costs.forward_s(half) - costs.forward_s(full) == pytest.approx(cast_s)
    listed = Workload(
        name="gpt",
        tables=(),
        batch_size_per_rank=4,
        dense=DenseArch(layers=(replace(GPT, autocast=True),), dtype=DataType.BF16),
    )
    assert not any(is_cast(layer) for layer in dense_layers(listed).top)


def test_dispatches_and_launches_follow_from_a_call_and_a_pass() -> None:
    """The H200's host: 24.0 and 360.6 us are 10.7 us a dispatch and 13.2 us a launch."""
    host = make_host(eager_call_s=23.97e-6, eager_pass_s=360.6e-6)
    assert host.dispatch_s == pytest.approx(10.77e-6, rel=1e-3)
    for pass_s, share in ((23.97e-6, 0.1), (1.0, 0.9)):
        assert replace(host, eager_pass_s=pass_s).dispatch_s == pytest.approx(share * 23.97e-6)
    for h in (host, make_host()):
        twice = with_host_factor(make_topology(host=h), 2.0).host
        assert (twice.dispatch_s, twice.launch_s) == (2 * h.dispatch_s, 2 * h.launch_s)


def test_a_replayed_graph_takes_no_host_time() -> None:
    costs, workload = costs_of(HostProfile.CUDA_GRAPH), make_workload()
    for layers in (bottom_layers(), gpt_layers()):
        assert costs.passes_s(layers) == costs.optimizer_s(layers, DenseOptimizer.ADAM) == 0
    assert costs.copies_s(workload) == costs.between_steps_s(workload) == 0
    assert costs.input_s(workload) == 0


def test_trained_tensors_are_counted_with_their_repeats() -> None:
    """Each of 12 blocks has two layers with two matrix products and something else to train.

    Token tables and the last norm are one each; the head trains nothing of its own.
    """
    costs = costs_of(HostProfile.EAGER_2021)
    per_update_s = _UNPROFILED * 60e-6
    tensors = LAYERS * 2 * (2 + 1) + 1 + 1
    assert costs.optimizer_s(
        gpt_layers(), DenseOptimizer.ADAM
    ) - _UNPROFILED * 172e-6 == pytest.approx(tensors * per_update_s)


def test_a_batch_is_three_tensors_and_two_more_where_it_has_them() -> None:
    """Indices, lengths and labels; dense features; weights of indices."""
    one = _UNPROFILED * 52.5e-6
    costs, plain = costs_of(HostProfile.EAGER_2021), make_table()
    weighted = replace(plain, is_weighted=True, name="weighted")
    assert costs.copies_s(make_workload(plain)) == pytest.approx(4 * one)
    assert costs.copies_s(make_workload(plain, weighted)) == pytest.approx(5 * one)
    assert costs.copies_s(make_workload(plain, dense=DenseArch())) == pytest.approx(3 * one)


def test_time_between_steps_is_the_workloads_where_it_has_one() -> None:
    costs = costs_of(HostProfile.EAGER_2021)
    assert costs.between_steps_s(make_workload()) == pytest.approx(460 * CALL_S)
    assert costs.between_steps_s(make_workload(between_steps_s=0.0)) == 0.0
    assert costs.between_steps_s(make_workload(between_steps_s=0.25)) == 0.25


# ------------------------------------------------------------------ copies of a batch


def time_s(workload: Workload, **links: float) -> float:
    topology = make_topology(1, 2)
    topology = replace(topology, host=replace(topology.host, **links))
    placed = make_placement(workload.tables[0], ShardingType.TABLE_WISE, topology)
    plan = Plan(placements=(placed,))
    return CostPipeline(workload, topology).estimate(plan).time.time_s


SLOW = {"device_link_bandwidth_bytes_per_s": 1e9}


def test_a_batch_is_copied_over_the_link_of_the_device() -> None:
    workload = make_workload(make_table(), batch_size_per_rank=1000)
    per_sample = 4 * (13 + 1) + 8 * workload.index_bytes + workload.index_bytes
    assert input_bytes(workload) == 1000 * per_sample


def test_weights_of_indices_are_copied_with_them() -> None:
    weighted = replace(make_table(), is_weighted=True)
    workload = make_workload(weighted, batch_size_per_rank=1000)
    lookups = weighted.features[0].pooling_factor
    plain = input_bytes(make_workload(make_table(), batch_size_per_rank=1000))
    assert input_bytes(workload) - plain == 1000 * lookups * 4


def test_a_feature_of_two_tables_is_copied_once() -> None:
    one = make_table()
    wide = replace(one, name="wide", embedding_dim=2 * one.embedding_dim)
    shared = make_workload(one, wide)
    assert input_bytes(shared) == input_bytes(make_workload(one))
    weighted = replace(wide, is_weighted=True)
    assert input_bytes(make_workload(one, weighted)) > input_bytes(shared)


def test_the_copy_is_exposed_without_a_pipeline_and_hidden_with_one() -> None:
    workload = make_workload(make_table(), batch_size_per_rank=20_000, cuda_graph=True)
    copied_s = input_bytes(workload) * (1 / 1e9 - 1 / 20e9)
    plain = replace(workload, pipeline=Pipeline.NONE)
    assert time_s(plain, **SLOW) - time_s(plain) == pytest.approx(copied_s, rel=1e-3)
    for pipeline in (Pipeline.SPARSE_DIST, Pipeline.PREFETCH_SPARSE_DIST, Pipeline.HUGECTR):
        hidden = replace(workload, pipeline=pipeline)
        assert time_s(hidden, device_link_bandwidth_bytes_per_s=19e9) == time_s(hidden)
        crawling = {"device_link_bandwidth_bytes_per_s": 1e6}
        assert time_s(hidden, **crawling) == pytest.approx(input_bytes(workload) / 1e6, rel=1e-4)


def test_profiles_differ_as_their_software_does() -> None:
    workload = make_workload(make_table(), batch_size_per_rank=64)
    by_profile = {p: time_s(replace(workload, host_profile=p)) for p in HostProfile}
    assert by_profile[HostProfile.CUDA_GRAPH] < by_profile[HostProfile.EAGER]
    assert by_profile[HostProfile.EAGER] < by_profile[HostProfile.EAGER_2021]
    assert by_profile[HostProfile.CUDA_GRAPH] == time_s(replace(workload, cuda_graph=True))
    later = replace(workload, between_steps_s=0.5)
    assert time_s(later) - time_s(workload) == pytest.approx(0.5, rel=1e-2)
    with pytest.raises(InvalidValueError, match="contradicts host_profile"):
        replace(workload, cuda_graph=True, host_profile=HostProfile.EAGER_2021)


def test_a_slower_host_whose_pass_is_unknown_is_slower_in_launches() -> None:
    """Two machines with one processor: 24 and 39 us a call, 53 and 67 us of host a kernel."""

    def host(call_s: float) -> Host:
        return replace(make_host(), eager_call_s=call_s, eager_pass_s=None)

    calls = (1e-6, 5e-6, 24e-6, 39e-6, 100e-6)
    for call_s in calls:
        assert host(call_s).dispatch_s + host(call_s).launch_s == pytest.approx(call_s)
    dispatches = [host(call_s).dispatch_s for call_s in calls]
    launches = [host(call_s).launch_s for call_s in calls]
    assert dispatches == sorted(dispatches)
    assert launches == sorted(launches)
    assert launches[3] - launches[2] == pytest.approx((67 - 53) * 1e-6, rel=0.15)


def test_a_pass_that_is_shorter_than_a_call_is_refused() -> None:
    """It was taken as one of 1.7 calls or more, and nobody was told."""
    with pytest.raises(InvalidValueError, match="must not be less than eager_call"):
        make_host(eager_call_s=1e-5, eager_pass_s=1e-6)
    make_host(eager_call_s=0.0, eager_pass_s=0.0)
