"""The outcome of a calibration."""

from __future__ import annotations

from dataclasses import dataclass

from costmodels.calibration.fitting import FitError
from costmodels.cpu.constants import CpuConstants


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Constants of a machine and how well they fit its measurements."""

    constants: CpuConstants
    errors: tuple[FitError, ...]
    seed: int
    effort: str
