"""What every test runs under: examples of hypothesis are the same at every run, without a clock."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "shardplan",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("shardplan")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that start ranks run one after the other in one process.

    Ranks wait for one another in busy loops: two sets of them on two cores take minutes.
    """
    starts_ranks = {
        path: "gloo" in path.read_text(encoding="utf-8") for path in {item.path for item in items}
    }
    for item in items:
        if starts_ranks[item.path]:
            item.add_marker(pytest.mark.xdist_group("ranks"))
