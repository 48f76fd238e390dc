"""Finds the optimizer that TorchRec's tables train with, and the one a workload is priced with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from torch import nn
from torchrec.distributed.types import ModuleSharder

from costmodels.fields import shown
from costmodels.workload import Optimizer, Table
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

UNKNOWN_AS: Final = Optimizer.ADAGRAD
"""An unknown optimizer is planned as this one, with one state for each weight, which is what
TorchRec's planner counts for a class that it does not know (``_get_optimizer_multipler``)."""


@dataclass(frozen=True, kw_only=True)
class PlannedOptimizers:
    """The optimizers that tables are priced with.

    ``most`` is that of most tables, which becomes the workload's; ``others`` are those of the other
    tables, by name. ``is_known`` is False if the cost of some table's optimizer is not known;
    predictions then have a wide interval. ``warnings`` say what was assumed.
    """

    most: Optimizer
    others: Mapping[str, Optimizer]
    is_known: bool
    warnings: tuple[str, ...]

    def set_in(self, tables: Iterable[Table]) -> tuple[Table, ...]:
        """The tables, each with its own optimizer where it is not that of most."""
        return tuple(
            replace(t, optimizer=self.others[t.name]) if t.name in self.others else t
            for t in tables
        )


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
        return _name_of(classes[0])
    own = getattr(owner, "optimizer_type", None)
    if callable(own):
        return _name_of(own())
    chosen = fused_setting(sharder, "optimizer")
    if not isinstance(chosen, Enum | None):
        message = (
            "fused_params['optimizer'] must be a member of FBGEMM's EmbOptimType, such as "
            f"EmbOptimType.EXACT_SGD, got {shown(chosen)}"
        )
        raise InvalidInputError(message)
    return "sgd" if chosen is None else str(chosen.value).lower()


def _name_of(kind: type[object]) -> str:
    """The name of an optimizer's class in lower case, or of its nearest known base class."""
    names = [base.__name__.lower() for base in kind.__mro__]
    return next((name for name in names if name in OPTIMIZERS), names[0])


def planned_optimizers(names: Mapping[str, str]) -> PlannedOptimizers:
    """The optimizer of each table, for a workload.

    An unknown optimizer is planned as :data:`UNKNOWN_AS`, with a warning.

    Args:
        names: the optimizer of each table, as :func:`optimizer_name` gives it.
    """
    unknown = sorted({n for n in names.values() if n not in OPTIMIZERS})
    kinds = {table: OPTIMIZERS.get(n, UNKNOWN_AS) for table, n in names.items()}
    used = Counter(kinds.values())
    most = max(used, key=lambda o: (used[o], o.state_bytes_per_row(128), o.value))
    warnings = []
    if unknown:
        warnings.append(
            f"optimizers {unknown} of the tables have no known cost: planned with the state of "
            f"{UNKNOWN_AS}, and the interval of the prediction reaches from {Optimizer.SGD} to "
            f"four times what {UNKNOWN_AS} adds to it"
        )
    return PlannedOptimizers(
        most=most,
        others={table: kind for table, kind in kinds.items() if kind is not most},
        is_known=not unknown,
        warnings=tuple(warnings),
    )
