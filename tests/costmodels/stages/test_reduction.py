"""How ranks share the dense part: buckets, shards, micro-batches."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import numpy as np
import pytest

from costmodels.dense.base import dense_operators
from costmodels.errors import InvalidValueError
from costmodels.layers.mlp import Mlp
from costmodels.layers.transformer import Transformer
from costmodels.measured.curves import Collective
from costmodels.memory import dense_bytes, dense_parts
from costmodels.pipeline import CostPipeline
from costmodels.shard_work.work import NUM_COLUMNS
from costmodels.sharding import Plan
from costmodels.stages.models import CostModels
from costmodels.stages.stage_model import StageModel
from costmodels.topology import Topology
from costmodels.uncertainty import Scale
from costmodels.workload import (
    DataType,
    DenseArch,
    DenseOptimizer,
    DenseParallelism,
    Pipeline,
    Workload,
)
from tests.strategies import make_device, make_table, make_topology, make_workload

GPT = Transformer(layers=12, hidden=768, heads=12, ffn=3072, seq=256, vocabulary=50257, causal=True)
PARAMETERS = 50257 * 768 + 256 * 768 + 12 * (12 * 768**2 + 13 * 768) + 2 * 768
WHOLE = "parameters with gradients and state"


def gpt(**changes: object) -> Workload:
    """GPT-2 small on short sequences, without tables."""
    values: dict[str, object] = {
        "name": "gpt",
        "tables": (),
        "batch_size_per_rank": 4,
        "dense": DenseArch(layers=(GPT,), dtype=DataType.FP16),
        "dense_parallelism": DenseParallelism.FSDP,
        "gradient_dtype": DataType.FP32,
        "cuda_graph": True,
    }
    return Workload(**{**values, **changes})  # type: ignore[arg-type]


def stages(workload: Workload, topology: Topology) -> StageModel:
    return StageModel(workload, topology, CostModels())


def time_s(workload: Workload, topology: Topology) -> float:
    return CostPipeline(workload, topology).estimate(Plan(placements=())).time.time_s


def test_shards_are_gathered_twice_and_scattered_once() -> None:
    """Bytes and times by hand: 12 pieces by layers, no more than 8 of them told apart."""
    topology = make_topology()
    reduction = stages(gpt(), topology).reduction
    assert reduction.gathered_bytes == 2 * PARAMETERS
    assert len(reduction.pieces) == 8
    assert reduction.pieces[0] == pytest.approx(1 / 12)
    assert sum(reduction.pieces) == pytest.approx(1.0)
    link, world = topology.host_link.bandwidth_bytes_per_s, topology.world_size
    share = (world - 1) / world
    gathered_s, scattered_s = (
        float(np.sum(seconds)) for seconds in (reduction.gathers_s, reduction.scatters_s)
    )
    assert gathered_s >= 2 * PARAMETERS * share / link
    assert scattered_s >= 4 * PARAMETERS * share / link
    assert scattered_s == pytest.approx(2 * gathered_s, rel=0.05)
    names = [s.name for s in CostPipeline(gpt(), topology).estimate(Plan(placements=())).stages]
    assert sum("all-gather forward" in n for n in names) == 8
    assert sum("all-gather backward" in n for n in names) == 8
    assert sum("reduce-scatter" in n for n in names) == 8
    assert not any("gradient all-reduce" in n for n in names[:-2])


def test_the_first_piece_waits_for_its_parameters_and_the_others_compute_beside() -> None:
    """Time is between compute with the two exposed pieces, and everything one after the other."""
    topology = make_topology()
    workload = gpt(batch_size_per_rank=32)
    model = stages(workload, topology)
    num_features = CostPipeline(workload, topology).num_features
    times = model.times(np.zeros((4, num_features)), Scale())
    compute = sum(dataclasses.astuple(model.dense))
    moved = [*times.gather_s, *times.gather_s, *times.bucket_s, times.last_scatter_s]
    scale = float(sum(np.max(m) for m in moved))
    exposed = float(np.max(times.gather_s[0]) + np.max(times.last_scatter_s))
    found = time_s(workload, topology)
    assert compute + exposed * 0.99 <= found <= compute + scale + 1e-2
    assert found < 0.98 * (compute + scale)


def test_memory_falls_to_a_share_and_two_layers() -> None:
    """Adam: 16 bytes a parameter over the ranks, and two token tables gathered with gradients."""
    adam = gpt(dense_optimizer=DenseOptimizer.ADAM)
    largest = 50257 * 768 + 256 * 768
    for ranks in (2, 4):
        topology = make_topology(local_world_size=ranks, domain_size=ranks)
        parts = dense_parts(adam, topology)
        assert parts[WHOLE] == 16 * PARAMETERS / ranks + (2 + 4) * 2 * largest
    whole = replace(adam, dense_parallelism=DenseParallelism.DDP)
    assert dense_parts(whole, topology)[WHOLE] == (16 + 4 + 2) * PARAMETERS
    alone = make_topology(local_world_size=1, domain_size=1)
    assert dense_bytes(adam, alone) == dense_bytes(whole, alone)
    ledger = CostPipeline(adam, topology).memory(Plan(placements=()))
    assert all(r.dense_bytes == dense_bytes(adam, topology) for r in ledger.ranks)


def test_the_optimizer_updates_a_share() -> None:
    topology = make_topology()
    sharded, whole = (
        stages(gpt(dense_parallelism=kind), topology).dense.optimizer_s
        for kind in (DenseParallelism.FSDP, DenseParallelism.DDP)
    )
    assert sharded == pytest.approx(whole / 4)


def test_whole_gradients_get_the_type_in_which_they_are_reduced() -> None:
    """From the type of the products; without shards, gradients have their type from the start."""
    topology = make_topology()
    half, full = DataType.BF16, DataType.FP32
    dense = replace(gpt().dense, dtype=half)

    def cast_s(reduced: DataType, kind: DenseParallelism = DenseParallelism.FSDP) -> float:
        told = gpt(dense=dense, gradient_dtype=reduced, dense_parallelism=kind)
        return stages(told, topology).reduction.cast_s

    rate = topology.device.hbm_bandwidth_bytes_per_s
    count = stages(gpt(dense=dense), topology).reduction.num_parameters
    assert cast_s(full) == pytest.approx(6 * count / rate)
    assert cast_s(half) == cast_s(full, DenseParallelism.DDP) == 0.0


def test_one_rank_shards_nothing() -> None:
    alone = make_topology(local_world_size=1, domain_size=1)
    whole = gpt(dense_parallelism=DenseParallelism.DDP)
    assert time_s(gpt(), alone) == time_s(whole, alone)


@pytest.mark.parametrize("kind", DenseParallelism)
def test_micro_batches_before_the_last_add_their_passes(kind: DenseParallelism) -> None:
    """A step of 5 is a step of 1 and four passes, with gathers where there are shards."""
    topology = make_topology()
    one = gpt(dense_parallelism=kind)
    five = replace(one, gradient_accumulation=5)
    dense = stages(one, topology).dense
    passes = dense.top_forward_s + dense.top_backward_s
    more = time_s(five, topology) - time_s(one, topology)
    found = CostPipeline(five, topology).estimate(Plan(placements=()))
    assert found.samples_per_s == pytest.approx(5 * 4 * 4 / found.time.time_s)
    reduction = stages(one, topology).reduction
    beside = 2 * float(np.sum(reduction.gathers_s)) + float(np.sum(reduction.scatters_s))
    assert 4 * passes < more < 4 * (1.1 * passes + beside + 1e-3)
    if kind is DenseParallelism.DDP:
        copied = 3 * 2 * PARAMETERS / topology.device.hbm_bandwidth_bytes_per_s
        assert more == pytest.approx(4 * (passes + copied))


def earlier_of(
    kind: DenseParallelism, passes_s: list[float], issued_s: list[float], *, count: int = 5
) -> object:
    """Seconds of the micro-batches before the last, with factors of 0.5 and 3 on the two kinds."""
    topology = make_topology(device=make_device(overlap_slowdown_ratio=0.25))
    workload = gpt(dense_parallelism=kind, gradient_accumulation=count)
    reduction = stages(workload, topology).reduction
    gathers, scatters = ((np.array(s) for s in each) for each in ((1.0, 2.0), (8.0, 16.0)))
    reduction.gathers_s, reduction.scatters_s = tuple(gathers), tuple(scatters)
    times = np.array(passes_s), np.array(issued_s)
    scale = Scale(dense_ratio=np.array([0.5]), collective_ratio=np.array([3.0]))
    return reduction.earlier_s(*times, np.ones(1), scale)


def test_a_micro_batch_takes_its_passes_or_what_the_host_needs_to_issue_it() -> None:
    """Five in all, of which the last is not counted; gradients are read twice and written once."""
    added_s = 0.5 * 3 * 2 * PARAMETERS / 1300e9
    found = earlier_of(DenseParallelism.DDP, [2.0, 3.0], [2.5, 2.5])
    assert found == pytest.approx([4 * 2.5, 4 * (3.0 + added_s)], rel=1e-9)
    assert earlier_of(DenseParallelism.DDP, [2.0], [0.0], count=1) is None


def test_a_micro_batch_with_shards_gathers_twice_and_scatters_once_beside_its_passes() -> None:
    """Gathers of 1 and 2, twice, and scatters of 8 and 16 are 30; by a factor of 3 they are 90.

    A quarter of that slows the passes down. The first gather and the last scatter, 3 (1 + 16), have
    nothing to run beside. Three ranks: one computes, one communicates, and one issues for longest.
    """
    found = earlier_of(DenseParallelism.FSDP, [50.0, 1.0, 1.0], [0.0, 0.0, 200.0])
    assert found == pytest.approx([4 * (50.0 + 22.5 + 51.0), 4 * 90.0, 4 * 200.0])


@pytest.mark.parametrize(("layers", "pieces"), [(1, 2), (2, 2), (3, 3), (8, 8), (9, 8), (12, 8)])
def test_the_first_of_all_layers_is_a_piece_and_the_others_share_seven_at_most(
    layers: int, pieces: int
) -> None:
    """A single layer is cut in two, so that something computes beside something."""
    dense = DenseArch(num_dense_features=8, layers=(Mlp(sizes=(8,) * layers),))
    reduction = stages(gpt(dense=dense), make_topology()).reduction
    first, *others = reduction.pieces
    assert len(reduction.pieces) == pieces
    assert first == pytest.approx(1 / max(layers, 2))
    assert others == pytest.approx([(1 - first) / (pieces - 1)] * (pieces - 1))


def test_each_piece_is_priced_by_itself_and_scattered_in_reverse() -> None:
    """Parameters as they are multiplied, in two bytes at least; gradients as they are reduced."""
    topology = make_topology(2, 2)
    collective = CostModels().collective
    arch = DenseArch(num_dense_features=8, layers=(Mlp(sizes=(8, 8, 8)),), dtype=DataType.FP32)
    count = 3 * (8 * 8 + 8)
    for dtype, gathered in ((DataType.FP32, 4), (DataType.FP16, 2), (DataType.FP8, 2)):
        dense = replace(arch, dtype=dtype)
        reduction = stages(gpt(dense=dense, gradient_dtype=DataType.BF16), topology).reduction
        assert reduction.num_parameters == count
        for each, kind, size in (
            (reduction.gathers_s, Collective.ALL_GATHER, gathered),
            (reduction.scatters_s, Collective.REDUCE_SCATTER, 2),
        ):
            third = collective.buffer_s(
                kind, np.array(count * size / 3), topology, within_host=False
            )
            assert np.array(each) == pytest.approx(np.full(3, third), rel=1e-9)
        moved = count * (gathered + 2) if gathered != 2 else 0
        assert reduction.cast_s == pytest.approx(moved / 1300e9)
    blocks = stages(gpt(), topology).reduction
    rest = 4 * PARAMETERS * 11 / 12 / 7
    found = [float(s) for s in blocks.scatters_s]
    by_hand = [
        float(
            collective.buffer_s(
                Collective.REDUCE_SCATTER, np.array(size), topology, within_host=False
            )
        )
        for size in (*[rest] * 7, 4 * PARAMETERS / 12)
    ]
    assert found == pytest.approx(by_hand, rel=1e-9)
    scale = Scale(collective_ratio=np.array([2.0]))
    times = stages(gpt(), topology).times(np.zeros((4, NUM_COLUMNS)), scale)
    scattered = [float(s.squeeze()) for s in (*times.bucket_s, times.last_scatter_s)]
    assert scattered == pytest.approx([2 * s for s in by_hand], rel=1e-9)
    gathered = [float(s.squeeze()) for s in times.gather_s]
    assert gathered == pytest.approx([2 * float(s) for s in blocks.gathers_s], rel=1e-9)
    assert [float(s) for s in blocks.beside_backward_s] == pytest.approx(by_hand[:-1], rel=1e-9)


def test_a_sharded_dense_part_beside_tables_exchanges_both() -> None:
    """The gradients of replicated tables still are all-reduced, without those of the dense part."""
    arch = DenseArch(layers=(Mlp(sizes=(512, 512, 1)),))
    workload = make_workload(make_table("a"), dense=arch, dense_parallelism=DenseParallelism.FSDP)
    model = stages(workload, make_topology())
    assert model.reduction.tail_bytes == 0.0
    assert len(model.reduction.pieces) == 3


def test_what_contradicts_is_refused_by_name() -> None:
    with pytest.raises(InvalidValueError, match="contradicts pipeline hugectr"):
        gpt(pipeline=Pipeline.HUGECTR)
    with pytest.raises(InvalidValueError, match="gradient_accumulation 2 needs a model without"):
        make_workload(make_table("a"), gradient_accumulation=2)
    with pytest.raises(InvalidValueError, match=r"must be 1\.\.1e6, got 0"):
        gpt(gradient_accumulation=0)


# ------------------------------------------------------------------ ranks that share layers

SPLIT = replace(GPT, vocabulary=50304)
"""GPT-2 with a vocabulary that 4 ranks can share."""


def shared(ranks: int, **changes: object) -> Workload:
    dense = DenseArch(layers=(replace(SPLIT, **changes),), dtype=DataType.FP16)  # type: ignore[arg-type]
    kind = DenseParallelism.DDP
    return gpt(dense=dense, dense_parallelism=kind, tensor_parallel=ranks)


def test_ranks_that_share_layers_compute_the_same_and_keep_a_part() -> None:
    """Four times the samples of a quarter of the model; position vectors and norms stay whole."""
    alone, four = ([o for o in dense_operators(shared(ranks))[1]] for ranks in (1, 4))
    for figure in ("forward_flop", "backward_flop"):
        sums = [sum(o.num_repeats * getattr(o, figure) for o in found) for found in (alone, four)]
        assert sums[0] == pytest.approx(sums[1])
    kept = [sum(o.num_repeats * o.num_parameters for o in found) for found in (alone, four)]
    whole = 256 * 768 + 12 * (2 + 4) * 768 + 2 * 768
    assert kept[1] == (kept[0] - whole) / 4 + whole
    assert (
        dense_parts(shared(4), make_topology())[WHOLE] == (12 + 2) * kept[1]
    )  # no bucket: no rank has the same part


def test_ranks_that_share_layers_add_results_up_twice_a_layer_each_way() -> None:
    """Four ranks of 4 samples of 256 positions of 768 elements of 2 bytes."""
    topology = make_topology()
    reduction = stages(shared(4), topology).reduction
    operators = dense_operators(shared(4))[1]
    given = [o for o in operators if o.shared_bytes]
    assert [(o.num_repeats, o.shared_bytes) for o in given] == [(12, 4 * 4 * 256 * 768 * 2)] * 2
    once_s = float(
        CostModels().collective.buffer_s(
            Collective.ALL_REDUCE, np.array(given[0].shared_bytes), topology, within_host=False
        )
    )
    assert reduction.shared_s == pytest.approx((24 * once_s, 24 * once_s))
    for checkpoint, added in (("full", 36), ("reentrant", 48)):  # without or with the last products
        again = stages(shared(4, checkpoint=checkpoint), topology).reduction
        assert again.shared_s == pytest.approx((24 * once_s, added * once_s))
    assert reduction.all_reduce_s(np.array(1e6)) == 0.0
    two = stages(shared(2), topology).reduction
    halves = topology.resized(1, 2)
    expected = CostModels().collective.buffer_s(
        Collective.ALL_REDUCE, np.array(1e6), halves, within_host=False
    )
    assert two.all_reduce_s(np.array(1e6)) == expected
    pair_s = CostModels().collective.buffer_s(
        Collective.ALL_REDUCE, np.array(2.0 * 4 * 256 * 768 * 2), halves, within_host=False
    )
    assert two.shared_s == pytest.approx((24 * float(pair_s), 24 * float(pair_s)))
    assert time_s(shared(4), topology) > time_s(shared(1), topology) - 48 * once_s


def test_results_that_are_added_up_lengthen_the_passes() -> None:
    """Compute first, then the all-reduces between its layers; each with its own factor."""
    topology = make_topology()
    model = stages(shared(4), topology)
    once_s = model.reduction.shared_s[0]
    assert once_s > 0
    for factor in (1.0, 2.0):
        scale = Scale(collective_ratio=np.array([factor]))
        times = model.times(np.zeros((topology.world_size, NUM_COLUMNS)), scale)
        added_s = factor * once_s
        assert times.top_forward_s == pytest.approx(model.dense.top_forward_s + added_s)
        assert times.top_backward_s == pytest.approx(model.dense.top_backward_s + added_s)


@pytest.mark.parametrize(
    ("optimizer", "dtype", "each"),
    [
        (DenseOptimizer.SGD, DataType.FP32, 12),
        (DenseOptimizer.ADAGRAD, DataType.FP32, 16),
        (DenseOptimizer.ADAM, DataType.FP32, 20),
        (DenseOptimizer.SGD, DataType.FP16, 14),
        (DenseOptimizer.ADAGRAD, DataType.FP16, 18),
        (DenseOptimizer.ADAM, DataType.FP16, 22),
    ],
)
def test_bytes_of_a_parameter_on_every_rank(
    optimizer: DenseOptimizer, dtype: DataType, each: int
) -> None:
    """Weight, gradient and its bucket of 4 bytes, states, and the weight of 2 bytes of products."""
    dense = DenseArch(layers=(GPT,), dtype=dtype)
    workload = gpt(dense=dense, dense_optimizer=optimizer, dense_parallelism=DenseParallelism.DDP)
    assert dense_parts(workload, make_topology())[WHOLE] == each * PARAMETERS


def test_half_a_sample_per_rank_lies_between_none_and_one() -> None:
    """One sample on two ranks takes less than two, and more than half as long."""
    topology = make_topology()
    half_s, one_s, two_s = (
        time_s(replace(shared(2), batch_size_per_rank=size), topology) for size in (0.5, 1, 2)
    )
    assert one_s / 2 < half_s < one_s < two_s
    operators = dense_operators(replace(shared(2), batch_size_per_rank=0.5))[1]
    assert operators == dense_operators(replace(shared(2), batch_size_per_rank=0.5 + 1e-12))[1]
    whole = replace(shared(2), batch_size_per_rank=2.0)
    assert isinstance(whole.batch_size_per_rank, int)
    for size, words in (
        (0.4, "1/2..1e8, got 0.4"),
        (0.75, "a whole number, or one on the 2 ranks"),
    ):
        with pytest.raises(InvalidValueError, match=words):
            replace(shared(2), batch_size_per_rank=size)
    with pytest.raises(InvalidValueError, match=r"must be 1..1e8, got 0.5"):
        replace(shared(1), batch_size_per_rank=0.5)


def test_layers_shared_across_hosts_use_the_links_between_hosts() -> None:
    """They are never faster than on one host, and as fast on hosts of one domain of equal links."""
    split = replace(GPT, heads=16, hidden=1024, vocabulary=50304)
    dense = DenseArch(layers=(split,), dtype=DataType.FP16)
    workload = gpt(dense=dense, dense_parallelism=DenseParallelism.DDP, tensor_parallel=8)
    inside, across, domain = (
        make_topology(2, 8),
        make_topology(4, 4),
        make_topology(4, 4, domain_hosts=2),
    )
    inside_s, across_s, domain_s = (time_s(workload, t) for t in (inside, across, domain))
    assert inside_s < domain_s < across_s
    reduction = stages(workload, across).reduction
    num_bytes = np.array(1e6)
    peers = across.resized(2, 1)
    expected = CostModels().collective.buffer_s(
        Collective.ALL_REDUCE, num_bytes, peers, within_host=False
    )
    assert reduction.all_reduce_s(num_bytes) == expected
    with pytest.raises(InvalidValueError, match="number of hosts that divides 3, got 8"):
        stages(workload, make_topology(3, 4))


def test_products_in_fp4_move_half_a_byte_and_are_no_slower_than_fp8() -> None:
    dense = DenseArch(layers=(GPT,), dtype=DataType.FP4)
    eight = replace(dense, dtype=DataType.FP8)
    rates = ((DataType.FP16, 1e15), (DataType.FP8, 2e15), (DataType.FP4, 4e15))
    topology = make_topology(1, 1, device=make_device(flops_per_s=rates))
    four_s, eight_s = (
        time_s(gpt(dense=d, batch_size_per_rank=64), topology) for d in (dense, eight)
    )
    assert four_s < eight_s
    assert DataType.FP4.num_bytes == 0.5
    for field in ("output_dtype", "gradient_dtype"):
        with pytest.raises(InvalidValueError, match=f"{field} fp4 is a type of products"):
            gpt(**{field: DataType.FP4})
    with pytest.raises(InvalidValueError, match="dtype fp4 is a type of products"):
        replace(make_table("a"), dtype=DataType.FP4)


def test_groups_that_do_not_fit_are_refused_by_name() -> None:
    with pytest.raises(InvalidValueError, match=r"must divide the 4 ranks of a host, or .*, got 3"):
        stages(shared(3), make_topology())
    with pytest.raises(InvalidValueError, match="must be multiples of tensor_parallel 8, got 12"):
        dense_operators(shared(8))
    mlp = DenseArch(num_dense_features=8, layers=(Mlp(sizes=(8,)),))
    with pytest.raises(InvalidValueError, match="layer mlp: ranks cannot share it"):
        dense_operators(gpt(dense=mlp, tensor_parallel=2))
    with pytest.raises(InvalidValueError, match="tensor_parallel 2 needs a model without tables"):
        make_workload(make_table("a"), tensor_parallel=2)
