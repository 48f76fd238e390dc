"""Finds the optimizer that TorchRec's tables train with, and the one a workload is priced with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from torch import nn
from torchrec.distributed.types import ModuleSharder

from costmodels.fields import shown
from costmodels.workload import Optimizer
from planner.errors import InvalidInputError
from planner.integrations.translate.settings import fused_setting

OPTIMIZERS: Final = {
    "sgd": Optimizer.SGD,
    "exact_sgd": Optimizer.SGD,
    "rowwiseadagrad": Optimizer.ROWWISE_ADAGRAD,
    "exact_row_wise_adagrad": Optimizer.ROWWISE_ADAGRAD,
    "adagrad": Optimizer.ADAGRAD,
    "exact_adagrad": Optimizer.ADAGRAD,
    "larssgd": Optimizer.ADAGRAD,
    "lars_sgd": Optimizer.ADAGRAD,
    "adam": Optimizer.ADAM,
    "adamw": Optimizer.ADAM,
    "lamb": Optimizer.ADAM,
    "partialrowwiseadam": Optimizer.ROWWISE_ADAM,
    "partial_row_wise_adam": Optimizer.ROWWISE_ADAM,
    "partialrowwiselamb": Optimizer.ROWWISE_ADAM,
    "partial_row_wise_lamb": Optimizer.ROWWISE_ADAM,
    "row_wise_adagrad": Optimizer.ROWWISE_ADAGRAD,
    "exact_row_wise_weighted_adagrad": Optimizer.ROWWISE_ADAGRAD,
    "ema_in_place_row_wise_adagrad": Optimizer.ROWWISE_ADAGRAD,
    "ensemble_row_wise_adagrad": Optimizer.ROWWISE_ADAM,
    "none": Optimizer.NONE,
}
"""Class names of ``torch.optim`` and ``torchrec.optim`` in lower case, and values of FBGEMM's
``EmbOptimType``. Optimizers with another update are priced as one with as much state per weight:
LARS and LAMB, and FBGEMM's ensemble of a row-wise Adagrad with a slow copy of the weights."""

UNKNOWN_AS: Final = Optimizer.ADAM
"""An unknown optimizer is planned as this one, which has the most state."""


@dataclass(frozen=True, kw_only=True)
class PlannedOptimizer:
    """The optimizer that a workload is priced with.

    ``is_known`` is False if the cost of some table's optimizer is not known; predictions then have
    a wide interval. ``warnings`` say what was assumed.
    """

    priced_as: Optimizer
    is_known: bool
    warnings: tuple[str, ...]


def optimizer_name(
    parameter: nn.Parameter, sharder: ModuleSharder[nn.Module] | None, owner: nn.Module
) -> str:
    """The optimizer of one table, as TorchRec finds it.

    It is the first of these that exists: what ``apply_optimizer_in_backward`` has left on the
    parameter; the optimizer that a fused module was made with; the one in the sharder's
    ``fused_params``; FBGEMM's default, SGD.

    Raises:
        InvalidInputError: the optimizer of the sharder is none of FBGEMM's.
    """
    classes = getattr(parameter, "_optimizer_classes", None)
    if classes:
        return str(classes[0].__name__).lower()
    own = getattr(owner, "optimizer_type", None)
    if callable(own):
        return str(own().__name__).lower()
    chosen = fused_setting(sharder, "optimizer")
    if not isinstance(chosen, Enum | None):
        message = (
            "fused_params['optimizer'] must be a member of FBGEMM's EmbOptimType, such as "
            f"EmbOptimType.EXACT_SGD, got {shown(chosen)}"
        )
        raise InvalidInputError(message)
    return "sgd" if chosen is None else str(chosen.value).lower()


def planned_optimizer(names: Iterable[str]) -> PlannedOptimizer:
    """The optimizer for a workload: the one with the most state, and a warning if tables differ.

    An unknown optimizer is planned as :data:`UNKNOWN_AS`, with a warning.
    """
    used = sorted(set(names))
    unknown = [n for n in used if n not in OPTIMIZERS]
    candidates = {OPTIMIZERS.get(n, UNKNOWN_AS) for n in used}
    chosen = max(candidates, key=lambda o: (o.state_bytes_per_row(128), o.value))
    warnings = []
    if unknown:
        warnings.append(
            f"optimizers {unknown} of the tables have no known cost: planned with the state of "
            f"{UNKNOWN_AS}, and the interval of the prediction reaches from {Optimizer.SGD} to "
            f"twice what {UNKNOWN_AS} adds to it"
        )
    if len(candidates) > 1:
        warnings.append(f"tables use optimizers {used}: all are planned as {chosen}")
    return PlannedOptimizer(priced_as=chosen, is_known=not unknown, warnings=tuple(warnings))
