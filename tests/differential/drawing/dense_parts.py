"""Problems of which the dense part decides what a step takes: ``--dense``.

MLPs of many widths and every kind of layer, before and after the tables, replicated or sharded over
the ranks, under every pipeline. The factor on dense compute is set so that the dense part takes
from a thirtieth to thirty times as long as lookups and exchanges: it hides them, is hidden by them,
or ends at about the same moment.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from costmodels.dense.base import dense_layers
from costmodels.errors import InvalidValueError
from costmodels.layers.attention_pooling import AttentionPooling
from costmodels.layers.base import AbstractLayer
from costmodels.layers.dcn import Dcn
from costmodels.layers.deepfm import DeepFm
from costmodels.layers.dlrm import Dlrm
from costmodels.layers.dot import Dot
from costmodels.layers.hstu import Hstu
from costmodels.layers.mlp import Mlp
from costmodels.layers.mmoe import Mmoe
from costmodels.layers.moe import Moe
from costmodels.layers.transformer import Checkpoint, Transformer
from costmodels.layers.two_tower import TwoTower
from costmodels.memory import dense_bytes
from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan
from costmodels.topology import FittedFactors
from costmodels.workload import (
    DataType,
    DenseArch,
    DenseOptimizer,
    DenseParallelism,
    Pipeline,
    Workload,
)
from tests.differential.case import Case
from tests.differential.drawing.options import placements
from tests.differential.drawing.unusual import (
    every_day,
    lean,
    linked,
    replicated,
    shares,
    unlike,
)

_SEQ, _HIDDEN = 8, 32
"""Positions and elements of each, of the sequences that reach HSTU and a plain transformer."""
_TRIES = 20
"""Choices of layers among which one suits the tables."""
_WIDTHS = (16, 64, 700, 2048, 6000)


def with_dense_part(rng: np.random.Generator, case: Case) -> Case:
    """The case with a dense part, a pipeline and a system in which both count."""
    if case.on_torchrecs_terms:
        case = replace(case, objective="iteration")
    for change, share in ((lean, 0.5), (linked, 0.2), (unlike, 0.35)):
        case = change(rng, case) if rng.random() < share else case
    dense = any_dense(rng, case.workload)
    optimizer = DenseOptimizer(str(rng.choice([o.value for o in DenseOptimizer])))
    case = every_day(case, dense=dense, dense_optimizer=optimizer)
    case = every_day(case, **any_pipeline(rng))
    case = shares(rng, case) if rng.random() < 0.15 else case
    return _balanced(rng, roomy(case))


def may_replicate(rng: np.random.Generator, case: Case) -> Case:
    """The case, sometimes with sharding types of which replication is one."""
    return replicated(rng, case) if rng.random() < 0.35 else case


# ------------------------------------------------------------------ the dense part


def any_dense(rng: np.random.Generator, workload: Workload) -> DenseArch:
    """MLPs around the tables of a workload, or layers of any kinds that suit them."""
    return _mlps(rng) if rng.random() < 0.5 else _layers(rng, workload)


def _dtype(rng: np.random.Generator) -> DataType:
    return DataType(str(rng.choice(["fp32", "bf16", "tf32", "fp16"])))


def _mlps(rng: np.random.Generator) -> DenseArch:
    """A DLRM with a long bottom, a long top, both, or hardly any."""

    def sizes() -> tuple[int, ...]:
        return tuple(int(s) for s in rng.choice(_WIDTHS, size=int(rng.integers(0, 5))))

    return DenseArch(
        num_dense_features=int(rng.choice([1, 13, 2000])),
        bottom_mlp=sizes(),
        top_mlp=(*sizes(), 1) if rng.random() < 0.85 else (),
        dtype=_dtype(rng),
    )


def _layers(rng: np.random.Generator, workload: Workload) -> DenseArch:
    """Layers of any kinds that suit the tables; MLPs where none of the tries does."""
    for _ in range(_TRIES):
        before = _chosen(rng, _before(rng), int(rng.integers(0, 3)))
        after = _chosen(rng, _after(rng), int(rng.integers(0, 4)))
        if not before and not after:
            continue
        named = [replace(x, name=f"{x.prefix}{i}") for i, x in enumerate((*before, *after))]
        dense = DenseArch(num_dense_features=_SEQ * _HIDDEN, layers=tuple(named), dtype=_dtype(rng))
        try:
            dense_layers(replace(workload, dense=dense))
        except InvalidValueError:
            continue
        return dense
    return _mlps(rng)


def _chosen(
    rng: np.random.Generator, kinds: list[tuple[AbstractLayer, ...]], count: int
) -> list[AbstractLayer]:
    return [layer for i in rng.integers(len(kinds), size=count) for layer in kinds[int(i)]]


def _before(rng: np.random.Generator) -> list[tuple[AbstractLayer, ...]]:
    """Layers that run while vectors are looked up."""
    text = _transformer(rng)
    kinds: list[tuple[AbstractLayer, ...]] = [
        (Mlp(sizes=(1024, 64)),),
        (Mlp(sizes=(3000, 3000, 256)),),
        (text,),
        (Moe(experts=4, top=2, ffn=512),),
        (_hstu(rng),),
    ]
    return [tuple(replace(layer, before_tables=True) for layer in own) for own in kinds]


def _after(rng: np.random.Generator) -> list[tuple[AbstractLayer, ...]]:
    """Layers that run when the vectors have arrived."""
    to_positions = Mlp(sizes=(128, _SEQ * _HIDDEN))
    return [
        (Mlp(sizes=(2048, 512, 1)),),
        (Mlp(sizes=(6000, 6000)),),
        (_transformer(rng),),
        (to_positions, _hstu(rng)),
        (to_positions, replace(_transformer(rng), vocabulary=0, hidden=_HIDDEN, seq=_SEQ)),
        (Moe(experts=8, top=1, ffn=256),),
        (Dcn(num_layers=3, low_rank=64),),
        (Mmoe(experts=3, tasks=2, expert_sizes=(512,), tower_sizes=(64, 1)),),
        (TwoTower(sizes=(128, 32)),),
        (DeepFm(sizes=(512, 64)),),
        (AttentionPooling(seq=_SEQ, width=16, sizes=(64,)),),
        (Dlrm(bottom_mlp=(512, 16), top_mlp=(1024, 1), interaction="cat"),),
        (Dot(),),
    ]


def _transformer(rng: np.random.Generator) -> Transformer:
    hidden = int(rng.choice([32, 256]))
    return Transformer(
        layers=int(rng.choice([1, 3, 12])),
        hidden=hidden,
        heads=4,
        ffn=4 * hidden,
        seq=int(rng.choice([4, 64])),
        vocabulary=int(rng.choice([1000, 200_000])),
        checkpoint=str(rng.choice([c.value for c in Checkpoint])),
        compiled=bool(rng.random() < 0.3),
    )


def _hstu(rng: np.random.Generator) -> Hstu:
    return Hstu(
        layers=int(rng.choice([1, 4])),
        hidden=_HIDDEN,
        heads=2,
        seq=_SEQ,
        fused_attention=bool(rng.random() < 0.5),
    )


# ------------------------------------------------------------------ how a step is run


_PIPELINES = [p.value for p in Pipeline if p is not Pipeline.PRIORITIZED]
"""Those that are not drawn with hot rows."""


def any_pipeline(rng: np.random.Generator) -> dict[str, object]:
    """Fields of a workload: every pipeline as often, the dense part sharded where that may be."""
    pipeline = Pipeline(str(rng.choice(_PIPELINES)))
    batches = int(rng.choice([0, 2, 500])) if pipeline is Pipeline.LOOKAHEAD else 0
    sharded = pipeline is not Pipeline.HUGECTR and rng.random() < 0.45
    kind = DenseParallelism.FSDP if sharded else DenseParallelism.DDP
    return {"pipeline": pipeline, "lookahead_batches": batches, "dense_parallelism": kind}


def roomy(case: Case) -> Case:
    """The case with device memory for the dense part beside what there was."""
    topology = case.topology
    more = max(dense_bytes(w, topology) for w in (case.workload, *case.scenarios))
    device = topology.device
    roomier = replace(device, hbm_capacity_bytes=device.hbm_capacity_bytes + more)
    by_rank = tuple(c + more for c in topology.hbm_capacity_by_rank_bytes)
    topology = replace(topology, device=roomier, hbm_capacity_by_rank_bytes=by_rank)
    return replace(case, topology=topology)


def _balanced(rng: np.random.Generator, case: Case) -> Case:
    """The case with a factor on dense compute, drawn by what lookups and exchanges take."""
    topology, tables = case.topology, case.workload.tables
    choices = [placements(case, t) for t in tables]
    if not all(choices):
        return case
    pipeline = CostPipeline(case.workload, topology)
    chosen = tuple(own[int(rng.integers(len(own)))] for own in choices)
    times = pipeline.stage_times(pipeline.plan_work(Plan(placements=chosen)))
    sent = [s for f in times.families for _, s in f.outputs_s]
    sparse_s = sum(float(s.max()) for s in (times.lookup_forward_s, times.lookup_backward_s, *sent))
    dense = (
        times.bottom_forward_s,
        times.top_forward_s,
        times.top_backward_s,
        times.bottom_backward_s,
    )
    dense_s = sum(float(s.max()) for s in dense)
    if dense_s <= 0.0 or sparse_s <= 0.0:
        return case
    ratio = sparse_s / dense_s * 10.0 ** rng.uniform(-1.5, 1.5)
    fitted = FittedFactors(dense_ratio=ratio, collective_ratio=float(rng.choice([1.0, 0.3, 4.0])))
    return replace(case, topology=replace(topology, fitted=fitted))
