"""Reads the measured files that a system names: calibrations of CPU ranks, which are JSON."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from costmodels.measured.cpu_constants import CpuConstants
from costmodels.topology import Topology
from planner.errors import refuse
from planner.io.library import is_file
from planner.support.files import once_per_version, write_text_atomic

if TYPE_CHECKING:
    from costmodels.calibration.fitting import Calibration


@functools.cache
def _adapter() -> TypeAdapter[Calibration]:
    """Made when a calibration is read: most commands read none, and it takes milliseconds."""
    from costmodels.calibration.fitting import Calibration

    return TypeAdapter(Calibration)


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write the constants, the errors of the fit, and doubtful points."""
    write_text_atomic(path, _adapter().dump_json(calibration, indent=1).decode() + "\n")


def read_calibration(path: str | Path) -> Calibration:
    """Read a calibration that :func:`write_calibration` has written.

    Raises:
        InvalidInputError: there is no such file, or it is not a calibration.
    """
    try:
        return _adapter().validate_json(Path(path).read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = " ".join(map(str, [*first["loc"], first["msg"]]))
        refuse(f"{path} is not a calibration: {where}; write it anew by 'shardplan calibrate'")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        refuse(f"cannot read the calibration {path}: {reason}")


def load_constants(path: str) -> CpuConstants:
    """The constants of a calibration; each version of a file is read only once."""
    return _constants(Path(path))


@once_per_version(num_kept=8)
def _constants(path: Path) -> CpuConstants:
    return read_calibration(path).constants


def measured_hash(topology: Topology) -> str:
    """SHA-256 over a system's calibration and own curves; empty without any."""
    named = [topology.calibration] if topology.calibration else []
    named += [name for name in topology.collective_curves if name.endswith(".csv")]
    files = [path for path in map(Path, named) if is_file(path)]
    digests = [hashlib.sha256(f.read_bytes()).digest() for f in files]
    return hashlib.sha256(b"".join(digests)).hexdigest() if files else ""
