"""Arguments of the planner, hints, constraints and settings of sharders: and errors.

TorchRec checks no settings when they are given; they would fail much later, or be overlooked.
"""

import inspect
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any, Final

import torchrec
from torch import nn
from torchrec.distributed.planner import types as torchrec_types
from torchrec.distributed.planner.types import ParameterConstraints, PlannerErrorType
from torchrec.distributed.types import CacheParams, ModuleSharder

from costmodels.distribution.base import AbstractIndexDistribution
from costmodels.errors import InvalidValueError
from costmodels.fields import is_whole, settle, shown
from costmodels.sharding import ComputeKernel
from costmodels.workload import DataType, DenseArch, Pipeline
from planner import errors
from planner.errors import refuse, refuse_any
from planner.io.documents import read_words
from planner.support.kinds import path_of, require_kind

Rule = Callable[[Any], bool]
Rules = Mapping[str, Rule]
"""The rule of each value by its name; the words for it stand under ``kinds`` among the words."""


class ShardPlannerError(torchrec_types.PlannerError, errors.PlannerError):
    """No plan for a TorchRec model; ``error_type`` is TorchRec's reason."""


def as_planner_error(error: Exception) -> ShardPlannerError:
    """Message and reason of any error, with its class name unless it is a planner's own."""
    if isinstance(error, torchrec_types.PlannerError):
        return ShardPlannerError(str(error), error.error_type)
    kinds = {
        errors.InfeasibleError: PlannerErrorType.INSUFFICIENT_STORAGE,
        errors.InvalidInputError: PlannerErrorType.STRICT_CONSTRAINTS,
        errors.NoPlanFoundError: PlannerErrorType.PARTITION,
    }
    kind = next((v for k, v in kinds.items() if isinstance(error, k)), PlannerErrorType.OTHER)
    own = isinstance(error, errors.PlannerError)
    return ShardPlannerError(str(error) if own else f"{type(error).__name__}: {error}", kind)


WHOLE_CACHE: Final = 1.0 - 2.0**-20
"""The load factor for a cache of all rows, because TorchRec's validators want less than 1."""

WORDS: Final = read_words("torchrec")
"""What TorchRec, FBGEMM and PyTorch call types, kernels and operators."""


def said(remark: str, **values: object) -> str:
    """A remark on settings or on what a model does not say, with some values."""
    return str(WORDS["remarks"][remark]).format(**values)


KEY_VALUE_KERNELS: Final = tuple(WORDS["key_value_kernels"])
ON_SSD, *VIRTUAL = KEY_VALUE_KERNELS
"""The kernel of an ordinary table whose rows are on an SSD, and the kernels of virtual tables; the
first of these is used if no constraint names another."""

_FARTHEST_FIRST: Final = (ComputeKernel.FUSED_UVM_CACHING, ComputeKernel.FUSED_UVM)


def our_kernel(name: str) -> ComputeKernel:
    """The kernel as which a TorchRec kernel is planned.

    One without a cost model, such as ``fused_triton`` or ``customized_kernel``, is planned as the
    nearest kernel that has one: that with rows in the same memory, by its name.

    Raises:
        ValueError: it is the kernel of a key-value table, which is planned in another way.
    """
    if name in KEY_VALUE_KERNELS:
        message = f"{name!r} is not a valid kernel of ordinary tables, but one of key-value tables"
        raise ValueError(message)
    if name in tuple(ComputeKernel):
        return ComputeKernel(name)
    farther = (k for k in _FARTHEST_FIRST if str(k).removeprefix("fused_") in name)
    return next(farther, ComputeKernel.FUSED)


def is_priced_as_another(name: str) -> bool:
    """Whether a kernel has no cost model of its own."""
    return name not in (*KEY_VALUE_KERNELS, *WORDS["quantized_kernels"], *ComputeKernel)


def kernel_name(kernel: ComputeKernel, allowed: Iterable[str]) -> str:
    """TorchRec's name of a kernel: its own if that is allowed, or one that is planned as it."""
    names = list(allowed)
    if str(kernel) in names:
        return str(kernel)
    usable = (name for name in names if name not in KEY_VALUE_KERNELS)
    return next((name for name in usable if our_kernel(name) is kernel), str(kernel))


