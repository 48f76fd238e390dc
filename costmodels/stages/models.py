"""The cost models that price plans, one of each family."""

from __future__ import annotations

import contextlib
import hashlib
import io
import pickle
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from costmodels.collective.alpha_beta import AlphaBeta
from costmodels.collective.base import NUM_LEVELS, AbstractCollectiveModel
from costmodels.cpu.exchange import CpuExchange
from costmodels.dense.base import AbstractDenseModel
from costmodels.dense.roofline import DenseRoofline as DenseRoofline
from costmodels.discovery import model_words, of_users
from costmodels.errors import InvalidValueError
from costmodels.fields import settle
from costmodels.lookup.base import KERNELS, NUM_LOOKUP_WORK, AbstractLookupModel
from costmodels.lookup.fbgemm import Fbgemm
from costmodels.lookup.roofline import Roofline as LookupRoofline
from costmodels.measured.curves import Collective
from costmodels.topology import Topology

# ------------------ own models
#
# Cost models of users: which they are, and whether their answers have the shape that is asked for.
#
# The models of this package are held to this by ``tests/conformance``. A model of a user that gives
# times of another shape would end somewhere in the middle of a search, or change a price unseen.

_FAMILIES: Final = (AbstractLookupModel, AbstractCollectiveModel, AbstractDenseModel, CpuExchange)
_PLANS: Final = 2
"""For how many plans at once times are asked."""


class _Reader(pickle.Pickler):
    """Reads a value with all that it holds, and notes of which classes these are."""

    def __init__(self, content: io.BytesIO) -> None:
        """Write what is read to ``content``."""
        super().__init__(content)
        self.kinds = set[type]()

    def reducer_override(self, value: object) -> Any:
        """Note the class, and leave the rest to pickle."""
        self.kinds.add(value if isinstance(value, type) else type(value))
        return NotImplemented


def own_description(parts: Sequence[object]) -> str:
    """A text that is the same for the same models in every process, and no other.

    It is made of the fields of the models, and of the files that define them, because a changed
    formula is another model. What cannot be pickled, such as a function inside another one, keeps
    its address, so that it is never taken for another one. The text is empty where no model is a
    user's.

    Args:
        parts: the fields of ``CostModels``.
    """
    if not any(isinstance(value, _FAMILIES) and of_users(value) for value in parts):
        return ""
    content = io.BytesIO()
    reader = _Reader(content)
    try:
        reader.dump(parts)
    except Exception:
        return repr(parts)
    read = [hashlib.sha256(content.getvalue()).hexdigest(), *map(_content_hash, reader.kinds)]
    return " ".join([read[0], *sorted(read[1:])])


@cache
def _content_hash(kind: type) -> str:
    """SHA-256 of the files that define a class and what it inherits from, as far as there are."""
    modules = {k.__module__ for k in kind.__mro__ if k.__module__ != "builtins"}
    files = {getattr(sys.modules.get(name), "__file__", None) for name in modules}
    content = hashlib.sha256()
    for file in sorted(str(file) for file in files if file):
        with contextlib.suppress(OSError):
            content.update(Path(file).read_bytes())
    return content.hexdigest()


def require_shapes(models: CostModels, topology: Topology) -> None:
    """Refuse models of users whose times have another shape than what they are asked for.

    Args:
        models: those of this package are not asked.
        topology: the system for which they give times.

    Raises:
        InvalidValueError: names the model, the method, and both shapes.
    """
    if of_users(models.lookup):
        calls = (_PLANS, len(KERNELS))
        work = np.ones((*calls, NUM_LOOKUP_WORK))
        for name in ("forward_time", "backward_time"):
            _ask(models.lookup, name, calls, work, topology)
    if not of_users(models.collective):
        return
    model, world, across = models.collective, topology.world_size, topology.num_hosts > 1
    fixed_s: object = model.fixed_s(topology, ranks=world, across_hosts=across)
    if np.ndim(np.asarray(fixed_s)) or np.asarray(fixed_s).dtype.kind not in "iuf":
        message = f"{model_words(model)}: fixed_s must give one number, got {fixed_s!r:.60}"
        raise InvalidValueError(message)
    sent, shape = np.ones((_PLANS, world, NUM_LEVELS)), (_PLANS, world)
    for name in ("all_to_all", "all_to_all_s"):
        _ask(model, name, shape, sent, sent, topology)
    for kind in ("reduce_scatter", "all_reduce"):
        _ask(model, kind, shape, np.ones(shape), topology, within_host=False)
    for collective in (Collective.REDUCE_SCATTER, Collective.ALL_GATHER, Collective.ALL_REDUCE):
        _ask(model, "buffer_s", shape, collective, np.ones(shape), topology, within_host=False)


def _ask(model: object, method: str, shape: tuple[int, ...], *args: object, **kwargs: bool) -> None:
    """Refuse a model whose method gives something else than an array of a shape."""
    seconds = getattr(model, method)(*args, **kwargs)
    is_array = isinstance(seconds, np.ndarray)
    if is_array and seconds.shape == shape:
        return
    got = f"one of shape {seconds.shape}" if is_array else f"{seconds!r:.40}"
    message = f"{model_words(model)}: {method} must give an array of shape {shape} here, got {got}"
    raise InvalidValueError(message)


# ------------------ models
#
# The cost models that price plans, one of each family.


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
    exchange: CpuExchange | None = None
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
