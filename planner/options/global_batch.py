"""Samples of a step over all ranks, and what is left of them for a micro-batch of one rank."""

from __future__ import annotations

from costmodels.workload import Workload
from planner.errors import InvalidInputError


def rank_batch(samples: int, workload: Workload, num_ranks: int) -> int:
    """Samples of a rank at a time where a step has so many over all ranks and micro-batches.

    Raises:
        InvalidInputError: they cannot be shared evenly.
    """
    if not is_shared_evenly(samples, workload, num_ranks):
        count = workload.gradient_accumulation
        micro = f" times {count} micro-batches (gradient_accumulation)" if count > 1 else ""
        message = f"--global-batch-size {samples} is not a multiple of {num_ranks} ranks{micro}"
        raise InvalidInputError(message)
    return samples // (num_ranks * workload.gradient_accumulation)


def is_shared_evenly(samples: int, workload: Workload, num_ranks: int) -> bool:
    """Whether every rank has as many of the samples of a step in each of its micro-batches."""
    parts = num_ranks * workload.gradient_accumulation
    return samples >= parts and samples % parts == 0
