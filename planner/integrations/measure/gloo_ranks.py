"""Runs a function on several gloo ranks of this machine, one pinned core and one thread each."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import socket
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from planner.errors import PlannerError
from planner.support.lifeline import call_as_child

Result = TypeVar("Result")

_KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 * 1024**2), "MALLOC_TRIM_THRESHOLD_": str(2**34)}
"""The C library keeps freed buffers up to 32 MiB: no page faults in every iteration."""
_PATIENCE_S = 120.0
_NETWORK_THREADS = "gloo_tcp"
_LOWEST_PRIORITY = 19


NETWORK_QUANTILE = 0.1
"""Network threads do the same work every time; what exceeds their quiet moments is spinning."""
_THREAD_CLOCK = 6
"""Linux: the processor clock of one thread, with the thread's number above these bits."""
_NETWORK_CLOCKS: list[int] = []
_RENDEZVOUS: list[Any] = []


def rendezvous() -> None:
    """Wait for all ranks without gloo.

    A gloo message that arrives before its receiver has asked for it keeps the receiver's network
    thread spinning, which costs the processor time that is to be measured.
    """
    for barrier in _RENDEZVOUS:
        barrier.wait(timeout=_PATIENCE_S)


def calm_network_threads() -> None:
    """Let gloo's network threads run only when nothing else wants the core.

    Such a thread spins while a message waits for its receiver. On a core of its own that harms
    nobody; on the rank's core it would keep the receiver from asking for the message.
    """
    _NETWORK_CLOCKS.clear()
    for task in Path("/proc/self/task").glob("*"):
        with suppress(OSError):
            if (task / "comm").read_text().startswith(_NETWORK_THREADS):
                os.setpriority(os.PRIO_PROCESS, int(task.name), _LOWEST_PRIORITY)
                _NETWORK_CLOCKS.append(~int(task.name) << 3 | _THREAD_CLOCK)


def network_seconds() -> float:
    """Processor seconds of gloo's network threads so far, spinning included."""
    return sum(time.clock_gettime(clock) for clock in _NETWORK_CLOCKS)


def own_seconds() -> float:
    """Processor seconds of everything else in this process."""
    return time.process_time() - network_seconds()


class RankError(PlannerError):
    """A rank failed; the message is that of the first to fail."""


def run_on_ranks(function: Callable[..., Result], world_size: int, *arguments: Any) -> list[Result]:
    """Call ``function(rank, world_size, *arguments)`` on every rank; results in rank order.

    Ranks are fresh processes with a gloo process group over the loopback device. Rank r runs on
    core r modulo the number of cores, with one thread.

    Args:
        function: a module-level function; its result must survive pickling.
        world_size: number of ranks.
        arguments: passed on; they must survive pickling.

    Raises:
        RankError: a rank failed; the others are stopped.
    """
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="shardplan-") as folder:
        port, together = _free_port(), context.Barrier(world_size)
        processes = [
            context.Process(
                target=call_as_child,
                args=(
                    os.getpid(),
                    pickle.dumps(
                        (_rank_main, (rank, world_size, port, folder, function, arguments))
                    ),
                    together,
                ),
            )
            for rank in range(world_size)
        ]
        with _environment(_KEEP_MEMORY):
            for process in processes:
                process.start()
        try:
            _join_all(processes, Path(folder))
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
                process.join()
        return [
            pickle.loads((Path(folder) / f"{rank}.result").read_bytes())
            for rank in range(world_size)
        ]


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Variables that processes started inside inherit; the user's own win."""
    added = {k: v for k, v in values.items() if k not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _join_all(processes: list[Any], folder: Path) -> None:
    waiting = list(processes)
    while waiting:
        waiting[0].join(timeout=0.2)
        waiting = [p for p in waiting if p.is_alive()]
        failed = [p for p in processes if not p.is_alive() and p.exitcode != 0]
        if not failed:
            continue
        errors = sorted(folder.glob("*.error"), key=lambda p: p.stat().st_mtime_ns)
        reason = errors[0].read_text() if errors else f"exit code {failed[0].exitcode}"
        message = f"a rank failed: {reason}"
        raise RankError(message)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _rank_main(
    together: Any,
    rank: int,
    world_size: int,
    port: int,
    folder: str,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    _RENDEZVOUS.append(together)
    try:
        _join_group(rank, world_size, port)
        result = function(rank, world_size, *arguments)
        (Path(folder) / f"{rank}.result").write_bytes(pickle.dumps(result))
    except BaseException:
        (Path(folder) / f"{rank}.error").write_text(f"rank {rank}: {traceback.format_exc()}")
        os._exit(1)
    import torch.distributed as dist

    dist.barrier()
    os._exit(0)


def _join_group(rank: int, world_size: int, port: int) -> None:
    """Pin, then import torch, so that its threads inherit the core."""
    os.environ.update(
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=str(world_size),
        GLOO_SOCKET_IFNAME="lo",
        OMP_NUM_THREADS="1",
    )
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    import logging
    import warnings

    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    dist.barrier()
    calm_network_threads()
