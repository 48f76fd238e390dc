"""Tools that every package here may use: processes, safe text, CSV, the status of a search."""

from __future__ import annotations

import ast
import importlib
from typing import Any


def load_lazily(package: dict[str, Any]) -> None:
    """Give a package the names that its file imports for type checkers alone.

    Args:
        package: the variables of the package, ``globals()`` in its file.
    """
    name = package["__name__"]
    tree = ast.parse(package["__spec__"].loader.get_source(name))
    imports = [node for part in tree.body if isinstance(part, ast.If) for node in part.body]
    homes = {
        alias.name: node.module
        for node in imports
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    def load(attribute: str) -> object:
        if attribute not in homes:
            msg = f"module {name!r} has no attribute {attribute!r}"
            raise AttributeError(msg)
        return getattr(importlib.import_module(str(homes[attribute])), attribute)

    package |= {"__all__": sorted(homes), "__getattr__": load, "__dir__": lambda: sorted(homes)}
