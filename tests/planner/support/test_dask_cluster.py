"""Clusters that cannot be used are refused before they are sent anything."""

from __future__ import annotations

import sys

import pytest

from planner.errors import InvalidInputError
from planner.support.processes import WorkerError, dask_client


@pytest.mark.filterwarnings("ignore::Warning")
def test_workers_of_another_version_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any of them is sent what it may not know."""
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr(distributed.Client, "run", lambda *_: {"tcp://worker": "0.0.1"})
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
        ) as cluster,
        pytest.raises(InvalidInputError, match=r"workers have shardplan 0\.0\.1"),
        dask_client(cluster.scheduler_address),
    ):
        pass


@pytest.mark.filterwarnings("ignore::Warning")
def test_dask_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    with (
        pytest.raises(WorkerError, match="no Dask scheduler answers"),
        dask_client("nonsense://x"),
    ):
        pass
    monkeypatch.setitem(sys.modules, "distributed", None)
    with (
        pytest.raises(InvalidInputError, match=r"shardplan\[dask\]"),
        dask_client("tcp://x"),
    ):
        pass
