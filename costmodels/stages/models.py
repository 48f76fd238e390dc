"""The cost models that price a plan, one of each family."""

from __future__ import annotations

from dataclasses import dataclass, field

from costmodels.collective.alpha_beta import AlphaBeta
from costmodels.collective.base import AbstractCollectiveModel
from costmodels.dense.base import AbstractDenseModel
from costmodels.dense.roofline import Roofline as DenseRoofline
from costmodels.exchange import AbstractExchangeModel
from costmodels.lookup.base import AbstractLookupModel
from costmodels.lookup.roofline import Roofline as LookupRoofline


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModels:
    """The models in use; replace any of them by another of its family."""

    lookup: AbstractLookupModel = field(default_factory=LookupRoofline)
    collective: AbstractCollectiveModel = field(default_factory=AlphaBeta)
    dense: AbstractDenseModel = field(default_factory=DenseRoofline)
    exchange: AbstractExchangeModel | None = None
    """Exchanges with the copies around them; None where those run beside or cost nothing."""
    sigmas_ratio: tuple[tuple[str, float], ...] = ()
    """Log-standard deviation of each kind of time where a calibration tells it."""
    spread_ratio: tuple[tuple[float, ...], ...] = ()
    """Joint spread of the kinds of time where runs tell it, as in ``FittedFactors``."""

    @property
    def sources(self) -> tuple[str, ...]:
        """References of every model."""
        exchange = self.exchange.sources if self.exchange else ()
        return (*self.lookup.sources, *self.collective.sources, *self.dense.sources, *exchange)
