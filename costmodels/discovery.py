"""Plug-ins are files: list them without importing, import one by its file name."""

import importlib
import importlib.util
import inspect
import os
import pkgutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

from costmodels.errors import UnknownNameError

T = TypeVar("T")

_loaded: set[str] = set()
"""Modules of plug-ins that :func:`load` has imported: their folders are not listed again."""


def names(package: ModuleType) -> tuple[str, ...]:
    """Files in ``package`` that hold a plug-in: neither private nor named in its ``HELPERS``."""
    helpers = ("base", *getattr(package, "HELPERS", ()))
    found = (m.name for m in pkgutil.iter_modules(package.__path__) if not m.ispkg)
    return tuple(sorted(n for n in found if n not in helpers and not n.startswith("_")))


def load(package: ModuleType, name: str, base: Callable[..., T]) -> Callable[[], T]:
    """The concrete class of ``base`` that ``package/name.py`` defines.

    Raises:
        UnknownNameError: no such file; the message lists those there are.
    """
    full_name = f"{package.__name__}.{name}"
    if full_name not in _loaded:
        known = names(package)
        listed = f"{package.__name__}: {', '.join(known) or 'none'}"
        _need(name in known, f"{name!r} is not one of {listed}")
    module = importlib.import_module(full_name)
    _loaded.add(full_name)
    return _plugin_of(module, base)


def load_file(path: Path, base: Callable[..., T]) -> Callable[[], T]:
    """The concrete class of ``base`` that a file outside of the package defines.

    The folder of the file is put on the path of this process and of those it starts, so that what
    is made of the class can be sent to them.

    Raises:
        UnknownNameError: no such file, a taken name, an error when it runs, or no such class.
    """
    folder, name = str(path.resolve().parent), path.stem
    _need(path.is_file(), f"{path}: there is no such file")
    _need("." not in name, f"{path}: a module's name has no dots; give the file another name")
    known = sys.modules.get(name)
    if known is None and importlib.util.find_spec(name) is None:
        sys.path.append(folder)
        paths = [*filter(None, [os.environ.get("PYTHONPATH")]), folder]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as error:
        msg = f"{path}: cannot be run: {type(error).__name__}: {error}"
        raise UnknownNameError(msg) from error
    is_it = Path(module.__file__ or "").resolve() == path.resolve()
    _need(is_it, f"{path}: a module named {name!r} exists already; give the file another name")
    return _plugin_of(module, base)


def _need(condition: bool, message: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not condition:
        raise UnknownNameError(message)


def asking(
    name: str, then: Callable[[Any, Any], Any] | None = None, *, is_property: bool = False
) -> Any:
    """A method or a property of a model that wraps another one, ``inner``: it asks that.

    Args:
        name: of the method or property.
        then: what is made of the model and the answer; None for the answer itself.
        is_property: whether it is a property.
    """

    def answer(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = getattr(self.inner, name)
        found = found if is_property else found(*args, **kwargs)
        return then(self, found) if then else found

    return property(answer) if is_property else answer


def of_users(model: object) -> object | None:
    """The model of a user that a model is or wraps as its ``inner``; None if there is none."""
    while type(model).__module__.partition(".")[0] == __name__.partition(".")[0]:
        model = getattr(model, "inner", None)
    return model


def model_words(model: object) -> str:
    """How messages call a model: by its class, or by that of a user which it wraps."""
    return f"cost model {type(of_users(model) or model).__name__}"


def _plugin_of(module: ModuleType, base: Callable[..., T]) -> Callable[[], T]:
    """The first class of a module that has all that a kind needs.

    Raises:
        UnknownNameError: there is none; the message says what each class lacks.
    """
    kind, told = cast("type[T]", base), list[str]()
    needed = sorted(getattr(kind, "__abstractmethods__", ()))
    for value in vars(module).values():
        if not inspect.isclass(value) or value.__module__ != module.__name__ or value is kind:
            continue
        is_kind = issubclass(value, kind)
        if is_kind and not inspect.isabstract(value):
            return cast("type[T]", value)
        members = {name: getattr(value, name, getattr(kind, name)) for name in needed}
        lacks = [n for n, m in members.items() if getattr(m, "__isabstractmethod__", False)]
        words = [] if is_kind else [f"does not extend {kind.__module__}.{kind.__name__}"]
        words += [f"lacks {', '.join(lacks)}"] if lacks else []
        told.append(f"class {value.__name__} {' and '.join(words)}")
    msg = f"{module.__name__} defines no {kind.__name__}" + (f": {'; '.join(told)}" if told else "")
    raise UnknownNameError(msg)
