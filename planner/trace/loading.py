"""Reads the JSON of a trace, of which only what is needed is kept in memory."""

from __future__ import annotations

import json
import sys
import zlib
from pathlib import Path
from typing import Any, BinaryIO, Final

from costmodels import units
from planner.errors import InvalidInputError

MAX_BYTES: Final = 128 * 2**20
"""Longest text of a trace. A step of a large model has some 10,000 events of 300 bytes."""
MAX_VALUES: Final = 8_000_000
"""Most values in that text, which take some 64 bytes each; an event of 300 bytes has about 13. Text
and values then take less than 1 GB."""
WAITED: Final = "waited for late ranks (us)"
"""The argument of a predicted collective that says how long the rank waits in it."""
_CHUNK_BYTES: Final = 2**20
_GZIP: Final = b"\x1f\x8b"
_KEPT: Final = ("ph", "cat", "name", "ts", "dur", "tid")
_KEPT_ARGS: Final = ("correlation", WAITED)
_CATEGORIES: Final = frozenset(
    {
        "kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "hip_runtime",
        "cpu_op", "user_annotation",
    }
)  # fmt: skip


def load_trace(path: Path, *, max_bytes: int = MAX_BYTES) -> Any:
    """The parsed JSON of a file, plain or gzipped, with only the fields of events that are read.

    Args:
        path: the file.
        max_bytes: longest text that is read.

    Raises:
        InvalidInputError: the file cannot be read, is damaged, is not JSON, or is too long.
    """
    try:
        with path.open("rb") as file:
            text = _text(file, path, max_bytes)
        _check_values(text, path)
        return json.loads(text, object_hook=_slim)
    except InvalidInputError:
        raise
    except OSError as error:
        message = f"{path}: cannot be read: {error.strerror or error}"
        raise InvalidInputError(message) from error
    except EOFError as error:
        message = f"{path}: is a gzip file that ends too early; copy or export the trace again"
        raise InvalidInputError(message) from error
    except (ValueError, RecursionError, zlib.error) as error:
        message = f"{path}: is neither JSON nor gzipped JSON, or is damaged"
        raise InvalidInputError(message) from error


def _text(file: BinaryIO, path: Path, max_bytes: int) -> bytearray:
    """The decompressed text.

    Raises:
        EOFError: a gzip file ends too early.
        InvalidInputError: the text is longer than ``max_bytes``.
    """
    text, data = bytearray(), file.read(_CHUNK_BYTES)
    unpacker = _unpacker() if data[:2] == _GZIP else None
    while data:
        if unpacker is None:
            text += data
        else:
            text += unpacker.decompress(data, max_bytes + 1 - len(text))
        if len(text) > max_bytes:
            message = (
                f"{path}: holds more than {units.format_bytes(max_bytes)} of text, which is the "
                "most that is read: profile fewer steps, such as schedule(wait=1, warmup=1, "
                "active=3), without with_stack, record_shapes and profile_memory"
            )
            raise InvalidInputError(message)
        rest = b"" if unpacker is None else unpacker.unused_data.lstrip(b"\0")
        if rest:  # another member of the file
            unpacker = _unpacker()
        data = rest or file.read(_CHUNK_BYTES)
    if unpacker is not None and not unpacker.eof:
        raise EOFError
    return text


def _check_values(text: bytearray, path: Path) -> None:
    """Refuse a text that is short but has many values, as no profiler writes it.

    Raises:
        InvalidInputError: there are more than :data:`MAX_VALUES`.
    """
    count = sum(text.count(mark) for mark in b"[{,")
    if count > MAX_VALUES:
        message = (
            f"{path}: holds some {count:,} values, more than the {MAX_VALUES:,} that are read: "
            "profile fewer steps, without with_stack, record_shapes and profile_memory"
        )
        raise InvalidInputError(message)


def _unpacker() -> Any:
    return zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)


def _slim(found: dict[str, Any]) -> Any:
    """An event with only its needed fields, None for other events; other objects as they are."""
    if "ph" not in found:
        return found
    category = found.get("cat")
    if found["ph"] != "X" or not isinstance(category, str) or category.lower() not in _CATEGORIES:
        return None
    kept: dict[str, Any] = {key: found[key] for key in _KEPT if key in found}
    if isinstance(name := kept.get("name"), str):
        kept["name"] = sys.intern(name)
    args = found.get("args")
    if isinstance(args, dict):
        kept["args"] = {key: args[key] for key in _KEPT_ARGS if key in args}
    return kept
