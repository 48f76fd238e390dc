"""What each choice is worth: for each of its values the best setup found, and the best possible."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.tuning.design import DesignSpace, plain
from planner.tuning.goals import GOALS, Facts
from planner.tuning.setups import OWN_CODECS, Setup
from planner.tuning.study import Study

KNOBS = {
    "cluster": "cluster",
    "batch_size": "samples per rank",
    "pipeline": "pipeline",
    "lookahead_batches": "lookahead",
    "group_size": "group size",
    "sync_interval": "sync interval",
    "communication": "codecs",
    "reserved_bytes": "reserve",
    "min_column_width": "least column width",
    "cache_load_factors": "cache sizes",
}
"""The fields of a setup that may be chosen (knobs), with their names for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """One value of a knob, with the best setup that has it.

    Attributes:
        value: the value in words.
        searched: how many setups with this value were searched.
        best: the goal's figure for the best of them; None if none of them has a plan that fits.
        bound: the figure that no setup with this value can better; None if there are no proofs, or
            nothing fits.
    """

    value: str
    searched: int
    best: float | None
    bound: float | None


def worths(study: Study, goal: str) -> dict[str, tuple[Worth, ...]]:
    """The values of every knob that has several, by the name of the knob."""
    setups, known = study.space.setups, study.known
    bounds: list[Facts | None] = [None] * len(setups)
    if known is not None:
        proven = known.floors.found
        bounds = [
            known.floors.facts(s) if study.space.loosest(s) in proven else None for s in setups
        ]
    found: dict[str, tuple[Worth, ...]] = {}
    for knob in varying(study.space):
        values = list(dict.fromkeys(getattr(s, knob) for s in setups))
        if all(isinstance(value, int) for value in values):
            values.sort()
        rows = []
        for value in values:
            own = [x for x in study.looks if getattr(x.setup, knob) == value]
            fit = [x.facts for x in own if x.facts is not None]
            possible = [
                b
                for s, b in zip(setups, bounds, strict=True)
                if b is not None and getattr(s, knob) == value
            ]
            best, bound = _best(goal, fit), _best(goal, possible)
            if known is None or not known.is_proven:
                bound = None
            if best is not None and bound is not None:
                bound = _nearer(goal, best, bound)
            told = told_value(knob, value)
            rows.append(Worth(value=told, searched=len(own), best=best, bound=bound))
        found[knob] = tuple(rows)
    return found


def varying(space: DesignSpace) -> tuple[str, ...]:
    """The knobs that have several values in a design space."""
    fixed = set() if space.menu.tries_groups else {"group_size"}
    if not space.menu.batch_sizes:
        fixed.add("batch_size")
    free = (k for k in KNOBS if k not in fixed)
    return tuple(k for k in free if len({getattr(s, k) for s in space.setups}) > 1)


def told_value(knob: str, value: object) -> str:
    """A value in words; without its unit if the name of the knob has it."""
    from costmodels.units import format_bytes

    if knob == "reserved_bytes" and isinstance(value, float):
        return format_bytes(value)
    if isinstance(value, tuple):
        return ", ".join(f"{100 * v:g} %" for v in value) or "usual"
    if knob == "communication" and value == OWN_CODECS:
        return "the workload's"
    return f"{value:,}" if isinstance(value, int) else str(plain(value))


def training_changes(space: DesignSpace, setup: Setup) -> tuple[str, ...]:
    """In words, how training under a setup differs in its results from the usual setup."""
    usual = space.base.batch_size
    told = []
    if setup.batch_size != usual:
        told.append(f"{setup.batch_size:,} samples per rank instead of {usual:,}")
    if setup.communication != OWN_CODECS:
        told.append(f"exchanges in {setup.communication}")
    if setup.group_size < setup.gpus:
        often = f"every {setup.sync_interval:,} iterations" if setup.sync_interval > 1 else "always"
        told.append(f"copies of the tables averaged {often}")
    return tuple(told)


def _best(goal: str, facts: list[Facts]) -> float | None:
    values = [GOALS[goal].value(f) for f in facts]
    best = min(values, default=None)
    return None if best is None or not np.isfinite(best) else _figure(goal, best)


def _nearer(goal: str, best: float, bound: float) -> float:
    return max(best, bound) if GOALS[goal].large_is_good else min(best, bound)


def _figure(goal: str, value: float) -> float:
    return -value if GOALS[goal].large_is_good else value
