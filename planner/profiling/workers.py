"""Workers of a profile: this process, several processes, or a Dask cluster."""

from __future__ import annotations

import importlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from typing import Any, Final, TypeVar, final

from planner.errors import InvalidInputError, PlannerError
from planner.support.worker_pool import Finished, WorkerPool, interrupts_blocked

Item = TypeVar("Item")
Result = TypeVar("Result")

LOCAL: Final = "local"
_PACKAGE: Final = "shardplan"


class WorkerError(PlannerError):
    """A worker was lost, or the cluster cannot be reached; finished units are kept."""


class AbstractPool(ABC):
    """Runs one function on many items."""

    @abstractmethod
    def run(
        self,
        task: Callable[[Item], Result],
        items: Sequence[Item],
        done: Callable[[int], None],
    ) -> list[Result]:
        """Run a task on each item; returns results in the order of the items.

        Args:
            task: the function to run; it has to be in a module, so that it can be sent.
            items: the arguments, one for each call.
            done: called with the index of every finished item.

        Raises:
            InvalidInputError: the data break a rule; of several errors, that of the first item.
            WorkerError: a worker was lost.
        """


@final
class Serial(AbstractPool):
    """Runs one item after the other in this process."""

    def run(
        self,
        task: Callable[[Item], Result],
        items: Sequence[Item],
        done: Callable[[int], None],
    ) -> list[Result]:
        """See the base."""
        results = []
        for i, item in enumerate(items):
            results.append(task(item))
            done(i)
        return results


@final
class Processes(AbstractPool):
    """Runs items in processes on this machine."""

    def __init__(self, workers: WorkerPool) -> None:
        """Keep the pool; whoever opened it has to end its processes."""
        self._workers = workers

    def run(
        self,
        task: Callable[[Item], Result],
        items: Sequence[Item],
        done: Callable[[int], None],
    ) -> list[Result]:
        """See the base."""
        return _collect(len(items), self._workers.run(task, items), done)


@final
class DaskCluster(AbstractPool):
    """Workers of a Dask cluster, which see the same files under the same paths."""

    def __init__(self, client: Any) -> None:
        """Keep the client; whoever opened it has to close it."""
        self._client = client

    def run(
        self,
        task: Callable[[Item], Result],
        items: Sequence[Item],
        done: Callable[[int], None],
    ) -> list[Result]:
        """See the base."""
        distributed = importlib.import_module("distributed")
        futures = {self._client.submit(task, item, pure=False): i for i, item in enumerate(items)}
        finished = (
            Finished(index=futures[f], error=e)
            if (e := f.exception()) is not None
            else Finished(index=futures[f], result=f.result())
            for f in distributed.as_completed(list(futures))
        )
        return _collect(len(items), finished, done)


@contextmanager
def open_pool(jobs: int, dask: str | None) -> Iterator[AbstractPool]:
    """Open the workers that are asked for.

    Args:
        jobs: number of processes on this machine.
        dask: address of a Dask scheduler, or ``local`` for a cluster of ``jobs`` processes here.

    Raises:
        InvalidInputError: Dask is not installed, or a worker has another version of shardplan.
        WorkerError: no scheduler answers.
    """
    if dask is not None:
        with dask_client(dask, jobs) as client:
            require_same_version(client)
            yield DaskCluster(client)
    elif jobs > 1:
        with WorkerPool(jobs) as workers:
            yield Processes(workers)
    else:
        yield Serial()


@contextmanager
def dask_client(address: str, jobs: int) -> Iterator[Any]:
    """A client of a Dask cluster; arguments and errors are those of :func:`open_pool`."""
    try:
        distributed = importlib.import_module("distributed")
    except ImportError as error:
        message = "--dask needs Dask: pip install 'shardplan[dask]'"
        raise InvalidInputError(message) from error
    if address == LOCAL:
        with interrupts_blocked():  # the threads of the cluster pass this on to their processes
            cluster = distributed.LocalCluster(
                n_workers=jobs,
                threads_per_worker=1,
                processes=True,
                dashboard_address=None,
                silence_logs=logging.CRITICAL,
            )
        with cluster, distributed.Client(cluster) as client:
            yield client
        return
    try:
        client = distributed.Client(address, timeout="10s")
    except (OSError, TimeoutError, ValueError) as error:
        message = f"no Dask scheduler answers at {address!r}: {error}"
        raise WorkerError(message) from error
    with client:
        yield client


def require_same_version(client: Any) -> None:
    """Refuse a cluster whose workers cannot load what they are sent; Dask would wait for ever.

    Raises:
        InvalidInputError: a worker has no shardplan, or another version.
    """
    ours = metadata.version(_PACKAGE)
    try:
        theirs = set(client.run(metadata.version, _PACKAGE).values())
    except metadata.PackageNotFoundError as error:
        message = (
            f"--dask: a worker of the cluster has no {_PACKAGE}; install {ours} on all of them"
        )
        raise InvalidInputError(message) from error
    if theirs - {ours}:
        message = f"--dask: workers have {_PACKAGE} {', '.join(sorted(theirs))}, and this is {ours}"
        raise InvalidInputError(message)


def _collect(
    count: int, finished: Iterable[Finished[Any]], done: Callable[[int], None]
) -> list[Any]:
    """Results in order; all items are finished first, so that the first data error is reported."""
    results: dict[int, Any] = {}
    failed: dict[int, BaseException] = {}
    for one in finished:
        if one.error is None:
            results[one.index] = one.result
            done(one.index)
            continue
        failed[one.index] = one.error
        if not isinstance(one.error, InvalidInputError):
            break
    if failed:
        _raise_first(failed)
    return [results[i] for i in range(count)]


def _raise_first(failed: dict[int, BaseException]) -> None:
    """Raise the first data error as it is, or another error as a lost worker."""
    error = failed[min(failed)]
    if isinstance(error, PlannerError | OSError):
        raise error
    message = (
        f"a worker failed ({type(error).__name__}: {error}); finished units are kept: run the same "
        "command again to continue, with fewer --jobs if memory was short"
    )
    raise WorkerError(message) from error
