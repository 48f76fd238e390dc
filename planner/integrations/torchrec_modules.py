"""Modules of a TorchRec model that hold tables, and what they tell of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn
from torchrec.distributed.planner.utils import sharder_name
from torchrec.distributed.types import ModuleSharder
from torchrec.modules.embedding_tower import EmbeddingTower, EmbeddingTowerCollection


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
    """Table configurations by name: of the module, or of the collections that it wraps."""
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


def tower_of(path: str, owner: nn.Module, table: str) -> str | None:
    """The tower of a table, named as TorchRec's enumerator does; None outside of towers."""
    if not _is_tower(owner):
        return None
    for index, tower in enumerate(getattr(owner, "towers", ())):
        if table in (table_configs(tower.embedding) or {}):
            return f"{path}.tower_{index}"
    return path


def _is_tower(owner: nn.Module) -> bool:
    return isinstance(owner, EmbeddingTower | EmbeddingTowerCollection)
