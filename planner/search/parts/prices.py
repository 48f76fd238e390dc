"""Options that are cheapest at random prices of the phases: plans unlike those found so far."""

from __future__ import annotations

import itertools
from typing import Final

import numpy as np

from planner.evaluation import BoolArray, IntArray
from planner.search.parts.linear import LinearModel

_SPREAD: Final = 0.5
"""Standard deviation of the logarithm of each price."""
_LEAST_PIECE, _MOST_PIECE = 1e-2, 1.0
"""Weight of a piece's own load beside the mean over ranks, drawn log-uniformly."""


def sampled_choice(model: LinearModel, allowed: BoolArray, rng: np.random.Generator) -> IntArray:
    """``[T]`` the cheapest allowed option of each table.

    A price stands for each phase: its slope in the objective times a log-normal factor. What an
    option costs is its mean load at these prices, plus a share of its largest piece, for large
    pieces are hard to place.
    """
    space = model.space
    phases = model.phase_maxima(model.mean)
    prices = model.slopes_of(phases.mean(axis=0) * space.num_tables)
    prices = prices * np.exp(rng.normal(0.0, _SPREAD, len(prices)))
    weight = np.exp(rng.uniform(np.log(_LEAST_PIECE), np.log(_MOST_PIECE)))
    pieces = model.phase_maxima(model.extreme(np.maximum))
    cost = np.where(allowed, phases @ prices + weight * (pieces @ prices), np.inf)
    first = space.first
    return np.array([np.argmin(cost[a:b]) for a, b in itertools.pairwise(first)])
