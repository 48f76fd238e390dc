"""The dense part as a list of operators: prices of a DLRM stay, three descriptions agree."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodels import discovery, layers
from costmodels.cpu.dense import layer_counts
from costmodels.dense.base import (
    Layer,
    activation_bytes,
    dense_layers,
    dense_operators,
    dense_parameters,
)
from costmodels.dense.roofline import DenseRoofline
from costmodels.errors import InvalidValueError
from costmodels.layers.base import AbstractLayer, Flow
from costmodels.layers.dcn import Dcn
from costmodels.layers.dlrm import Dlrm
from costmodels.layers.dot import Dot
from costmodels.layers.mlp import Mlp
from costmodels.layers.transformer import Transformer
from costmodels.operators import Operator, OperatorKind
from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan
from costmodels.stages.stage_model import StageModel
from costmodels.workload import (
    DataType,
    DenseArch,
    Feature,
    HostProfile,
    Interaction,
    InteractionKernel,
    OperatorList,
    Pipeline,
    Pooling,
    Workload,
)
from tests.strategies import make_device, make_table, make_topology, make_workload


def dlrm(interaction: str) -> Workload:
    """Two tables with three features of 64."""
    features = tuple(Feature(name=f"f{i}", pooling_factor=1.0) for i in range(2))
    is_cross = interaction == "dcn"
    arch = DenseArch(
        num_dense_features=13,
        bottom_mlp=(512, 64),
        top_mlp=(512, 256, 1),
        interaction=Interaction(interaction),
        dcn_num_layers=3 if is_cross else 0,
        dcn_low_rank_dim=32 if is_cross else 0,
    )
    tables = (make_table("t0", features=features), make_table("t1"))
    return make_workload(*tables, dense=arch, batch_size_per_rank=2048)


def in_layers(workload: Workload) -> list[Workload]:
    """The same dense part by layers, each its own, and as one ``dlrm``."""
    arch = workload.dense
    meeting: tuple[AbstractLayer, ...] = {
        Interaction.DOT: (Dot(),),
        Interaction.CAT: (),
        Interaction.DCN: (Dcn(num_layers=3, low_rank=32),),
    }[arch.interaction]
    apart = (
        Mlp(name="bottom", before_tables=True, sizes=arch.bottom_mlp),
        *meeting,
        Mlp(name="top", sizes=arch.top_mlp),
    )
    whole = Dlrm(
        bottom_mlp=arch.bottom_mlp,
        top_mlp=arch.top_mlp,
        interaction=arch.interaction.value,
        dcn_num_layers=arch.dcn_num_layers,
        dcn_low_rank_dim=arch.dcn_low_rank_dim,
    )
    return [
        replace(workload, dense=DenseArch(num_dense_features=13, layers=layers))
        for layers in (apart, (whole,))
    ]


def in_operators(workload: Workload) -> Workload:
    """The same dense part by its own list, as PyTorch runs it."""
    arch = workload.dense
    if workload.pipeline is Pipeline.HUGECTR and arch.interaction is Interaction.DOT:
        arch = replace(arch, interaction_kernel=InteractionKernel.FUSED)
    eager = replace(workload, dense=arch, pipeline=Pipeline.NONE)
    if workload.pipeline is Pipeline.HUGECTR:
        # PyTorch of 2021 joins all vectors in one copy, too.
        eager = replace(eager, host_profile=HostProfile.EAGER_2021, cuda_graph=False)
    before, after = dense_operators(eager)
    listed = OperatorList(
        batch_size_per_rank=workload.batch_size_per_rank, before_tables=before, after_tables=after
    )
    return replace(workload, dense=DenseArch(operators=listed))


@pytest.mark.parametrize("interaction", ["dot", "cat", "dcn"])
@pytest.mark.parametrize("pipeline", [Pipeline.SPARSE_DIST, Pipeline.HUGECTR])
def test_three_descriptions_of_a_dlrm_have_one_price(interaction: str, pipeline: Pipeline) -> None:
    workload = replace(dlrm(interaction), pipeline=pipeline)
    topology = make_topology()
    prices = []
    for same in (workload, *in_layers(workload), in_operators(workload)):
        pipeline, layers = CostPipeline(same, topology), dense_layers(same)
        work = pipeline.plan_work(Plan(placements=()))
        prices.append(
            (
                float(pipeline.iteration_times(work)),
                sum(layer.flops for layer in (*layers.bottom, *layers.top)),
                dense_parameters(same),
                activation_bytes(same),
            )
        )
    for price in prices[1:]:
        assert price == pytest.approx(prices[0], rel=1e-12)


def test_hugectr_computes_activations_with_the_products_before_them() -> None:
    """All but the activations are there, and load vectors."""
    apart, fused = (
        sum(dense_operators(replace(dlrm("dcn"), pipeline=pipeline)), ())
        for pipeline in (Pipeline.SPARSE_DIST, Pipeline.HUGECTR)
    )
    products = [o.shape for o in apart if o.product is not None]
    assert [o.shape for o in fused if o.product is not None] == products
    others = [o for o in fused if o.product is None]
    assert {o.name.split(".")[0] for o in others} == {"concat", "cross"}
    assert all(o.is_vectorized for o in fused)
    assert not any(o.is_vectorized for o in apart)


@pytest.mark.parametrize("interaction", ["dot", "cat", "dcn"])
def test_counts_on_a_cpu_are_those_of_the_layers(interaction: str) -> None:
    """Joined elements are the concatenation's alone, whatever names the operators have."""
    workload = dlrm(interaction)
    top = dense_layers(workload).top
    renamed = tuple(
        Layer(name=f"{i}", operators=(replace(o, name=f"{i}"),))
        for i, o in enumerate(o for layer in top for o in layer.operators)
    )
    counts = layer_counts(top, 4)
    assert counts[4] == 2048 * 4 * 64
    assert counts == pytest.approx(layer_counts(renamed, 4), rel=1e-12)


