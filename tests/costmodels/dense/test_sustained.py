"""Between the rates of a short burst beside lookups and those of a step full of products."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from costmodels.dense.kernels import Gpu, moved_time, product_time
from costmodels.dense.roofline import DenseRoofline
from costmodels.layers.mlp import Mlp
from costmodels.layers.parts import Part
from costmodels.layers.transformer import Transformer
from costmodels.operators import Operator, OperatorKind, Product
from costmodels.pipeline import CostPipeline
from costmodels.sharding import ComputeKernel, Plan, ShardingOption, ShardingType, place
from costmodels.stages.models import CostModels
from costmodels.sustained import BURSTS, SHARES, UNMEASURED, shares_of, sustained_ratio
from costmodels.system_models import ScaledDense
from costmodels.topology import Device
from costmodels.uncertainty import sigmas, step_sigma
from costmodels.workload import DataType, DenseArch, Feature, OperatorList, Pooling, Workload
from planner.io import load_system
from planner.io.documents import names
from tests.planner.cases import first
from tests.strategies import make_device, make_table, make_workload

MLP = DenseArch(num_dense_features=64, layers=(Mlp(sizes=(2048, 2048, 1024)),))


def beside(pooling: float, arch: DenseArch = MLP, dim: int = 128) -> Workload:
    """A dense part beside one table."""
    feature = Feature(name="f", pooling_factor=pooling)
    table = make_table(features=(feature,), embedding_dim=dim)
    return make_workload(table, dense=arch, batch_size_per_rank=4096, cuda_graph=True)


def ratio(workload: Workload, system: str) -> float:
    """How far the dense part is from bursts to sustained rates."""
    return CostPipeline(workload, load_system(system, gpus=1))._sustained_ratio


def step_s(workload: Workload, system: str) -> float:
    """Of a plan with the whole table on the one rank."""
    pipeline = CostPipeline(workload, load_system(system, gpus=1))
    (table,) = workload.tables
    option = ShardingOption(
        table=table.name,
        sharding_type=ShardingType.TABLE_WISE,
        kernel=ComputeKernel.FUSED,
        column_widths=(table.embedding_dim,),
    )
    placed = place(option, table.num_embeddings, (0,), world_size=1, local_world_size=1)
    return float(pipeline.iteration_times(pipeline.plan_work(Plan(placements=(placed,)))))


def test_without_lookups_a_dense_part_fills_the_step_and_beside_long_ones_it_is_a_burst() -> None:
    alone = Workload(name="w", tables=(), batch_size_per_rank=4096, dense=MLP)
    assert ratio(alone, "a100_80gb_sxm") == 1.0
    assert ratio(beside(1000.0), "a100_80gb_sxm") == 0.0
    assert DenseRoofline().sustained_ratio(alone, load_system("a100_80gb_sxm")) == 1.0
    assert DenseRoofline().sustained_ratio(beside(1e-3), load_system("a100_80gb_sxm")) == 0.0


@pytest.mark.parametrize("system", first(["v100_32gb_sxm", "h100_sxm", "a100_80gb_sxm", "l40"], 2))
def test_more_lookups_change_the_price_without_a_jump_and_shorten_no_step(system: str) -> None:
    """From no lookups worth the name to those of a DLRM, a quarter more at a time.

    Up to one index a bag, the forward lookup itself gets shorter by up to a tenth of a microsecond:
    the longest bag reads one row, which other bags have the more often read before.
    """
    workloads = [beside(1.25**exponent) for exponent in range(-30, 35)]
    ratios = [ratio(w, system) for w in workloads]
    times = [step_s(w, system) for w in workloads]
    assert ratios[0] > 0.9
    assert ratios[-1] == 0.0
    assert ratios == sorted(ratios, reverse=True)
    assert max(a - b for a, b in pairwise(ratios)) < 0.3
    assert all(after >= before * (1.0 - 1e-12) for before, after in pairwise(times[30:]))
    assert all(after >= before - 1e-7 for before, after in pairwise(times))


def test_a_larger_dense_part_is_never_the_faster_one() -> None:
    """Also where its products begin to fill the step."""
    sizes = [Mlp(sizes=(width, width, width)) for width in range(256, 4097, 256)]
    times = [step_s(beside(20.0, replace(MLP, layers=(s,))), "h100_sxm") for s in sizes]
    assert all(after >= before * (1.0 - 1e-12) for before, after in pairwise(times))


def test_attention_beside_long_lookups_is_a_burst_too() -> None:
    """What decides is how long both take, not the kind of the layers."""
    block = Transformer(layers=1, hidden=64, heads=2, ffn=64, seq=8)
    arch = DenseArch(layers=(block,), dtype=DataType.BF16)
    feature = Feature(name="f", pooling_factor=8.0)
    history = make_table(name="h", pooling=Pooling.NONE, features=(feature,))
    few, many = (
        make_workload(
            history,
            dense=replace(arch, layers=(replace(block, layers=layers, ffn=ffn),)),
            batch_size_per_rank=8192,
        )
        for layers, ffn in ((1, 64), (24, 4096))
    )
    assert ratio(few, "h100_sxm") < 0.9 < ratio(many, "h100_sxm")


def test_the_ratio_is_what_lookups_leave_of_what_sustained_rates_add() -> None:
    assert sustained_ratio(1.0, 0.0) == 1.0
    assert sustained_ratio(1.0, 0.5) == 0.5
    assert sustained_ratio(1.0, 3.0) == 0.0
    assert sustained_ratio(0.0, 1.0) == 0.0


def test_a_scaled_model_is_beside_lookups_shorter_by_its_factor() -> None:
    """Its ratio is that of the model whose lookups and products are all longer."""
    topology, workload = load_system("h100_sxm", gpus=1), beside(2.0)
    whole = CostPipeline(workload, topology)
    twice = ScaledDense(inner=DenseRoofline(), factor_ratio=2.0)
    scaled = CostPipeline(workload, topology, CostModels(dense=twice))
    assert 0.0 < whole._sustained_ratio < scaled._sustained_ratio < 1.0
    left = [1.0 - pipeline._sustained_ratio for pipeline in (whole, scaled)]
    assert left[0] == pytest.approx(2.0 * left[1])


def test_types_that_a_device_does_not_have_take_the_shares_of_the_rate_they_run_at() -> None:
    """On V100 products in tf32 and bf16 run in fp32: they were slower than those in fp32."""
    v100 = load_system("v100_32gb_sxm").device
    assert shares_of(v100, DataType.TF32) == shares_of(v100, DataType.BF16) == SHARES["V100 fp32"]
    assert shares_of(v100, DataType.FP16) == SHARES["V100 half"]
    assert shares_of(make_device(name="mine"), DataType.FP16) == UNMEASURED


def test_each_operator_has_the_shares_of_its_own_type() -> None:
    """Products in fp32 of a dense part in fp16, as a traced module lists them."""
    topology = load_system("v100_32gb_sxm", gpus=1)
    product = Part(name="p", dtype=DataType.FP32).matmul((1, 4096, 4096, 4096))
    listed = OperatorList(batch_size_per_rank=8, after_tables=(product,))
    both = [
        Workload(
            name="w",
            tables=(),
            batch_size_per_rank=8,
            dense=DenseArch(operators=listed, dtype=dtype),
        )
        for dtype in (DataType.FP32, DataType.FP16)
    ]
    fp32, fp16 = (DenseRoofline().times(w, topology).top_forward_s for w in both)
    assert fp32 == fp16


@pytest.mark.parametrize("name", names("systems"))
def test_no_type_is_slower_than_fp32(name: str) -> None:
    """On L40 and A10G products in tf32 run at the rate of fp32, and were priced below it."""
    device = load_system(name).device
    for dtype in DataType:
        for shares in (shares_of(device, dtype), BURSTS):
            product = Product(m=4096, k=2048, n=512)
            mine = product_time(product, dtype, Gpu(device, shares))
            plain = shares_of(device, DataType.FP32) if shares is not BURSTS else BURSTS
            assert mine <= product_time(product, DataType.FP32, Gpu(device, plain)) * (1 + 1e-12)


def test_the_spread_lies_between_those_of_bursts_and_of_full_steps() -> None:
    topology = load_system("h100_sxm", gpus=8)
    burst, half, full = (
        dict(sigmas(topology, sustained_dtype=DataType.BF16, sustained_ratio=r))["dense"]
        for r in (0.0, 0.5, 1.0)
    )
    assert half == pytest.approx(0.5 * (burst + full))
    assert full == pytest.approx(step_sigma(topology, DataType.BF16))


def test_small_elements_do_not_use_up_fast_memory() -> None:
    """H200 reaches 3.2 TB/s of 4.15 where a thread loads 8 bytes at a time (gpu-benches, scale)."""
    device = make_device(num_multiprocessors=132, hbm_bandwidth_bytes_per_s=4.15e12)
    size = 4 * 10**9

    def rate(dtype: DataType, *, is_vectorized: bool, memory: Device = device) -> float:
        operator = Operator(
            name="o",
            kind=OperatorKind.ELEMENTWISE,
            shape=(size // dtype.num_bytes,),
            dtype=dtype,
            read_bytes=float(size),
            is_vectorized=is_vectorized,
        )
        return size / moved_time(operator.read_bytes, operator, Gpu(memory))

    assert rate(DataType.FP16, is_vectorized=True) == pytest.approx(3.2e12, rel=0.05)
    assert rate(DataType.FP32, is_vectorized=False) > rate(DataType.FP16, is_vectorized=True)
    assert rate(DataType.FP16, is_vectorized=False) < rate(DataType.FP16, is_vectorized=True)
    faster = replace(device, hbm_bandwidth_bytes_per_s=8e12)
    for is_vectorized in (False, True):
        slow, fast = (
            rate(DataType.FP16, is_vectorized=is_vectorized, memory=m) for m in (device, faster)
        )
        assert slow < fast < 2 * slow
