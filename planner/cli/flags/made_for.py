"""What plans were made for beside what they are priced for."""

from __future__ import annotations

from pathlib import Path

from planner import io
from planner.cli.flags.common import ProblemFlags
from planner.problem import PlanningProblem


def made_otherwise(
    paths: tuple[Path, ...],
    saved: tuple[io.SavedPlan, ...],
    problem: PlanningProblem,
    flags: ProblemFlags,
) -> list[str]:
    """Plans that were made for another system, batch or pipeline, where no flag asks for one."""
    batch, pipeline = problem.workload.local_batch_size, problem.workload.pipeline.value
    asks_system = flags.system is not None or flags.gpus_per_host is not None
    priced_on = io.system_hash(problem.topology)
    changed = {text.partition("=")[0] for text in flags.overrides}
    asks_batch = flags.batch_size is not None or flags.global_batch_size is not None
    asks_batch |= "training.batch_size_per_rank" in changed
    asks_pipeline = "training.pipeline" in changed
    told = []
    for path, plan in zip(paths, saved, strict=True):
        if flags.system is None and plan.system not in (None, saved[0].system):
            told.append(
                f"{path}: was made for {plan.system} and is priced on {saved[0].system}, as "
                f"{paths[0]} is; --system says otherwise"
            )
        elif not asks_system and plan.system_hash not in (None, priced_on):
            told.append(
                f"{path}: was made for another {plan.system} than the shipped one, on which it is "
                "priced; name its file with --system"
            )
        local = problem.topology.local_world_size
        if flags.gpus_per_host is None and plan.local_world_size not in (None, local):
            told.append(
                f"{path}: was made for {plan.local_world_size} ranks per host and is priced with "
                f"{local}; --gpus-per-host says otherwise"
            )
        if not asks_batch and plan.batch_size_per_rank not in (None, batch):
            told.append(
                f"{path}: was made for {plan.batch_size_per_rank:,} samples per rank and is priced "
                f"at {batch:,}, the workload's; --batch-size says otherwise"
            )
        if not asks_pipeline and plan.pipeline not in (None, pipeline):
            told.append(
                f"{path}: was made for pipeline {plan.pipeline} and is priced with {pipeline}, the "
                f"workload's; --set training.pipeline={plan.pipeline} says otherwise"
            )
    return told


def made_for_another_workload(
    source: Path,
    paths: tuple[Path, ...],
    saved: tuple[io.SavedPlan, ...],
    problem: PlanningProblem,
    flags: ProblemFlags,
) -> list[str]:
    """Plans made for other tables, laws or training, where no flag asks for them.

    Operators that were traced for one batch size go with it, so that nothing is said of them.
    """
    workload = problem.workload
    if flags.overrides or not any(plan.workload_hash for plan in saved):
        return []
    priced_for = io.workload_hash(workload)
    batches = (None, workload.local_batch_size) if workload.dense.operators else ()
    return [
        f"{path}: was made for other index laws, tables or training than {source} has now; the "
        "file has changed since, or the plan was made with --stats, --set or by study"
        for path, plan in zip(paths, saved, strict=True)
        if plan.workload_hash not in (None, priced_for)
        and (not batches or plan.batch_size_per_rank in batches)
    ]
