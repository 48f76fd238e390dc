"""TorchRec's constraints and sharders say what may be done with a table; so do our constraints."""

from __future__ import annotations

import contextlib
import glob
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from torch import nn
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import ModuleSharder

from costmodels.sharding import ComputeKernel, ShardingType
from costmodels.workload import Table
from planner.errors import InvalidInputError
from planner.integrations.torchrec_key_value import KERNELS
from planner.integrations.torchrec_plan import our_kernel
from planner.options.torchrec_rules import legal_types_and_kernels
from planner.problem import Constraints, Level, TableConstraint, TableGroup

TableRequest = tuple[Table, ModuleSharder[nn.Module], ParameterConstraints | None]

ROW_TYPES: Final = (
    ShardingType.ROW_WISE,
    ShardingType.TABLE_ROW_WISE,
    ShardingType.GRID_SHARD,
)
"""Types that TorchRec gives feature-processed modules only when a constraint names them.

Quantized tables are never cut by column here, for their columns are bytes of whole rows.
"""


def table_constraints(
    requests: Sequence[TableRequest],
    compute_device: str,
    towers: Iterable[Sequence[str]] = (),
) -> Constraints:
    """Limits of a search that obeys TorchRec's rules, its sharders, and the user's constraints.

    On cpu the list that a sharder gives for cuda holds, for its list for cpu leaves out row-wise
    types that TorchRec's cpu runtime trains.

    Args:
        requests: each table with its sharder and its constraint, if any.
        compute_device: ``cuda`` or ``cpu``.
        towers: tables of one embedding tower each, which must lie on one host.

    Raises:
        InvalidInputError: names each table for which nothing is left, or with a constraint that
            cannot be held.
    """
    problems: list[str] = []
    tables = []
    kernels: set[ComputeKernel] = set()
    for table, sharder, given in requests:
        legal = legal_types_and_kernels(table, compute_device)
        kernels |= {k for options in legal.values() for k in options}
        try:
            tables.append(_one_table(table, sharder, given or ParameterConstraints(), legal))
        except InvalidInputError as error:
            problems += [f"table {table.name!r}: {p}" for p in error.problems]
        if given is not None and given.device_group not in (None, compute_device):
            problems.append(
                f"table {table.name!r}: device_group {given.device_group!r} differs from the "
                f"compute device {compute_device!r}; plan such tables apart"
            )
    if problems:
        raise InvalidInputError(problems)
    return Constraints(
        tables=tuple(tables),
        kernels=tuple(k for k in ComputeKernel if k in kernels),
        together=tuple(
            TableGroup(patterns=tuple(glob.escape(n) for n in names), level=Level.HOST)
            for names in towers
            if len(names) > 1
        ),
    )


def _one_table(
    table: Table,
    sharder: ModuleSharder[nn.Module],
    given: ParameterConstraints,
    legal: dict[ShardingType, tuple[ComputeKernel, ...]],
) -> TableConstraint:
    supported = _known(ShardingType, sharder.sharding_types("cuda"))
    if "FeatureProcessed" in type(sharder).__name__ and not given.sharding_types:
        supported = [t for t in supported if t not in ROW_TYPES]
    if "Quant" in type(sharder).__name__:
        supported = [t for t in supported if t != ShardingType.COLUMN_WISE]
    asked_types = _known(ShardingType, given.sharding_types or list(ShardingType))
    asked_kernels = _kernels(given.compute_kernels or list(ComputeKernel))
    usable: dict[ShardingType, set[ComputeKernel]] = {}
    for kind, kernels in legal.items():
        if kind in supported and kind in asked_types:
            offered = _kernels(sharder.compute_kernels(str(kind), "cuda"))
            left = {k for k in kernels if k in offered and k in asked_kernels}
            if left:
                usable[kind] = left
    if not usable:
        message = (
            f"no sharding option is left: its sharder offers {[str(t) for t in supported]}, rules "
            f"allow {[str(t) for t in legal]}, constraints ask for types {given.sharding_types} "
            f"and kernels {given.compute_kernels}; widen the constraints"
        )
        raise InvalidInputError(message)
    ratio = given.cache_params.load_factor if given.cache_params else None
    if ratio is not None and not 0 < ratio < 1:
        message = f"cache_params.load_factor must lie between 0 and 1, got {ratio}"
        raise InvalidInputError(message)
    return TableConstraint(
        pattern=glob.escape(table.name),
        sharding_types=tuple(usable),
        kernels=tuple(k for k in ComputeKernel if any(k in left for left in usable.values())),
        min_column_width=given.min_partition or 4,
        cache_load_factors=() if ratio is None else (ratio,),
    )


def _known(kind: type[ShardingType], values: Iterable[str]) -> list[str]:
    """The values that are ours too."""
    ours = {str(k) for k in kind}
    return [str(v) for v in values if str(v) in ours]


def _kernels(names: Iterable[str]) -> list[ComputeKernel]:
    """Kernels of ours behind TorchRec's names; it has some that no plan of ours uses."""
    found = []
    for name in names:
        with contextlib.suppress(ValueError):
            found.append(our_kernel(str(name)))
    return found


def _searched_as(name: str) -> ComputeKernel | None:
    """The kernel of ours under which the search sees one of TorchRec's."""
    return (
        ComputeKernel.FUSED_UVM_CACHING if name in KERNELS else next(iter(_kernels([name])), None)
    )


def narrowed_to_options(
    constraints: Constraints,
    places: dict[str, tuple[str, str]],
    options: Iterable[tuple[str, str, str, str]],
) -> Constraints:
    """The constraints with only those options that a TorchRec enumerator lists.

    Args:
        constraints: one entry per table, in the order of ``places``.
        places: module path and parameter name of each table, by our name.
        options: (module path, parameter name, sharding type, kernel) of each listed option.
    """
    listed: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for path, name, sharding_type, kernel in options:
        listed.setdefault((path, name), []).append((sharding_type, kernel))
    tables = []
    for limit, (table, place) in zip(constraints.tables, places.items(), strict=True):
        found = listed.get(place, [])
        types = tuple(t for t in limit.sharding_types if any(str(t) == a for a, _ in found))
        offered = {_searched_as(b) for _, b in found}
        kernels = tuple(k for k in limit.kernels if k in offered)
        if not types or not kernels:
            message = f"table {table!r}: the enumerator lists no option that can be planned"
            raise InvalidInputError(message)
        tables.append(replace(limit, sharding_types=types, kernels=kernels))
    return replace(constraints, tables=tuple(tables))
