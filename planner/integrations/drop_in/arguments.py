"""Refuses arguments of the planner that are of another kind, before anything uses them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import Any, Final

from torch import nn
from torchrec.distributed.planner.types import ShardingOption
from torchrec.distributed.planner.types import Topology as TorchrecTopology
from torchrec.distributed.types import ModuleSharder

from costmodels.fields import is_whole, shown
from planner.errors import InvalidInputError
from planner.integrations.drop_in.request import Sharders
from planner.integrations.translate.hints import WorkloadHints
from planner.integrations.translate.settings import require_constraints
from planner.support.kinds import path_of, require_kind

Callback = Callable[[list[ShardingOption]], list[ShardingOption]]


def require_arguments(given: Mapping[str, Any]) -> None:
    """Refuse arguments of a wrong kind, before they are used.

    Args:
        given: the arguments of ``ShardPlanner`` by name; those that no rule is about are left
            alone.

    Raises:
        InvalidInputError: there is such an argument; the message names the first one.
    """
    if given["topology"] is not None:
        _require_topology(given["topology"])
    for name, (is_right, words) in _RULES.items():
        value = given[name]
        if not is_right(value) and not (value is None and name not in _NEEDED):
            raise _refusal(name, words, value)
    require_constraints(given["constraints"])
    if given["plan_file"] is not None:
        path_of(given["plan_file"], "plan_file")


def asked_sharders(module: object, sharders: object) -> Sharders:
    """The sharders of a planning as a list.

    Raises:
        InvalidInputError: the model is no module, or a sharder is none.
    """
    require_kind("module", module, nn.Module, "give the model whose tables are to be sharded")
    hint = "give a list of them, such as get_default_sharders()"
    if not isinstance(sharders, Iterable):
        message = f"sharders: {shown(sharders)} is no list; {hint}"
        raise InvalidInputError(message)
    listed = list(sharders)
    for sharder in listed:
        require_kind("sharders", sharder, ModuleSharder, hint)
    return listed


def called_back(
    options: list[ShardingOption], callbacks: Iterable[Callback], world_size: int
) -> list[ShardingOption]:
    """The options after each callback in turn.

    Raises:
        InvalidInputError: a callback returned something else than a list of options, or put a shard
            on a rank that does not exist.
    """
    what = "what a callback returns"
    for callback in callbacks:
        found: object = callback(options)
        if not isinstance(found, list) or not all(isinstance(o, ShardingOption) for o in found):
            raise _refusal(what, "the list of ShardingOption", found)
        options = found
        ranks = {shard.rank: option.name for option in options for shard in option.shards}
        if lost := [rank for rank in ranks if rank not in range(world_size)]:
            words = f"options on ranks 0 to {world_size - 1} (see table {ranks[lost[0]]!r})"
            raise _refusal(what, words, lost[0])
    return options


def _require_topology(topology: object) -> None:
    require_kind("topology", topology, TorchrecTopology, "Topology(world_size=8, ...) is one")
    for name in ("world_size", "local_world_size", "intra_group_size"):
        value = getattr(topology, name)
        if not (is_whole(value) and value >= 1):
            words = "a whole number of ranks, 1 or more (a pod has pod_size hosts, 1 or more)"
            what = f"topology: {name}"
            raise _refusal(what, words, value)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _has(method: str) -> Callable[[Any], bool]:
    return lambda value: callable(getattr(value, method, None))


def _all_of(is_right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Whether a value is right, or a list of such values."""
    return lambda value: all(
        is_right(part) for part in (value if isinstance(value, list | tuple) else [value])
    )


def _refusal(name: str, words: str, value: object) -> InvalidInputError:
    return InvalidInputError(f"{name} must be {words}, got {shown(value)}")


_RULES: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "batch_size": (lambda v: is_whole(v) and v >= 1, "a whole number of samples, 1 or more"),
    "timeout_seconds": (lambda v: _is_number(v) and v > 0, "a number of seconds above 0"),
    "enumerator": (_has("enumerate"), "an Enumerator of TorchRec"),
    "storage_reservation": (_has("reserve"), "a StorageReservation of TorchRec"),
    "stats": (_all_of(_has("log")), "a Stats of TorchRec, or a list of them"),
    "callbacks": (
        lambda v: isinstance(v, list | tuple) and all(map(callable, v)),
        "a list of functions",
    ),
    "hints": (lambda v: isinstance(v, WorkloadHints), "WorkloadHints"),
    "memory_headroom": (_is_number, "a number, 0 or more and below 1"),
}
"""For each argument: whether a value is of its kind, and what it has to be."""

_NEEDED: Final = ("hints", "memory_headroom")
"""Arguments that cannot be None."""