DATA_TYPES: Final = {name: DataType(kind) for name, kind in WORDS["data_types"].items()}


def require_constraints(constraints: object) -> dict[str, ParameterConstraints]:
    """The constraints by table, without empty ones, or an error if they cannot be read.

    Raises:
        InvalidInputError: they are no dictionary of constraints by table name, or a field of one
            cannot be read; the message names all such fields.
    """
    given: Any = constraints or {}
    refuse_any(_wrong({"constraints": given}, {"constraints": _is(Mapping)}))
    problems = []
    for table, limit in given.items():
        of = f"constraints of table {table!r}"
        if not isinstance(table, str):
            problems.append(f"constraints: the name of a table must be a text, got {shown(table)}")
        elif isinstance(limit, ParameterConstraints):
            lines = _wrong(vars(limit), _FIELDS, needed=("pooling_factors",))
            problems += [f"{of}: {line}" for line in lines]
        elif limit:
            problems.append(f"{of} must be ParameterConstraints, got {shown(limit)}")
    refuse_any(problems)
    return {table: limit for table, limit in given.items() if limit}


def data_type_of(value: Any, name: str) -> DataType:
    """Our data type for one of TorchRec's or FBGEMM's.

    Args:
        value: a member of TorchRec's ``DataType`` or FBGEMM's ``SparseType``.
        name: the name of the setting.

    Raises:
        InvalidInputError: it is no such member, or one of a type that cannot be planned.
    """
    if not _is_data_type(value):
        refuse(f"{name} must be {WORDS['kinds']['output_dtype']}, got {shown(value)}")
    return DATA_TYPES[value.name]


def fused_setting(sharder: ModuleSharder[nn.Module] | None, name: str) -> Any:
    """One of the ``fused_params`` of a sharder; None where it is not set."""
    return (getattr(sharder, "fused_params", None) or {}).get(name)


def is_of_torchrec(method: Callable[..., object]) -> bool:
    """Whether TorchRec's own files define a method; names of modules can be anybody's."""
    code = getattr(inspect.unwrap(method), "__code__", None)
    own = Path(torchrec.__file__).parent
    return code is not None and Path(code.co_filename).is_relative_to(own)


@dataclass(frozen=True, kw_only=True)
class WorkloadHints:
    """What a model does not say about its training.

    ``distributions`` maps table names to index laws. Other tables get ``default_distribution``,
    called with their number of rows. The law of a virtual table has as many rows as ids are in use.
    ``dense`` replaces the dense part that is read from the model; without it, the dense part is
    traced with ``inputs``, a function of the batch size that makes the arguments of ``forward``
    (a tuple, a mapping of names, or the only argument; tensors may be on the meta device), or else
    that of the first DLRM in the model is read. ``reserved_bytes`` is device
    memory of each rank that is kept free for everything that the planner does not count.

    Raises:
        InvalidInputError: values have a wrong type, or the reserve is negative; the message names
            each of them.
    """

    name: str = "torchrec_model"
    distributions: Mapping[str, AbstractIndexDistribution] = field(default_factory=dict)
    default_distribution: Callable[[int], AbstractIndexDistribution] | None = None
    dense: DenseArch | None = None
    inputs: Callable[[int], Any] | None = None
    pipeline: Pipeline = Pipeline.SPARSE_DIST
    output_dtype: DataType | None = None
    reserved_bytes: float = 0.0

    def __post_init__(self) -> None:
        """Refuse values of a wrong type, and a negative reserve."""
        problems = _wrong(vars(self), _HINTS, needed=("distributions",))
        try:
            settle(self)
        except InvalidValueError as error:
            problems.append(str(error))
        refuse_any([f"hints: {line}" for line in problems])


Sharders = list[ModuleSharder[nn.Module]]


Callback = Callable[[list[torchrec_types.ShardingOption]], list[torchrec_types.ShardingOption]]


