"""Files that a system names: calibrations of CPU ranks, and learned factors of lookups, as JSON."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from costmodels.calibration.fitting import Calibration
from costmodels.measured.cpu_constants import CpuConstants
from costmodels.measured.lookup_residual import LookupResidual
from costmodels.topology import Topology
from planner.errors import refuse
from planner.io.library import configs_folder, is_file
from planner.support.files import once_per_version, write_text_atomic

_CALIBRATION = TypeAdapter(Calibration)
_RESIDUAL = TypeAdapter(LookupResidual)


def _read(path: Path, form: TypeAdapter[Any], what: str, refusal: str) -> Any:
    try:
        return form.validate_json(path.read_bytes())
    except ValidationError as error:
        refuse(f"{path} {refusal}: {error.errors()[0]['msg']}")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        refuse(f"cannot read the {what} {path}: {reason}")


def _write(path: Path, form: TypeAdapter[Any], value: object) -> None:
    write_text_atomic(path, form.dump_json(value, indent=1).decode() + "\n")


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write the constants, the errors of the fit, and doubtful points."""
    _write(path, _CALIBRATION, calibration)


def read_calibration(path: str | Path) -> Calibration:
    """Read a calibration that :func:`write_calibration` has written.

    Raises:
        InvalidInputError: there is no such file, or it is not a calibration.
    """
    found: Calibration = _read(Path(path), _CALIBRATION, "calibration", "is not a calibration")
    return found


def load_constants(path: str) -> CpuConstants:
    """The constants of a calibration; each version of a file is read only once."""
    return _constants(Path(path))


@once_per_version(num_kept=8)
def _constants(path: Path) -> CpuConstants:
    return read_calibration(path).constants


def residual_path(topology: Topology) -> Path:
    """The path of the factors of a system, which need not exist."""
    if topology.calibration:
        beside = Path(topology.calibration)
        return beside.with_name(beside.name.removesuffix(".json") + ".lookup_residual.json")
    return configs_folder() / "calibrations" / f"{topology.name}.lookup_residual.json"


def write_residual(path: Path, residual: LookupResidual) -> None:
    """Write the factors."""
    _write(path, _RESIDUAL, residual)


@once_per_version(num_kept=16)
def load_residual(path: Path) -> LookupResidual | None:
    """The factors of a file; None if there is no such file. A file is read once per version.

    Raises:
        InvalidInputError: the file exists, but cannot be used.
    """
    if not is_file(path):
        return None
    found: LookupResidual = _read(path, _RESIDUAL, "learned factors", "holds no learned factors")
    return found


def measured_hash(topology: Topology) -> str:
    """SHA-256 over a system's calibration, learned factors and own curves; empty without any."""
    named = [topology.calibration] if topology.calibration else []
    named += [name for name in topology.collective_curves if name.endswith(".csv")]
    files = [path for path in (*map(Path, named), residual_path(topology)) if is_file(path)]
    digests = [hashlib.sha256(f.read_bytes()).digest() for f in files]
    return hashlib.sha256(b"".join(digests)).hexdigest() if files else ""
