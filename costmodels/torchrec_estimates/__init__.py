"""TorchRec 1.8's own estimates of the times and the memory of a shard, computed without torch.

By these figures TorchRec's planner chooses and rates plans; they are not predictions of this
project. Tests check that they equal those of ``EmbeddingPerfEstimator`` and
``EmbeddingStorageEstimator`` of torchrec 1.8.0 to 1e-6.
"""

from costmodels.torchrec_estimates.machine import TorchrecInputs, TorchrecMachine, TorchrecTable
from costmodels.torchrec_estimates.shards import (
    ShardPerf,
    ShardStorage,
    shard_perf,
    shard_storage,
)

__all__ = [
    "ShardPerf",
    "ShardStorage",
    "TorchrecInputs",
    "TorchrecMachine",
    "TorchrecTable",
    "shard_perf",
    "shard_storage",
]
