"""The result of a calibration: constants, and how well they fit."""

from __future__ import annotations

from dataclasses import dataclass

from costmodels.calibration.fitting import FitError
from costmodels.cpu.constants import CpuConstants


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Constants of a machine, and how well they fit its measurements.

    Attributes:
        constants: the constants of all models.
        errors: the error of each fit.
        seed: seed of the random points that were measured.
        effort: name of the :class:`~costmodels.calibration.designs.Effort`.
    """

    constants: CpuConstants
    errors: tuple[FitError, ...]
    seed: int
    effort: str
