"""Processor seconds of the stages of one training step."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import torch
from torchrec.distributed import batched_embedding_kernel as kernels
from torchrec.distributed.embedding import ShardedEmbeddingCollection
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection

from costmodels.cpu.run_stages import STAGES
from planner.integrations.measure.virtual_clock import CollectiveLog, collective_log

_LOOKUPS: Final[tuple[Any, ...]] = (
    kernels.BatchedFusedEmbeddingBag,
    kernels.BatchedDenseEmbeddingBag,
    kernels.BatchedFusedEmbedding,
    kernels.BatchedDenseEmbedding,
)


class StageClock:
    """Divides an iteration into stages, at marks in the model and around table-batched lookups.

    The time between two marks belongs to the stage that the later mark names.
    """

    def __init__(self, log: CollectiveLog) -> None:
        """Install the clock around TorchRec's kernels; a process has only one."""
        self.log = log
        self._spent_s = dict.fromkeys(STAGES, 0.0)
        self._moved_s = dict.fromkeys(STAGES, 0.0)
        self._last_s = self._last_moved_s = 0.0
        self.forward_s = 0.0
        self.backward_s = 0.0
        for kind in _LOOKUPS:
            kind.forward = self._timed(kind.forward)
        for sharded in (ShardedEmbeddingBagCollection, ShardedEmbeddingCollection):
            sharded.compute_and_output_dist = self._after_indices(sharded.compute_and_output_dist)

    def reset(self) -> None:
        """Start again from zero, after the log was started again."""
        self._spent_s = dict.fromkeys(STAGES, 0.0)
        self._moved_s = dict.fromkeys(STAGES, 0.0)
        self._last_s = self._last_moved_s = 0.0
        self.forward_s = self.backward_s = 0.0

    def mark(self, stage: str) -> None:
        """The stage ends now."""
        now, moved = self.log.now(), self.log.network()
        self._spent_s[stage] += now - self._last_s
        self._moved_s[stage] += moved - self._last_moved_s
        self._last_s, self._last_moved_s = now, moved

    def seconds(self) -> tuple[float, ...]:
        """Seconds of each stage, in the order of ``STAGES``, without network threads."""
        return tuple(self._spent_s[stage] for stage in STAGES)

    def network_seconds(self) -> tuple[float, ...]:
        """Seconds of network threads in each stage."""
        return tuple(self._moved_s[stage] for stage in STAGES)

    def follow(self, tensor: torch.Tensor, stage: str) -> None:
        """The stage ends when the gradient of ``tensor`` has been computed."""

        def done(_: torch.Tensor) -> None:
            self.mark(stage)

        tensor.register_hook(done)

    def _after_indices(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def compute_and_output_dist(*arguments: Any, **options: Any) -> Any:
            self.mark("indices")
            return function(*arguments, **options)

        return compute_and_output_dist

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*arguments: Any, **options: Any) -> Any:
            self.mark("vectors")
            start = time.thread_time()
            output = function(*arguments, **options)
            self.forward_s += time.thread_time() - start
            self.mark("lookup_forward")
            node = _lookup_node(output.grad_fn)
            if node is not None:
                began = [0.0]

                def begin(_: Any) -> None:
                    self.mark("gradients")
                    began[0] = time.thread_time()

                def end(_: Any, __: Any) -> None:
                    self.backward_s += time.thread_time() - began[0]
                    self.mark("lookup_backward")

                node.register_prehook(begin)
                node.register_hook(end)
            return output

        return forward


@cache
def stage_clock() -> StageClock:
    """The one clock of this process."""
    return StageClock(collective_log())


def _lookup_node(node: Any) -> Any:
    """The backward node of the lookup below casts and views."""
    for _ in range(8):
        if node is None or "embedding" in node.name().lower() or "lookup" in node.name().lower():
            return node
        following = node.next_functions
        node = following[0][0] if following else None
    return None
