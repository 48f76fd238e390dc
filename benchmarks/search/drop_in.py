"""Random models under ``ShardPlanner(objective="torchrec")`` and under TorchRec's planner.

Run it from the root of the repository, with torchrec installed::

    python -m benchmarks.search.drop_in --count 30

Models, sharders, codecs of quantized communication, caches, constraints and clusters are drawn
from a seed. Both planners get the same arguments, and TorchRec's code rates both plans
(``NoopPerfModel``). A line per model: TorchRec's rating of its plan, of ours, the one over the
other, and TorchRec's over our proven bound, which is the most that any planner could gain.

Where TorchRec's plan fails in training or changes what the model computes, the line says so and
stands apart (``*``): the plan beside ours is then the better one that TorchRec's planner makes with
its tables held to sharding types that train as the model says.
"""

from __future__ import annotations

import argparse
import copy
import logging
import math
import time
import warnings
from collections.abc import Iterable, Iterator
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
from torchrec.modules.embedding_configs import EmbeddingConfig, PoolingType

from costmodels.training.communication import Communication
from planner.integrations.torchrec_plan import plan_of
from planner.integrations.torchrec_planner import ShardPlanner
from planner.integrations.translate.reading import communication_of
from planner.options.torchrec_rules import layout_problems, pooling_problems
from planner.problem import PlanningProblem

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
    """Ratings by TorchRec in ms; None where nothing is found.

    ``unsound`` is why TorchRec's own plan cannot be used; ``theirs_ms`` is then of its plan within
    sound types.
    """

    theirs_ms: float | None
    ours_ms: float | None
    claimed_ms: float | None
    bound_ms: float
    seconds: float
    unsound: str
    note: str

    @property
    def ratio(self) -> float:
        """TorchRec's over ours; 1 where TorchRec does not plan."""
        if self.theirs_ms is None:
            return 1.0
        return self.theirs_ms / self.ours_ms if self.ours_ms else 0.0

    @property
    def most(self) -> float:
        """TorchRec's over what no sound plan can go below; 1 where TorchRec does not plan."""
        return self.theirs_ms / self.bound_ms if self.theirs_ms and self.bound_ms else 1.0


def case_of(seed: int) -> Case:
    """The model and its settings."""
    rng = np.random.default_rng([seed, 15])
    world, local = _CLUSTERS[int(rng.integers(len(_CLUSTERS)))]
    pooled = [_table(rng, EmbeddingBagConfig, f"p{i}") for i in range(int(rng.integers(2, 13)))]
    unpooled = [_table(rng, EmbeddingConfig, f"u{i}") for i in range(int(rng.integers(1, 4)))]
    meta = torch.device("meta")
    weighted = bool(rng.random() < 0.25)
    _draw_means(np.random.default_rng([seed, 16]), pooled)
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
    ours = ShardPlanner(
        **shared, constraints=copy.deepcopy(case.constraints), stats=[], objective="torchrec"
    )
    started = time.perf_counter()
    note = ""
    try:
        ours.plan(case.model, case.sharders)
    except PlannerError as error:
        note = f"ours: {str(error).strip().splitlines()[0][:60]}; "
    seconds = time.perf_counter() - started
    theirs, failed = _theirs(case, case.constraints)
    unsound = _unsound(case, theirs, ours.result.problem) if theirs and ours.result else ""
    if unsound:
        held = [_theirs(case, c) for c in _sound_constraints(case)]
        theirs = min((p for p, _ in held if p), key=lambda p: _rating(case, p), default=None)
        failed = max((f for _, f in held), default="nothing left") if theirs is None else ""
    found = ours.get_selected_options()
    return Outcome(
        theirs_ms=None if theirs is None else _rating(case, theirs),
        ours_ms=_rating(case, found) if found else None,
        claimed_ms=ours.result.solver.value * 1e3 if ours.result is not None else None,
        bound_ms=((ours.result and ours.result.solver.bound) or math.nan) * 1e3,
        seconds=seconds,
        unsound=unsound,
        note=f"{note}{failed}",
    )


def _rating(case: Case, plan: list[ShardingOption]) -> float:
    return float(NoopPerfModel(case.topology).rate(plan))


def _theirs(
    case: Case, constraints: dict[str, ParameterConstraints]
) -> tuple[list[ShardingOption] | None, str]:
    """The options of TorchRec's plan; None, and why, where it finds none."""
    planner = EmbeddingShardingPlanner(
        topology=case.topology,
        batch_size=case.batch_size,
        constraints=copy.deepcopy(constraints),
        stats=[],
        debug=False,
    )
    try:
        planner.plan(case.model, case.sharders)
    except (PlannerError, RuntimeError) as error:
        return None, f"TorchRec: {str(error).strip().splitlines()[0][:60]}"
    return planner._best_plan, ""


