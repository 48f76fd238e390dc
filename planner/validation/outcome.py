"""One line of ``validate torchrec``; needs no torch to be read or printed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One plan of one task: predicted, measured, and what simpler models say.

    ``stages_*`` are in the order of :data:`costmodels.cpu.run_stages.STAGES`, on the slower rank;
    measured ones without what network threads take, which is ``network_measured_s`` in all.
    ``iterations_inside_ratio`` is the share of measured iterations inside the 90 % interval.
    ``skew`` is random, the exponent that all tables share, or what vectors travel in.
    ``pace_ratio`` is how long fixed work took, compared with the calibration; None where that noted
    no pace. Bytes-proportional and TorchRec's rating are in units of their own.
    """

    task: int
    skew: str
    num_tables: int
    local_batch_size: int
    origin: str
    kinds: str
    predicted_s: float
    low_s: float
    high_s: float
    measured_s: float
    spread_ratio: float
    wall_s: float
    foreign_ratio: float
    lookup_predicted_s: float
    lookup_measured_s: float
    stages_predicted_s: tuple[float, ...]
    stages_measured_s: tuple[float, ...]
    network_measured_s: float
    iterations_inside_ratio: float
    bytes_model_bytes: float
    torchrec_rating_s: float
    pace_ratio: float | None = None
