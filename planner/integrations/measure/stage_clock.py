"""Processor seconds of the stages of one training step, and when its collectives are called."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchrec.distributed import batched_embedding_kernel as kernels
from torchrec.distributed.embedding import ShardedEmbeddingCollection
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection

from costmodels.cpu.exchange import STAGES
from costmodels.validation import ISSUE, WAIT, Event, Trace
from planner.integrations.measure.gloo_ranks import network_seconds, own_seconds, rendezvous

_LOGGED: Final = (
    *("all_to_all_single", "reduce_scatter_tensor", "all_gather_into_tensor", "all_to_all"),
    *("_reduce_scatter_base", "_all_gather_base", "reduce_scatter", "all_gather"),
)


_LOOKUPS: Final[tuple[Any, ...]] = (
    *(kernels.BatchedFusedEmbeddingBag, kernels.BatchedDenseEmbeddingBag),
    *(kernels.BatchedFusedEmbedding, kernels.BatchedDenseEmbedding),
)


class StageClock:
    """Divides an iteration into stages, and notes when collectives are called.

    Stages end at marks in the model and around table-batched lookups: the time between two marks
    belongs to the stage that the later mark names. The collectives of ``torch.distributed`` are
    replaced by ones that note when they are called. Ranks wait for each other before each
    collective, which does not count (:func:`planner.integrations.measure.gloo_ranks.rendezvous`).
    """

    def __init__(self) -> None:
        """Install the clock; use :func:`stage_clock` instead, because a process has one clock."""
        self._events: list[Event] = []
        self._is_inside = False
        self.begin()
        for name in _LOGGED:
            setattr(dist, name, self._logged(getattr(dist, name)))
        for kind in _LOOKUPS:
            kind.forward = self._timed(kind.forward)
        for sharded in (ShardedEmbeddingBagCollection, ShardedEmbeddingCollection):
            sharded.compute_and_output_dist = self._after_indices(sharded.compute_and_output_dist)

    def begin(self) -> None:
        """Forget everything; the iteration starts now."""
        self._events.clear()
        self._count = 0
        self._spent_s, self._moved_s = (dict.fromkeys(STAGES, 0.0) for _ in range(2))
        self._last_s = self._last_moved_s = 0.0
        rendezvous()
        self._network_s, self._start_s = network_seconds(), own_seconds()

    def end(self) -> tuple[Trace, tuple[float, ...], tuple[float, ...]]:
        """The iteration ends now.

        Returns:
            Its collectives; the seconds of each stage, in the order of ``STAGES``, without network
            threads; and the seconds of network threads in each stage.
        """
        network_s = network_seconds() - self._network_s
        trace = Trace(events=tuple(self._events), end_s=self._now(), network_s=network_s)
        return trace, tuple(self._spent_s.values()), tuple(self._moved_s.values())

    def _now(self) -> float:
        """Processor seconds since the start, without waits for other ranks and network threads."""
        return own_seconds() - self._start_s

    def mark(self, stage: str) -> None:
        """The stage ends now."""
        now, moved = self._now(), network_seconds() - self._network_s
        self._spent_s[stage] += now - self._last_s
        self._moved_s[stage] += moved - self._last_moved_s
        self._last_s, self._last_moved_s = now, moved

    def follow(self, tensor: torch.Tensor, stage: str) -> None:
        """The stage ends when the gradient of ``tensor`` has been computed."""
        tensor.register_hook(lambda _: self.mark(stage))

    def follow_gradients(self, model: nn.Module) -> None:
        """Note the all-reduces of a model's gradients too."""
        for module in model.modules():
            if isinstance(module, DistributedDataParallel):
                module.register_comm_hook(self, _mean_over_ranks)

    def note(self, kind: str, number: int) -> None:
        """An event at the present time."""
        self._events.append(Event(kind=kind, number=number, time_s=self._now()))

    def issue(self) -> int:
        """Note the next collective, and wait for the other ranks; returns its number."""
        number = self._count
        self._count += 1
        self.note(ISSUE, number)
        before = own_seconds()
        rendezvous()
        self._start_s += own_seconds() - before
        return number

    def _logged(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **options: Any) -> Any:
            if self._is_inside:
                return function(*arguments, **options)
            number, waits = self.issue(), not options.get("async_op")
            if waits:
                self.note(WAIT, number)
            self._is_inside = True
            try:
                work = function(*arguments, **options)
            finally:
                self._is_inside = False
            return work if waits else _LoggedWork(work, number, self)

        return called

    def _after_indices(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def compute_and_output_dist(*arguments: Any, **options: Any) -> Any:
            self.mark("indices")
            return function(*arguments, **options)

        return compute_and_output_dist

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*arguments: Any, **options: Any) -> Any:
            self.mark("vectors")
            output = function(*arguments, **options)
            self.mark("lookup_forward")
            node = _lookup_node(output.grad_fn)
            if node is not None:
                node.register_prehook(lambda _: self.mark("gradients"))
                node.register_hook(lambda _, __: self.mark("lookup_backward"))
            return output

        return forward


def _mean_over_ranks(clock: StageClock, bucket: Any) -> Any:
    """The averaging of gradients that DistributedDataParallel does by default."""
    gradient = bucket.buffer()
    gradient.div_(dist.get_world_size())
    clock.note(WAIT, clock.issue())
    future = dist.all_reduce(gradient, async_op=True).get_future()
    return future.then(lambda done: done.value()[0])


# DistributedDataParallel reads these as types, not as text, when the hook is registered.
_mean_over_ranks.__annotations__ = {
    "bucket": dist.GradBucket,
    "return": torch.futures.Future[torch.Tensor],
}


class _LoggedWork(dist.Work):
    """A logged collective; TorchRec checks for its base class before it waits."""

    def __init__(self, work: Any, number: int, clock: StageClock) -> None:
        super().__init__()
        self._work = work
        self._number = number
        self._clock = clock

    def wait(self, *arguments: Any, **options: Any) -> Any:
        """Wait; clocks are joined at the start of the wait, and work after it counts again."""
        self._clock.note(WAIT, self._number)
        return self._work.wait(*arguments, **options) if self._work is not None else None

    def is_completed(self) -> bool:
        """Whether the collective is completed."""
        return bool(self._work.is_completed())


@cache
def stage_clock() -> StageClock:
    """The one clock of this process."""
    return StageClock()


def _lookup_node(node: Any) -> Any:
    """The backward node of the lookup below casts and views."""
    for _ in range(8):
        if node is None or "embedding" in node.name().lower() or "lookup" in node.name().lower():
            return node
        following = node.next_functions
        node = following[0][0] if following else None
    return None
