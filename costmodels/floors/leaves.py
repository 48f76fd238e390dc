"""Durations that depend on the plan, each with a straight line that is never above it."""

from __future__ import annotations

from typing import Final

import numpy as np

from costmodels.floors.exchange_floor import Seconds
from costmodels.floors.type_floor import Leaf

_SHRINK: Final = 0.97
"""Slope of the line under a leaf, over the slope of its growing part. It is a little below 1, so
that one line with a positive constant lies below the leaf at every size."""
_PHASES_S: Final = np.concatenate([[0.0], np.geomspace(1e-9, 1e4, 105)])
"""Phase durations, each about a third larger than the one before, at which leaves are compared with
their lines first."""
_SPLITS: Final = 5
"""How often the intervals between these are halved where a line may come close to its leaf; points
are 0.9 % apart then."""


def line(phase: int) -> Leaf:
    """A leaf whose duration is the phase itself."""
    return Leaf(
        phase=phase,
        is_line=True,
        duration_s=lambda seconds: seconds,
        constant_s=0.0,
        slope_ratio=1.0,
    )


def leaf(phase: int, duration_s: Seconds, share_ratio: float = 1.0) -> Leaf:
    """A leaf with a straight line that is never above its duration.

    The slope of the line is fixed. Its constant is the least distance between the duration and a
    line of this slope through 0, over all phases (:func:`_least_room`). Beyond the last phase that
    is looked at, the line is below ``share_ratio`` times the phase, and durations never are.

    Args:
        phase: index of the phase that the duration depends on.
        duration_s: from the phase to the duration; it never falls.
        share_ratio: the least duration over the phase, for long phases.
    """
    last_s, slope = share_ratio * float(_PHASES_S[-1]), share_ratio * _SHRINK
    constant_s = max(0.0, min(_least_room(duration_s, slope), (1.0 - _SHRINK) * last_s))
    return Leaf(
        phase=phase,
        is_line=False,
        duration_s=duration_s,
        constant_s=constant_s,
        slope_ratio=slope,
    )


def _least_room(duration_s: Seconds, slope: float) -> float:
    """A lower bound, over all phases, on the duration minus ``slope`` times the phase (the *room*).

    In an interval the room is at least the duration at its lower end minus ``slope`` times its
    upper end. Only intervals whose bound is below the least room seen at any point are halved
    further; none is left to halve where a phase adds less to a duration than its last digit.
    """
    low_s, high_s = _PHASES_S[:-1], _PHASES_S[1:]
    at_low_s = duration_s(low_s)
    proven = np.inf
    for _ in range(_SPLITS):
        room, reached = at_low_s - slope * high_s, at_low_s - slope * low_s
        open_ = room < reached.min(initial=np.inf)
        proven = min(proven, float(room[~open_].min(initial=np.inf)))
        low_s, high_s, at_low_s = low_s[open_], high_s[open_], at_low_s[open_]
        middle_s = np.where(low_s > 0, np.sqrt(low_s * high_s), 0.5 * high_s)
        at_middle_s = duration_s(middle_s)
        low_s = np.concatenate([low_s, middle_s])
        high_s = np.concatenate([middle_s, high_s])
        at_low_s = np.concatenate([at_low_s, at_middle_s])
    return min(proven, float((at_low_s - slope * high_s).min(initial=np.inf)))
