"""Device memory of measured steps beside the ledger's.

What was measured is the most that PyTorch's allocator had given out, and the most that it had
reserved. Weights of tables and their optimizer states are known exactly; the errors are those of
the rest: the dense part, activations, indices, and what lookups need for a moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costmodels.pipeline import CostPipeline
from planner.io.system.system_file import load_system
from planner.validation.measured_steps import load_rows, step_of, whole_tables

STEPS = ("gpu_h200.jsonl", "h200_sxm")
"""The measured steps, and their system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredMemory:
    """One step.

    Attributes:
        name: of the point.
        group: the steps that it is counted among.
        tables_bytes: weights and optimizer states of tables.
        measured_bytes: the most that was allocated.
        reserved_bytes: the most that the allocator reserved; 0 if that was not recorded.
        predicted_bytes: the ledger, without the memory reserve.
    """

    name: str
    group: str
    tables_bytes: float
    measured_bytes: float
    reserved_bytes: float
    predicted_bytes: float

    @property
    def rest_error_ratio(self) -> float:
        """Relative error of everything beside weights and optimizer states of tables."""
        rest_bytes = self.measured_bytes - self.tables_bytes
        return (self.predicted_bytes - self.tables_bytes) / rest_bytes - 1.0

    @property
    def error_ratio(self) -> float:
        """Relative error of the sum."""
        return self.predicted_bytes / self.measured_bytes - 1.0

    @property
    def reserved_ratio(self) -> float:
        """What the allocator reserved, over what was allocated."""
        return self.reserved_bytes / self.measured_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryErrors:
    """Errors of a group of steps, as ratios.

    Attributes:
        num_steps: steps.
        rest_median_ratio: median error of what is beside the tables, without its sign.
        rest_worst_ratio: the largest of these, with its sign.
        most_short_ratio: how much the ledger is short of the whole sum at most; 0 if never.
        reserved_median_ratio: median of reserved over allocated bytes; 0 if not recorded.
    """

    num_steps: int
    rest_median_ratio: float
    rest_worst_ratio: float
    most_short_ratio: float
    reserved_median_ratio: float


def load_steps(name: str = STEPS[0], system: str = STEPS[1]) -> tuple[MeasuredMemory, ...]:
    """The steps of a file, each with its ledger on one device of a system."""
    topology = load_system(system, gpus=1, gpus_per_host=1)
    found = []
    for row in load_rows(name, "dlrm", "pipe", "dense"):
        workload = step_of(row)
        pipeline = CostPipeline(workload, topology)
        (rank,) = pipeline.memory(whole_tables(workload)).ranks
        kind = row["kind"] if row["block"] == "dense" else row["backend"].split()[0]
        found.append(
            MeasuredMemory(
                name=row["id"],
                group=f"{row['block']} {kind}",
                tables_bytes=rank.weights_bytes + rank.optimizer_bytes,
                measured_bytes=1e9 * row["mem_gb"],
                reserved_bytes=1e9 * row.get("reserved_gb", 0.0),
                predicted_bytes=rank.used_bytes - rank.reserved_bytes,
            )
        )
    return tuple(found)


def summarize(steps: Sequence[MeasuredMemory]) -> dict[str, MemoryErrors]:
    """The errors of each group of steps, and of all steps of the block ``dense``."""
    groups = {s.group: [t for t in steps if t.group == s.group] for s in steps}
    groups["dense all"] = [s for s in steps if s.group.startswith("dense ")]
    return {name: _errors(group) for name, group in groups.items() if group}


def _errors(steps: Sequence[MeasuredMemory]) -> MemoryErrors:
    rest = np.array([s.rest_error_ratio for s in steps])
    return MemoryErrors(
        num_steps=len(steps),
        rest_median_ratio=float(np.median(np.abs(rest))),
        rest_worst_ratio=float(rest[np.argmax(np.abs(rest))]),
        most_short_ratio=max(0.0, -min(s.error_ratio for s in steps)),
        reserved_median_ratio=float(np.median([s.reserved_ratio for s in steps])),
    )
