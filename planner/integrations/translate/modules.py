"""Finds the modules of a TorchRec model that have tables, and reads these tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn
from torchrec.distributed.planner.utils import sharder_name
from torchrec.distributed.types import ModuleSharder
from torchrec.modules.embedding_configs import (
    BaseEmbeddingConfig,
    EmbeddingBagConfig,
    PoolingType,
    dtype_to_data_type,
)
from torchrec.modules.embedding_tower import EmbeddingTower, EmbeddingTowerCollection
from torchrec.modules.mc_embedding_modules import BaseManagedCollisionEmbeddingCollection

if TYPE_CHECKING:
    from planner.integrations.torchrec_workload import ShardableTable


def shardable_modules(
    module: nn.Module, sharders: Sequence[ModuleSharder[nn.Module]]
) -> Iterator[tuple[str, nn.Module, ModuleSharder[nn.Module]]]:
    """Path, module and sharder of every module that TorchRec would shard, in model order."""
    by_type = {sharder_name(s.module_type): s for s in sharders}
    stack: list[tuple[str, nn.Module]] = [("", module)]
    while stack:
        path, current = stack.pop()
        sharder = by_type.get(sharder_name(type(current)))
        if sharder is not None and sharder.shardable_parameters(current):
            yield path, current, sharder
            continue
        children = [(f"{path}.{n}" if path else n, child) for n, child in current.named_children()]
        stack += reversed(children)


def table_configs(owner: nn.Module) -> dict[str, Any] | None:
    """The table configurations of a module, or of the collections that it wraps, by name.

    A plain ``nn.EmbeddingBag`` has one, with its own shape and its parameter's name.
    """
    if isinstance(owner, nn.EmbeddingBag):
        return {"weight": _of_bag(owner)}
    towers = list(getattr(owner, "towers", ())) if _is_tower(owner) else []
    names = ("_embedding_bag_collection", "_embedding_module", "embedding")
    inner = [getattr(owner, n, None) for n in names] + [t.embedding for t in towers]
    found: dict[str, Any] = {}
    for candidate in (owner, *inner):
        for method in ("embedding_bag_configs", "embedding_configs"):
            configs = getattr(candidate, method, None)
            if configs is not None:
                found |= {c.name: c for c in configs()}
                break
        if found and not towers:
            break
    return found or None


def _of_bag(owner: nn.EmbeddingBag) -> BaseEmbeddingConfig:
    """A configuration for a plain ``nn.EmbeddingBag``, whose only feature has the table's name."""
    return EmbeddingBagConfig(
        name="weight",
        num_embeddings=owner.num_embeddings,
        embedding_dim=owner.embedding_dim,
        feature_names=["weight"],
        data_type=dtype_to_data_type(owner.weight.dtype),
        pooling=PoolingType.MEAN if owner.mode == "mean" else PoolingType.SUM,
    )


def bucket_problem(entry: ShardableTable, world_size: int) -> str | None:
    """Why the rows of a managed-collision table cannot be cut for the ranks; None if they can.

    Such a table is cut by rows, and TorchRec's runtime needs every cut to be between two buckets.
    """
    if not isinstance(entry.module, BaseManagedCollisionEmbeddingCollection):
        return None
    collisions = entry.module._managed_collision_collection
    buckets = int(collisions.table_to_number_buckets().get(entry.parameter_name) or 1)
    rows = entry.table.num_embeddings
    if buckets == 1 or buckets % world_size == 0 or rows % buckets:
        return None
    block = -(-rows // world_size)
    if all(min(rank * block, rows) % (rows // buckets) == 0 for rank in range(world_size)):
        return None
    return (
        f"table {entry.parameter_name!r} of module {entry.path!r}: {rows} rows in {buckets} "
        f"buckets cannot be cut for {world_size} ranks, because every rank needs whole buckets; "
        f"use a number of buckets that is a multiple of {world_size}"
    )


def tower_of(path: str, owner: nn.Module, table: str) -> str | None:
    """The tower of a table, named as in TorchRec's enumerator; None for tables in no tower."""
    if not _is_tower(owner):
        return None
    for index, tower in enumerate(getattr(owner, "towers", ())):
        if table in (table_configs(tower.embedding) or {}):
            return f"{path}.tower_{index}"
    return path


def _is_tower(owner: nn.Module) -> bool:
    return isinstance(owner, EmbeddingTower | EmbeddingTowerCollection)
