"""A Dask cluster, whose workers see the same files under the same paths."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from typing import Any, Final

from planner.errors import PlannerError, refuse

_PACKAGE: Final = "shardplan"


class WorkerError(PlannerError):
    """A worker was lost, or the cluster cannot be reached."""


@contextmanager
def dask_client(address: str) -> Iterator[Any]:
    """A client of a Dask cluster.

    Args:
        address: of its scheduler.

    Raises:
        InvalidInputError: Dask is not installed, or workers have another version of shardplan.
        WorkerError: no scheduler answers.
    """
    try:
        distributed = importlib.import_module("distributed")
    except ImportError:
        refuse("--dask needs Dask: pip install 'shardplan[dask]'")
    try:
        client = distributed.Client(address, timeout="10s")
    except (OSError, TimeoutError, ValueError) as error:
        message = f"no Dask scheduler answers at {address!r}: {error}"
        raise WorkerError(message) from error
    with client:
        _require_same_version(client)
        yield client


def _require_same_version(client: Any) -> None:
    """Refuse a cluster whose workers cannot load what they are sent; Dask would wait for ever.

    Raises:
        InvalidInputError: a worker has no shardplan, or another version.
    """
    ours = metadata.version(_PACKAGE)
    try:
        theirs = set(client.run(metadata.version, _PACKAGE).values())
    except metadata.PackageNotFoundError:
        refuse(f"--dask: a worker of the cluster has no {_PACKAGE}; install {ours} on all of them")
    if theirs - {ours}:
        refuse(f"--dask: workers have {_PACKAGE} {', '.join(sorted(theirs))}, and this is {ours}")
