"""The cost models that price plans, one of each family."""

import contextlib
import hashlib
import io
import pickle
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from costmodels.collective.alpha_beta import AlphaBeta
from costmodels.collective.base import NUM_LEVELS, AbstractCollectiveModel, spread_by_level
from costmodels.cpu.exchange import CpuExchange
from costmodels.datatypes import FloatArray
from costmodels.dense.base import AbstractDenseModel
from costmodels.dense.roofline import DenseRoofline as DenseRoofline
from costmodels.discovery import model_words, of_users
from costmodels.errors import refuse
from costmodels.fields import settle
from costmodels.iteration.base import require_times
from costmodels.lookup.base import KERNELS, NUM_LOOKUP_WORK, AbstractLookupModel
from costmodels.lookup.fbgemm import Fbgemm
from costmodels.lookup.roofline import Roofline as LookupRoofline
from costmodels.measured.curves import Collective
from costmodels.topology import Topology

# ------------------ own models
#
# Cost models of users: which they are, and whether their answers have the shape that is asked
# for.
#
# The models of this package are held to this by ``tests/conformance``. A model of a user that
# gives times of another shape would end somewhere in the middle of a search, or change a price
# unseen.

_FAMILIES: Final = (AbstractLookupModel, AbstractCollectiveModel, AbstractDenseModel, CpuExchange)
_PLANS: Final = 2
"""For how many plans at once times are asked."""


class _Content(pickle.Pickler):
    """Pickles values as they are told apart, and notes the modules that define what is in them."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.modules: set[str] = set()
        self.fast = True  # equal values have equal content, whether they are one object or several

    def reducer_override(self, value: object) -> Any:
        """Pickle models by all that tells them from others; anything else as usual."""
        kinds = (value if isinstance(value, type) else type(value)).__mro__
        self.modules.update(kind.__module__ for kind in kinds)
        self.modules.add(getattr(value, "__module__", None) or "")
        if isinstance(value, type) or not (is_dataclass(value) or isinstance(value, _FAMILIES)):
            return NotImplemented
        return type(value), (), {n: getattr(value, n) for n in _names(value) if hasattr(value, n)}


def _names(value: Any) -> list[str]:
    """The attributes that tell a value from others of its class, without results it has kept."""
    kind, names = type(value), set(getattr(value, "__dict__", ()))
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        names |= {slots} if isinstance(slots, str) else set(slots)
    kept = {n for n in names if isinstance(getattr(kind, n, None), cached_property)}
    if is_dataclass(value):
        kept |= {field.name for field in fields(value) if not field.compare}
    return sorted(names - kept - {"__dict__", "__weakref__"})


def own_description(parts: Sequence[object]) -> str:
    """A text that is the same for the same models in every process, and no other.

    It follows from the fields of the models and from the content of the files that define them,
    because a changed formula is another model. It is empty where no model is a user's. What cannot
    be pickled, such as a function without a name, is told from all others by its address.

    Args:
        parts: the fields of ``CostModels``.
    """
    if not any(isinstance(value, _FAMILIES) and of_users(value) for value in parts):
        return ""
    pickled = io.BytesIO()
    content = _Content(pickled)
    try:
        content.dump(parts)
    except (pickle.PicklingError, AttributeError, TypeError, ValueError, RecursionError):
        return repr(parts)
    digest = hashlib.sha256(pickled.getvalue())
    files = {getattr(sys.modules.get(name), "__file__", None) for name in content.modules}
    for file in sorted(filter(None, files)):
        with contextlib.suppress(OSError):
            digest.update(Path(file).read_bytes())
    return digest.hexdigest()


def require_shapes(models: "CostModels", topology: Topology) -> None:
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
        refuse(f"{model_words(model)}: fixed_s must give one number, got {fixed_s!r:.60}")
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
    refuse(f"{model_words(model)}: {method} must give an array of shape {shape} here, got {got}")


# ------------------ models
#
# The cost models that price plans, one of each family.


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

    lookup: AbstractLookupModel = field(default_factory=lambda: Fbgemm(other=LookupRoofline()))
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


# ------------------ rules of bounds
#
# The rules that lower bounds rest on, tried out on cost models of users.
#
# Tangents bound a time from below only if its growing part is convex and homogeneous in the work.
# A model that breaks this would make bounds too high, and most plans too good to be true. The
# models of this package are held to the rules by ``tests/conformance``; those of users are tried
# out on drawn work before the first bound is computed. That finds models that break a rule for
# most work; it cannot prove that a model keeps them.

_DRAWN: Final = 12
"""How many works are drawn; each is compared with its double and with the next one. More of them
find rarer faults and take longer."""
_SMALLEST_LOG10, _LARGEST_LOG10 = 2.0, 9.0
"""Powers of ten of the bytes that are drawn: from short messages to the largest tables' lookups."""
_IDLE_RATIO: Final = 0.3
"""Share of the drawn bytes that are 0, because models often treat nothing in another way."""
_NOTHING_S: Final = 1e-12
"""Seconds up to which the time of no work counts as none."""
_ROUNDING: Final = 1e-6
"""Share by which times may differ from the rules: more than rounding, less than any real fault."""

