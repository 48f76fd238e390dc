"""Micro-batches, ranks with unequal sequences, and what a sharded dense part holds at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodels.dense.base import activation_bytes, dense_operators, dense_parameters
from costmodels.dense.roofline import DenseRoofline
from costmodels.layers.hstu import Hstu
from costmodels.layers.mlp import Mlp
from costmodels.layers.transformer import Transformer
from costmodels.memory import dense_parts
from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan
from costmodels.workload import DataType, DenseArch, DenseParallelism, HostProfile, Workload
from planner.io import load_system
from tests.strategies import make_topology

SMALL = Workload(
    name="w", tables=(), batch_size_per_rank=1,
    dense=DenseArch(num_dense_features=512, layers=(
        Hstu(layers=12, hidden=64, heads=2, seq=8, fused_attention=True),
    )),
)  # fmt: skip


def step_s(workload: Workload, *, gpus: int = 1) -> float:
    """Of a model without tables."""
    pipeline = CostPipeline(workload, load_system("h100_sxm", gpus=gpus))
    return pipeline.estimate(Plan(placements=())).time.time_s


@pytest.mark.parametrize("parallelism", DenseParallelism)
def test_the_host_issues_every_micro_batch(parallelism: DenseParallelism) -> None:
    """Of small ones the earlier took what the device computes, the last what the host issues."""
    workload = replace(SMALL, dense_parallelism=parallelism)
    mlp = replace(workload, dense=DenseArch(num_dense_features=8, layers=(Mlp(sizes=(8,) * 12),)))
    for one in (workload, mlp):
        once_s, often_s = (
            step_s(replace(one, gradient_accumulation=count), gpus=2) for count in (1, 101)
        )
        assert 0.6 * once_s < (often_s - once_s) / 100 < 1.1 * once_s


def test_inputs_of_every_micro_batch_are_copied() -> None:
    wide = replace(
        SMALL,
        batch_size_per_rank=4,
        host_profile=HostProfile.CUDA_GRAPH,
        dense=DenseArch(num_dense_features=10**7, layers=(Mlp(sizes=(1,)),), dtype=DataType.BF16),
    )
    link = load_system("h100_sxm").host.device_link_bandwidth_bytes_per_s
    copied_s = 4 * (4 * (10**7 + 1)) / link
    assert step_s(replace(wide, gradient_accumulation=11)) >= 11 * copied_s


@pytest.mark.parametrize("lengths", [(1, 512), (1, 1, 1, 512), (16, 32, 64, 128, 512)])
def test_the_slowest_of_many_ranks_has_no_more_than_sequences_of_full_length(
    lengths: tuple[int, ...],
) -> None:
    """The bound is what a batch takes whose sequences are all the longest."""
    block = Transformer(layers=1, hidden=256, heads=4, ffn=1024, seq=512, vocabulary=10**4)
    found = {}
    for given, hosts in ((lengths, 4096), ((512,), 1), (lengths, 1)):
        layer = replace(block, lengths=given)
        workload = replace(SMALL, dense=DenseArch(layers=(layer,)))
        topology = make_topology(num_hosts=hosts)
        times = DenseRoofline().times(workload, topology)
        found[given, hosts] = times.top_forward_s
        operators = dense_operators(workload)[1]
        assert all(o.most_ratio >= 1.0 for o in operators if o.deviation_ratio)
    assert found[lengths, 1] <= found[lengths, 4096]
    rows = [o.most_ratio for o in dense_operators(
        replace(SMALL, dense=DenseArch(layers=(replace(block, lengths=lengths),)))
    )[1]]  # fmt: skip
    assert found[lengths, 4096] <= max(rows) * found[lengths, 1] * (1 + 1e-9)


def test_a_block_is_gathered_as_a_whole() -> None:
    """Attention and feed-forward network of a transformer are one unit of FSDP."""
    block = Transformer(layers=24, hidden=256, heads=4, ffn=1024, seq=16, bias=False)
    workload = replace(
        SMALL, dense=DenseArch(layers=(block,), num_dense_features=4096),
        dense_parallelism=DenseParallelism.FSDP,
    )  # fmt: skip
    topology = load_system("h100_sxm", gpus=8)
    held = dense_parts(workload, topology)["parameters with gradients and state"]
    shared = dense_parameters(workload)
    states = 4.0 * (2 + workload.dense_optimizer.num_states)
    one = 4 * 256 * 256 + 2 * 256 * 1024 + 2 * 256
    assert held == pytest.approx(states * shared / 8 + 2.0 * (4 + 4) * one)
    assert activation_bytes(workload) > 0
