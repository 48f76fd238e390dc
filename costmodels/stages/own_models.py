"""Cost models of users: which they are, and whether their answers have the shape that is asked for.

The models of this package are held to this by ``tests/conformance``. A model of a user that gives
times of another shape would end somewhere in the middle of a search, or change a price unseen.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import fields, is_dataclass
from numbers import Real
from pathlib import Path
from typing import Any, Final

import numpy as np

from costmodels.collective.base import NUM_LEVELS, AbstractCollectiveModel
from costmodels.dense.base import AbstractDenseModel
from costmodels.errors import InvalidValueError
from costmodels.exchange import AbstractExchangeModel
from costmodels.lookup.base import KERNELS, NUM_LOOKUP_WORK, AbstractLookupModel
from costmodels.stages.models import CostModels
from costmodels.topology import Topology

_FAMILIES: Final = (
    AbstractLookupModel,
    AbstractCollectiveModel,
    AbstractDenseModel,
    AbstractExchangeModel,
)
_ADDRESS: Final = " at 0x"
"""Part of a text of an object that has none of its own; it differs from process to process."""
_PLANS: Final = 2
"""For how many plans at once times are asked."""


def of_users(model: object) -> object | None:
    """The model of a user that a model is or wraps as its ``inner``; None if there is none."""
    while type(model).__module__.partition(".")[0] == __name__.partition(".")[0]:
        model = getattr(model, "inner", None)
    return model


def described(models: CostModels) -> str:
    """A text that is the same for the same models in every process, and no other.

    It has the fields of the models; for models of users also the content of the file that defines
    them, because a changed formula is another model.
    """
    values = [getattr(models, field.name) for field in fields(models)]
    own = any(isinstance(value, _FAMILIES) and of_users(value) for value in values)
    return ", ".join(map(_described, values)) if own else repr(models)


def _described(value: object) -> str:
    if isinstance(value, np.ndarray):  # its own text leaves numbers out
        return f"{value.dtype}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}"
    if not (isinstance(value, _FAMILIES) and of_users(value)):
        text = repr(value)
        return type(value).__qualname__ if _ADDRESS in text else text
    owner: Any = value
    is_plain = not is_dataclass(owner)
    names = sorted(getattr(owner, "__dict__", ())) if is_plain else [f.name for f in fields(owner)]
    values = ", ".join(f"{name}={_described(getattr(owner, name))}" for name in names)
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}({values}) of {_content_hash(kind)}"


def _content_hash(kind: type) -> str:
    """SHA-256 of the file that defines a class; empty where there is no such file."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    try:
        return "" if file is None else hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        return ""


def require_shapes(models: CostModels, topology: Topology) -> None:
    """Refuse models of users whose times have another shape than what they are asked for.

    Args:
        models: those of this package are not asked.
        topology: the system for which they give times.

    Raises:
        InvalidValueError: names the model, the method, and both shapes.
    """
    if of_users(models.lookup):
        _ask_lookup(models.lookup, topology)
    if of_users(models.collective):
        _ask_collective(models.collective, topology)


def _ask_lookup(model: AbstractLookupModel, topology: Topology) -> None:
    shape = (_PLANS, len(KERNELS))
    work = np.ones((*shape, NUM_LOOKUP_WORK))
    for name, time_s in (("forward", model.forward_time), ("backward", model.backward_time)):
        _require(model, f"{name}_time", time_s(work, topology), shape)


def _ask_collective(model: AbstractCollectiveModel, topology: Topology) -> None:
    world, across = topology.world_size, topology.num_hosts > 1
    fixed_s: object = model.fixed_s(topology, ranks=world, across_hosts=across)
    if not isinstance(fixed_s, Real):
        message = f"{_name(model)}: fixed_s must give one number, got {fixed_s!r:.60}"
        raise InvalidValueError(message)
    sent, shape = np.ones((_PLANS, world, NUM_LEVELS)), (_PLANS, world)
    _require(model, "all_to_all", model.all_to_all(sent, sent, topology), shape)
    sizes = np.ones(shape)
    for name, time_s in (
        ("reduce_scatter", model.reduce_scatter),
        ("all_reduce", model.all_reduce),
    ):
        _require(model, name, time_s(sizes, topology, within_host=False), shape)


def _require(model: object, method: str, seconds: object, shape: tuple[int, ...]) -> None:
    if isinstance(seconds, np.ndarray) and seconds.shape == shape:
        return
    got = f"{seconds!r:.40}"
    if isinstance(seconds, np.ndarray):
        got = f"one of shape {seconds.shape}"
    message = f"{_name(model)}: {method} must give an array of shape {shape} here, got {got}"
    raise InvalidValueError(message)


def _name(model: object) -> str:
    return f"cost model {type(of_users(model)).__name__}"
