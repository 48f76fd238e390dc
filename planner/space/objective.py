"""The interface of an objective: the value that a search minimises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray
from costmodels.pipeline import CostPipeline
from costmodels.sharding import ShardingType, TableTerms
from costmodels.stages.models import CostModels
from costmodels.topology import Topology
from costmodels.workload import Workload

if TYPE_CHECKING:
    from planner.space.evaluation import SearchSpace


MakePipeline = Callable[[Workload, Topology, CostModels], CostPipeline]
"""Makes the pipeline that counts and prices the work of plans."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JudgedWork:
    """Work that an objective judges without a search: all that it reads of a search space.

    Attributes:
        pipeline: what counts and prices the work.
        pool: rows of work, ``[..., F]``, of which an objective may look at those that differ.
        options: how tables may be cut, with which kernels; none where single plans are judged.
    """

    pipeline: CostPipeline
    pool: FloatArray
    options: Sequence[TableTerms] = ()


class AbstractObjective(ABC):
    """The value that a search minimises, as a function of a plan's work, and bounds from below.

    Bounds use phases, such as the forward lookup. A phase is a number of each rank: a convex and
    homogeneous function of the rank's work, which has tangents. Let ``z[k]`` be the largest phase k
    over all ranks. A cut then says that the value is at least ``base + slopes @ z``.
    """

    name: ClassVar[str]
    """The name of the objective in results."""
    asks_models: ClassVar[bool] = True
    """Whether it depends on cost models, which then have to keep the rules that bounds rest on."""

    @abstractmethod
    def values(self, work: FloatArray) -> FloatArray:
        """The value of each plan, ``[...]``, from work ``[..., W, F]``."""

    def proven_values(self, work: FloatArray, values: FloatArray) -> FloatArray:
        """Values ``[...]`` that no plan with the same shards is below: at most ``values``.

        In a search one sharding type can stand for several that give the same shards, and each of
        them has collectives of its own. Some cost models price two collectives below one collective
        with all the bytes. Such a model is replaced here by one that does not, and that is nowhere
        above it.

        Args:
            work: ``[..., W, F]`` of the plans.
            values: ``[...]`` from :meth:`values`.
        """
        del work
        return values

    @abstractmethod
    def gradient(self, row: FloatArray) -> FloatArray:
        """Tangents ``[K, F]`` of the phases at one rank's work."""

    @property
    @abstractmethod
    def weights(self) -> FloatArray:
        """``[K]`` weight of each phase in the value; bounds leave out phases of weight 0."""

    @property
    def slowness(self) -> FloatArray | None:
        """``[W, K]`` time of each phase on each rank, divided by its time on the fastest device.

        None if all ranks are equally fast.
        """
        return None

    @property
    def parts(self) -> BoolArray:
        """``[K]`` True for phases whose load is part of another phase's: few tangents suffice."""
        return np.zeros(len(self.weights), dtype=bool)

    @property
    def hidden(self) -> BoolArray:
        """``[K]`` True for phases that usually add no time, because steps beside them take longer.

        A linear program looks at such a phase only after a solution in which it does add time,
        because every phase makes the program larger.
        """
        return np.zeros(len(self.weights), dtype=bool)

    @property
    def prices(self) -> FloatArray | None:
        """``[F]`` what a unit of each column of work adds to its rank's share of the value.

        The value is then at least ``work[r] @ prices`` for every rank r. None unless phases are
        linear in work and the value is their weighted sum.
        """
        return None

    @property
    def sees_types(self) -> bool:
        """Whether :meth:`cut` is stronger if it knows the sharding types of a plan."""
        return type(self).cut is not AbstractObjective.cut

    @abstractmethod
    def always(self) -> Cut:
        """A cut that holds for every plan."""

    def separable_value(self, work: FloatArray, types: frozenset[ShardingType]) -> float | None:
        """The highest bound that its phases allow for a plan with work ``[W, F]``.

        None if the objective depends on its phases alone, because the value is this bound then.

        Args:
            work: ``[W, F]`` of the plan.
            types: the sharding types of the plan.
        """
        del work, types
        return None

    def cut(
        self,
        phases: FloatArray,
        types: frozenset[ShardingType],
        optional: frozenset[ShardingType] = frozenset(),
    ) -> Cut | None:
        """A cut that holds for all plans with these sharding types.

        None if there is nothing better than :meth:`always`.

        Args:
            phases: ``[K]`` largest phases for which the cut should be as high as possible.
            types: the sharding types that every one of the plans has.
            optional: further types that each of the plans may have or not.
        """
        del phases, types, optional
        return None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cut:
    """Says ``value >= base + slopes @ z``, with ``z`` the largest phases over ranks, ``[K]``."""

    base: float
    slopes: FloatArray


class AbstractNamedObjective(AbstractObjective):
    """An objective that users ask for by name: one file in :mod:`planner.objectives`.

    Its ``name`` is what users type: the name of the file, with dashes for underscores.
    """

    unit: ClassVar[str] = ""
    """The unit of its values."""

    @abstractmethod
    def __init__(self, space: SearchSpace | JudgedWork) -> None:
        """Make the objective for plans of ``space``, or for given work.

        Raises:
            InvalidInputError: the problem lacks what the objective needs.
        """

    @classmethod
    def priced_by(cls, make_pipeline: MakePipeline) -> MakePipeline:
        """What makes the pipeline that counts work for this objective.

        Args:
            make_pipeline: what the caller wants; it is returned if any pipeline will do.
        """
        return make_pipeline
