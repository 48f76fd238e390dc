"""Random models under ``ShardPlanner(objective="torchrec")`` and under TorchRec's planner.

Run it from the root of the repository, with torchrec installed::

    python -m benchmarks.search.drop_in --count 30

Models, sharders, codecs of quantized communication, caches, constraints and clusters are drawn
from a seed. Both planners get the same arguments, and TorchRec's code rates both plans
(``NoopPerfModel``). A line per model, then the geometric mean, the models on which ours is worse,
and those whose value our search states otherwise than TorchRec's code. Plans of TorchRec's that
fail in training do not count: sums of int8, and groups of ranks that hosts do not fill.
"""

from __future__ import annotations

import argparse
import copy
import logging
import math
import time
import warnings
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, EmbeddingCollection
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fbgemm_qcomm_codec import (
    CommType,
    QCommsConfig,
    get_qcomm_codecs_registry,
)
from torchrec.distributed.planner.perf_models import NoopPerfModel
from torchrec.distributed.planner.planners import EmbeddingShardingPlanner
from torchrec.distributed.planner.types import (
    ParameterConstraints,
    PlannerError,
    ShardingOption,
    Topology,
)
from torchrec.distributed.types import CacheParams, ModuleSharder
from torchrec.modules.embedding_configs import EmbeddingConfig

from costmodels.training.communication import Communication
from planner.integrations.torchrec_planner import ShardPlanner
from planner.integrations.translate.codecs import communication_of

_CLUSTERS: Final = ((2, 2), (4, 4), (4, 2), (8, 8), (8, 4), (16, 8), (12, 8))
"""Ranks, and ranks of a host; 12 do not fill hosts of 8."""
_ROWS: Final = ("row_wise", "table_row_wise")
_TYPES: Final = ("table_wise", "column_wise", *_ROWS, "data_parallel")
_KERNELS: Final = ("fused", "fused_uvm", "fused_uvm_caching", "dense")
_AS_GOOD: Final = 1.0 + 1e-9


class _Model(nn.Module):  # type: ignore[misc]
    """Pooled tables, sometimes unpooled ones beside them, and a dense layer."""

    def __init__(self, pooled: nn.Module, unpooled: nn.Module | None) -> None:
        super().__init__()
        self.dense = nn.Linear(64, 64)
        self.pooled = pooled
        if unpooled is not None:
            self.unpooled = unpooled


@dataclass(frozen=True, kw_only=True)
class Case:
    """The arguments of both planners."""

    model: nn.Module
    sharders: list[ModuleSharder[nn.Module]]
    topology: Topology
    batch_size: int
    constraints: dict[str, ParameterConstraints]
    told: str


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Ratings by TorchRec in ms; None where its planner finds nothing, or nothing that can run."""

    theirs_ms: float | None
    ours_ms: float | None
    claimed_ms: float | None
    seconds: float
    note: str

    @property
    def ratio(self) -> float:
        """TorchRec's over ours; 1 where neither plans."""
        if self.theirs_ms is None:
            return 1.0
        return self.theirs_ms / self.ours_ms if self.ours_ms else 0.0


def case_of(seed: int) -> Case:
    """The model and its settings."""
    rng = np.random.default_rng([seed, 15])
    world, local = _CLUSTERS[int(rng.integers(len(_CLUSTERS)))]
    pooled = [_table(rng, EmbeddingBagConfig, f"p{i}") for i in range(int(rng.integers(2, 13)))]
    unpooled = [_table(rng, EmbeddingConfig, f"u{i}") for i in range(int(rng.integers(1, 4)))]
    meta = torch.device("meta")
    weighted = bool(rng.random() < 0.25)
    bags = EmbeddingBagCollection(tables=pooled, device=meta, is_weighted=weighted)
    dim = unpooled[0].embedding_dim
    for config in unpooled:
        config.embedding_dim = dim
    rows = EmbeddingCollection(tables=unpooled, device=meta) if rng.random() < 0.35 else None
    sharders = [
        EmbeddingBagCollectionSharder(_fused(rng), qcomm_codecs_registry=_codecs(rng)),
        EmbeddingCollectionSharder(_fused(rng), qcomm_codecs_registry=_codecs(rng)),
    ]
    tables = pooled + (unpooled if rows is not None else [])
    limits = {t.name: _limit(rng, pooled=t in pooled) for t in tables}
    topology = Topology(
        world,
        "cuda",
        local_world_size=local,
        hbm_cap=int(rng.choice([2, 8, 32])) * 2**30,
        bwd_compute_multiplier=float(rng.choice([2.0, 2.0, 3.0])),
    )
    codecs = [_words(communication_of(s)) for s in sharders[: 1 if rows is None else 2]]
    return Case(
        model=_Model(bags, rows),
        sharders=sharders,
        topology=topology,
        batch_size=int(rng.choice([128, 512, 4096])),
        constraints={name: limit for name, limit in limits.items() if limit is not None},
        told=f"{len(tables)} tables, {world} ranks on hosts of {local}, codecs {', '.join(codecs)}",
    )


