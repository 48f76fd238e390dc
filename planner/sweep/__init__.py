"""Finds the best plan on every point of a grid of systems, sizes, batches and pipelines."""

from planner.sweep.economics import Economics, Operation
from planner.sweep.grid import Grid, Point
from planner.sweep.outcome import PointResult, pareto
from planner.sweep.runner import Journal, run
from planner.sweep.size import Sizing, most_samples_per_s, smallest

__all__ = [
    "Economics",
    "Grid",
    "Journal",
    "Operation",
    "Point",
    "PointResult",
    "Sizing",
    "most_samples_per_s",
    "pareto",
    "run",
    "smallest",
]
