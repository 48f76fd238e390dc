"""What is known of a design space: setups looked at, proven bounds, and what is left of it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from planner.search.bounds.quick import Floor
from planner.tuning.design import DesignSpace
from planner.tuning.goals import Facts, FloatArray, behind, front_of, values_of
from planner.tuning.pricer import best_facts
from planner.tuning.setups import Setup


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A setup that was searched.

    Attributes:
        number: in the order in which they were begun.
        setup: the pick.
        facts: what its plan does; None where none was found that fits.
        reason: why there is none.
        bound_s: proven for the iteration without the sync.
        sync_s: share of averaging copies in an iteration.
        evaluations: plans priced.
        is_cut: the clock ended the search.
    """

    number: int
    setup: Setup
    facts: Facts | None
    reason: str = ""
    bound_s: float | None = None
    sync_s: float = 0.0
    evaluations: int = 0
    is_cut: bool = False

    @classmethod
    def of(cls, number: int, attributes: Mapping[str, Any]) -> Look:
        """From the attributes of a finished trial."""
        facts = attributes["facts"]
        return cls(
            number=number,
            setup=Setup.from_json(attributes["setup"]),
            facts=None if facts is None else Facts(**facts),
            reason=attributes.get("reason", ""),
            bound_s=attributes.get("bound_s"),
            sync_s=attributes.get("sync_s", 0.0),
            evaluations=attributes.get("evaluations", 0),
            is_cut=attributes.get("cut", False),
        )


class Floors:
    """Proven bounds of every setup of a space, one proof per family.

    Attributes:
        families: the loosest setup of each family, the usual one first; ``family[i]`` is the
            position of that of setup i.
        found: proofs so far; None for a family that nothing fits under.
    """

    def __init__(self, space: DesignSpace) -> None:
        """Sort setups into families; nothing is proven yet."""
        self.space = space
        loosest = [space.loosest(s) for s in space.setups]
        self.families = tuple(dict.fromkeys(loosest))
        places = {setup: i for i, setup in enumerate(self.families)}
        self.family = np.array([places[setup] for setup in loosest])
        self.found: dict[Setup, Floor | None] = {}

    @property
    def missing(self) -> list[Setup]:
        """Families without a proof."""
        return [f for f in self.families if f not in self.found]

    def facts(self, setup: Setup, bound_s: float | None = None) -> Facts | None:
        """Figures that no plan of a setup betters; None where nothing fits.

        Args:
            setup: of a family with a proof.
            bound_s: another proof for its iteration without the sync.
        """
        floor = self.found[self.space.loosest(setup)]
        if floor is None or math.isinf(floor.value):
            return None
        time_s = max(floor.value, bound_s or 0.0)
        return best_facts(self.space, setup, time_s, floor.free_bytes)


class Known:
    """Where a study with all its bounds stands.

    Attributes:
        bounds: ``[n, K]`` what no plan of each setup betters; infinite where nothing fits.
        values: ``[m, K]`` of what was found, nobody bettering another.
    """

    def __init__(
        self, space: DesignSpace, goals: tuple[str, ...], floors: Floors, within_ratio: float
    ) -> None:
        """Begin with the bounds alone."""
        self.space, self.goals, self.floors = space, goals, floors
        self.within_ratio = within_ratio
        self.place = {setup: i for i, setup in enumerate(space.setups)}
        self.bounds = np.array([self._values(floors.facts(s)) for s in space.setups])
        self.values: FloatArray = np.empty((0, len(goals)))
        self._family_best = np.full((len(floors.families), len(goals)), np.inf)
        self._noted: set[int] = set()

    def _values(self, facts: Facts | None) -> tuple[float, ...]:
        if facts is None:
            return (math.inf,) * len(self.goals)
        return values_of(self.goals, facts)

    def note(self, look: Look) -> None:
        """Learn from a search; the same one again changes nothing."""
        if look.number in self._noted:
            return
        self._noted.add(look.number)
        self.__dict__.pop("_behind", None)
        at = self.place[look.setup]
        proven = self._values(self.floors.facts(look.setup, look.bound_s))
        self.bounds[at] = np.maximum(self.bounds[at], proven)
        if look.facts is None:
            return
        found = np.array([self._values(look.facts)])
        family = self.floors.family[at]
        self._family_best[family] = np.minimum(self._family_best[family], found[0])
        every = np.concatenate([self.values, found])
        self.values = every[front_of(every)]

    @cached_property
    def _behind(self) -> FloatArray:
        """``[n]`` by what share each setup might better what was found."""
        return behind(self.values, self.bounds)

    @property
    def fits(self) -> Any:
        """``[n]`` whether a setup is not proven to fit nothing."""
        return np.isfinite(self.bounds).all(axis=1)

    def left(self, seen: Collection[Setup]) -> Any:
        """Places of the setups that may still better what was found, and were not looked at."""
        open_ = self.fits & (self._behind > self.within_ratio)
        open_[[self.place[s] for s in seen]] = False
        return np.flatnonzero(open_)

    def pruned(self, seen: Collection[Setup]) -> Any:
        """Places of the setups that were never looked at because their bounds rule them out."""
        out = self.fits & (self._behind <= self.within_ratio)
        out[[self.place[s] for s in seen]] = False
        return np.flatnonzero(out)

    def next_of(self, left: Any, turn: int) -> Setup:
        """The most promising of some setups.

        A setup promises its bound until one of its family is searched, then the best found there:
        within a family the bounds are nearly alike. With several goals each has its turn, and
        then their sum.

        Args:
            left: places.
            turn: searches done so far.
        """
        best = self._family_best[self.floors.family[left]]
        promise = np.where(
            np.isfinite(best), np.maximum(best, self.bounds[left]), self.bounds[left]
        )
        goal = turn % (len(self.goals) + 1) if len(self.goals) > 1 else 0
        if goal < len(self.goals):
            order = promise[:, goal]
        else:
            order = (promise / np.abs(promise).max(axis=0)).sum(axis=1)
        return self.space.setups[int(left[int(np.argmin(order))])]

    @property
    def proof_ratio(self) -> float:
        """By what share some plan of some setup may at most better what was found."""
        return max(0.0, float(self._behind[self.fits].max(initial=0.0)))
