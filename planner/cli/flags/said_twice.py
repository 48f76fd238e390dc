"""Refuses what is said twice on a command line: one of the two would be dropped in silence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import click

_BATCH: Final = "training.batch_size_per_rank"
_KEYS: Final = {
    "--batch-size": _BATCH,
    "--global-batch-size": _BATCH,
    "--reserve": "memory.reserve",
    "--pipeline": "training.pipeline",
    "--lookahead": "training.lookahead",
}
"""The key of a workload file in whose place a flag gives the value."""


def refuse_said_twice(overrides: Sequence[str], given: Mapping[str, object]) -> None:
    """Refuse two flags, or a flag and ``--set``, that give the same value.

    Args:
        overrides: the values of ``--set``.
        given: the values of flags; None or an empty tuple for those that were not given.

    Raises:
        UsageError: something is said twice; the message names both ways.
    """
    context = click.get_current_context()
    flags = [flag for flag, value in given.items() if value not in (None, ())]
    if {"--batch-size", "--global-batch-size"} <= set(flags):
        message = "--batch-size (per rank) and --global-batch-size exclude each other; give one"
        raise click.UsageError(message, context)
    keys = [text.partition("=")[0] for text in overrides]
    for flag in flags:
        if _KEYS[flag] in keys:
            message = f"{flag} and --set {_KEYS[flag]} give the same value; drop one of them"
            raise click.UsageError(message, context)
    twice = [key for key in keys if keys.count(key) > 1]
    if twice:
        message = f"--set {twice[0]}: {keys.count(twice[0])} values are given; give one"
        raise click.UsageError(message, context)
