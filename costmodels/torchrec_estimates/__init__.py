"""TorchRec 1.8's estimates of a shard, without torch: its times and its memory.

These are the figures by which TorchRec's planner chooses and by which it rates plans; they are not
this project's predictions. Equal to ``EmbeddingPerfEstimator`` and ``EmbeddingStorageEstimator`` of
torchrec 1.8.0 (tests hold them to 1e-6).
"""

from costmodels.torchrec_estimates.machine import TorchrecMachine
from costmodels.torchrec_estimates.perf import ShardPerf, shard_perf
from costmodels.torchrec_estimates.storage import ShardStorage, shard_storage
from costmodels.torchrec_estimates.table import TorchrecInputs, TorchrecTable

__all__ = [
    "ShardPerf",
    "ShardStorage",
    "TorchrecInputs",
    "TorchrecMachine",
    "TorchrecTable",
    "shard_perf",
    "shard_storage",
]
