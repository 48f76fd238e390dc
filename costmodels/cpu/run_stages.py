"""Stages of a training step on CPU cores: runs and predictions are cut alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from costmodels.estimates import StageTime

STAGES: Final = (
    "dense_forward",
    "indices",
    "lookup_forward",
    "vectors",
    "dense_backward",
    "gradients",
    "lookup_backward",
    "update",
)
"""``indices``, ``vectors`` and ``gradients`` (of vectors) are the exchanges. ``dense_backward`` is
the top MLP's; ``update`` the bottom MLP's, the reduction of gradients that every rank holds, and
the optimizer."""

_STARTS: Final = (
    ("input", "indices"),
    ("lookup forward", "lookup_forward"),
    ("output", "vectors"),
    ("gradient all-reduce", "update"),
    ("gradient", "gradients"),
    ("lookup backward", "lookup_backward"),
    ("last gradient", "update"),
    ("dense optimizer", "update"),
)
"""How the names of predicted steps begin; those of dense layers differ from model to model, and the
others are their forward pass."""


def predicted_stages(steps: Sequence[StageTime], dense_names: tuple[str, str]) -> tuple[float, ...]:
    """Seconds of the slowest rank per stage, in the order of ``STAGES``.

    Args:
        steps: of an iteration.
        dense_names: of the two sides of the dense part (:func:`costmodels.dense.base.dense_names`).
    """
    before, after = dense_names
    starts = (*_STARTS, (f"{before} backward", "update"), (f"{after} backward", "dense_backward"))
    found = dict.fromkeys(STAGES, 0.0)
    for step in steps:
        stage = next((s for start, s in starts if step.name.startswith(start)), STAGES[0])
        found[stage] += max(step.duration_s)
    return tuple(found[stage] for stage in STAGES)
