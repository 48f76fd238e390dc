"""Small problems are searched without processes beside the search, but for the slow tests."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _alone(request: pytest.FixtureRequest) -> None:
    """Named cases alone would start a hundred of them."""
    if request.node.get_closest_marker("slow") is None:
        request.getfixturevalue("no_process_beside")
