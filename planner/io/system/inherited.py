"""Reads system files that start from another one: ``base: h100_sxm``, and what differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from planner.errors import InvalidInputError
from planner.io.documents import Document, as_yaml, read_text, read_yaml
from planner.io.library import configs_folder, locate
from planner.io.yaml_reader import Keys

_WHOLE: Final = (("links", "network"), ("device", "flops"))
"""Keys that replace those of the base as a whole, because a network is of one kind only."""
_DEEPEST: Final = 8


def read_system(path: Path) -> Document:
    """Read a system file; keys that it does not have are those of its base.

    A base is a shipped system or a file beside this one, and can have a base itself.

    Raises:
        InvalidInputError: a file cannot be read, or is its own base through others.
    """
    return system_of(path, read_text(path))


def system_of(path: Path, text: str) -> Document:
    """The system of a file with this text, which need not be written yet.

    Raises:
        InvalidInputError: as for :func:`read_system`.
    """
    return _read(path, text, ())


def _read(path: Path, text: str, above: tuple[Path, ...]) -> Document:
    document = as_yaml(path, text)
    base = document.value.get("base")
    if base is None:
        return document
    if not isinstance(base, str):
        message = f"{document.where(('base',))}: must be the name or file of a system, got {base!r}"
        raise InvalidInputError(message)
    found = _beside_or_shipped(path, base)
    seen = [p.resolve() for p in (*above, path)]
    if found.resolve() in seen or len(above) >= _DEEPEST:
        message = (
            f"{document.where(('base',))}: {base} leads back to {path.name}; name a system that "
            "stands for itself"
        )
        raise InvalidInputError(message)
    below = _beside(_read(found, read_text(found), (*above, path)))
    own = {key: value for key, value in document.value.items() if key != "base"}
    origins = {
        keys: f"{below.path}:{line}"
        for keys, line in below.lines.items()
        if keys not in document.lines
    }
    value = _merged(below.value, own, ())
    return Document(path, value, document.lines, {**below.origins, **origins})


def own_base(path: Path) -> Path | None:
    """The file beside a system file that is its base; None for a shipped base, or no base.

    Raises:
        InvalidInputError: a file cannot be read, or there is no such system.
    """
    base = read_yaml(path).value.get("base")
    found = _beside_or_shipped(path, base) if isinstance(base, str) else None
    return None if found is None or found.is_relative_to(configs_folder()) else found


def _beside_or_shipped(path: Path, base: str) -> Path:
    beside = path.parent / base
    return beside if beside.is_file() else locate(base, "systems")


def _beside(base: Document) -> Document:
    """The base with full paths of the files that it names, because they are beside the base."""
    value, folder = dict(base.value), base.path.parent.absolute()
    curves = value.get("collective_curves")
    if isinstance(curves, list):
        value["collective_curves"] = [
            str(folder / c) if isinstance(c, str) and c.endswith(".csv") else c for c in curves
        ]
    if isinstance(value.get("calibration"), str):
        value["calibration"] = str(folder / value["calibration"])
    return Document(base.path, value, base.lines, base.origins)


def _merged(below: Any, own: Any, keys: Keys) -> Any:
    if not isinstance(below, dict) or not isinstance(own, dict) or keys in _WHOLE:
        return own
    both = {k: _merged(below[k], v, (*keys, k)) if k in below else v for k, v in own.items()}
    return {**below, **both}
