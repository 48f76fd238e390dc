"""A list of operators costs the same however often it writes what repeats."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodels.dense.base import dense_layers, dense_operators
from costmodels.dense.rewriting import in_blocks
from costmodels.layers.hstu import Hstu
from costmodels.layers.parts import Part
from costmodels.operators import Operator
from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan
from costmodels.workload import (
    DataType,
    DenseArch,
    DenseParallelism,
    HostProfile,
    OperatorList,
    Workload,
)
from planner.io import load_system

PART = Part(name="m", dtype=DataType.FP32)
BLOCK = Hstu(layers=1, hidden=64, heads=2, seq=8, fused_attention=True)


def priced(arch: DenseArch, **changes: object) -> tuple[float, float]:
    """Seconds of a step, and bytes of its dense part, on 8 GPUs."""
    workload = Workload(name="w", tables=(), batch_size_per_rank=64, dense=arch)
    workload = replace(workload, **changes)
    pipeline = CostPipeline(workload, load_system("v100_32gb_sxm", gpus=8))
    plan = Plan(placements=())
    return pipeline.estimate(plan).time.time_s, pipeline.memory(plan).ranks[0].dense_bytes


def listed(operators: tuple[Operator, ...]) -> DenseArch:
    """As a traced module."""
    return DenseArch(operators=OperatorList(batch_size_per_rank=64, after_tables=operators))


def written_out(operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """Every block as often as it comes."""
    times = operators[0].num_repeats
    once = [replace(o, num_repeats=1) for o in operators]
    return tuple(replace(o, name=f"{i}.{o.name}") for i in range(times) for o in once)


@pytest.mark.parametrize("profile", HostProfile)
@pytest.mark.parametrize("parallelism", DenseParallelism)
def test_layers_cost_the_same_once_with_repeats_and_one_by_one(
    profile: HostProfile, parallelism: DenseParallelism
) -> None:
    """One by one, the host was taken to issue all of them before the device begins."""
    once = DenseArch(layers=(replace(BLOCK, layers=6),), num_dense_features=512)
    each = replace(once, layers=tuple(replace(BLOCK, name=f"h{i}") for i in range(6)))
    how = {"host_profile": profile, "dense_parallelism": parallelism}
    assert priced(once, **how) == pytest.approx(priced(each, **how), rel=1e-9)


@pytest.mark.parametrize("profile", [HostProfile.EAGER, HostProfile.EAGER_2021])
def test_operators_cost_the_same_once_with_repeats_and_one_by_one(profile: HostProfile) -> None:
    """Blocks of many operators, and equal layers of an MLP, which are none."""
    workload = Workload(
        name="w", tables=(), batch_size_per_rank=64,
        dense=DenseArch(layers=(replace(BLOCK, layers=5),), num_dense_features=512),
    )  # fmt: skip
    layers = tuple(replace(o, num_repeats=6) for o in PART.mlp(64, (256, 256)))
    for operators in (dense_operators(workload)[1], layers):
        each = written_out(operators)
        assert priced(listed(operators), host_profile=profile) == pytest.approx(
            priced(listed(each), host_profile=profile), rel=1e-9
        )


def test_equal_layers_of_an_mlp_are_no_block_however_many_there_are() -> None:
    """Four of them looked like a block of two layers that comes twice."""
    for count in range(1, 9):
        operators = PART.mlp(64, (256,) * (count + 1))
        assert in_blocks(operators) == operators


def test_a_block_has_its_first_names_and_all_its_repeats() -> None:
    each = DenseArch(layers=(replace(BLOCK, name="a"), replace(BLOCK, name="b")))
    workload = Workload(
        name="w", tables=(), batch_size_per_rank=64, dense=replace(each, num_dense_features=512)
    )
    found = [o for layer in dense_layers(workload).top for o in layer.operators]
    assert {o.num_repeats for o in found} == {2}
    assert all(o.name.startswith("a.") for o in found)


def test_a_repeat_that_is_too_long_to_write_out_stays() -> None:
    (product, _) = PART.mlp(64, (256, 256))
    long = replace(product, num_repeats=2**40)
    assert in_blocks((long,)) == (long,)
