"""Trains random models under random plans for real, and predicts every one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import ModuleSharder

from costmodels.cpu.run_stages import predicted_stages
from costmodels.dense.base import dense_names
from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan, ShardingType
from costmodels.system_models import default_models
from costmodels.topology import Topology
from costmodels.training.communication import Communication, Precision
from costmodels.units import MS
from costmodels.workload import DenseArch, Workload
from planner.integrations.measure.model import Model, traced_dense
from planner.integrations.measure.runs import PlanRun, RunCase, RunSettings, run_plans
from planner.integrations.torchrec_plan import to_sharding_options
from planner.integrations.torchrec_topology import topology_to_torchrec
from planner.integrations.torchrec_workload import describe_model
from planner.io.system.measured_files import load_constants
from planner.validation.tasks import (
    BLOCK_TASKS,
    Blocks,
    NamedPlan,
    Outcome,
    choose_plans,
    large_workload,
    random_workload,
    with_skew,
)

UNIFORM, SKEWED = 0.0, 1.2


Progress = Callable[[Sequence[Outcome]], None]


def validate_tasks(
    topology: Topology,
    *,
    num_tasks: int,
    num_plans: int,
    seed: int,
    settings: RunSettings,
    what: str = "dlrm",
    progress: Progress | None = None,
) -> list[Outcome]:
    """Run random tasks, each with searched, baseline and random plans.

    All variants of a task take turns in one launch, so that their ratio is measured well. Outcomes
    of the first variant of all tasks come first.

    Args:
        topology: the ranks.
        num_tasks: number of random models.
        num_plans: plans of each model.
        seed: of models and plans.
        settings: how often each plan runs.
        what: the variants of a model: ``dlrm`` and the names of
            :data:`planner.validation.tasks.BLOCK_TASKS` have one. ``skew`` has uniform indices, and
            indices of a Zipf law of exponent 1.2, of large tables, so that lookups dominate and
            caches cannot hide the effect. A precision has exchanges in fp32, and in that precision.
        progress: called with the outcomes of each task.
    """
    outcomes: dict[str, list[Outcome]] = {}
    for task in range(num_tasks):
        variants = _variants(what, seed + task)
        first = next(iter(variants.values()))
        plans = choose_plans(first.priced, topology, num_plans, seed + task)
        cases = [(label, made, named) for label, made in variants.items() for named in plans]
        found = _outcomes(task, topology, cases, settings)
        for outcome in found:
            outcomes.setdefault(outcome.skew, []).append(outcome)
        if progress is not None:
            progress(found)
    return [outcome for same in outcomes.values() for outcome in same]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """A model as it is trained, and as it is priced."""

    trained: Workload
    priced: Workload
    blocks: Blocks | None = None

    @classmethod
    def of(cls, workload: Workload) -> _Task:
        return cls(trained=workload, priced=workload)


def _variants(what: str, seed: int) -> dict[str, _Task]:
    """The variants of a random model by their labels; see :func:`validate_tasks`."""
    if what == "skew":
        workload = large_workload(seed)
        return {f"{x:g}": _Task.of(with_skew(workload, x)) for x in (UNIFORM, SKEWED)}
    if what in BLOCK_TASKS:
        workload, blocks = BLOCK_TASKS[what](seed)
        # The dense part is traced as by ``shardplan import torchrec``.
        dense = DenseArch(operators=traced_dense(workload, blocks).operators)
        priced = replace(workload, dense=dense)
        return {"random": _Task(trained=workload, priced=priced, blocks=blocks)}
    workload = random_workload(seed)
    if what not in tuple(Precision):
        return {"random": _Task.of(workload)}
    coded = workload.communicating(Communication.of(Precision(what), Precision(what)))
    coded = replace(coded, name=f"{workload.name}-{what}")
    return {"fp32": _Task.of(workload), what: _Task.of(coded)}


def _outcomes(
    task: int,
    topology: Topology,
    cases: Sequence[tuple[str, _Task, NamedPlan]],
    settings: RunSettings,
) -> list[Outcome]:
    trained = [
        RunCase(workload=made.trained, plan=named.plan, blocks=made.blocks)
        for _, made, named in cases
    ]
    runs = run_plans(trained, world_size=topology.world_size, settings=settings)
    models = default_models(topology)
    return [
        _outcome(task, label, CostPipeline(made.priced, topology, models), named, run)
        for (label, made, named), run in zip(cases, runs, strict=True)
    ]


def _outcome(
    task: int, skew: str, pipeline: CostPipeline, named: NamedPlan, run: PlanRun
) -> Outcome:
    workload, topology = pipeline.workload, pipeline.topology
    estimate = pipeline.estimate(named.plan)
    time = estimate.time
    return Outcome(
        task=task,
        skew=skew,
        num_tables=len(workload.tables),
        batch_size_per_rank=int(workload.batch_size_per_rank),
        origin=named.origin,
        kinds=plan_kinds(named.plan),
        predicted_s=time.time_s,
        low_s=time.low_s,
        high_s=time.high_s,
        measured_s=run.iteration_s,
        spread_ratio=run.spread_ratio,
        wall_s=run.wall_s,
        foreign_ratio=run.foreign_ratio,
        stages_predicted_s=predicted_stages(estimate.stages, dense_names(workload)),
        stages_measured_s=run.stages_s,
        network_measured_s=run.network_s,
        iterations_inside_ratio=run.share_between(time.low_s, time.high_s),
        bytes_model_bytes=busiest_bytes(workload, named.plan, topology.world_size),
        torchrec_rating_s=_torchrec_rating_s(workload, topology, named.plan),
        pace_ratio=_pace_ratio(topology, run),
    )


def _pace_ratio(topology: Topology, run: PlanRun) -> float | None:
    """How long fixed work took while the plan ran, compared with the calibration."""
    calibrated_s = load_constants(topology.calibration).pace_s if topology.calibration else None
    return run.pace_s / calibrated_s if calibrated_s else None


def plan_kinds(plan: Plan) -> str:
    """A letter for each table: T, R, C, D for table_wise, row_wise, column_wise, data_parallel."""
    return "".join(p.sharding_type.value[0].upper() for p in plan.placements)


def busiest_bytes(workload: Workload, plan: Plan, world_size: int) -> float:
    """Bytes of rows looked up on the busiest rank: a model without skew and exchanges."""
    ranks = np.zeros(world_size)
    for placement in plan.placements:
        table = workload.table(placement.table)
        indices = workload.batch_size_per_rank * table.pooling_factor * world_size
        replicated = placement.sharding_type is ShardingType.DATA_PARALLEL
        copies = world_size if replicated else 1
        for shard in placement.shards:
            share = shard.num_rows / table.num_embeddings / copies
            ranks[shard.rank] += indices * share * shard.num_cols * table.dtype.num_bytes
    return float(ranks.max())


def _torchrec_rating_s(workload: Workload, topology: Topology, plan: Plan) -> float:
    """Largest sum of shard costs over ranks, as TorchRec's planner rates plans, in seconds."""
    sharders: list[ModuleSharder[nn.Module]] = [
        EmbeddingBagCollectionSharder(),
        EmbeddingCollectionSharder(),
    ]
    constraints = {
        t.name: ParameterConstraints(pooling_factors=[f.pooling_factor for f in t.features])
        for t in workload.tables
    }
    batch = int(workload.batch_size_per_rank)
    model = describe_model(
        Model(workload),
        sharders,
        batch_size=batch,
        compute_device="cpu",
        constraints=constraints,
    )
    if model is None:
        return 0.0
    options = to_sharding_options(
        plan,
        model.tables,
        sharders,
        topology_to_torchrec(topology, "cpu"),
        batch_size=batch,
        constraints=constraints,
    )
    ranks = [0.0] * topology.world_size
    for option in options:
        for shard in option.shards:
            if shard.rank is not None and shard.perf is not None:
                ranks[shard.rank] += shard.perf.total
    return max(ranks) * MS
