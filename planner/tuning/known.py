"""What is known of a design space: searched setups, proven bounds, and the setups that are left.

Setups of a family differ only in menus and reserve, and share one proof, which is made for the
family's loosest setup (:func:`planner.tuning.design.loosest_of`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from costmodels.datatypes import FloatArray
from planner.search.bounds.quick import Floor
from planner.support.kinds import check_fields
from planner.tuning.design import DesignSpace
from planner.tuning.goals import Facts, behind, front_of, values_of
from planner.tuning.pricer import best_facts
from planner.tuning.setups import Setup


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A setup that was searched.

    Attributes:
        number: number of its trial; trials are numbered in the order in which they began.
        setup: the setup.
        facts: the figures of its plan; None if no plan that fits was found.
        reason: why there is no plan.
        bound_s: proven bound on the iteration, without the averaging of copies.
        sync_s: seconds per iteration for the averaging of copies.
        evaluations: plans that the search priced.
        is_cut: whether the clock ended the search.
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
        """Make it from the attributes of a finished trial."""
        facts = attributes["facts"]
        look = cls(
            number=number,
            setup=Setup.from_json(attributes["setup"]),
            facts=None if facts is None else Facts(**facts),
            reason=attributes.get("reason", ""),
            bound_s=attributes.get("bound_s"),
            sync_s=attributes.get("sync_s", 0.0),
            evaluations=attributes.get("evaluations", 0),
            is_cut=attributes.get("cut", False),
        )
        check_fields(look)
        if look.facts is not None:
            check_fields(look.facts, signed=("free_bytes",))
        return look


class Floors:
    """Proven bounds of the setups of a space, one proof per family.

    Attributes:
        families: the loosest setup of each family, the usual one first. ``place`` maps them to
            their positions, and ``family[i]`` is the position of the family of setup i.
        found: the proofs so far, by family; None for a family under which nothing fits.
        first: the families to prove first: the usual one, and those that differ from it in one
            choice.
    """

    def __init__(self, space: DesignSpace) -> None:
        """Sort the setups into families, with no proofs yet."""
        self.space = space
        loosest = [space.loosest(s) for s in space.setups]
        self.families = tuple(dict.fromkeys(loosest))
        self.place = {setup: i for i, setup in enumerate(self.families)}
        self.family = np.array([self.place[setup] for setup in loosest])
        self.found: dict[Setup, Floor | None] = {}
        traits = [_traits(f, space) for f in self.families]
        self.first = tuple(
            family
            for family, own in zip(self.families, traits, strict=True)
            if sum(a != b for a, b in zip(own, traits[0], strict=True)) <= 1
        )
        kinds = sorted({(i, t) for own in traits for i, t in enumerate(own)}, key=str)
        self._columns = np.array([[float(own[i] == t) for i, t in kinds] for own in traits])

    @property
    def missing(self) -> list[Setup]:
        """The families without a proof."""
        return [f for f in self.families if f not in self.found]

    def facts(self, setup: Setup, bound_s: float | None = None) -> Facts | None:
        """Figures that no plan of a setup can better; None if nothing fits.

        Args:
            setup: a setup of a family that has a proof.
            bound_s: a further bound on its iteration, without the averaging of copies.
        """
        floor = self.found[self.space.loosest(setup)]
        if floor is None or math.isinf(floor.value):
            return None
        time_s = max(floor.value, bound_s or 0.0)
        return best_facts(self.space, setup, time_s, floor.free_bytes)

    def guesses(self) -> list[Floor]:
        """The proof of each family, or a guess at it from the proofs of others.

        The guess takes the logarithm of the time, and the free memory, for sums of what each trait
        adds, such as the pipeline. Least squares over the proven families gives these terms.
        """
        known = [
            (i, f.value, f.free_bytes)
            for i, family in enumerate(self.families)
            if (f := self.found.get(family)) is not None and math.isfinite(f.value)
        ]
        if not known:
            return [Floor(value=0.0, free_bytes=math.inf)] * len(self.families)
        at = [i for i, _, _ in known]
        wanted = np.array([(math.log(max(v, 1e-12)), b) for _, v, b in known])
        mean = wanted.mean(axis=0)
        slopes = np.linalg.lstsq(self._columns[at], wanted - mean, rcond=1e-9)[0]
        told = self._columns @ slopes + mean
        guessed = [Floor(value=math.exp(t), free_bytes=b) for t, b in told.tolist()]
        for i, value, free_bytes in known:
            guessed[i] = Floor(value=value, free_bytes=free_bytes)
        return guessed

    def stretches(self, ratios: Mapping[Setup, float]) -> FloatArray:
        """``[families]`` logarithm of how far above its bound the best plan of a family may be.

        It is estimated by ridge regression on the traits of the families that were searched.

        Args:
            ratios: for each searched family the time found, divided by its bound or guess.
        """
        if not ratios:
            return np.zeros(len(self.families))
        at = [self.place[f] for f in ratios]
        wanted = np.log(np.maximum(list(ratios.values()), 1.0))
        rows, mean = self._columns[at], wanted.mean()
        square = rows.T @ rows + _RIDGE * np.eye(rows.shape[1])
        slopes = np.linalg.solve(square, rows.T @ (wanted - mean))
        return np.asarray(self._columns @ slopes + mean)


_RIDGE: Final = 0.3
"""Strength of the ridge: how much the assumption of no effect weighs, against 1 for a family."""


class Known:
    """Where a study stands: what was found, what is proven, and what is only guessed.

    Attributes:
        bounds: ``[n, K]`` values that no plan of each setup can better; infinite if nothing fits,
            minus infinity if nothing is proven yet.
        values: ``[m, K]`` values of the searched setups that no other one dominates.
    """

    def __init__(
        self, space: DesignSpace, goals: tuple[str, ...], floors: Floors, within_ratio: float
    ) -> None:
        """Start without searches and proofs."""
        self.space, self.goals, self.floors = space, goals, floors
        self.within_ratio = within_ratio
        self.place = {setup: i for i, setup in enumerate(space.setups)}
        self.bounds = np.full((len(space.setups), len(goals)), -np.inf)
        self.values: FloatArray = np.empty((0, len(goals)))
        self._guessed = self.bounds.copy()
        self._family_best = np.full((len(floors.families), len(goals)), np.inf)
        self._looks: dict[int, Look] = {}
        self._proven: set[Setup] = set()

    # -- learning ---------------------------------------------------------------------------------

    def note_proofs(self) -> None:
        """Take over the bounds that were proven since the last call."""
        new = set(self.floors.found) - self._proven
        if not new:
            return
        self._proven |= new
        guesses = self.floors.guesses()
        for i, setup in enumerate(self.space.setups):
            at = int(self.floors.family[i])
            family = self.floors.families[at]
            if family in new:
                self.bounds[i] = self._guessed[i] = self._values(self.floors.facts(setup))
            elif family not in self._proven:
                guess = guesses[at]
                own = best_facts(self.space, setup, guess.value, guess.free_bytes)
                self._guessed[i] = self._values(own)
        for look in self._looks.values():
            if self.space.loosest(look.setup) in new:
                self._tighten(look)

    def note(self, look: Look) -> None:
        """Take over the result of a search; a second call with the same one changes nothing."""
        if look.number in self._looks:
            return
        self._looks[look.number] = look
        if self.space.loosest(look.setup) in self._proven:
            self._tighten(look)
        if look.facts is None:
            return
        found = np.array([self._values(look.facts)])
        family = self.floors.family[self.place[look.setup]]
        self._family_best[family] = np.minimum(self._family_best[family], found[0])
        every = np.concatenate([self.values, found])
        self.values = every[front_of(every)]

    def _tighten(self, look: Look) -> None:
        """Raise the bound of a searched setup to the one that its own search has proven."""
        at = self.place[look.setup]
        proven = self._values(self.floors.facts(look.setup, look.bound_s))
        self.bounds[at] = np.maximum(self.bounds[at], proven)

    def _values(self, facts: Facts | None) -> tuple[float, ...]:
        if facts is None:
            return (math.inf,) * len(self.goals)
        return values_of(self.goals, facts)

    # -- what follows -----------------------------------------------------------------------------

    @property
    def is_proven(self) -> bool:
        """Whether there is a bound for every setup."""
        return len(self._proven) == len(self.floors.families)

    @property
    def fits(self) -> Any:
        """``[n]`` False for setups under which nothing fits, as is proven."""
        return ~np.isposinf(self.bounds).all(axis=1)

    def left(self, seen: Collection[Setup]) -> Any:
        """Positions of the setups that may better what was found, without those in ``seen``."""
        open_ = self.fits & (behind(self.values, self.bounds) > self.within_ratio)
        open_[[self.place[s] for s in seen]] = False
        return np.flatnonzero(open_)

    def ruled_out(self, seen: Collection[Setup]) -> Any:
        """Positions of the setups that bounds rule out, without those in ``seen``."""
        out = self.fits & (behind(self.values, self.bounds) <= self.within_ratio)
        out[[self.place[s] for s in seen]] = False
        return np.flatnonzero(out)

    def ordered(self, left: Any, turn: int) -> list[Setup]:
        """Sort setups by how promising they are, the most promising first.

        A setup promises its bound (or the guess at it), multiplied by how far plans so far were
        above theirs. If a setup of its family was searched, it promises no more than the best found
        there, because bounds within a family hardly differ. With several goals, each goal in turn
        decides, and then the sum of all.

        Args:
            left: positions of the setups.
            turn: how many searches are done.
        """
        best = self._family_best[self.floors.family[left]]
        guessed = self._stretched(left)
        promise = np.where(np.isfinite(best), np.maximum(best, guessed), guessed)
        goal = turn % (len(self.goals) + 1) if len(self.goals) > 1 else 0
        if goal < len(self.goals):
            order = promise[:, goal]
        else:
            order = (promise / np.abs(promise).max(axis=0)).sum(axis=1)
        return [self.space.setups[i] for i in left[np.argsort(order, kind="stable")]]

    def _stretched(self, left: Any) -> FloatArray:
        """``[left, K]`` bounds or guesses, multiplied by how far plans so far were above theirs."""
        ratios: dict[Setup, float] = {}
        guesses = self.floors.guesses()
        for look in self._looks.values():
            family = self.space.loosest(look.setup)
            floor = guesses[self.floors.place[family]]
            own = best_facts(self.space, look.setup, floor.value, floor.free_bytes)
            if look.facts is not None and own.time_s > 0:
                ratio = look.facts.time_s / own.time_s
                ratios[family] = min(ratio, ratios.get(family, ratio))
        stretches = np.exp(self.floors.stretches(ratios))
        told = []
        for i in left:
            at = int(self.floors.family[i])
            guess = guesses[at]
            own = best_facts(
                self.space, self.space.setups[i], guess.value * stretches[at], guess.free_bytes
            )
            told.append(self._values(own))
        return np.array(told)

    def wants_proof(self, setup: Setup) -> bool:
        """Whether a bound should be proven before a setup is searched.

        It should not if this is the first search of its family and the guess says that it may
        better what was found, because a proof would most likely say the same.
        """
        at = self.place[setup]
        family = int(self.floors.family[at])
        if self.floors.families[family] in self._proven:
            return False
        is_searched = bool(np.isfinite(self._family_best[family]).any())
        may_better = behind(self.values, self._guessed[[at]])[0] > self.within_ratio
        return is_searched or not may_better

    @property
    def proof_ratio(self) -> float | None:
        """By what share any plan of any setup may better what was found; None if not proven."""
        if not self.is_proven or not len(self.values):
            return None
        return max(0.0, float(behind(self.values, self.bounds)[self.fits].max(initial=0.0)))


def _traits(family: Setup, space: DesignSpace) -> tuple[object, ...]:
    """What families differ in. It counts the copies of the tables, not the ranks of a group."""
    batch = family.batch_size if space.menu.batch_sizes else None
    copies = family.gpus // family.group_size
    pipeline = family.pipeline.value, family.lookahead_batches
    return family.cluster, pipeline, copies, batch, family.communication
