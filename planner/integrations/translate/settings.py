"""Refuses settings of TorchRec's constraints and sharders that no kernel could read.

TorchRec checks none of them when they are given; they would fail much later, or be overlooked.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torchrec
from torch import nn
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import CacheParams, ModuleSharder

from costmodels.fields import shown
from costmodels.workload import DataType
from planner.errors import InvalidInputError

DATA_TYPES: Final = {
    "FP32": DataType.FP32,
    "FP16": DataType.FP16,
    "BF16": DataType.BF16,
    "FP8": DataType.FP8,
    "NFP8": DataType.FP8,
    "INT8": DataType.INT8,
    "UINT8": DataType.INT8,
}
"""Data types that can be planned, by the names that TorchRec and FBGEMM give them."""

_NAMES: Final = {
    "sharding_types": "texts, such as ShardingType.ROW_WISE.value",
    "compute_kernels": "texts, such as EmbeddingComputeKernel.FUSED.value",
}
_GROUPS: Final = ("cuda", "cpu", "mtia")
"""The devices of a topology; no planner would plan a table of any other group."""

_TORCHREC: Final = Path(torchrec.__file__).parent
"""The folder with TorchRec's own files."""

_NUMBERS: Final = ("pooling_factors", "num_poolings", "batch_sizes")


def require_constraints(constraints: object) -> dict[str, ParameterConstraints]:
    """The constraints by table, without empty ones, or an error if they cannot be read.

    Raises:
        InvalidInputError: they are no dictionary of constraints by table name, or a field of one
            cannot be read; the message names all such fields.
    """
    given = constraints or {}
    if not isinstance(given, Mapping):
        message = (
            f"constraints must be a dictionary of ParameterConstraints by table, got {shown(given)}"
        )
        raise InvalidInputError(message)
    problems = []
    for table, limit in given.items():
        if not isinstance(table, str):
            problems.append(f"constraints: the name of a table must be a text, got {shown(table)}")
        elif isinstance(limit, ParameterConstraints):
            problems += [f"constraints of table {table!r}: {p}" for p in _problems(limit)]
        elif limit:
            message = (
                f"constraints of table {table!r} must be ParameterConstraints, got {shown(limit)}"
            )
            problems.append(message)
    if problems:
        raise InvalidInputError(problems)
    return {table: limit for table, limit in given.items() if limit}


def _problems(limit: ParameterConstraints) -> list[str]:
    """Fields of a constraint that cannot be read."""
    wrong = []
    for name, words in _NAMES.items():
        value = getattr(limit, name)
        if value is not None and not (_is_list(value) and all(isinstance(v, str) for v in value)):
            wrong.append(f"{name} must be a list of {words}, got {shown(value)}")
    for name in _NUMBERS:
        value = getattr(limit, name)
        if not _is_list(value) and (value is not None or name == "pooling_factors"):
            wrong.append(
                f"{name} must be a list of numbers, one for each feature, got {shown(value)}"
            )
    if not isinstance(limit.cache_params, CacheParams | None):
        wrong.append(f"cache_params must be CacheParams, got {shown(limit.cache_params)}")
    if limit.device_group and limit.device_group not in _GROUPS:
        known = f"one of {', '.join(_GROUPS)}"
        wrong.append(f"device_group must be {known}, got {shown(limit.device_group)}")
    if limit.output_dtype is not None:
        try:
            data_type_of(limit.output_dtype, "output_dtype")
        except InvalidInputError as error:
            wrong += error.problems
    return wrong


def data_type_of(value: Any, name: str) -> DataType:
    """Our data type for one of TorchRec's or FBGEMM's.

    Args:
        value: a member of TorchRec's ``DataType`` or FBGEMM's ``SparseType``.
        name: the name of the setting.

    Raises:
        InvalidInputError: it is no such member, or one of a type that cannot be planned.
    """
    found = DATA_TYPES.get(getattr(value, "name", ""))
    if found is None:
        message = f"{name} must be a data type among {', '.join(DATA_TYPES)}, got {shown(value)}"
        raise InvalidInputError(message)
    return found


def fused_setting(sharder: ModuleSharder[nn.Module] | None, name: str) -> Any:
    """One of the ``fused_params`` of a sharder; None where it is not set."""
    return (getattr(sharder, "fused_params", None) or {}).get(name)


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple)


def is_of_torchrec(method: Callable[..., object]) -> bool:
    """Whether TorchRec's own files define a method; names of modules can be anybody's."""
    code = getattr(inspect.unwrap(method), "__code__", None)
    return code is not None and Path(code.co_filename).is_relative_to(_TORCHREC)
