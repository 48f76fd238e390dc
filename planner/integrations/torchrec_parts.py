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

A part of TorchRec's planner gets only options, and not the model. Each option has its module, its
parameter and its batch size, which is enough to make a workload.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from torch import nn
from torchrec.distributed.planner import types as torchrec_types
from torchrec.distributed.planner.utils import sharder_name
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ModuleSharder

from costmodels.datatypes import FloatArray
from costmodels.floors.phases import FETCH
from costmodels.pipeline import CostPipeline
from costmodels.shard_work.wire import EXCHANGING_TYPES
from costmodels.sharding import ShardingOption as OurOption
from costmodels.topology import Topology
from planner.errors import refuse
from planner.integrations import torchrec_workload as workloads
from planner.integrations.torchrec_plan import key_of, plan_of, terms_of
from planner.integrations.torchrec_topology import topology_from_torchrec
from planner.integrations.translate.reading import TableSource, table_configs
from planner.integrations.translate.settings import NO_HINTS, WorkloadHints, said

_PARTS: Final = ("fwd_compute", "fwd_comms", "bwd_compute", "bwd_comms", "input_dist_comms")
_MS: Final = 1e3


class _Priced:
    """Makes our pipeline from TorchRec's options.

    Args:
        topology: TorchRec's topology, whose ranks have to fill whole hosts.
        constraints: TorchRec's constraints by table name; pooling factors are read from them.
        system: a system of ours (or its name) whose rates are used; TorchRec's if None.
        hints: what options do not say.
    """

    def __init__(
        self,
        topology: torchrec_types.Topology,
        constraints: Mapping[str, torchrec_types.ParameterConstraints] | None = None,
        *,
        system: Topology | str | None = None,
        hints: WorkloadHints = NO_HINTS,
    ) -> None:
        group, world = topology.intra_group_size, topology.world_size
        if world % group:
            refuse(f"world size {world} is no multiple of the {group} ranks of a host")
        given = system is not None
        self._system = topology_from_torchrec(topology, system, rates_from_base=given)
        self._given, self._hints = dict(constraints or {}), hints

    def pipeline(
        self, options: Sequence[torchrec_types.ShardingOption], sharders: Mapping[str, Any]
    ) -> CostPipeline:
        """The pipeline of the tables to which options belong.

        Args:
            options: at least one for each table.
            sharders: anything with ``fused_params``, by name of the module type.

        Raises:
            InvalidInputError: a table cannot be priced.
        """
        found = []
        for option in {key_of(o): o for o in reversed(options)}.values():
            owner = option.module[1]
            config = (table_configs(owner) or {}).get(option.name)
            if config is None or getattr(config, "use_virtual_table", False):
                refuse(said("unpriced", option=option, kind=type(owner).__name__))
            lengths = torchrec_types.ParameterConstraints(pooling_factors=option.input_lengths)
            sharder = sharders.get(sharder_name(type(owner)))
            told = sharder, config, self._given.get(option.name) or lengths
            source = TableSource(option.path, option.name, owner, option.tensor, *told)
            found.append(workloads.read_table(source, option.batch_size, self._hints))
        tables = workloads.with_unique_names(found[::-1])
        workload, _ = workloads.workload_of(tables, self._hints, options[0].batch_size)
        return CostPipeline(workload, self._system)


class PredictedCosts(_Priced, torchrec_types.ShardEstimator):
    """Prices each shard by our models, in place of ``EmbeddingPerfEstimator``.

    Args:
        topology: TorchRec's topology.
        constraints: TorchRec's constraints by table name; pooling factors are read from them.
        system: a system of ours (or its name) whose rates are used; TorchRec's if None.
        hints: index distributions and pipeline, which options do not say.
    """

    def estimate(
        self,
        sharding_options: list[torchrec_types.ShardingOption],
        sharder_data_map: torchrec_types.SharderDataMap,
    ) -> None:
        """Set ``shard.perf`` of every shard, in ms.

        Raises:
            InvalidInputError: there is no cost model for the kernel or the table of an option.
        """
        if not sharding_options:
            return
        pipeline = self.pipeline(sharding_options, sharder_data_map)
        names = workloads.unique_names(map(key_of, sharding_options))
        for option in sharding_options:
            widths = {shard.offset[1]: shard.size[1] for shard in option.shards}
            terms = terms_of(option, names[key_of(option)])
            placed = OurOption(**terms, column_widths=tuple(widths.values()))
            work = pipeline.options_work((placed,))[0].full
            rows = work.reshape(-1, pipeline.num_features)
            for shard, perf in zip(option.shards, _perfs(pipeline, rows), strict=True):
                shard.perf = perf


class PredictedIteration(_Priced, torchrec_types.PerfModel):
    """Rates a plan by its predicted iteration time in ms, with exchanges, launches and overlap.

    Args:
        topology: TorchRec's topology.
        constraints: TorchRec's constraints by table name; pooling factors are read from them.
        sharders: whose ``fused_params`` name optimizers; TorchRec's default if None.
        rates: ``system`` and ``hints``, as of :class:`PredictedCosts`, also with a dense part.
    """

    def __init__(
        self,
        topology: torchrec_types.Topology,
        constraints: Mapping[str, torchrec_types.ParameterConstraints] | None = None,
        *,
        sharders: Sequence[ModuleSharder[nn.Module]] | None = None,
        **rates: Any,
    ) -> None:
        super().__init__(topology, constraints, **rates)
        chosen = get_default_sharders() if sharders is None else sharders
        self._sharders = {sharder_name(s.module_type): s for s in chosen}
        self._known: tuple[list[tuple[str, str]], CostPipeline] | None = None

    def rate(self, plan: list[torchrec_types.ShardingOption]) -> float:
        """Predicted ms per iteration of a placed plan.

        Raises:
            InvalidInputError: there is no cost model for a table or a kernel.
        """
        pipeline = self.read(plan)
        return float(pipeline.iteration_times(pipeline.plan_work(plan_of(plan))[None])[0]) * _MS

    def read(self, plan: Sequence[torchrec_types.ShardingOption]) -> CostPipeline:
        """What prices a plan; it is kept for plans of the same tables."""
        keys = list(map(key_of, plan))
        if self._known is None or self._known[0] != keys:
            self._known = keys, self.pipeline(plan, self._sharders)
        return self._known[1]


def _perfs(pipeline: CostPipeline, rows: FloatArray) -> list[torchrec_types.Perf]:
    """Cost of each shard alone on its rank, from work rows ``[n, F]``."""
    distinct, index = np.unique(rows, axis=0, return_inverse=True)
    world = pipeline.topology.world_size
    work = np.zeros((len(distinct), world, pipeline.num_features))
    work[:, 0] = distinct
    phases = pipeline.phases.times(work)[:, 0, :FETCH] * _MS  # later ones are hidden or parts
    exchanges = phases[:, 2:-1].reshape(len(distinct), len(EXCHANGING_TYPES), 3).sum(axis=1)
    outputs_ms = exchanges[:, :2].sum(axis=-1)
    backward_ms = outputs_ms + phases[:, -1]
    parts = (phases[:, 0], outputs_ms, phases[:, 1], backward_ms, exchanges[:, 2])
    costs_ms = np.column_stack(parts)[index.ravel()].tolist()
    return [torchrec_types.Perf(**dict(zip(_PARTS, row, strict=True))) for row in costs_ms]
