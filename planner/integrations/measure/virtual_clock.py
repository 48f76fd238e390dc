"""Logs collectives with processor time, for :mod:`costmodels.validation.virtual_clock`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from costmodels.validation.virtual_clock import ISSUE, WAIT, Event, Trace
from planner.integrations.measure.gloo_ranks import network_seconds, own_seconds, rendezvous

_LOGGED: Final = (
    "all_to_all_single",
    "reduce_scatter_tensor",
    "all_gather_into_tensor",
    "_reduce_scatter_base",
    "_all_gather_base",
    "reduce_scatter",
    "all_gather",
    "all_to_all",
)


class CollectiveLog:
    """Replaces the collectives of ``torch.distributed`` by ones that note when they are called.

    Ranks wait for each other before each collective, which does not count
    (:func:`planner.integrations.measure.gloo_ranks.rendezvous`).
    """

    def __init__(self) -> None:
        """Install the log; use :func:`collective_log` instead, because a process has one log."""
        self._events: list[Event] = []
        self._count = 0
        self._depth = 0
        self._start_s = own_seconds()
        self._network_s = network_seconds()
        for name in _LOGGED:
            if hasattr(dist, name):
                setattr(dist, name, self._logged(getattr(dist, name)))

    def now(self) -> float:
        """Processor seconds since the start, without waits for other ranks and network threads."""
        return own_seconds() - self._start_s

    def network(self) -> float:
        """Processor seconds of gloo's network threads since the start."""
        return network_seconds() - self._network_s

    def follow_gradients(self, model: nn.Module) -> None:
        """Log the all-reduces of a model's gradients too."""
        for module in model.modules():
            if isinstance(module, DistributedDataParallel):
                module.register_comm_hook(self, _mean_over_ranks)

    def begin(self) -> None:
        """Forget everything; the iteration starts now."""
        self._events.clear()
        self._count = 0
        rendezvous()
        self._network_s = network_seconds()
        self._start_s = own_seconds()

    def end(self) -> Trace:
        """The iteration ends now."""
        return Trace(events=tuple(self._events), end_s=self.now(), network_s=self.network())

    def note(self, kind: str, number: int) -> None:
        """An event at the present time."""
        self._events.append(Event(kind=kind, number=number, time_s=self.now()))

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
            if self._depth:
                return function(*arguments, **options)
            self._depth += 1
            number = self.issue()
            waits = not options.get("async_op")
            if waits:
                self.note(WAIT, number)
            try:
                work = function(*arguments, **options)
            finally:
                self._depth -= 1
            return work if waits else _LoggedWork(work, number, self)

        return called


def _mean_over_ranks(log: CollectiveLog, bucket: Any) -> Any:
    """The averaging of gradients that DistributedDataParallel does by default."""
    gradient = bucket.buffer()
    gradient.div_(dist.get_world_size())
    log.note(WAIT, log.issue())
    future = dist.all_reduce(gradient, async_op=True).get_future()
    return future.then(lambda done: done.value()[0])


# DistributedDataParallel reads these as types, not as text, when the hook is registered.
_mean_over_ranks.__annotations__ = {
    "bucket": dist.GradBucket,
    "return": torch.futures.Future[torch.Tensor],
}


@cache
def collective_log() -> CollectiveLog:
    """The one log of this process."""
    return CollectiveLog()


class _LoggedWork(dist.Work):
    """A logged collective; TorchRec checks for its base class before it waits."""

    def __init__(self, work: Any, number: int, log: CollectiveLog) -> None:
        super().__init__()
        self._work = work
        self._number = number
        self._log = log

    def wait(self, *arguments: Any, **options: Any) -> Any:
        """Wait; clocks are joined at the start of the wait, and work after it counts again."""
        self._log.note(WAIT, self._number)
        return self._work.wait(*arguments, **options) if self._work is not None else None

    def is_completed(self) -> bool:
        """Whether the collective is completed."""
        return bool(self._work.is_completed())
