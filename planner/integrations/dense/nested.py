"""Changes values inside containers: lists, tuples, mappings and dataclasses, to any depth."""

from __future__ import annotations

import copy
from collections.abc import Callable, MutableMapping
from dataclasses import fields, is_dataclass
from typing import Any


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """A copy of the containers, with each value replaced by ``change`` of it.

    Named tuples, mappings of any kind and dataclasses, including frozen ones, keep their types. An
    object of any other type is a value.
    """
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return type(value)._make(mapped(item, change) for item in value)
    if type(value) in (list, tuple):
        return type(value)(mapped(item, change) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        made = copy.copy(value)
        for field in fields(value):
            object.__setattr__(made, field.name, mapped(getattr(value, field.name), change))
        return made
    if isinstance(value, MutableMapping):
        other = copy.copy(value)
        for key, item in value.items():
            other[key] = mapped(item, change)
        return other
    return change(value)
