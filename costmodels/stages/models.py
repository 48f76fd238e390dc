"""The cost models that price plans, one of each family."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from costmodels.collective.alpha_beta import AlphaBeta
from costmodels.collective.base import AbstractCollectiveModel
from costmodels.cpu.base import AbstractExchangeModel
from costmodels.dense.base import AbstractDenseModel
from costmodels.dense.roofline import Roofline as DenseRoofline
from costmodels.fields import settle
from costmodels.lookup.base import AbstractLookupModel
from costmodels.lookup.fbgemm import Fbgemm
from costmodels.lookup.roofline import Roofline as LookupRoofline
from costmodels.stages.own_models import own_description


def _fbgemm() -> Fbgemm:
    """FBGEMM's kernels, and a roofline for those of other frameworks."""
    return Fbgemm(other=LookupRoofline())


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModels:
    """The models that price plans; each can be replaced by another one of its family.

    Attributes:
        lookup: forward and backward lookups.
        collective: all-to-all, reduce-scatter, all-gather and all-reduce.
        dense: operators of the dense part.
        exchange: exchanges with the copies around them; None where such copies run beside them or
            take no time.
        sigmas_ratio: log-standard deviation of each kind of time, if a calibration gives it.
        spread_ratio: joint spread of the kinds of time, if runs give it, as in ``FittedFactors``.
        description: what tells models of users from others, before any of them prices a plan and
            keeps results; empty where none is a user's.

    Raises:
        InvalidValueError: a field is of another kind.
    """

    lookup: AbstractLookupModel = field(default_factory=_fbgemm)
    collective: AbstractCollectiveModel = field(default_factory=AlphaBeta)
    dense: AbstractDenseModel = field(default_factory=DenseRoofline)
    exchange: AbstractExchangeModel | None = None
    sigmas_ratio: tuple[tuple[str, float], ...] = ()
    spread_ratio: tuple[tuple[float, ...], ...] = ()
    description: str = field(init=False, repr=False, compare=False, default="")

    def __post_init__(self) -> None:
        """Refuse what is no model of its family, such as a name, and describe what users wrote."""
        settle(self, "models: ")
        parts = [getattr(self, f.name) for f in fields(self) if f.init]
        object.__setattr__(self, "description", own_description(parts))

    @property
    def sources(self) -> tuple[str, ...]:
        """The references of all models."""
        exchange = self.exchange.sources if self.exchange else ()
        return (*self.lookup.sources, *self.collective.sources, *self.dense.sources, *exchange)
