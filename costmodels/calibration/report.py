"""The result of a calibration: constants, and how well they fit."""

from __future__ import annotations

from dataclasses import dataclass

from costmodels.calibration.fitting import FitError
from costmodels.errors import require
from costmodels.measured.cpu_constants import CpuConstants
from costmodels.uncertainty import KINDS, MACHINE


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Constants of a machine, and how well they fit its measurements.

    Attributes:
        constants: the constants of all models.
        errors: the error of each fit.
        seed: seed of the random points that were measured.
        effort: name of the :class:`~costmodels.calibration.designs.Effort`.

    Raises:
        InvalidValueError: a deviation is of no kind of time.
    """

    constants: CpuConstants
    errors: tuple[FitError, ...]
    seed: int
    effort: str

    def __post_init__(self) -> None:
        """Check what the deviations are of; the constants have checked their numbers."""
        kinds, sigmas = (*KINDS, MACHINE), self.constants.sigmas_ratio
        require(
            all(kind in kinds for kind, _ in sigmas),
            f"deviations must be of {', '.join(kinds)}: calibrate again",
        )
