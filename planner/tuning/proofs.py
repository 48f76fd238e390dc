"""Proves the bounds of a design space; a journal keeps them."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict

import numpy as np

from costmodels.datatypes import FloatArray
from planner.errors import InfeasibleError, InvalidInputError, StoppedError
from planner.search.bounds.quick import Floor
from planner.tuning.design import DesignSpace
from planner.tuning.goals import behind, values_of
from planner.tuning.known import Floors
from planner.tuning.pricer import Pricer, StopCallback
from planner.tuning.setups import Setup
from planner.tuning.trials import Trials


class Proofs:
    """Proves the bounds of families; a journal keeps them for a later run."""

    def __init__(self, space: DesignSpace, pricer: Pricer, trials: Trials) -> None:
        """Start without proofs."""
        self.floors = Floors(space)
        self._space, self._pricer, self._trials = space, pricer, trials
        self._read()

    def prove(self, family: Setup, should_stop: StopCallback) -> None:
        """Prove the bound of a family, unless that is done.

        Raises:
            StoppedError: ``should_stop`` was True.
        """
        if family not in self.floors.found:
            self._prove(family, should_stop)

    def rules_out(
        self,
        setup: Setup,
        goals: tuple[str, ...],
        found: FloatArray,
        within_ratio: float,
        should_stop: StopCallback,
    ) -> bool:
        """Whether the bound of a setup says that it cannot better what was found.

        Args:
            setup: the setup.
            goals: the names of the goals.
            found: ``[m, K]`` values of searched setups.
            within_ratio: a gain of at most this share does not count.
            should_stop: called again and again; True ends the proof.

        Raises:
            StoppedError: ``should_stop`` was True before there was a bound.
        """
        self.prove(self._space.loosest(setup), should_stop)
        facts = self.floors.facts(setup)
        if facts is None:
            return False  # the search says why nothing fits
        own = np.array([values_of(goals, facts)])
        return bool(len(found)) and float(behind(found, own)[0]) <= within_ratio

    def _prove(self, family: Setup, should_stop: StopCallback) -> None:
        """Prove the bound of a family, and write it to the journal.

        Raises:
            StoppedError: ``should_stop`` was True.
        """
        if should_stop():
            message = "stopped before the bound of a setup was proven"
            raise StoppedError(message)
        floor: Floor | None = None
        with contextlib.suppress(InfeasibleError, InvalidInputError):
            floor = self._pricer.floor(family, should_stop)
        self.floors.found[family] = floor
        self._trials.write(_name(family), None if floor is None else asdict(floor))

    def _read(self) -> None:
        """Take over what an earlier run has proven."""
        attributes = self._trials.attributes
        for family in self.floors.missing if attributes else ():
            name = _name(family)
            if name in attributes:
                found = attributes[name]
                self.floors.found[family] = None if found is None else _floor(**found)


def _floor(*, value: float, free_bytes: float) -> Floor:
    return Floor(value=float(value), free_bytes=float(free_bytes))


def _name(family: Setup) -> str:
    return "floor " + json.dumps(family.to_json(), sort_keys=True)
