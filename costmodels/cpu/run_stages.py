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
    ("bottom MLP backward", "update"),
    ("last gradient", "update"),
    ("dense optimizer", "update"),
    ("interaction and top MLP backward", "dense_backward"),
)
"""How the names of predicted steps begin; the others are the forward pass of dense layers."""


def predicted_stages(steps: Sequence[StageTime]) -> tuple[float, ...]:
    """Seconds of the slowest rank per stage, in the order of ``STAGES``."""
    found = dict.fromkeys(STAGES, 0.0)
    for step in steps:
        stage = next((s for start, s in _STARTS if step.name.startswith(start)), STAGES[0])
        found[stage] += max(step.duration_s)
    return tuple(found[stage] for stage in STAGES)
