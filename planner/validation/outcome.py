"""One line of ``validate torchrec``; needs no torch to be read or printed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One plan of one task: what was predicted, what was measured, and what simpler models say.

    Attributes:
        task: number of the task.
        skew: ``random``; or the exponent of a Zipf law that all tables share; or the type in which
            vectors and gradients travel.
        num_tables: number of tables.
        local_batch_size: samples per rank.
        origin: where the plan comes from: searched, a baseline, or random.
        kinds: a letter for the sharding type of each table: T, R, C or D (data parallel).
        predicted_s: predicted seconds per iteration.
        low_s, high_s: 90 % interval of the prediction.
        measured_s: measured seconds per iteration, without the work of other processes.
        spread_ratio: how far the medians of blocks of iterations are from it, as a share (median).
        wall_s: measured seconds per iteration by the clock.
        foreign_ratio: load of other processes on the machine during the run, in cores.
        lookup_predicted_s, lookup_measured_s: seconds of the forward lookups on the slowest rank,
            plus those of the backward lookups.
        stages_predicted_s, stages_measured_s: seconds of each stage of
            :data:`costmodels.cpu.run_stages.STAGES` on its slowest rank. Measured ones leave out
            the time of network threads.
        network_measured_s: seconds of network threads in all stages together.
        iterations_inside_ratio: share of measured iterations inside the 90 % interval.
        bytes_model_bytes: bytes of rows looked up on the busiest rank; a model that counts nothing
            else predicts times proportional to them.
        torchrec_rating_s: TorchRec's rating of the plan, in seconds on TorchRec's own scale.
        pace_ratio: how long fixed work took compared with the calibration; None if the calibration
            did not record this.
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