def outcome_of(case: Case) -> Outcome:
    """Both plans, rated by TorchRec."""
    shared: dict[str, Any] = {"topology": case.topology, "batch_size": case.batch_size}
    note = ""
    theirs: list[ShardingOption] | None = None
    rival = EmbeddingShardingPlanner(
        **shared, constraints=copy.deepcopy(case.constraints), stats=[], debug=False
    )
    try:
        rival.plan(case.model, case.sharders)
        theirs = rival._best_plan
    except PlannerError as error:
        note = f"TorchRec: {str(error).strip().splitlines()[0][:60]}"
    if theirs is not None and (reason := _fails_in_training(case, theirs)):
        theirs, note = None, reason
    ours = ShardPlanner(
        **shared, constraints=copy.deepcopy(case.constraints), stats=[], objective="torchrec"
    )
    started = time.perf_counter()
    try:
        ours.plan(case.model, case.sharders)
    except PlannerError as error:
        note = f"{note}; ours: {str(error).strip().splitlines()[0][:60]}"
    rate = NoopPerfModel(case.topology).rate
    found = ours.get_selected_options()
    return Outcome(
        theirs_ms=None if theirs is None else float(rate(theirs)),
        ours_ms=float(rate(found)) if found else None,
        claimed_ms=ours.result.solver.value * 1e3 if ours.result is not None else None,
        seconds=time.perf_counter() - started,
        note=note,
    )


def _fails_in_training(case: Case, plan: list[ShardingOption]) -> str:
    """Why TorchRec's runtime cannot train a plan of its planner; empty if it can."""
    by_type = {s.module_type: communication_of(s) or Communication() for s in case.sharders}
    cut = [o for o in plan if o.is_pooled and o.sharding_type in (*_ROWS, "grid_shard")]
    if any(not by_type[type(o.module[1])].sums_rows for o in cut):
        return "TorchRec's plan sums int8, which fails in training"
    topology = case.topology
    split = any(o.sharding_type in ("table_row_wise", "grid_shard") for o in cut)
    if split and topology.world_size % topology.local_world_size:
        return "TorchRec's plan has table_row_wise on hosts that ranks do not fill, which fails"
    return ""


# ------------------------------------------------------------------ draws


def _table(rng: np.random.Generator, kind: Any, name: str) -> Any:
    return kind(
        name=name,
        num_embeddings=int(10 ** rng.uniform(2, 7.2)),
        embedding_dim=int(rng.choice([32, 64, 128, 256, 512])),
        feature_names=[f"{name}_f{i}" for i in range(int(rng.choice([1, 1, 2])))],
    )


def _fused(rng: np.random.Generator) -> dict[str, Any] | None:
    if rng.random() < 0.6:
        return None
    return {"cache_load_factor": float(rng.choice([0.05, 0.1, 0.4]))}


def _codecs(rng: np.random.Generator) -> Any:
    if rng.random() < 0.25:
        return None
    forward, backward = (
        CommType(str(rng.choice(["fp32", "fp16", "bf16", "fp8", "int8"]))) for _ in range(2)
    )
    config = QCommsConfig(forward_precision=forward, backward_precision=backward)
    return get_qcomm_codecs_registry(config)


def _limit(rng: np.random.Generator, *, pooled: bool) -> ParameterConstraints | None:
    if rng.random() < 0.2:
        return None
    limit = ParameterConstraints(pooling_factors=[float(rng.choice([0.5, 1, 5, 30]))])
    if rng.random() < 0.25:
        allowed = _TYPES if pooled else ("table_wise", "column_wise", "row_wise")
        limit.sharding_types = [str(t) for t in rng.choice(allowed, 3, replace=False)]
    if rng.random() < 0.25:
        limit.compute_kernels = [*(str(k) for k in rng.choice(_KERNELS, 2)), "fused"]
    if rng.random() < 0.25:
        limit.min_partition = int(rng.choice([32, 64, 128]))
    if rng.random() < 0.2:
        limit.cache_params = CacheParams(load_factor=float(rng.choice([0.02, 0.1, 0.5])))
    return limit


def _words(codecs: Communication | None) -> str:
    if codecs is None or codecs.all_to_all is None:
        return "none"
    both = codecs.all_to_all
    return f"{both.forward.precision}/{both.backward.precision}"


def main() -> None:
    """Print a line per model, and the geometric mean."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--start", type=int, default=0)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    ratios, worse, misstated = [], [], []
    for seed in range(chosen.start, chosen.start + chosen.count):
        case = case_of(seed)
        found = outcome_of(case)
        print(
            f"{seed:>4} {_ms(found.theirs_ms)} {_ms(found.ours_ms)} {found.ratio:7.3f}x "
            f"{found.seconds:5.1f} s  {case.told}  {found.note}",
            flush=True,
        )
        if found.theirs_ms is not None:
            ratios.append(found.ratio)
        if found.ratio * _AS_GOOD < 1.0:
            worse.append(seed)
        if not math.isclose(found.claimed_ms or 0.0, found.ours_ms or 0.0, rel_tol=1e-6):
            misstated.append(seed)
    mean = math.exp(sum(math.log(max(r, 1e-9)) for r in ratios) / max(len(ratios), 1))
    print(
        f"TorchRec's rating of its plan over that of ours, {len(ratios)} models that both plan: "
        f"geometric mean {mean:.3f}, least {min(ratios, default=math.nan):.3f}; worse on "
        f"{worse or 'none'}; misstated on {misstated or 'none'}"
    )


def _ms(value: float | None) -> str:
    return "     none" if value is None else f"{value:9.3f}"


if __name__ == "__main__":
    main()