def test_attention_counts_on_a_cpu_as_its_two_products() -> None:
    fused, plain = (
        layer_counts(dense_layers(of(gpt2(fused_attention=x, layers=2))).top, 4)
        for x in (True, False)
    )
    assert fused[2] == plain[2]
    assert fused[1] == plain[1]


def test_bytes_are_those_of_the_tensors() -> None:
    product, activation = dense_layers(dlrm("dot")).bottom[1].operators
    assert product.shape == (1, 2048, 512, 64)
    assert product.read_bytes == 4 * (2048 * 512 + 512 * 64)
    assert product.written_bytes == 4 * 2048 * 64
    assert product.parameter_bytes == 4 * (512 * 64 + 64)
    assert activation.kind is OperatorKind.ELEMENTWISE
    assert (activation.read_bytes, activation.written_bytes) == (4 * 2048 * 64, 4 * 2048 * 64)


def gpt2(**changes: object) -> Transformer:
    """GPT-2 small."""
    values: dict[str, object] = {
        "layers": 12, "hidden": 768, "heads": 12, "ffn": 3072, "seq": 1024, "vocabulary": 50257,
        "causal": True,
    }  # fmt: skip
    return Transformer(**{**values, **changes})  # type: ignore[arg-type]


def of(layer: AbstractLayer, batch: int = 8, dtype: DataType = DataType.FP16) -> Workload:
    """A workload of one layer and no tables."""
    arch = DenseArch(layers=(layer,), dtype=dtype)
    return Workload(name="w", tables=(), batch_size_per_rank=batch, dense=arch)


def test_gpt2_small_has_its_published_parameters_and_flop() -> None:
    """124.4 M parameters; 2 FLOP per weight and token, and the scores of attention."""
    workload = of(gpt2())
    assert dense_parameters(workload) == 124_439_808
    flop = sum(x.flops for x in dense_layers(workload).top)
    tokens, weights = 8 * 1024, 12 * 12 * 768**2 + 768 * 50257
    assert flop == 2 * tokens * weights + 12 * 4 * tokens * 1024 * 768


def test_repeats_are_folded() -> None:
    """Twice the blocks are as many operators, and twice their FLOP and bytes."""
    few, many = (dense_layers(of(gpt2(layers=n))).top for n in (12, 24))
    assert [x.name for x in few] == [x.name for x in many]
    once = dense_layers(of(gpt2(layers=1))).top
    block = {x.name: x for x in once}
    for x in many:
        factor = 24 if "attention" in x.name or "feed" in x.name else 1
        assert x.flops == factor * block[x.name].flops
        moved, of_block = (
            sum(o.num_repeats * o.moved_bytes for o in layer.operators)
            for layer in (x, block[x.name])
        )
        assert moved == factor * of_block
        assert x.num_parameters == factor * block[x.name].num_parameters
        kernels = [
            sum(o.num_repeats * o.num_kernels for o in y.operators) for y in (x, block[x.name])
        ]
        assert kernels[0] == factor * kernels[1]


def test_fused_attention_is_cheaper_and_keeps_less() -> None:
    topology = make_topology(device=make_device(num_multiprocessors=108))
    fused, plain = of(gpt2()), of(gpt2(fused_attention=False))
    assert dense_parameters(fused) == dense_parameters(plain)
    ours, others = (DenseRoofline().times(w, topology) for w in (fused, plain))
    assert ours.top_forward_s < others.top_forward_s
    scores = 12 * 8 * 12 * 1024 * 1024 * 2
    assert activation_bytes(plain) > activation_bytes(fused) + 0.9 * scores
    without_mask = DenseRoofline().times(of(gpt2(causal=False)), topology)
    assert without_mask.top_forward_s > ours.top_forward_s


def test_backward_of_attention_counts_five_products() -> None:
    attention = Operator(
        name="a", kind=OperatorKind.ATTENTION, shape=(4, 16, 32, 8, 8), dtype=DataType.FP16
    )
    assert attention.forward_flop == 2 * 2 * 4 * 16 * 32 * 8
    assert attention.backward_flop == 5 * 2 * 4 * 16 * 32 * 8


