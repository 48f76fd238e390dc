"""Results as JSON: the same keys in ``plan.json``, ``plan --json`` and ``estimate --json``."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import costmodels
from costmodels.estimates import IterationEstimate, MemoryLedger
from planner.io.atomic import write_text_atomic
from planner.io.plan_file import SCHEMA_VERSION, plan_to_json
from planner.problem import PlanningProblem
from planner.result import Candidate, PlanningResult


def result_to_json(result: PlanningResult) -> dict[str, Any]:
    """The result as plain JSON values, in a fixed order."""
    problem, topology = result.problem, result.problem.topology
    solver = asdict(result.solver)
    solver["status"] = result.solver.status.value
    solver["gap_ratio"] = result.solver.gap_ratio
    solver["progress"] = [list(p) for p in result.solver.progress]
    return {
        "plan": plan_to_json(result.plan, problem.workload, topology.local_world_size),
        "schema_version": SCHEMA_VERSION,
        "tool": f"shardplan {costmodels.__version__}",
        "inputs_hash": inputs_hash(problem),
        "workload": problem.workload.name,
        "system": topology.name,
        "world_size": topology.world_size,
        "local_world_size": topology.local_world_size,
        "batch_size_per_rank": problem.workload.local_batch_size,
        "predicted": _predicted(result.estimate),
        "memory": _memory(result.best.memory),
        "solver": solver,
        "alternatives": [_alternative(c) for c in result.runners_up],
        "baselines": [_alternative(c) for c in result.baselines],
        "unfit_baselines": list(result.unfit_baselines),
        "provenance": [{**asdict(p), "source": p.source.value} for p in result.estimate.provenance],
        "warnings": [*result.warnings, *result.estimate.warnings],
    }


def plan_text(result: PlanningResult) -> str:
    """The text of ``plan.json``."""
    return json.dumps(result_to_json(result), indent=1, allow_nan=False) + "\n"


def save_plan(path: str | Path, result: PlanningResult) -> None:
    """Write ``plan.json``, whole or not at all.

    Raises:
        InvalidInputError: the place cannot be written.
    """
    write_text_atomic(Path(path), plan_text(result))


def inputs_hash(problem: PlanningProblem) -> str:
    """SHA-256 over everything that was asked: workload, topology and constraints."""
    text = json.dumps(_canonical(problem), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _canonical(value: object) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        items = {f.name: _canonical(getattr(value, f.name)) for f in fields(value)}
        return {"type": type(value).__name__, **items}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple | list):
        return [_canonical(v) for v in value]
    return value


def _predicted(estimate: IterationEstimate) -> dict[str, Any]:
    return {
        "iteration_time_s": estimate.time.time_s,
        "low_s": estimate.time.low_s,
        "high_s": estimate.time.high_s,
        "confidence": 0.9,
        "source": estimate.time.source.value,
        "samples_per_s": estimate.samples_per_s,
        "slowest_rank": estimate.slowest_rank,
        "imbalance_ratio": estimate.imbalance_ratio,
        "exposed_communication_s": estimate.exposed_communication_s,
        "critical_path": [asdict(s) for s in estimate.critical_path],
        "per_rank": [asdict(r) for r in estimate.ranks],
    }


def _memory(ledger: MemoryLedger) -> dict[str, Any]:
    return {
        "per_rank": [
            {**asdict(r), "used_bytes": r.used_bytes, "headroom_bytes": r.headroom_bytes}
            for r in ledger.ranks
        ],
        "per_host": [asdict(h) for h in ledger.hosts],
    }


def _alternative(candidate: Candidate) -> dict[str, Any]:
    time = candidate.estimate.time
    return {
        "name": candidate.name,
        "iteration_time_s": time.time_s,
        "low_s": time.low_s,
        "high_s": time.high_s,
    }
