"""Stages of a training step on CPU cores, into which runs and predictions are divided alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from costmodels.estimates import Source, StageTime
from costmodels.topology import Topology

_UNUSED: Final = (
    *("device.l2_", "device.flops", "device.row_half", "device.update_efficiency"),
    *("device.sort_rate", "host.ddr_bandwidth", "host.device_link_bandwidth", "links."),
)
"""How their names begin. Launches, memories and the rate of device memory are used: the last one by
codecs of exchanges."""


def unused_remark(topology: Topology) -> str | None:
    """A remark on numbers that the user gave and that change nothing; None if there are none.

    Args:
        topology: a system whose ranks are priced by a calibration.
    """
    given = (p.name for p in topology.provenance if p.source is Source.USER)
    names = [name for name in given if name.startswith(_UNUSED)]
    if not names:
        return None
    return (
        f"calibrated cores are priced by their calibration, so that {', '.join(names)} of the "
        "system change nothing; correct times with 'shardplan fit', or calibrate again"
    )


STAGES: Final = (
    *("dense_forward", "indices", "lookup_forward", "vectors"),
    *("dense_backward", "gradients", "lookup_backward", "update"),
)
"""``indices``, ``vectors`` and ``gradients`` (those of vectors) are exchanges. ``dense_backward``
is the backward pass of the top MLP. ``update`` is the backward pass of the bottom MLP, the
reduction of the gradients of what every rank holds, and the optimizer."""

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
"""How the names of predicted steps begin, and the stage of such steps; the first that fits counts.
The names of dense layers differ from model to model: all steps that nothing else fits are their
forward pass."""


def predicted_stages(steps: Sequence[StageTime], dense_names: tuple[str, str]) -> tuple[float, ...]:
    """Seconds of each stage on its slowest rank, in the order of ``STAGES``.

    Args:
        steps: the predicted steps of an iteration.
        dense_names: names of the dense layers before and after the tables
            (:func:`costmodels.dense.base.dense_names`).
    """
    before, after = dense_names
    starts = (*_STARTS, (f"{before} backward", "update"), (f"{after} backward", "dense_backward"))
    found = dict.fromkeys(STAGES, 0.0)
    for step in steps:
        stage = next((s for start, s in starts if step.name.startswith(start)), STAGES[0])
        found[stage] += max(step.duration_s)
    return tuple(found[stage] for stage in STAGES)
