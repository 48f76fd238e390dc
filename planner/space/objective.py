"""What a search makes small: the interface of an objective."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from costmodels.pipeline import CostPipeline
from costmodels.sharding import ShardingOption, ShardingType
from costmodels.stages.models import CostModels
from costmodels.topology import Topology
from costmodels.workload import Workload

if TYPE_CHECKING:
    from planner.space.evaluation import SearchSpace

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

MakePipeline = Callable[[Workload, Topology, CostModels], CostPipeline]
"""Builds what counts and prices the work of plans."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JudgedWork:
    """Work that an objective judges without a search: all that it reads of a search space.

    Attributes:
        pipeline: what counts and prices the work.
        pool: rows of work, ``[..., F]``, of which an objective may look at those that differ.
        options: what tables may do; none where single plans are judged.
    """

    pipeline: CostPipeline
    pool: FloatArray
    options: Sequence[ShardingOption] = ()


class AbstractObjective(ABC):
    """What is minimised: a value of a plan's work, with phases that bound it from below.

    Phases are convex and homogeneous in one rank's work and have tangents. With ``z[k]`` the
    largest phase k over the ranks, the value is at least ``base + slopes @ z`` for each cut.
    """

    name: ClassVar[str]
    """What the result calls it."""

    @abstractmethod
    def values(self, work: FloatArray) -> FloatArray:
        """Objective of each plan, ``[...]`` from work ``[..., W, F]``."""

    def proven_values(self, work: FloatArray, values: FloatArray) -> FloatArray:
        """Values that hold whichever of their names tables go by: at most ``values``, ``[...]``.

        A sharding type may stand for others with collectives of their own. Models under which two
        collectives may take less than one have to be replaced by others that are nowhere above.

        Args:
            work: of the plans.
            values: what :meth:`values` says of them.
        """
        del work
        return values

    @abstractmethod
    def gradient(self, row: FloatArray) -> FloatArray:
        """Tangents ``[K, F]`` of the phases at one rank's work."""

    @property
    @abstractmethod
    def weights(self) -> FloatArray:
        """``[K]`` how much each phase can weigh; those of weight 0 are never looked at."""

    @property
    def slowness(self) -> FloatArray | None:
        """``[W, K]`` how many times as long phases take on each rank as on the fastest device.

        None where ranks are alike.
        """
        return None

    @property
    def parts(self) -> BoolArray:
        """``[K]`` phases whose load is part of another one's, so that few tangents say enough."""
        return np.zeros(len(self.weights), dtype=bool)

    @property
    def hidden(self) -> BoolArray:
        """``[K]`` phases that add no time as a rule, because steps beside them take longer.

        A linear program looks at such a phase only after a solution in which it does add time,
        because every phase makes the program larger.
        """
        return np.zeros(len(self.weights), dtype=bool)

    @property
    def prices(self) -> FloatArray | None:
        """``[F]`` what a unit of work adds to its rank's share of the value.

        None unless phases are linear and the value is their weighted sum; then no rank's priced
        work exceeds the value.
        """
        return None

    @property
    def sees_types(self) -> bool:
        """Whether :meth:`cut` says more where it is told the sharding types of a plan."""
        return type(self).cut is not AbstractObjective.cut

    @abstractmethod
    def always(self) -> Cut:
        """A cut that holds for every plan."""

    def separable_value(self, work: FloatArray, types: frozenset[ShardingType]) -> float | None:
        """The least value that bounds know of plans with the phases of this one, from ``[W, F]``.

        None where the objective is a function of its phases alone, so that it is the value itself.
        """
        del work, types
        return None

    def cut(
        self,
        phases: FloatArray,
        types: frozenset[ShardingType],
        optional: frozenset[ShardingType] = frozenset(),
    ) -> Cut | None:
        """A cut that holds for plans with exactly these types, best at ``phases`` (``[K]``).

        None if there is nothing better than :meth:`always`.

        Args:
            phases: where the cut should be high.
            types: that every one of the plans has.
            optional: further types that each of the plans may have or not.
        """
        del phases, types, optional
        return None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cut:
    """``value >= base + slopes @ z`` with z the phases' maxima over ranks."""

    base: float
    slopes: FloatArray


class AbstractNamedObjective(AbstractObjective):
    """An objective that users ask for by name: one file in :mod:`planner.objectives`.

    Its ``name`` is what users type: the name of the file, with dashes for underscores.
    """

    unit: ClassVar[str] = ""
    """Of its values."""

    wants_every_kernel: ClassVar[bool] = False
    """Whether kernels in host memory matter where device memory is far from full."""

    @classmethod
    @abstractmethod
    def of(cls, space: SearchSpace | JudgedWork) -> Self:
        """The objective for plans of ``space``, or for given work.

        Raises:
            InvalidInputError: the problem lacks what the objective needs.
        """

    @classmethod
    def priced_by(cls, make_pipeline: MakePipeline) -> MakePipeline:
        """What has to count the work of plans for it; the pipeline that is asked for, if any does.

        Args:
            make_pipeline: what the caller asks for.
        """
        return make_pipeline
