"""Tools that every package here may use: processes, safe text, CSV, the status of a search."""

import importlib
import re
from typing import Any


def load_lazily(package: dict[str, Any]) -> None:
    """Give a package the names that its file imports for type checkers alone, each with ``as``.

    Args:
        package: the variables of the package, ``globals()`` in its file.
    """
    name = package["__name__"]
    source = package["__spec__"].loader.get_source(name)
    homes = {own: home for home, own in re.findall(r"(?m)^    from (\S+) import (\w+) as", source)}

    def load(attribute: str) -> object:
        if attribute not in homes:
            msg = f"module {name!r} has no attribute {attribute!r}"
            raise AttributeError(msg)
        return getattr(importlib.import_module(homes[attribute]), attribute)

    package |= {"__all__": sorted(homes), "__getattr__": load, "__dir__": lambda: sorted(homes)}
