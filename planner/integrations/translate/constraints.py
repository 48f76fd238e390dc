"""Turns what TorchRec's constraints and sharders allow for tables into our constraints."""

import glob
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral, Real
from typing import Final

import torch
from torch import nn
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.planner.types import ParameterConstraints, ShardingOption, Topology
from torchrec.distributed.planner.utils import sharder_name
from torchrec.distributed.types import ModuleSharder
from torchrec.distributed.types import ShardingType as TorchrecShardingType
from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
from torchrec.quant.embedding_modules import EmbeddingCollection as QuantEmbeddingCollection

from costmodels.sharding import SPREAD, ComputeKernel, Plan, ShardingType, Spread
from costmodels.workload import DataType
from planner.errors import InvalidInputError, refuse, refuse_any
from planner.integrations.translate import pricing, reading, settings
from planner.integrations.translate import private_names as private
from planner.integrations.translate.reading import ModelDescription, ShardableTable
from planner.options import torchrec_rules
from planner.options.enumeration import without_types
from planner.problem import Constraints, Level, TableConstraint, TableGroup

logger: Final = logging.getLogger(__name__)

Pair = tuple[ShardingType, ComputeKernel]
Legal = dict[ShardingType, tuple[ComputeKernel, ...]]

OUR_DEVICE: Final = {"cuda": "cuda", "cpu": "cpu", "mtia": "cuda"}
"""For each of TorchRec's devices the one whose rules hold there."""


def table_constraints(
    found: Sequence[ShardableTable], compute_device: str, world_size: int, batch_size: int
) -> Constraints:
    """Constraints for a search that obeys TorchRec's rules, its sharders and the user.

    The tables of an embedding tower have to be on one host.

    Args:
        found: the tables.
        compute_device: ``cuda``, ``cpu`` or ``mtia``.
        world_size: number of ranks.
        batch_size: samples per rank.

    Raises:
        InvalidInputError: nothing is left for some tables, or their constraints cannot be kept;
            the message names each of them.
    """
    problems, tables, kernels = list[str](), [], set[ComputeKernel]()
    towers: dict[str, list[str]] = {}
    has_key_values = any(entry.key_value is not None for entry in found)
    for entry in found:
        table, given = entry.table, entry.limit
        if entry.tower is not None:
            towers.setdefault(entry.tower, []).append(glob.escape(table.name))
        if entry.key_value is not None:
            given = pricing.planned_as(entry.key_value, given, table.weight_bytes, world_size)
        elif has_key_values and not given.compute_kernels:
            # Tables of one kernel share a launch, but none with key-value tables, which are priced
            # as those of this kernel.
            cached = ComputeKernel.FUSED_UVM_CACHING
            given = replace(given, compute_kernels=[str(k) for k in ComputeKernel if k != cached])
        if table.embedding_dim != entry.config.embedding_dim or reading.row_to_fill(
            table, batch_size
        ):
            given = replace(given, min_partition=table.embedding_dim)
        legal = torchrec_rules.legal_types_and_kernels(
            table, OUR_DEVICE.get(compute_device, compute_device)
        )
        kernels |= {k for options in legal.values() for k in options}
        try:
            tables.append(_one_table(entry, given, legal, compute_device))
        except InvalidInputError as error:
            problems += [f"table {table.name!r}: {p}" for p in error.problems]
    refuse_any(problems)
    return Constraints(
        tables=tuple(tables),
        kernels=tuple(k for k in ComputeKernel if k in kernels),
        together=tuple(
            TableGroup(patterns=tuple(names), level=Level.HOST)
            for names in towers.values()
            if len(names) > 1
        ),
    )


def _one_table(
    entry: ShardableTable, given: ParameterConstraints, legal: Legal, compute_device: str
) -> TableConstraint:
    table, sharder, least = entry.table, entry.sharder, given.min_partition
    if least is not None and (not isinstance(least, Integral) or least < 0):
        refuse(f"min_partition must be a whole number of columns, 1 or more, got {least!r}")
    left = dict.fromkeys(
        (ShardingType(kind), settings.our_kernel(kernel))
        for kind, kernel in allowed_pairs(sharder, given, compute_device)
        if kind in legal and kernel not in settings.KEY_VALUE_KERNELS
    )
    pairs = [(kind, kernel) for kind, kernel in left if kernel in legal[kind]]
    if not pairs:
        runs = _listed((str(kind), str(k)) for kind, kernels in legal.items() for k in kernels)
        offers = _listed(offered_pairs(sharder, compute_device))
        told = {"given": given, "table": table, "offers": offers, "runs": runs or "nothing"}
        words = settings.said("no option", **told), torchrec_rules.unsummed_words(table)
        refuse(": ".join(filter(None, words)))
    ratio = _pinned_load_factor(entry, given)
    limit = TableConstraint(
        pattern=glob.escape(table.name),
        min_column_width=int(least or torchrec_rules.COLUMN_MULTIPLE),
        cache_load_factors=() if ratio is None else (ratio,),
    )
    limit = _only(limit, pairs)
    every = {(t, k) for t in limit.sharding_types for k in limit.kernels if k in legal[t]}
    return replace(limit, pairs=()) if every == set(pairs) else limit


