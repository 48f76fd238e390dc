"""Processor seconds that an iteration spends inside TorchRec's lookups."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from torchrec.distributed import batched_embedding_kernel as kernels


class LookupClock:
    """Counts the time of table-batched lookups in this process, forward and backward."""

    def __init__(self) -> None:
        """Install at once; a process has one."""
        self.forward_s = 0.0
        self.backward_s = 0.0
        self._began_s = 0.0
        for kind in (kernels.BatchedFusedEmbeddingBag, kernels.BatchedDenseEmbeddingBag):
            kind.forward = self._timed(kind.forward)

    def reset(self) -> None:
        """Start again from zero."""
        self.forward_s = self.backward_s = 0.0

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*arguments: Any, **options: Any) -> Any:
            start = time.thread_time()
            output = function(*arguments, **options)
            self.forward_s += time.thread_time() - start
            node = _lookup_node(output.grad_fn)
            if node is not None:
                node.register_prehook(self._begin)
                node.register_hook(self._end)
            return output

        return forward

    def _begin(self, *_: Any) -> None:
        self._began_s = time.thread_time()

    def _end(self, *_: Any) -> None:
        self.backward_s += time.thread_time() - self._began_s


def _lookup_node(node: Any) -> Any:
    """The backward node of the lookup below casts and views."""
    for _ in range(8):
        if node is None or "embedding" in node.name().lower() or "lookup" in node.name().lower():
            return node
        following = node.next_functions
        node = following[0][0] if following else None
    return None
