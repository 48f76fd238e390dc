"""Cost models whose times are multiplied by factors that were fitted to the user's own runs.

A constant factor changes no property that searches and bounds need: a convex function stays convex,
a homogeneous one homogeneous, and a subadditive collective model subadditive.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import make_dataclass, replace
from typing import Any, Final

from costmodels.collective.base import AbstractCollectiveModel
from costmodels.dense.base import AbstractDenseModel, DenseTimes
from costmodels.lookup.base import AbstractLookupModel
from costmodels.stages.models import CostModels
from costmodels.topology import FittedFactors

_TIMES: Final = frozenset(
    (
        *("forward_time", "backward_time", "times", "fixed_s", "all_to_all", "all_to_all_s"),
        *("reduce_scatter", "all_reduce", "buffer_s"),
    )
)
"""What gives times that are multiplied. All else, such as the fixed times of kernels, is as the
model that is scaled says."""
_ANOTHER: Final = frozenset({"for_calls", "subadditive"})
"""What gives another model, whose times are multiplied too."""


def scaled(models: CostModels, fitted: FittedFactors | None) -> CostModels:
    """The models with their times multiplied by the factors, and with the spread that is left.

    The factor of the host is not applied here, because it acts on the launch latency of the system.

    Args:
        models: the models of a system.
        fitted: the factors; None if there are none.
    """
    if fitted is None:
        return models
    moved, exchange = fitted.collective_ratio, models.exchange
    return replace(
        models,
        lookup=ScaledLookup(inner=models.lookup, factor_ratio=fitted.lookup_ratio),
        collective=ScaledCollective(inner=models.collective, factor_ratio=moved),
        dense=ScaledDense(inner=models.dense, factor_ratio=fitted.dense_ratio),
        exchange=None
        if exchange is None
        else replace(exchange, factor_ratio=exchange.factor_ratio * moved),
        spread_ratio=fitted.spread_ratio,
    )


def _multiplied(seconds: Any, factor: float) -> Any:
    """Seconds times a factor: a number, an array, or those of a dense part."""
    is_dense = isinstance(seconds, DenseTimes)
    return DenseTimes(*(s * factor for s in seconds)) if is_dense else seconds * factor


def _scaled_member(name: str, member: object) -> Any:
    """A method or a property of a scaled model, which asks the model that is scaled."""
    is_property = isinstance(member, property)

    def answer(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = getattr(self.inner, name)
        found = found if is_property else found(*args, **kwargs)
        if name in _TIMES:
            return _multiplied(found, self.factor_ratio)
        return replace(self, inner=found) if name in _ANOTHER else found

    return property(answer) if is_property else answer


def _scaled_family(name: str, family: type, **own: object) -> Any:
    """The class of the models of a family whose times are multiplied by ``factor_ratio``.

    Args:
        name: of the class, which is a frozen dataclass of ``inner`` and ``factor_ratio``.
        family: the interface of the models.
        own: methods that do more than to ask ``inner`` and to multiply times.
    """
    asked = {
        kind: _scaled_member(kind, member)
        for kind, member in vars(family).items()
        if not kind.startswith("_") and not getattr(member, "__final__", False)
    }
    namespace = {"__module__": __name__, "sources": ("a factor fitted to runs of one's own",)}
    wanted = [("inner", family), ("factor_ratio", float)]
    known = {**asked, **namespace, **own}
    return make_dataclass(name, wanted, bases=(family,), namespace=known, frozen=True, kw_only=True)


def _beside(self: Any, lookup_s: Callable[[], float]) -> Any:
    """As ``inner``, with the seconds of lookups divided by the factor.

    ``inner`` compares them with its own times, which are not multiplied by the factor yet.
    """
    return replace(self, inner=self.inner.beside(lambda: lookup_s() / self.factor_ratio))


ScaledLookup: Final = _scaled_family("ScaledLookup", AbstractLookupModel)
ScaledCollective: Final = _scaled_family("ScaledCollective", AbstractCollectiveModel)
ScaledDense: Final = _scaled_family("ScaledDense", AbstractDenseModel, beside=_beside)
