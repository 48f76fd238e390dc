"""Reads what TorchRec and FBGEMM keep under private names; nothing else of this package does.

A test makes a real object for each function and fails where a new version has renamed something
(``tests/integration/translate/test_private_names.py``); otherwise plans would change in silence.
"""

from typing import Any, Final

from torch import nn
from torchrec.distributed.planner import types as torchrec_types
from torchrec.distributed.planner.planners import EmbeddingShardingPlanner
from torchrec.distributed.planner.shard_estimators import _get_optimizer_multipler
from torchrec.modules.mc_embedding_modules import BaseManagedCollisionEmbeddingCollection

WRAPPED: Final = ("_embedding_bag_collection", "_embedding_module", "embedding")
"""Names under which modules keep the collection of tables that they wrap."""


def optimizer_classes(parameter: nn.Parameter) -> list[Any]:
    """What ``apply_optimizer_in_backward`` has left on the weights of a table; empty without."""
    return list(getattr(parameter, "_optimizer_classes", None) or ())


def optimizer_multiplier(kind: Any, parameter: nn.Parameter) -> float:
    """Bytes of state that TorchRec's planner counts for each byte of weights (class or None)."""
    return float(_get_optimizer_multipler(kind, parameter.shape))


def has_index_dedup(sharder: object) -> bool:
    """Whether a sharder, or the one of the tables inside managed collisions, drops repetitions."""
    inner = getattr(sharder, "_e_sharder", sharder)
    return bool(getattr(inner, "_use_index_dedup", False))


def feature_processor(module: nn.Module) -> object:
    """The processor that TorchRec's estimators read; None for modules without."""
    return getattr(module, "_feature_processor", None)


def codec_rows(codec: Any) -> tuple[str | None, int]:
    """Precision of one of FBGEMM's codecs, and its elements per row; of others None and 0."""
    precision = getattr(getattr(codec, "_comm_precision", None), "value", None)
    return precision, getattr(codec, "_row_dim", None) or 0


def collision_buckets(module: BaseManagedCollisionEmbeddingCollection) -> dict[str, int | None]:
    """The number of buckets of each table with managed collisions."""
    return dict(module._managed_collision_collection.table_to_number_buckets())


def cross_layers(net: nn.Module) -> tuple[int, int] | None:
    """Number of layers and rank of a low-rank cross net; None for other cross nets."""
    if not hasattr(net, "_low_rank"):
        return None
    return int(net._num_layers), int(net._low_rank)


def reserved_sizes(reservation: object) -> tuple[float | None, ...]:
    """Bytes, or the share of each device, that a reservation keeps; None where it has neither."""
    return tuple(getattr(reservation, n, None) for n in ("_hbm_reserved_bytes", "_percentage"))


def topology_setting(topology: torchrec_types.Topology, name: str, default: float) -> float:
    """A factor of a topology that only TorchRec's estimates read."""
    return float(getattr(topology, f"_{name}", default))


def last_options(planner: EmbeddingShardingPlanner) -> list[torchrec_types.ShardingOption]:
    """The options of the last plan of TorchRec's planner; empty before the first."""
    return list(planner._best_plan or ())


def proposers_of(planner: EmbeddingShardingPlanner) -> list[torchrec_types.Proposer]:
    """What makes the proposals of TorchRec's planner."""
    return list(planner._proposers)
