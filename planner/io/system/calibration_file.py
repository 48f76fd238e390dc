"""Reads and writes calibrations: the constants of a machine whose ranks are CPU cores, as JSON."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from costmodels.calibration.report import Calibration
from costmodels.cpu.constants import CpuConstants
from planner.errors import InvalidInputError
from planner.support.atomic import write_text_atomic

_FORMAT = TypeAdapter(Calibration)


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write the constants, the errors of the fit, and doubtful points."""
    write_text_atomic(path, _FORMAT.dump_json(calibration, indent=1).decode() + "\n")


def read_calibration(path: str | Path) -> Calibration:
    """Read a calibration that :func:`write_calibration` has written.

    Raises:
        InvalidInputError: there is no such file, or it is not a calibration.
    """
    try:
        return _FORMAT.validate_json(Path(path).read_bytes())
    except OSError as error:
        message = f"cannot read the calibration {path}: {error.strerror or error}"
        raise InvalidInputError(message) from error
    except ValidationError as error:
        message = f"{path} is not a calibration: {error.errors()[0]['msg']}"
        raise InvalidInputError(message) from error


def load_constants(path: str) -> CpuConstants:
    """The constants of a calibration; each version of a file is read only once."""
    try:
        stat = Path(path).stat()
    except OSError:
        return read_calibration(path).constants  # which says what is wrong
    return _load_version(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=8)
def _load_version(path: str, size: int, mtime_ns: int) -> CpuConstants:
    del size, mtime_ns
    return read_calibration(path).constants
