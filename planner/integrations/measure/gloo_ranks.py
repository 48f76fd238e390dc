"""Runs a function on ranks of this machine: one pinned core and thread each, or one GPU each."""

import os
import pickle
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeVar

from planner.errors import PlannerError
from planner.support.processes import WorkerPool

Result = TypeVar("Result")

_KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 * 1024**2), "MALLOC_TRIM_THRESHOLD_": str(2**34)}
"""Lets the C library keep freed buffers up to 32 MiB, so that iterations have no page faults."""
_PATIENCE: Final = timedelta(minutes=2)
_LOOPBACK: Final = "127.0.0.1"


NETWORK_QUANTILE = 0.1
"""This quantile counts as the time of network threads: they do the same work every time, and more
time than in quiet moments is spinning."""
_THREAD_CLOCK = 6
"""The number of Linux's processor clock of one thread; the thread's number is in higher bits."""
_NETWORK_CLOCKS: list[int] = []
_MEETINGS: list[tuple[Any, int, Iterator[int]]] = []
"""A store that another process keeps, the number of ranks, and the numbers of their meetings."""


def rendezvous() -> None:
    """Wait for all ranks without gloo.

    A gloo message that arrives before its receiver has asked for it keeps the receiver's network
    thread spinning, which costs the processor time that is to be measured.
    """
    for store, world_size, turns in _MEETINGS:
        key = f"met/{next(turns)}"
        if store.add(key, 1) == world_size:
            store.set(f"{key}/all", "")
        store.wait([f"{key}/all"], _PATIENCE)


def calm_network_threads() -> None:
    """Let gloo's network threads run only when nothing else needs the core.

    Such a thread spins while a message waits for its receiver. On the rank's own core, this would
    keep the receiver from asking for the message.
    """
    _NETWORK_CLOCKS.clear()
    for task in Path("/proc/self/task").glob("*"):
        with suppress(OSError):
            if (task / "comm").read_text().startswith("gloo_tcp"):
                os.setpriority(os.PRIO_PROCESS, int(task.name), 19)  # the lowest priority
                _NETWORK_CLOCKS.append(~int(task.name) << 3 | _THREAD_CLOCK)


def network_seconds() -> float:
    """Processor seconds of gloo's network threads so far, spinning included."""
    return sum(time.clock_gettime(clock) for clock in _NETWORK_CLOCKS)


def own_seconds() -> float:
    """Processor seconds of everything else in this process."""
    return time.process_time() - network_seconds()


class RankError(PlannerError):
    """A rank failed; the message is that of the first one to fail."""


def run_on_ranks(
    function: Callable[..., Result],
    world_size: int,
    *arguments: Any,
    on_gpus: bool = False,
    while_waiting: Callable[[], object] = lambda: None,
) -> list[Result]:
    """Call ``function(rank, world_size, *arguments)`` on every rank; results in rank order.

    Ranks are fresh processes with a gloo process group over the loopback device. Rank r runs on
    core r modulo the number of cores, with one thread.

    Args:
        function: a module-level function; its result must survive pickling.
        world_size: number of ranks.
        arguments: passed on; they must survive pickling.
        on_gpus: rank r has GPU r and all cores, and its group has NCCL for tensors on GPUs.
        while_waiting: called again and again until the ranks are done.

    Raises:
        RankError: a rank failed; the others are stopped.
    """
    from torch.distributed import TCPStore

    for name, value in _KEEP_MEMORY.items():
        os.environ.setdefault(name, value)  # new processes get it; that of the user is kept
    # No rank keeps the store, because answering other ranks would count as its processor time.
    store = TCPStore(_LOOPBACK, 0, is_master=True, wait_for_workers=False)
    own, job = (world_size, store.port, on_gpus), pickle.dumps((function, arguments))
    calls = [pickle.dumps((rank, *own, job)) for rank in range(world_size)]
    found: list[Any] = [None] * world_size
    with WorkerPool(world_size) as processes:
        runs = processes.run(_as_rank, calls, should_stop=lambda: bool(while_waiting()))
        for rank, done in runs:
            if (error := done.exception()) is not None:
                told = "".join(traceback.format_exception_only(error))
                message = f"a rank failed: rank {rank}: {told}"
                raise RankError(message) from error
            found[rank] = done.result()
    return found


def _as_rank(call: bytes) -> Any:
    """Take a core or a GPU, join the group, call a function, and wait for the others.

    A process on a core is pinned before it imports torch, so that torch's threads inherit the core.
    """
    rank, world_size, port, on_gpus, job = pickle.loads(call)
    for prefix in ("", "LOCAL_"):  # all ranks are on this machine
        os.environ |= {f"{prefix}RANK": str(rank), f"{prefix}WORLD_SIZE": str(world_size)}
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    if not on_gpus:
        os.environ["OMP_NUM_THREADS"] = "1"
        if hasattr(os, "sched_setaffinity"):
            cores = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, {cores[rank % len(cores)]})
    import logging
    import warnings

    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    import torch
    import torch.distributed as dist

    if on_gpus:
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(1)
    stores = [dist.TCPStore(_LOOPBACK, port, is_master=False, timeout=_PATIENCE) for _ in range(2)]
    group = dist.PrefixStore("gloo", stores[0])
    backend = "cpu:gloo,cuda:nccl" if on_gpus else "gloo"
    dist.init_process_group(backend, store=group, rank=rank, world_size=world_size)
    _MEETINGS.append((stores[1], world_size, count()))
    dist.all_reduce(torch.zeros(1))  # by gloo, also where the group has NCCL
    calm_network_threads()
    # Only now: the function's module may import torch.
    function, arguments = pickle.loads(job)
    result = function(rank, world_size, *arguments)
    dist.all_reduce(torch.zeros(1))
    return result
