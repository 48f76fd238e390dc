"""Shared by commands that train on this machine: what they need, and what they refuse."""

from __future__ import annotations

from importlib.util import find_spec

from planner.errors import InvalidInputError
from planner.integrations.measure.gloo_ranks import launch_of


def require_torchrec(
    command: str, names: tuple[str, ...] = ("torch", "torchrec", "fbgemm_gpu")
) -> None:
    """Refuse to go on without torch and torchrec, or those of them in ``names``.

    Raises:
        InvalidInputError: one is missing; the message says how to install it.
    """
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        message = (
            f"'shardplan {command}' needs {', '.join(missing)}: pip install 'shardplan[torchrec]'; "
            "'shardplan check' checks the versions"
        )
        raise InvalidInputError(message)


def refuse_launcher(command: str) -> None:
    """Refuse to run under a launcher, because the command starts its own ranks.

    Raises:
        InvalidInputError: a launcher has started this process as one of several.
    """
    launch = launch_of()
    if launch is not None and launch.world_size > 1:
        message = (
            f"'shardplan {command}' starts its own ranks (--ranks), and a launcher has started it "
            f"{launch.world_size} times: run it by itself, without torchrun"
        )
        raise InvalidInputError(message)
