"""From the samples of a step over all ranks to those of one micro-batch of one rank."""

from __future__ import annotations

from costmodels.workload import Workload
from planner.errors import InvalidInputError


def rank_batch(samples: int, workload: Workload, num_ranks: int) -> float:
    """Samples of one micro-batch of one rank, if a step has ``samples`` over all ranks.

    Raises:
        InvalidInputError: ranks and micro-batches cannot share the samples evenly.
    """
    if not is_shared_evenly(samples, workload, num_ranks):
        count = workload.gradient_accumulation
        micro = f" times {count} micro-batches (gradient_accumulation)" if count > 1 else ""
        ranks = f"{num_ranks} ranks"
        if workload.tensor_parallel > 1:
            ranks += f" over {workload.tensor_parallel} (tensor_parallel)"
        message = f"--global-batch-size {samples} is not a multiple of {ranks}{micro}"
        raise InvalidInputError(message)
    return samples / (num_ranks * workload.gradient_accumulation)


def is_shared_evenly(samples: int, workload: Workload, num_ranks: int) -> bool:
    """Whether ranks and micro-batches can share the samples of a step evenly."""
    parts = num_ranks * workload.gradient_accumulation
    shared = samples * workload.tensor_parallel
    return shared >= parts and shared % parts == 0