_Growth = Callable[[FloatArray], FloatArray]
"""Seconds of the growing part, in any shape, for bytes ``[..., columns]``."""


def require_rules(models: CostModels, topology: Topology) -> None:
    """Refuse models of users whose growing parts are not convex, homogeneous and non-decreasing.

    Args:
        models: those of this package are not tried out.
        topology: the system for which they give times.

    Raises:
        InvalidValueError: a model breaks a rule; the message says which one and by how much.
    """
    if of_users(models.lookup):
        lookup = models.lookup
        for what, time_s in (("forward", lookup.forward_time), ("backward", lookup.backward_time)):
            _try(f"the {what} lookup", lookup, partial(_of, time_s, topology), NUM_LOOKUP_WORK)
    if of_users(models.collective):
        _try_collective(models.collective, topology)


def _try_collective(model: AbstractCollectiveModel, topology: Topology) -> None:
    """All collectives, and whether a rank pays for what others send."""
    world = topology.world_size
    if world == 1:
        return
    all_to_all = _of_peers(model.all_to_all, topology)
    _try("an all-to-all", model, all_to_all, world, _of_peers(model.all_to_all_s, topology))
    for within in (True, False) if topology.local_world_size > 1 else (False,):
        where = "inside a host" if within else "over all ranks"
        for what, part, kind in (
            ("a reduce-scatter", model.reduce_scatter, Collective.REDUCE_SCATTER),
            ("an all-reduce", model.all_reduce, Collective.ALL_REDUCE),
        ):
            both = part, partial(model.buffer_s, kind)
            growth, time_s = (partial(_of, f, topology, within_host=within) for f in both)
            _try(f"{what} {where}", model, growth, 1, time_s)
    sent = 10.0**_LARGEST_LOG10 / world
    alone_s = float(all_to_all(sent * (np.arange(world) == 0))[0])
    beside_s = float(all_to_all(np.full(world, sent))[0])
    if not model.pays_for_others and abs(beside_s - alone_s) > _ROUNDING * max(beside_s, alone_s):
        _refuse(
            model,
            f"a rank's all-to-all takes {alone_s:.6g} s if it sends alone and {beside_s:.6g} s if "
            "all send as much, but pays_for_others is False: bounds would be too high",
        )


def _of_peers(time_s: Callable[..., FloatArray], topology: Topology) -> _Growth:
    """Seconds ``[..., W]`` of ranks from the bytes that each sends to every other one."""
    local, domain = topology.local_world_size, topology.domain_size
    return lambda sent: time_s(*spread_by_level(sent, local=local, domain=domain), topology)


def _of(
    time_s: Callable[..., FloatArray], topology: Topology, work: FloatArray, **how: bool
) -> FloatArray:
    """Seconds of work on the system."""
    return time_s(work, topology, **how)


def _try(
    what: str, model: object, growth: _Growth, columns: int, whole: _Growth | None = None
) -> None:
    """Compare the seconds of drawn work with those of none, of twice as much, and of mixtures.

    Args:
        what: what is tried out, for the message.
        model: the model, for the message.
        growth: seconds of its growing part.
        columns: of the work.
        whole: seconds of the same with all that is fixed, which may not be shorter.
    """
    rng = np.random.default_rng(0)
    size = (_DRAWN, columns)
    full = 10.0 ** rng.uniform(_SMALLEST_LOG10, _LARGEST_LOG10, size)
    drawn = np.where(rng.random(size) < _IDLE_RATIO, 0.0, full)
    # In every second work all grows together, as that of one table does with the batch.
    drawn[::2] = full[0] * 10.0 ** -np.arange(0.0, _DRAWN / 2)[:, None]
    other = np.roll(drawn, 1, axis=0)
    none_s, one_s, next_s = growth(np.zeros_like(drawn)), growth(drawn), growth(other)
    double_s, mean_s = growth(2.0 * drawn), growth((drawn + other) / 2.0)
    both_s = growth(drawn + other)
    for seconds in (none_s, one_s, next_s, double_s, mean_s, both_s):
        require_times(seconds, f"{model_words(model)}: {what}")
    whole_s = one_s if whole is None else whole(drawn)
    for name, found, may, expected in (
        ("no work", none_s, "only", 0.0 * one_s),
        ("twice the work", double_s, "only", 2.0 * one_s),
        ("the mean of two works", mean_s, "at most", (one_s + next_s) / 2.0),
        ("more work", both_s, "at least", one_s),
        ("its fixed part", whole_s, "at least", one_s),
    ):
        below = found < expected * (1.0 - _ROUNDING)
        above = found > np.maximum(expected * (1.0 + _ROUNDING), _NOTHING_S)
        wrong = {"at most": above, "at least": below}.get(may, above | below)
        if wrong.any():
            at = int(np.argmax(wrong))
            _refuse(
                model,
                f"{what} with {name} takes {found.flat[at]:.6g} s, and may take {may} "
                f"{expected.flat[at]:.6g} s. The part that grows with the work has to be convex, "
                "homogeneous and non-decreasing, or bounds would be wrong",
            )


def _refuse(model: object, fault: str) -> None:
    refuse(
        f"{model_words(model)}: {fault}; correct the model "
        "(docs/how-to/own_model.md), or search by a strategy without a bound, such as random"
    )
