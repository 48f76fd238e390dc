"""Finds the job in which a launcher such as ``torchrun`` started this process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from planner.errors import InvalidInputError

_NEEDED: Final = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_STORE_IS_OF_LAUNCHER: Final = "TORCHELASTIC_USE_AGENT_STORE"
"""A variable that ``torchrun`` sets if its own process answers at the master's address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """This process in the job: rank ``rank`` of ``world_size``, all of them on one host.

    Ranks find each other by a key-value store at ``address`` and ``port``; ``hosts_store`` is True
    on the rank that has to open it.
    """

    rank: int
    world_size: int
    address: str
    port: int
    hosts_store: bool


def launch_of(environ: Mapping[str, str] = os.environ) -> Launch | None:
    """The job that the launcher's variables describe; None if no launcher started this process.

    Args:
        environ: ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT``, as
            ``torch.distributed`` reads them, and ``LOCAL_WORLD_SIZE``.

    Raises:
        InvalidInputError: a variable is missing or not a number, or the job has several hosts.
    """
    if "RANK" not in environ or "WORLD_SIZE" not in environ:
        return None
    missing = [name for name in _NEEDED if not environ.get(name)]
    if missing:
        message = (
            f"RANK and WORLD_SIZE are set, but not {' and '.join(missing)}: start the ranks with "
            "'torchrun --standalone --nproc-per-node N -m planner ...', or unset RANK"
        )
        raise InvalidInputError(message)
    rank, world_size = _number(environ, "RANK"), _number(environ, "WORLD_SIZE")
    if not 0 <= rank < world_size:
        message = f"RANK must be at least 0 and below WORLD_SIZE ({world_size}); it is {rank}"
        raise InvalidInputError(message)
    local = _number(environ, "LOCAL_WORLD_SIZE") if "LOCAL_WORLD_SIZE" in environ else world_size
    if local != world_size:
        message = (
            f"WORLD_SIZE is {world_size} and LOCAL_WORLD_SIZE {local}: the ranks to measure must "
            "be on one host; use 'torchrun --standalone --nproc-per-node N' on one of the hosts"
        )
        raise InvalidInputError(message)
    return Launch(
        rank=rank,
        world_size=world_size,
        address=environ["MASTER_ADDR"],
        port=_number(environ, "MASTER_PORT"),
        hosts_store=rank == 0 and environ.get(_STORE_IS_OF_LAUNCHER) != str(True),
    )


def _number(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except ValueError:
        message = f"{name} must be a whole number; it is {environ[name]!r}"
        raise InvalidInputError(message) from None
