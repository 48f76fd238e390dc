"""Plug-ins are files: list them without importing, import one by its file name."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from types import ModuleType
from typing import TypeVar, cast

from costmodels.errors import UnknownNameError

T = TypeVar("T")


def names(package: ModuleType) -> tuple[str, ...]:
    """File names in ``package`` that hold a plug-in: neither ``base`` nor private."""
    found = (m.name for m in pkgutil.iter_modules(package.__path__) if not m.ispkg)
    return tuple(sorted(n for n in found if n != "base" and not n.startswith("_")))


def load(package: ModuleType, name: str, base: Callable[..., T]) -> Callable[[], T]:
    """The concrete class of ``base`` that ``package/name.py`` defines.

    Raises:
        UnknownNameError: no such file; the message lists those there are.
    """
    known = names(package)
    if name not in known:
        msg = f"{name!r} is not one of {package.__name__}: {', '.join(known) or 'none'}"
        raise UnknownNameError(msg)
    module = importlib.import_module(f"{package.__name__}.{name}")
    kind = cast("type[T]", base)
    for value in vars(module).values():
        if (
            inspect.isclass(value)
            and issubclass(value, kind)
            and value is not kind
            and value.__module__ == module.__name__
            and not inspect.isabstract(value)
        ):
            return value
    msg = f"{package.__name__}.{name} defines no {kind.__name__}"
    raise UnknownNameError(msg)
