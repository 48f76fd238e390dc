"""Tools that every package here may use: processes, safe text, CSV, the status of a search."""

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
    blocks = [part.body for part in tree.body if isinstance(part, ast.If)]
    imports = [node for block in blocks for node in block if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: node.module for node in imports for alias in node.names}

    def load(attribute: str) -> object:
        if attribute not in homes:
            msg = f"module {name!r} has no attribute {attribute!r}"
            raise AttributeError(msg)
        return getattr(importlib.import_module(str(homes[attribute])), attribute)

    package |= {"__all__": sorted(homes), "__getattr__": load, "__dir__": lambda: sorted(homes)}
