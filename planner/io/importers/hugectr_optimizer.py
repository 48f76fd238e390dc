"""Reads the optimizers of a HugeCTR configuration: for all layers, or for one embedding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from costmodels.workload import DenseOptimizer, Optimizer
from planner.io.importers.base import Reader
from planner.io.yaml_reader import Keys

_OPTIMIZERS: Final = {
    "SGD": Optimizer.SGD,
    "Adam": Optimizer.ADAM,
    "AdaGrad": Optimizer.ADAGRAD,
    "Adagrad": Optimizer.ADAGRAD,
    "MomentumSGD": Optimizer.ADAGRAD,
    "Nesterov": Optimizer.ADAGRAD,
}
_SAME_STATE: Final = ("MomentumSGD", "Nesterov")
_OF_DENSE: Final = {
    Optimizer.SGD: DenseOptimizer.SGD,
    Optimizer.ADAGRAD: DenseOptimizer.ADAGRAD,
    Optimizer.ADAM: DenseOptimizer.ADAM,
}
_STATES: Final = {Optimizer.SGD: 0, Optimizer.ADAGRAD: 1, Optimizer.ADAM: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedOptimizer:
    """An optimizer as the file names it.

    Attributes:
        kind: HugeCTR's name.
        optimizer: the optimizer in a workload.
        states: numbers that HugeCTR keeps for each weight, in the workspace of the table.
    """

    kind: str
    optimizer: Optimizer
    states: int

    @property
    def of_dense(self) -> DenseOptimizer:
        """The optimizer of the dense part, which HugeCTR updates in one kernel."""
        return _OF_DENSE[self.optimizer]


NO_OPTIMIZER: Final = NamedOptimizer(kind="SGD", optimizer=Optimizer.SGD, states=0)


def read_optimizer(
    reader: Reader, holder: dict[str, Any], keys: Keys, default: NamedOptimizer
) -> NamedOptimizer:
    """The optimizer under the key ``optimizer``, or the default if there is no such key.

    Raises:
        InvalidInputError: the type of the optimizer is unknown.
    """
    if "optimizer" not in holder:
        return default
    where = (*keys, "optimizer")
    section = reader.mapping(holder["optimizer"], where)
    kind = reader.required(section, "type", where)
    if not isinstance(kind, str) or kind not in _OPTIMIZERS:
        raise reader.fail((*where, "type"), kind, f"must be one of {', '.join(_OPTIMIZERS)}")
    optimizer = _OPTIMIZERS[kind]
    lazy = optimizer is Optimizer.ADAM and section.get("update_type") == "LazyGlobal"
    return NamedOptimizer(kind=kind, optimizer=optimizer, states=_STATES[optimizer] + lazy)


def optimizer_of_tables(
    found: dict[str, NamedOptimizer], assumed: dict[str, str], *, is_named: bool
) -> Optimizer:
    """The optimizer for all tables, of which a workload has only one: that with the most states.

    Args:
        found: the optimizer of each embedding, by its name.
        assumed: gets a line if the file names no optimizer, or if tables have different ones.
        is_named: whether the file names an optimizer.
    """
    name, most = max(found.items(), key=lambda item: item[1].states)
    if not is_named:
        assumed["training.optimizer"] = "the file does not name it"
    elif most.kind in _SAME_STATE:
        assumed["training.optimizer"] = (
            f"adagrad in place of {most.kind}: both keep one state per value"
        )
    others = {n: o.kind for n, o in found.items() if o.kind != most.kind}
    if others:
        listed = ", ".join(f"{n} has {kind}" for n, kind in others.items())
        assumed["training.optimizer"] = f"that of {name}, {most.kind}, for all tables; {listed}"
    return most.optimizer
