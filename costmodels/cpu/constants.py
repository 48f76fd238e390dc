"""Constants of a machine whose ranks are CPU cores, as a calibration found them.

Only numbers: how they enter is told by the models beside this file; how they were found by
:mod:`costmodels.calibration`. Coefficients are seconds per count, in the order of the model's
features.
"""

from __future__ import annotations

from dataclasses import dataclass

from costmodels.cpu.features import (
    BACKWARD,
    DENSE_BACKWARD,
    FORWARD,
    SEQUENCE_BACKWARD,
    SHAPE,
    CpuKernel,
)
from costmodels.errors import CostModelError, require

ALL_TO_ALL_COUNTS = 6
"""See :func:`costmodels.cpu.gloo.all_to_all_counts`."""
OPERATOR_COUNTS = 8
"""Counts of one operator of any class, see :mod:`costmodels.cpu.operators`."""
UPDATE_COUNTS = 7
"""See :func:`costmodels.cpu.operators.update_counts`."""
_NUM_BACKWARD = {len(counts) for counts in (BACKWARD, DENSE_BACKWARD, SEQUENCE_BACKWARD)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """A learned factor exp(f(x)), f a kernel regression on the logarithms of a shard's shape.

    f(x) = sum_i weight_i exp(-|(x - x_i) / length|^2 / 2), cut to +-limit. No points: factor 1.
    """

    points_ratio: tuple[tuple[float, ...], ...] = ()
    weights_ratio: tuple[float, ...] = ()
    lengths_ratio: tuple[float, ...] = ()
    limit_ratio: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupConstants:
    """Forward and backward of one kernel."""

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    forward_residual: Residual = Residual()
    backward_residual: Residual = Residual()

    def __post_init__(self) -> None:
        """Check that there is one number per count and feature: old files have others."""
        residuals = (self.forward_residual, self.backward_residual)
        widths = {len(row) for r in residuals for row in (r.lengths_ratio, *r.points_ratio)}
        fits = len(self.forward_s) == len(FORWARD)
        fits &= len(self.backward_s) in _NUM_BACKWARD
        require(
            fits and widths <= {0, len(SHAPE)},
            "lookup constants do not fit this version's counts: calibrate again",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConstants:
    """From tables alone to tables in a step: (alone, table, bags, elements, indices).

    Paid per table: a factor on its time alone, a fixed cost, and what its bags, their elements and
    its indices cost more where tables share output rows and the caches are cold.
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeConstants:
    """One sharding type: exchange of indices, of pooled vectors, of their gradients."""

    input_s: tuple[float, ...]
    output_s: tuple[float, ...]
    gradient_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveConstants:
    """Raw collectives: (an empty one, per byte ...) as :mod:`costmodels.cpu.gloo` says."""

    all_to_all_s: tuple[float, ...]
    reduce_scatter_s: tuple[float, ...]
    all_gather_s: tuple[float, ...]
    all_reduce_s: tuple[float, ...]

    def __post_init__(self) -> None:
        """Check that all-to-all has a number for each of its counts: old files have fewer."""
        require(
            len(self.all_to_all_s) == ALL_TO_ALL_COUNTS,
            "collective constants do not fit this version's counts: calibrate again",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseConstants:
    """Forward of all layers, backward of the top; update with the backward of the bottom."""

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    update_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorConstants:
    """Single operators of any dense part, see :mod:`costmodels.cpu.operators`.

    ``forward_s`` and ``backward_s`` hold seconds per count by class of operator; ``update_s`` those
    of a step of the optimizer (stochastic gradient descent). ``sigma_ratio`` is the log-standard
    deviation of forward and backward together, from chains of operators held out.
    """

    forward_s: tuple[tuple[str, tuple[float, ...]], ...]
    backward_s: tuple[tuple[str, tuple[float, ...]], ...]
    update_s: tuple[float, ...]
    sigma_ratio: float

    def __post_init__(self) -> None:
        """Check that there is a number for each count: old files have fewer."""
        by_class = (*self.forward_s, *self.backward_s)
        fits = all(len(counts_s) == OPERATOR_COUNTS for _, counts_s in by_class)
        require(
            fits and len(self.update_s) == UPDATE_COUNTS,
            "constants of operators do not fit this version's counts: calibrate again",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientConstants:
    """Gradients that every rank holds: once where tables are replicated, and per byte."""

    fixed_s: float
    per_byte_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuConstants:
    """Everything that was measured on a machine.

    ``call_s`` is what a fused lookup costs without work, forward and backward together;
    ``exchange_s`` what the exchanges of indices, vectors and gradients cost once, whatever the
    number of sharding types; ``sigmas_ratio`` the log-standard deviation of each kind of time, from
    points held out, and of the pace of the machine. ``pace_s`` is what the fixed work of the
    calibration took, which tells how slow the machine was meanwhile. ``operators``, ``sequence``
    for lookups of unpooled tables, and ``pace_s`` are None in calibrations made before they were
    measured.
    """

    machine: str
    world_size: int
    l2_bytes: float
    l3_bytes: float
    call_s: float
    group: GroupConstants
    replicated_group: GroupConstants
    fused: LookupConstants
    replicated: LookupConstants
    exchange_s: tuple[float, ...]
    table_wise: ExchangeConstants
    column_wise: ExchangeConstants
    row_wise: ExchangeConstants
    collective: CollectiveConstants
    dense: DenseConstants
    gradient: GradientConstants
    sigmas_ratio: tuple[tuple[str, float], ...] = ()
    operators: OperatorConstants | None = None
    sequence: LookupConstants | None = None
    pace_s: float | None = None

    @property
    def kernel_latency_s(self) -> float:
        """A fused lookup's fixed cost per kernel: one forward, three backward."""
        return self.call_s / 4.0

    def lookups(self, kernel: CpuKernel) -> LookupConstants:
        """Constants of one kernel.

        Raises:
            CostModelError: the calibration is older than the measurement of unpooled tables.
        """
        of_kernel = {
            CpuKernel.FUSED: self.fused,
            CpuKernel.DENSE: self.replicated,
            CpuKernel.SEQUENCE: self.sequence,
        }
        found = of_kernel[kernel]
        if found is None:
            message = (
                "the calibration was made before lookups of unpooled tables were measured; run "
                "'shardplan calibrate' again"
            )
            raise CostModelError(message)
        return found