def test_products_without_a_gradient_of_the_input_cost_half_a_backward() -> None:
    whole = Operator(name="p", kind=OperatorKind.MATMUL, shape=(1, 64, 32, 16))
    half = replace(whole, left_gradient=False)
    assert whole.backward_flop == 2 * whole.forward_flop
    assert half.backward_flop == half.forward_flop
    none = replace(half, right_gradient=False)
    topology = make_topology()
    times = [
        DenseRoofline()
        .times(
            Workload(
                name="w",
                tables=(),
                batch_size_per_rank=1,
                dense=DenseArch(
                    operators=OperatorList(batch_size_per_rank=1, after_tables=(operator,))
                ),
            ),
            topology,
        )
        .top_backward_s
        for operator in (whole, half, none)
    ]
    assert times[0] > times[1] > times[2]


def test_the_host_issues_repeats_while_the_device_computes() -> None:
    """A deep model does not wait until all its operators are issued; a launch-bound one does."""
    topology = make_topology()

    def forward_s(layer: Transformer, batch: int) -> float:
        workload = of(layer, batch=batch)
        pipeline = CostPipeline(workload, topology)
        estimate = pipeline.estimate(Plan(placements=()))
        return next(
            s.start_s[0] for s in estimate.stages if s.name.startswith("dense part backward")
        )

    deep = gpt2(layers=48)
    stages = StageModel(of(deep), topology, CostPipeline(of(deep), topology).models)
    computed = stages.dense.top_forward_s
    assert forward_s(deep, 8) < 1.05 * computed
    parts, host = (stages._layers.bottom, stages._layers.top), stages._host
    issued = sum(host.forward_s(part) for part in parts)
    tiny = gpt2(layers=48, hidden=96, ffn=64, seq=8, vocabulary=100)
    assert forward_s(tiny, 1) == pytest.approx(issued, rel=0.25)


def test_other_batches_than_the_listed_one_are_refused() -> None:
    workload = in_operators(dlrm("dot"))
    with pytest.raises(InvalidValueError, match="are for 2048 samples per rank, the batch is 64"):
        replace(workload, batch_size_per_rank=64)


def test_one_description_is_enough() -> None:
    shared = Operator(name="a", kind=OperatorKind.NORM, shape=(3,), shared_bytes=8.0)
    with pytest.raises(InvalidValueError, match=r"'a'. have shared_bytes, but ranks share layers"):
        OperatorList(batch_size_per_rank=1, after_tables=(shared,))
    with pytest.raises(InvalidValueError, match="given twice, by bottom_mlp and top_mlp and by la"):
        DenseArch(bottom_mlp=(3,), layers=(Dot(),))


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (lambda: Mlp(sizes=()), "sizes must be 1..1e6"),
        (lambda: Mlp(sizes=(0,)), "sizes must be 1..1e6"),
        (lambda: Dcn(num_layers=0, low_rank=3), "num_layers must be 1..1e6"),
        (lambda: gpt2(heads=7), "hidden must be a multiple of heads"),
        (lambda: gpt2(vocabulary=-1), "vocabulary must be 0..1e9"),
        (lambda: Dlrm(bottom_mlp=(1,), top_mlp=(1,), before_tables=True), "does not go with it"),
    ],
)
def test_broken_layers_are_refused(layer: object, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        layer()  # type: ignore[operator]


def test_layers_that_do_not_fit_what_reaches_them_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="nothing reaches it"):
        dense_layers(of(Mlp(sizes=(3,))))
    late = DenseArch(
        layers=(Mlp(sizes=(3,)), Mlp(sizes=(3,), before_tables=True)), num_dense_features=3
    )
    with pytest.raises(InvalidValueError, match="move it up"):
        dense_layers(make_workload(dense=late))
    with pytest.raises(InvalidValueError, match="needs 1024 positions of 768 elements"):
        dense_layers(of(gpt2(vocabulary=0)))


def test_every_kind_is_a_file() -> None:
    for name in discovery.names(layers):
        kind = discovery.load(layers, name, AbstractLayer)
        assert kind.__module__ == f"costmodels.layers.{name}"
        assert kind.__doc__


def test_a_transformer_runs_over_looked_up_sequences() -> None:
    """An unpooled table gives a vector per position; the blocks are those of any sequence."""
    table = make_table(
        "history",
        embedding_dim=64,
        pooling=Pooling.NONE,
        features=(Feature(name="h", pooling_factor=49.5),),
    )
    blocks = Transformer(layers=2, hidden=64, heads=2, ffn=128, seq=50)
    workload = make_workload(
        table, dense=DenseArch(layers=(blocks, Mlp(sizes=(1,)))), batch_size_per_rank=16
    )
    top = dense_layers(workload).top
    (inner,) = [p for x in top for p in x.products if (p.k, p.n) == (64, 128)][:1]
    assert inner.m == 16 * 50
    assert top[-1].products[0].m == 16 * 50
    short = replace(workload, dense=DenseArch(layers=(replace(blocks, seq=40),)))
    with pytest.raises(InvalidValueError, match="needs 40 positions of 64 elements, but 3200"):
        dense_layers(short)


def test_a_flow_counts_its_positions() -> None:
    assert Flow(batch_size=4, length=3).positions == 12
