"""The objective ``cost``: what a billion samples cost at the price of the devices."""

from __future__ import annotations

from typing import Self, final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray
from costmodels.sharding import ShardingType
from costmodels.topology import Topology
from costmodels.workload import Workload
from planner.errors import InvalidInputError
from planner.objectives.iteration import IterationTime
from planner.result import usd_per_billion_samples
from planner.search.bounds.boxes import Box
from planner.space.evaluation import SearchSpace
from planner.space.objective import AbstractNamedObjective, Cut, JudgedWork


@final
class Cost(AbstractNamedObjective):
    """US dollars per billion samples: the iteration time at the price of all devices.

    It is the iteration time multiplied by a constant, so that every bound on the time gives one on
    the cost. Phases stay in seconds; weights and cuts turn them into dollars.
    """

    name = "cost"
    unit = "USD per 1e9 samples"

    def __init__(self, time: IterationTime, workload: Workload, topology: Topology) -> None:
        """Turn an objective in seconds into one in dollars.

        Raises:
            InvalidInputError: the system has no price.
        """
        factor = usd_per_billion_samples(1.0, workload, topology)
        if factor is None:
            msg = (
                f"objective cost needs a price: the system {topology.name!r} has none; add "
                "price: 4.5 USD/h to its file, or give --price '4.5 USD/h'"
            )
            raise InvalidInputError(msg)
        self._time, self._factor = time, factor

    @classmethod
    def of(cls, space: SearchSpace | JudgedWork) -> Self:
        """The objective with the price of the devices of the topology."""
        pipeline = space.pipeline
        return cls(IterationTime.of(space), pipeline.workload, pipeline.topology)

    @property
    def weights(self) -> FloatArray:
        """The weights of the iteration time, in dollars."""
        return self._time.weights * self._factor

    @property
    def slowness(self) -> FloatArray | None:
        """As for the iteration time."""
        return self._time.slowness

    @property
    def parts(self) -> BoolArray:
        """As for the iteration time."""
        return self._time.parts

    @property
    def hidden(self) -> BoolArray:
        """As for the iteration time."""
        return self._time.hidden

    def values(self, work: FloatArray) -> FloatArray:
        """``[...]`` iteration times, in dollars."""
        return self._time.values(work) * self._factor

    def proven_values(self, work: FloatArray, values: FloatArray) -> FloatArray:
        """As for the iteration time, in dollars."""
        seconds = self._time.proven_values(work, values / self._factor)
        return np.minimum(values, seconds * self._factor)

    def gradient(self, row: FloatArray) -> FloatArray:
        """The tangents for the iteration time: phases stay in seconds."""
        return self._time.gradient(row)

    def always(self) -> Cut:
        """As for the iteration time, in dollars."""
        return self._in_usd(self._time.always())

    def separable_value(self, work: FloatArray, types: frozenset[ShardingType]) -> float | None:
        """As for the iteration time, in dollars."""
        found = self._time.separable_value(work, types)
        return None if found is None else found * self._factor

    def cut(
        self,
        phases: FloatArray,
        types: frozenset[ShardingType],
        optional: frozenset[ShardingType] = frozenset(),
    ) -> Cut | None:
        """As for the iteration time, in dollars."""
        found = self._time.cut(phases, types, optional)
        return None if found is None else self._in_usd(found)

    def box(
        self,
        types: frozenset[ShardingType],
        low: FloatArray | None = None,
        high: FloatArray | None = None,
        *,
        optional: frozenset[ShardingType] = frozenset(),
    ) -> Box | None:
        """As for the iteration time, in dollars; phases stay in seconds."""
        return self._time.box(types, low, high, optional=optional, per_second=self._factor)

    def _in_usd(self, cut: Cut) -> Cut:
        """A cut of the iteration time as a cut of the cost."""
        return Cut(base=cut.base * self._factor, slopes=cut.slopes * self._factor)