def in_other_group(given: ParameterConstraints, compute_device: str) -> bool:
    """Whether a table belongs to another device group, which is planned separately."""
    return bool(given.device_group) and given.device_group != compute_device


def offered_pairs(sharder: ModuleSharder[nn.Module], compute_device: str) -> list[tuple[str, str]]:
    """Pairs (sharding type, kernel) that a sharder offers, in TorchRec's names and order.

    A sharder is asked for the device that is planned, with one exception: for cpu, TorchRec's own
    methods are asked for cuda, because their list for cpu leaves out row-wise types, which
    TorchRec's cpu runtime trains with the same result
    (``tests/integration/on_ranks/test_shardings.py``).
    """
    of_types, of_kernels = (
        "cuda" if settings.is_of_torchrec(method) and compute_device == "cpu" else compute_device
        for method in (sharder.sharding_types, sharder.compute_kernels)
    )
    return [
        (str(kind), str(kernel))
        for kind in sharder.sharding_types(of_types)
        for kernel in sharder.compute_kernels(str(kind), of_kernels)
    ]


def allowed_pairs(
    sharder: ModuleSharder[nn.Module], given: ParameterConstraints, compute_device: str
) -> list[tuple[str, str]]:
    """The pairs that sharder and constraint leave.

    Some types TorchRec's enumerator lists for a table only when its constraint names them; for
    tables of feature-processed modules these are all types that cut rows.
    """
    behind = "FeatureProcessedEmbeddingBagCollection" in sharder_name(sharder.module_type)
    guarded = torchrec_rules.SUMS_ROWS if behind else (ShardingType.GRID_SHARD,)
    types = [str(t) for t in given.sharding_types or ()]
    kernels = [str(k) for k in given.compute_kernels or ()]
    return [
        (kind, kernel)
        for kind, kernel in offered_pairs(sharder, compute_device)
        if (kind in types if types else kind not in guarded) and (not kernels or kernel in kernels)
    ]


def _listed(pairs: Iterable[tuple[str, str]]) -> str:
    kernels: dict[str, list[str]] = {}
    for kind, kernel in pairs:
        kernels.setdefault(kind, []).append(kernel)
    types: dict[str, list[str]] = {}
    for kind, found in kernels.items():
        types.setdefault(", ".join(found), []).append(kind)
    return " and ".join(f"{', '.join(kinds)} with {found}" for found, kinds in types.items())


def _pinned_load_factor(entry: ShardableTable, given: ParameterConstraints) -> float | None:
    """The cache load factor that the user has set for a table, as TorchRec's kernels find it.

    It is ``cache_params.load_factor`` of the table's constraint, or else ``cache_load_factor``
    among the ``fused_params`` of its sharder; None if neither is set. A cache of all rows, or more,
    counts as :data:`WHOLE_CACHE`.

    Raises:
        InvalidInputError: the load factor is not above 0.
    """
    ratio, name = getattr(given.cache_params, "load_factor", None), "cache_params.load_factor"
    if ratio is None:
        ratio = settings.fused_setting(entry.sharder, "cache_load_factor")
        name = "fused_params['cache_load_factor']"
    if ratio is not None and not (isinstance(ratio, Real) and float(ratio) > 0):
        refuse(f"{name} must be above 0, got {ratio!r}")
    return None if ratio is None else min(float(ratio), settings.WHOLE_CACHE)


def _only(limit: TableConstraint, pairs: Sequence[Pair]) -> TableConstraint:
    """The limit of a table that leaves only some pairs of sharding type and kernel."""
    types, kernels = {t for t, _ in pairs}, {k for _, k in pairs}
    return replace(
        limit,
        sharding_types=tuple(t for t in ShardingType if t in types),
        kernels=tuple(k for k in ComputeKernel if k in kernels),
        pairs=tuple(pairs),
    )


