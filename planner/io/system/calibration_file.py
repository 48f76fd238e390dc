"""Reads and writes calibrations: the constants of a machine whose ranks are CPU cores, as JSON."""

from __future__ import annotations

from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from costmodels.calibration.report import Calibration
from costmodels.measured.cpu_constants import CpuConstants
from planner.errors import InvalidInputError
from planner.support.atomic import write_text_atomic
from planner.support.versions import once_per_version

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
    return _constants(Path(path))


@once_per_version(num_kept=8)
def _constants(path: Path) -> CpuConstants:
    return read_calibration(path).constants
