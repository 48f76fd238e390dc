"""Which optimizer a TorchRec table trains with, and how much state that means."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from torch import nn
from torchrec.distributed.types import ModuleSharder

from costmodels.workload import Optimizer
from planner.errors import InvalidInputError

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
}
"""Class names of ``torch.optim`` and ``torchrec.optim`` in lower case, and values of FBGEMM's
``EmbOptimType``. LARS and LAMB stand in for the optimizer with as much state per weight."""


def optimizer_name(parameter: nn.Parameter, sharder: ModuleSharder[nn.Module]) -> str:
    """The optimizer of one table, as TorchRec finds it.

    First what ``apply_optimizer_in_backward`` left on the parameter, then the sharder's
    ``fused_params``, else FBGEMM's default, SGD.
    """
    classes = getattr(parameter, "_optimizer_classes", None)
    if classes:
        return str(classes[0].__name__).lower()
    fused = getattr(sharder, "fused_params", None) or {}
    chosen = fused.get("optimizer")
    return "sgd" if chosen is None else str(chosen.value).lower()


def planned_optimizer(names: Iterable[str]) -> tuple[Optimizer, list[str]]:
    """One optimizer for a workload: the one with the most state, and a warning if they differ.

    Raises:
        InvalidInputError: an optimizer whose state is not known.
    """
    used = sorted(set(names))
    unknown = [n for n in used if n not in OPTIMIZERS]
    if unknown:
        known = ", ".join(sorted(OPTIMIZERS))
        message = f"optimizers {unknown} of the tables cannot be planned; use one of {known}"
        raise InvalidInputError(message)
    chosen = max((OPTIMIZERS[n] for n in used), key=lambda o: o.state_bytes_per_row(128))
    if len({OPTIMIZERS[n] for n in used}) == 1:
        return chosen, []
    return chosen, [f"tables use optimizers {used}: all are planned as {chosen}"]