def _listed_by(
    constraints: Constraints, model: ModelDescription, options: Sequence[ShardingOption]
) -> Constraints:
    """The constraints narrowed to the options that a TorchRec enumerator lists."""
    listed: dict[tuple[str, str], set[tuple[str, ComputeKernel]]] = {}
    for o in options:
        is_kept = o.compute_kernel in settings.KEY_VALUE_KERNELS
        cached = ComputeKernel.FUSED_UVM_CACHING
        kernel = cached if is_kept else settings.our_kernel(o.compute_kernel)
        listed.setdefault((o.path, o.name), set()).add((o.sharding_type, kernel))
    tables = []
    for limit, entry in zip(constraints.tables, model.tables, strict=True):
        offered = listed.get((entry.path, entry.parameter_name), set())
        pairs = [
            (kind, kernel)
            for kind in limit.sharding_types
            for kernel in limit.kernels
            if limit.allows_pair(kind, kernel) and (str(kind), kernel) in offered
        ]
        if not pairs:
            refuse(settings.said("enumerator", table=entry.table))
        tables.append(_only(limit, pairs))
    return replace(constraints, tables=tuple(tables))


def search_limits(
    model: ModelDescription, topology: Topology, options: Sequence[ShardingOption] | None
) -> Constraints:
    """The limits of each table without sharding types that TorchRec's runtime cannot train.

    Where ranks do not fill whole intra-node groups, it still puts a table of some types on every
    rank of a group. On cpu there are three more cases; tables that have no other type keep theirs,
    with a warning. FBGEMM treats a rank without weights as a GPU and fails in its first lookup, so
    that no table is cut by rows if some rank would get no row of it. TorchRec passes a device to
    ``DistributedDataParallel``, which refuses a CPU there, so that
    ``FusedEmbeddingBagCollection`` cannot be replicated. A quantized ``EmbeddingCollection`` cannot
    be cut by columns in the memory of a CPU, although its sharder offers this.

    Args:
        model: the tables.
        topology: TorchRec's topology.
        options: those that the user's enumerator lists, which alone are left; None without one.

    Raises:
        InvalidInputError: some tables have only types for whole groups, or the enumerator lists
            nothing for a table; the message names each.
    """
    constraints = model.constraints
    if options is not None:
        constraints = _listed_by(constraints, model, options)
    world_size, group = topology.world_size, topology.intra_group_size
    whole = [t for t in ShardingType if SPREAD[t] is Spread.HOSTS and world_size % group]
    parts = dict.fromkeys(torchrec_rules.SUMS_ROWS, group) | {ShardingType.ROW_WISE: world_size}
    limits, stuck, problems = [], [], []
    for given, entry in zip(constraints.tables, model.tables, strict=True):
        limit, rows = without_types(given, whole), entry.table.num_embeddings
        if limit is None:
            told = {"given": given, "types": [str(t) for t in given.sharding_types]}
            told |= {"world_size": world_size, "group": group}
            problems.append(settings.said("whole hosts", **told))
            continue
        if isinstance(entry.module, QuantEmbeddingCollection):  # its ranks may be without rows
            gone = [ShardingType.COLUMN_WISE]
        else:
            gone = [kind for kind, n in parts.items() if -(-rows // n) * (n - 1) >= rows]
        if isinstance(entry.module, FusedEmbeddingBagCollection):
            gone.append(ShardingType.DATA_PARALLEL)
        left = without_types(limit, gone if topology.compute_device == "cpu" else ())
        if left is None:
            stuck.append(f"{entry.table.name} ({', '.join(limit.sharding_types)})")
        limits.append(left or limit)
    refuse_any(problems)
    for line in _about(stuck, "cpu types"):
        logger.warning(line)
    return replace(constraints, tables=tuple(limits))


# ------------------------------------------------------------------ what is said of them

_SHOWN: Final = 5
_NAMES: Final = {str(k.value) for k in (*TorchrecShardingType, *EmbeddingComputeKernel)}


def table_warnings(
    found: Sequence[ShardableTable],
    given: Mapping[str, ParameterConstraints],
    hints: settings.WorkloadHints,
    batch_size: int,
    device: str,
) -> list[str]:
    """One line for each thing that is assumed, or that is set but not priced.

    Args:
        found: the tables that are planned.
        given: TorchRec's constraints by table name.
        hints: what the model does not say.
        batch_size: samples per rank.
        device: TorchRec's device.
    """
    known = {f.parameter_name for f in found}
    known |= {name for name, limit in given.items() if limit.device_group}
    types = sorted({f.output_dtype for f in found}, key=lambda t: (t.num_bytes, t.value))
    own = (f.sharder for f in found if not settings.is_of_torchrec(f.sharder.storage_usage))
    lists = (names for c in given.values() for names in (c.sharding_types, c.compute_kernels))
    named = {str(name) for names in lists for name in names or ()}
    kernels: dict[tuple[str, str], list[str]] = {}
    for entry in found:
        left = {k for _, k in allowed_pairs(entry.sharder, entry.limit, device)}
        for name in sorted(filter(settings.is_priced_as_another, left)):
            if (nearest := str(settings.our_kernel(name))) not in left:
                kernels.setdefault((name, nearest), []).append(entry.table.name)
    unlike, laws = hints.output_dtype is None and len(types) > 1, hints.distributions
    about: dict[str, Iterable[str]] = {
        "tables of constraints": set(given) - known,
        "tables of hints": set(laws) - known,
        **{name: [f.table.name for f in found if of(f)] for name, of in _REMARKS.items()},
        "no distribution": [
            f.table.name
            for f in found
            if not hints.default_distribution and f.parameter_name not in laws
        ],
        "rows of codecs": [f.table.name for f in found if reading.row_to_fill(f.table, batch_size)],
        "output types": [t.value for t in types] if unlike else (),
        "unknown codecs": {word for f in found for word in reading.unknown_codecs(f.sharder)},
        "storage usage": {type(sharder).__name__ for sharder in own},
        "unknown names": named - _NAMES,
    }
    values = {"batch_size": batch_size, "widest": types[-1]}
    lines = [line for name, names in about.items() for line in _about(names, name, **values)]
    for (kernel, nearest), tables in kernels.items():
        lines += _about(tables, "kernel", kernel=kernel, nearest=nearest)
    return lines


def _about(names: Iterable[str], remark: str, **values: object) -> list[str]:
    """A line with the number of names and the first ones; none if there are none."""
    listed = sorted(names) if isinstance(names, set) else list(names)
    words = settings.said(remark, count=len(listed), **values)
    return [f"{words}: {listed[:_SHOWN]}"] if listed else []


_REMARKS: Final[dict[str, Callable[[ShardableTable], object]]] = {
    "no pooling factor": lambda f: f.limit is settings.NO_LIMIT,
    "key value": lambda f: f.key_value is not None,
    "no load factor": lambda f: (
        f.key_value is None
        and f.limit.cache_params
        and f.limit.cache_params.load_factor is None
        and settings.fused_setting(f.sharder, "cache_load_factor") is None
    ),
    "cache statistics": lambda f: f.limit.cache_params and f.limit.cache_params.stats,
    "feature names": lambda f: (
        f.limit.feature_names and list(f.limit.feature_names) != [x.name for x in f.table.features]
    ),
    "spread": lambda f: (
        f.limit is not settings.NO_LIMIT and reading.is_spread(f.table.features, f.limit)
    ),
    "weights": lambda f: f.limit.is_weighted and not reading.is_weighted(f.module),
    "virtual table": lambda f: (
        f.limit.use_virtual_table and not (f.key_value and f.key_value.is_virtual)
    ),
    # Quantized rows already count their scales.
    "int8": lambda f: (
        f.table.dtype is DataType.INT8 and f.parameter.dtype not in (torch.uint8, torch.int8)
    ),
    "unsummed codecs": lambda f: torchrec_rules.unsummed_words(f.table),
}
"""Remarks, and which tables each is about."""


def copied_by_another_optimizer(plan: Plan, found: Sequence[ShardableTable]) -> list[str]:
    """A line if tables that the plan copies have an optimizer that only fused kernels run.

    The kernel of a replicated table is not fused: its sharder's ``fused_params`` are not read, and
    the optimizer of the dense part, which the training loop makes, updates it.
    """
    copied = [
        f.table.name
        for f in found
        if plan.placement(f.table.name).sharding_type == ShardingType.DATA_PARALLEL.value
        and settings.fused_setting(f.sharder, "optimizer") is not None
        and not private.optimizer_classes(f.parameter)
    ]
    return _about(copied, "another optimizer")