def require_arguments(given: Mapping[str, Any]) -> None:
    """Refuse arguments of a wrong kind, before they are used.

    Args:
        given: the arguments of ``ShardPlanner`` by name; those that no rule is about are left
            alone.

    Raises:
        InvalidInputError: there is such an argument; the message names the first one.
    """
    if (topology := given["topology"]) is not None:
        hint = "Topology(world_size=8, ...) is one"
        require_kind("topology", topology, torchrec_types.Topology, hint)
        sizes = {name: getattr(topology, name) for name in _SIZES}
        refuse_any([f"topology: {line}" for line in _wrong(sizes, _SIZES, needed=_SIZES)])
    refuse_any(_wrong(given, _RULES, needed=("hints", "memory_headroom")))
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
        refuse(f"sharders: {shown(sharders)} is no list; {hint}")
    listed = list(sharders)
    for sharder in listed:
        require_kind("sharders", sharder, ModuleSharder, hint)
    return listed


def called_back(
    options: list[torchrec_types.ShardingOption], callbacks: Iterable[Callback], world_size: int
) -> list[torchrec_types.ShardingOption]:
    """The options after each callback in turn.

    Raises:
        InvalidInputError: a callback returned something else than a list of options, or put a shard
            on a rank that does not exist.
    """
    for callback in callbacks:
        found: object = callback(options)
        is_option = _is(torchrec_types.ShardingOption)
        if not isinstance(found, list) or not all(map(is_option, found)):
            refuse(said("called back", given=shown(found)))
        options = found
        for option, shard in ((o, s) for o in options for s in o.shards):
            if shard.rank not in range(world_size):
                told = {"last": world_size - 1, "option": option, "given": shown(shard.rank)}
                refuse(said("called back to a rank", **told))
    return options


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple)


def _has(method: str) -> Rule:
    return lambda value: callable(getattr(value, method, None))


def _is(kind: type) -> Rule:
    return lambda value: isinstance(value, kind)


def _list_of(is_right: Rule) -> Rule:
    return lambda value: _is_list(value) and all(map(is_right, value))


def _is_data_type(value: object) -> bool:
    return getattr(value, "name", "") in DATA_TYPES


def _wrong(given: Mapping[str, Any], rules: Rules, needed: Collection[str] = ()) -> list[str]:
    """A line for each value that breaks its rule; values that are not needed can be None."""
    return [
        f"{name} must be {WORDS['kinds'][name]}, got {shown(given[name])}"
        for name, is_right in rules.items()
        if not (given[name] is None and name not in needed) and not is_right(given[name])
    ]


def _is_count(value: Any) -> bool:
    return is_whole(value) and value >= 1


_SIZES: Final[Rules] = dict.fromkeys(
    ("world_size", "local_world_size", "intra_group_size"), _is_count
)
_RULES: Final[Rules] = {
    "batch_size": _is_count,
    "timeout_seconds": lambda v: _is_number(v) and v > 0,
    "enumerator": _has("enumerate"),
    "storage_reservation": _has("reserve"),
    "stats": lambda v: all(map(_has("log"), v if _is_list(v) else [v])),
    "callbacks": _list_of(callable),
    "hints": _is(WorkloadHints),
    "memory_headroom": lambda v: _is_number(v) and 0 <= v < 1,
}
"""For each argument of the planner: whether a value is of its kind."""

_FIELDS: Final[Rules] = {
    **dict.fromkeys(("sharding_types", "compute_kernels"), _list_of(_is(str))),
    **dict.fromkeys(("pooling_factors", "num_poolings", "batch_sizes"), _is_list),
    "cache_params": _is(CacheParams),
    "device_group": lambda v: not v or v in ("cuda", "cpu", "mtia"),
    "output_dtype": _is_data_type,
}
"""The same for each field of a constraint."""

_HINTS: Final[Rules] = {
    "distributions": lambda v: (
        isinstance(v, Mapping) and all(map(_is(AbstractIndexDistribution), v.values()))
    ),
    **dict.fromkeys(("default_distribution", "inputs"), callable),
    "reserved_bytes": lambda v: not _is_number(v) or 0 <= v < math.inf,
}
"""The same for the hints, whose plain values are known to be of their kinds."""

NO_HINTS: Final = WorkloadHints()

NO_LIMIT: Final = ParameterConstraints()
"""Stands for the constraint of a table for which the user gave none."""
