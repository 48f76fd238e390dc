"""Design spaces of problems that are in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from costmodels.errors import InvalidValueError
from costmodels.training.communication import Communication, Precision
from costmodels.workload import Pipeline
from planner import load_system, load_workload
from planner.errors import InvalidInputError
from planner.problem import PlanningProblem
from planner.study import Space
from planner.study.space import BATCH, COMMUNICATION, GPUS, PIPELINE, SYSTEM, Value

RESERVE = "memory.reserve"
PRICES_USD_PER_HOUR = {"h100_sxm": 4.5, "a100_80gb_sxm": 3.4}


def space_of(
    *problems: PlanningProblem, more: Mapping[str, Sequence[Value]] | None = None
) -> Space:
    """The setups of problems on clusters of one or more systems; ``more`` are further knobs."""
    found = {(p.topology.name, p.topology.world_size): p for p in problems}

    def load(picks: Mapping[str, Value]) -> PlanningProblem:
        cluster = str(picks[SYSTEM]), picks[GPUS]
        if cluster not in found:
            message = "no such cluster"
            raise InvalidInputError(message)
        problem = found[cluster]  # type: ignore[index]
        own = problem.workload
        pipeline = Pipeline(picks.get(PIPELINE, own.pipeline))
        try:
            own = replace(
                own,
                pipeline=pipeline,
                lookahead_batches=own.lookahead_batches if pipeline is own.pipeline else 0,
                batch_size_per_rank=picks.get(BATCH, own.batch_size_per_rank),
                reserved_bytes=picks.get(RESERVE, own.reserved_bytes),
            )
        except InvalidValueError as error:
            raise InvalidInputError(str(error)) from error
        if picks.get(COMMUNICATION):
            forward, backward = str(picks[COMMUNICATION]).split("/")
            own = own.communicating(Communication.of(Precision(forward), Precision(backward)))
        return replace(problem, workload=own)

    systems = dict.fromkeys(p.topology.name for p in problems)
    sizes = dict.fromkeys(p.topology.world_size for p in problems)
    return Space({SYSTEM: tuple(systems), GPUS: tuple(sizes), **(more or {})}, load)


def problem_on(system: str, gpus: int, workload: str = "small_demo") -> PlanningProblem:
    """A shipped workload on a shipped system, which has a price."""
    topology = load_system(system, gpus=gpus)
    price = PRICES_USD_PER_HOUR.get(system, 3.0)
    topology = replace(topology, price_per_device_usd_per_hour=price)
    return PlanningProblem(workload=load_workload(workload), topology=topology)
