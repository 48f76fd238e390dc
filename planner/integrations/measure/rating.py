"""TorchRec's own price of a plan, for comparison with measured times."""

from __future__ import annotations

from torch import nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import ModuleSharder

from costmodels.sharding import Plan
from costmodels.topology import Topology
from costmodels.workload import Workload
from planner.integrations.measure.model import Model
from planner.integrations.torchrec_topology import topology_to_torchrec
from planner.integrations.torchrec_workload import describe_model
from planner.integrations.translate.options import to_sharding_options

_MS = 1e-3


def torchrec_rating_s(workload: Workload, topology: Topology, plan: Plan) -> float:
    """Largest sum of shard costs over ranks, as TorchRec's planner rates plans, in seconds."""
    sharders: list[ModuleSharder[nn.Module]] = [
        EmbeddingBagCollectionSharder(),
        EmbeddingCollectionSharder(),
    ]
    constraints = {
        t.name: ParameterConstraints(pooling_factors=[f.pooling_factor for f in t.features])
        for t in workload.tables
    }
    batch = int(workload.local_batch_size)
    model = describe_model(
        Model(workload),
        sharders,
        batch_size=batch,
        compute_device="cpu",
        constraints=constraints,
    )
    if model is None:
        return 0.0
    options = to_sharding_options(
        plan,
        model.tables,
        sharders,
        topology_to_torchrec(topology, "cpu"),
        batch_size=batch,
        constraints=constraints,
    )
    ranks = [0.0] * topology.world_size
    for option in options:
        for shard in option.shards:
            if shard.rank is not None and shard.perf is not None:
                ranks[shard.rank] += shard.perf.total
    return max(ranks) * _MS
