"""Reads and writes learned factors of lookup models, as JSON beside a calibration."""

from __future__ import annotations

from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from costmodels.measured.lookup_residual import LookupResidual
from costmodels.topology import Topology
from planner.errors import InvalidInputError
from planner.io.library import configs_folder
from planner.support.atomic import write_text_atomic
from planner.support.versions import once_per_version

_FORMAT = TypeAdapter(LookupResidual)


def residual_path(topology: Topology) -> Path:
    """The path of the factors of a system, which need not exist."""
    if topology.calibration:
        beside = Path(topology.calibration)
        return beside.with_name(beside.name.removesuffix(".json") + ".lookup_residual.json")
    return configs_folder() / "calibrations" / f"{topology.name}.lookup_residual.json"


def write_residual(path: Path, residual: LookupResidual) -> None:
    """Write the factors."""
    write_text_atomic(path, _FORMAT.dump_json(residual, indent=1).decode() + "\n")


@once_per_version(num_kept=16)
def load_residual(path: Path) -> LookupResidual | None:
    """The factors of a file; None if there is no such file. A file is read once per version.

    Raises:
        InvalidInputError: the file exists, but cannot be used.
    """
    if not path.is_file():
        return None
    try:
        return _FORMAT.validate_json(path.read_bytes())
    except OSError as error:
        message = f"cannot read the learned factors {path}: {error.strerror or error}"
        raise InvalidInputError(message) from error
    except ValidationError as error:
        message = f"{path} holds no learned factors: {error.errors()[0]['msg']}"
        raise InvalidInputError(message) from error