def _unsound(case: Case, options: list[ShardingOption], problem: PlanningProblem) -> str:
    """Why TorchRec's runtime does not train a plan as the model says; empty if it does."""
    plan = plan_of(options)
    wrong = layout_problems(plan, problem.workload, problem.topology, device="cuda")
    wrong += pooling_problems(plan, problem.workload)
    return (
        f"TorchRec's own plan rates {_rating(case, options):.3f}, but {wrong[0]}" if wrong else ""
    )


def _sound_constraints(case: Case) -> Iterator[dict[str, ParameterConstraints]]:
    """Constraints under which TorchRec's planner has only plans that train as the model says."""
    sharder = case.sharders[0]
    sums = (communication_of(sharder) or Communication()).sums_rows
    whole = case.topology.world_size % case.topology.local_world_size == 0
    gone = {"grid_shard"} | (set() if sums else set(_ROWS)) | (set() if whole else {_ROWS[1]})
    offered = [t for t in sharder.sharding_types("cuda") if t not in gone]
    tables = case.model.pooled.embedding_bag_configs()
    means = {t.name for t in tables if t.pooling is PoolingType.MEAN}
    for by_rows in (False, True) if means else (False,):
        limits = copy.deepcopy(case.constraints)
        for name in (t.name for t in tables):
            limit = limits.setdefault(name, ParameterConstraints())
            left = [t for t in offered if not limit.sharding_types or t in limit.sharding_types]
            if by_rows:
                left = [t for t in left if t in _ROWS]
            elif name in means:
                left = [t for t in left if t not in _ROWS]
            limit.sharding_types = left
        if all(limits[t.name].sharding_types for t in tables) and not (
            by_rows and case.model.pooled.is_weighted()
        ):
            yield limits


# ------------------------------------------------------------------ draws


def _table(rng: np.random.Generator, kind: Any, name: str) -> Any:
    return kind(
        name=name,
        num_embeddings=int(10 ** rng.uniform(2, 7.2)),
        embedding_dim=int(rng.choice([32, 64, 128, 256, 512])),
        feature_names=[f"{name}_f{i}" for i in range(int(rng.choice([1, 1, 2])))],
    )


def _draw_means(rng: np.random.Generator, tables: list[Any]) -> None:
    """Mean pooling of some or all tables, in a quarter of the models."""
    share = float(rng.choice([0, 0, 0, 0, 0, 0, 0.4, 1.0]))
    for table in tables:
        if rng.random() < share:
            table.pooling = PoolingType.MEAN


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
    rows: list[tuple[int, Outcome]] = []
    print(f"{'seed':>4} {'TorchRec':>10} {'ours':>9} {'gain':>8} {'most possible':>13} {'time':>7}")
    for seed in range(chosen.start, chosen.start + chosen.count):
        case = case_of(seed)
        found = outcome_of(case)
        rows.append((seed, found))
        print(
            f"{seed:>4} {_ms(found.theirs_ms)}{'*' if found.unsound else ' '} "
            f"{_ms(found.ours_ms)} {found.ratio:7.3f}x {found.most:12.3f}x "
            f"{found.seconds:5.1f} s  {case.told}  {found.note}{found.unsound}",
            flush=True,
        )
    both = [row for row in rows if row[1].theirs_ms is not None]
    print("\nTorchRec's rating of its plan over that of ours, models that both plan:")
    _print_summary("all", both)
    _print_summary("TorchRec's plan is sound", [r for r in both if not r[1].unsound])
    _print_summary("it is not (*): TorchRec held to sound types", [r for r in both if r[1].unsound])
    wrong = [seed for seed, found in rows if _misstates(found)]
    print(f"misstated on {wrong or 'none'}")


def _print_summary(told: str, rows: list[tuple[int, Outcome]]) -> None:
    """Geometric means of some models."""
    if not rows:
        return
    worse = [seed for seed, found in rows if found.ratio * _AS_GOOD < 1.0]
    print(
        f"  {told}: {len(rows)} models, geometric mean {_mean(o.ratio for _, o in rows):.3f} of "
        f"{_mean(o.most for _, o in rows):.3f} possible, least "
        f"{min(o.ratio for _, o in rows):.3f}; worse on {worse or 'none'}"
    )


def _mean(ratios: Iterable[float]) -> float:
    logs = [math.log(max(r, 1e-9)) for r in ratios]
    return math.exp(sum(logs) / len(logs))


def _misstates(found: Outcome) -> bool:
    """Whether the search states another value of its plan than TorchRec's code."""
    return not math.isclose(found.claimed_ms or 0.0, found.ours_ms or 0.0, rel_tol=1e-6)


def _ms(value: float | None) -> str:
    return "     none" if value is None else f"{value:9.3f}"


if __name__ == "__main__":
    main()
