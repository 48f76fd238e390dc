"""The points of a sweep."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from costmodels.topology import Topology
from costmodels.workload import Pipeline, Workload
from planner.options.global_batch import rank_batch
from planner.problem import Constraints, PlanningProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One point of a sweep.

    One of the two batch sizes is given at most; without any, and without a pipeline, the workload's
    own are kept.
    """

    system: str
    gpus: int
    batch_size: int | None = None
    global_batch_size: int | None = None
    pipeline: Pipeline | None = None

    @property
    def name(self) -> str:
        """The point in words, such as ``h100_sxm x 16, 8,192 per rank``."""
        parts = [f"{self.system} x {self.gpus}"]
        if self.batch_size is not None:
            parts.append(f"{self.batch_size:,} per rank")
        if self.global_batch_size is not None:
            parts.append(f"{self.global_batch_size:,} per step")
        if self.pipeline is not None:
            parts.append(self.pipeline.value)
        return ", ".join(parts)

    def problem(
        self, workload: Workload, constraints: Constraints, topology: Topology
    ) -> PlanningProblem:
        """The problem at this point.

        Raises:
            InvalidInputError: the ranks cannot share the global batch evenly.
        """
        batch = self.batch_size or workload.local_batch_size
        if self.global_batch_size is not None:
            batch = rank_batch(self.global_batch_size, workload, topology.world_size)
        changed = replace(
            workload, local_batch_size=batch, pipeline=self.pipeline or workload.pipeline
        )
        return PlanningProblem(workload=changed, topology=topology, constraints=constraints)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The values of each axis; an empty axis keeps what the workload says."""

    systems: tuple[str, ...]
    gpus: tuple[int, ...]
    batch_sizes: tuple[int, ...] = ()
    global_batch_sizes: tuple[int, ...] = ()
    pipelines: tuple[Pipeline, ...] = ()

    def points(self) -> tuple[Point, ...]:
        """Every combination of values; all points of one system follow each other."""
        batches: list[tuple[int | None, int | None]] = [(b, None) for b in self.batch_sizes]
        batches += [(None, b) for b in self.global_batch_sizes]
        return tuple(
            Point(
                system=system, gpus=gpus, batch_size=own, global_batch_size=whole, pipeline=pipeline
            )
            for system, gpus, (own, whole), pipeline in itertools.product(
                self.systems, self.gpus, batches or [(None, None)], self.pipelines or (None,)
            )
        )
