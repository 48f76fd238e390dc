"""Synchronized phases and their tangents: what a search needs to prove a lower bound.

Between two collectives every rank works alone and the slowest sets the pace, so an iteration takes
at least ``base_s`` plus the weighted sum of the phases' maxima over ranks. The growing part of each
phase is convex and homogeneous in the work, so means over ranks and tangents bound it from below.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from costmodels.iteration.base import AbstractPipeline, FloatArray
from costmodels.stages import StageModel
from costmodels.work import FAMILIES, INPUT, LOOKUP, NUM_COLUMNS, OUTPUT, REPLICATED


class PhaseModel:
    """Phases of one workload on one topology under one training pipeline."""

    def __init__(self, stages: StageModel, pipeline: AbstractPipeline) -> None:
        """Keep both; nothing is computed yet."""
        self._stages = stages
        self._pipeline = pipeline

    def times(self, work: FloatArray) -> FloatArray:
        """Growing parts of the synchronized phases, ``[..., W, K]``: convex, homogeneous.

        Phases: lookup forward, lookup backward, then per sharding type each exchange forward,
        backward and (where exposed) of indices; last, the all-reduce of replicated tables.
        """
        forward, backward, fetch = self._stages.lookup_times(work)
        slowest = forward + fetch if self._pipeline.exposes_fetch else forward
        columns = [slowest / self._stages.speeds, backward / self._stages.speeds]
        for f in range(len(FAMILIES)):
            columns.extend(self._stages.family_growth(work, f))
        columns.append(self._stages.all_reduce_s(work[..., REPLICATED]))
        return np.stack(np.broadcast_arrays(*columns), axis=-1)

    @cached_property
    def weights(self) -> FloatArray:
        """Times each phase is paid in an iteration, ``[K]``."""
        weights = [1.0, 1.0]
        for _ in FAMILIES:
            weights.extend([2.0, 2.0, 1.0 if self._pipeline.exposes_input_dist else 0.0])
        return np.array([*weights, 0.0 if self._pipeline.overlaps_bottom else 1.0])

    @cached_property
    def base_s(self) -> float:
        """Iteration time that no plan avoids; with the weighted phase maxima a proven bound."""
        dense, fastest = self._stages.dense, float(self._stages.speeds.max())
        chain_s = dense.top_forward_s + dense.top_backward_s + dense.optimizer_s
        if self._pipeline.overlaps_bottom:
            return chain_s / fastest
        chain_s += dense.bottom_forward_s + dense.bottom_backward_s
        return chain_s / fastest + self._stages.tail_all_reduce_s()

    def gradient(self, work_row: FloatArray) -> FloatArray:
        """Tangents ``[K, num_features]`` of the phases at one rank's work.

        For every work y: phase k of a rank is at least ``gradient[k] @ y[rank]``. Phases whose cost
        depends on other ranks use what the rank itself sends.
        """
        size = len(self.weights)
        gradient = np.zeros((size, NUM_COLUMNS))
        gradient[:2] = self._lookup_gradient(work_row)
        world = self._stages.topology.world_size
        probe = np.zeros((2 * len(FAMILIES) + 1, world, NUM_COLUMNS))
        columns = [*range(INPUT, INPUT + len(FAMILIES)), *range(OUTPUT, OUTPUT + len(FAMILIES))]
        columns.append(REPLICATED)
        for i, column in enumerate(columns):
            probe[i, :, column] = 1.0
        growth = self.times(probe)[:, 0, :]
        for i, column in enumerate(columns):
            gradient[2:, column] = growth[i, 2:]
        return gradient

    def _lookup_gradient(self, work_row: FloatArray) -> FloatArray:
        step = 1e-4
        used = np.arange(LOOKUP, INPUT)
        scale = np.maximum(work_row[used], 1e-3 * max(1.0, float(work_row[used].max(initial=0.0))))
        up = np.repeat(work_row[None, :], len(used), axis=0)
        down = up.copy()
        up[np.arange(len(used)), used] += step * scale
        down[np.arange(len(used)), used] = np.maximum(work_row[used] - step * scale, 0.0)
        width = up[np.arange(len(used)), used] - down[np.arange(len(used)), used]
        slowest = self._stages.speeds.max()
        rise = (self._two_lookup_phases(up) - self._two_lookup_phases(down)) / width[:, None]
        gradient = np.zeros((2, NUM_COLUMNS))
        gradient[:, used] = rise.T / slowest
        value = self._two_lookup_phases(work_row[None, :])[0] / slowest
        at = gradient @ work_row
        shrink = np.where(at > value, value / np.maximum(at, 1e-300), 1.0) * (1 - 1e-4)
        return gradient * shrink[:, None]

    def _two_lookup_phases(self, rows: FloatArray) -> FloatArray:
        forward, backward, fetch = self._stages.lookup_times(rows)
        return np.stack(
            [forward + fetch if self._pipeline.exposes_fetch else forward, backward], axis=-1
        )
