"""Our cost models as parts of TorchRec's own planner, for users who keep its search.

``PredictedCosts`` prices shards (TorchRec's ``ShardEstimator``), and ``PredictedIteration`` rates
whole plans (its ``PerfModel``). Each can be used alone::

    enumerator = EmbeddingEnumerator(
        topology,
        batch_size=4096,
        constraints=constraints,
        estimator=[PredictedCosts(topology, constraints), EmbeddingStorageEstimator(topology)],
    )
    planner = EmbeddingShardingPlanner(
        topology=topology,
        batch_size=4096,
        constraints=constraints,
        enumerator=enumerator,
        performance_model=PredictedIteration(topology, constraints),
    )

Costs of single shards leave out what depends on the whole plan: launches and latencies that tables
share, and overlap. ``PredictedIteration`` counts all of this.

Makes workloads and plans from TorchRec's sharding options.

A part of TorchRec's planner gets only options, and not the model. Each option has its module, its
parameter and its batch size, which is enough to make a workload.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from torch import nn
from torchrec.distributed.planner.types import (
    ParameterConstraints,
    Perf,
    PerfModel,
    SharderDataMap,
    ShardEstimator,
    ShardingOption,
)
from torchrec.distributed.planner.types import Topology as TorchrecTopology
from torchrec.distributed.planner.utils import sharder_name
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ModuleSharder

from costmodels.datatypes import FloatArray
from costmodels.floors.phases import FETCH
from costmodels.pipeline import CostPipeline
from costmodels.shard_work.wire import EXCHANGING_TYPES
from costmodels.sharding import ComputeKernel, Plan, ShardingType, TablePlacement
from costmodels.sharding import ShardingOption as OurOption
from costmodels.topology import Topology
from costmodels.workload import Workload
from planner.errors import InvalidInputError
from planner.integrations.torchrec_plan import our_shard, terms_of
from planner.integrations.torchrec_topology import (
    base_system,
    require_whole_groups,
    topology_from_torchrec,
)
from planner.integrations.torchrec_workload import (
    NO_HINTS,
    ShardableTable,
    WorkloadHints,
    read_table,
    unique_names,
    with_unique_names,
    workload_of,
)
from planner.integrations.translate.reading import table_configs

logger: Final = logging.getLogger(__name__)


Key = tuple[str, str]
"""Module path and parameter name, which identify a table in TorchRec."""

Given = Mapping[str, ParameterConstraints]
Sharders = Sequence[ModuleSharder[nn.Module]]

_COLUMN_CUTS: Final = (ShardingType.COLUMN_WISE, ShardingType.TABLE_COLUMN_WISE)


def key_of(option: ShardingOption) -> Key:
    """The module path and parameter name of an option."""
    return option.path, option.name


def names_of(options: Sequence[ShardingOption]) -> dict[Key, str]:
    """Our name of each table: the parameter name, with the path if several modules use it."""
    return unique_names(map(key_of, options))


def tables_of(
    options: Sequence[ShardingOption],
    sharders: Mapping[str, Any],
    constraints: Given | None,
    hints: WorkloadHints,
) -> tuple[list[ShardableTable], Workload]:
    """The tables to which options belong, in the order of their first options, and their workload.

    Args:
        options: TorchRec's options, at least one for each table.
        sharders: anything with ``fused_params``, by name of the module type.
        constraints: TorchRec's constraints by table name.
        hints: what options do not say.

    Raises:
        InvalidInputError: a table cannot be priced.
    """
    given, names = dict(constraints or {}), names_of(options)
    found = []
    first = {key_of(o): o for o in reversed(options)}
    for key, name in names.items():
        option, owner = first[key], first[key].module[1]
        config = (table_configs(owner) or {}).get(option.name)
        if config is None:
            message = f"table {name!r} of a {type(owner).__name__} cannot be priced"
            raise InvalidInputError(message)
        if getattr(config, "use_virtual_table", False):
            message = f"table {name!r} is virtual and cannot be priced here; see ShardPlanner"
            raise InvalidInputError(message)
        lengths = ParameterConstraints(pooling_factors=option.input_lengths)
        table = read_table(
            option.name,
            option.tensor,
            (option.path, owner),
            sharders.get(sharder_name(type(owner))),
            config=config,
            limit=given.get(option.name) or lengths,
            batch_size=option.batch_size,
            hints=hints,
        )
        found.append(table)
    found = with_unique_names(found)
    workload, _, _ = workload_of(found, given, hints, options[0].batch_size)
    return found, workload


def option_of(option: ShardingOption, name: str) -> OurOption:
    """TorchRec's option as one of ours, which has no ranks.

    Raises:
        InvalidInputError: there is no cost model for the kernel or type.
    """
    terms, shards = _terms(option, name), option.shards
    kind = terms["sharding_type"]
    widths: tuple[int, ...] = (shards[0].size[1],)
    if kind in _COLUMN_CUTS:
        widths = tuple(s.size[1] for s in shards)
    elif kind is ShardingType.GRID_SHARD:
        widths = tuple(dict((s.offset[1], s.size[1]) for s in shards).values())
    return OurOption(**terms, column_widths=widths)


def plan_of(options: Sequence[ShardingOption]) -> Plan:
    """Options with ranks as one of our plans.

    Raises:
        InvalidInputError: a shard has no rank, or there is no cost model for a kernel.
    """
    names = names_of(options)
    return Plan(placements=tuple(_placement(o, names[key_of(o)]) for o in options))


def _placement(option: ShardingOption, name: str) -> TablePlacement:
    terms = _terms(option, name)
    if any(shard.rank is None for shard in option.shards):
        message = f"table {name!r}: a shard has no rank yet; place the options first"
        raise InvalidInputError(message)
    return TablePlacement(
        **terms, shards=tuple(our_shard(s.rank or 0, s.offset, s.size) for s in option.shards)
    )


def _terms(option: ShardingOption, name: str) -> dict[str, Any]:
    try:
        return terms_of(option, name)
    except ValueError as error:
        message = (
            f"table {name!r}: {option.sharding_type!r} with kernel {option.compute_kernel!r} has "
            "no cost model; constrain its sharding_types, or its compute_kernels to some of "
            f"{', '.join(ComputeKernel)}"
        )
        raise InvalidInputError(message) from error


_MS: Final = 1e3


def our_topology(topology: TorchrecTopology, system: Topology | str | None) -> Topology:
    """Ranks and memories of TorchRec's topology, with the rates of a system if one is named.

    Raises:
        InvalidInputError: the ranks do not fill whole hosts, which TorchRec's partitioner needs.
    """
    require_whole_groups(topology)
    base = base_system(system, topology)
    return topology_from_torchrec(topology, base, rates_from_base=system is not None)


class PredictedCosts(ShardEstimator):
    """Prices each shard by our models, in place of ``EmbeddingPerfEstimator``.

    Args:
        topology: TorchRec's topology.
        constraints: TorchRec's constraints by table name; pooling factors are read from them.
        system: a system of ours (or its name) whose rates are used; TorchRec's if None.
        hints: index distributions and pipeline, which options do not say.
    """

    def __init__(
        self,
        topology: TorchrecTopology,
        constraints: Given | None = None,
        *,
        system: Topology | str | None = None,
        hints: WorkloadHints = NO_HINTS,
    ) -> None:
        self._topology = our_topology(topology, system)
        self._constraints = constraints
        self._hints = hints

    def estimate(
        self, sharding_options: list[ShardingOption], sharder_data_map: SharderDataMap
    ) -> None:
        """Set ``shard.perf`` of every shard, in ms.

        Raises:
            InvalidInputError: there is no cost model for the kernel or the table of an option.
        """
        if not sharding_options:
            return
        _, workload = tables_of(sharding_options, sharder_data_map, self._constraints, self._hints)
        pipeline = CostPipeline(workload, self._topology)
        names = names_of(sharding_options)
        for option in sharding_options:
            ours = option_of(option, names[key_of(option)])
            rows = pipeline.option_work(ours).reshape(-1, pipeline.num_features)
            for shard, perf in zip(option.shards, _perfs(pipeline, rows), strict=True):
                shard.perf = perf


class PredictedIteration(PerfModel):
    """Rates a plan by its predicted iteration time in ms, with exchanges, launches and overlap.

    Args:
        topology: TorchRec's topology.
        constraints: TorchRec's constraints by table name; pooling factors are read from them.
        sharders: whose ``fused_params`` name optimizers; TorchRec's default if None.
        system: a system of ours (or its name) whose rates are used; TorchRec's if None.
        hints: index distributions, dense part and pipeline.
    """

    def __init__(
        self,
        topology: TorchrecTopology,
        constraints: Given | None = None,
        *,
        sharders: Sharders | None = None,
        system: Topology | str | None = None,
        hints: WorkloadHints = NO_HINTS,
    ) -> None:
        self._topology = our_topology(topology, system)
        self._constraints = constraints
        chosen = get_default_sharders() if sharders is None else sharders
        self._sharders = {sharder_name(s.module_type): s for s in chosen}
        self._hints = hints
        self._known: tuple[tuple[Key, ...], list[ShardableTable], CostPipeline] | None = None

    def rate(self, plan: list[ShardingOption]) -> float:
        """Predicted ms per iteration of a placed plan.

        Raises:
            InvalidInputError: there is no cost model for a table or a kernel.
        """
        _, pipeline = self.read(plan)
        return float(pipeline.iteration_times(pipeline.plan_work(plan_of(plan))[None])[0]) * _MS

    def read(self, plan: Sequence[ShardingOption]) -> tuple[list[ShardableTable], CostPipeline]:
        """A plan's tables, and what prices them; both are kept for plans of the same tables."""
        keys = tuple(key_of(o) for o in plan)
        if self._known is None or self._known[0] != keys:
            tables, workload = tables_of(plan, self._sharders, self._constraints, self._hints)
            self._known = keys, tables, CostPipeline(workload, self._topology)
        return self._known[1:]


def _perfs(pipeline: CostPipeline, rows: FloatArray) -> list[Perf]:
    """Cost of each shard alone on its rank, from work rows ``[n, F]``."""
    distinct, index = np.unique(rows, axis=0, return_inverse=True)
    world = pipeline.topology.world_size
    work = np.zeros((len(distinct), world, pipeline.num_features))
    work[:, 0] = distinct
    phases = pipeline.phases.times(work)[:, 0, :FETCH] * _MS  # later ones are hidden or parts
    exchanges = phases[:, 2:-1].reshape(len(distinct), len(EXCHANGING_TYPES), 3).sum(axis=1)
    outputs_ms = exchanges[:, :2].sum(axis=-1)
    perfs = [
        Perf(
            fwd_compute=float(phase[0]),
            fwd_comms=float(output_ms),
            bwd_compute=float(phase[1]),
            bwd_comms=float(output_ms + phase[-1]),
            input_dist_comms=float(indices_ms),
        )
        for phase, output_ms, indices_ms in zip(phases, outputs_ms, exchanges[:, 2], strict=True)
    ]
    return [perfs[i] for i in index.ravel()]
