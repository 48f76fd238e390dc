"""The constants of a machine whose ranks are CPU cores, as a calibration has found them.

This file has the numbers only. The other modules of this package say how they are used, and
:mod:`costmodels.calibration` how they are found. Coefficients are seconds per count, in the order
of the counts of the model.
"""

import re
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Final

from costmodels.errors import require
from costmodels.fields import Amount, Finite, Positive, Several, settle

NUM_FORWARD: Final = 9
"""How many counts a forward lookup has (:class:`LookupConstants`)."""
NUM_BACKWARD: Final = {"fused": 12, "replicated": 14, "sequence": 6}
"""How many counts the backward lookup of each kind of table has."""
NUM_SHAPE: Final = 8
"""Numbers in the shape of a shard, by whose logarithms the learned factors are found."""


class CpuKernel(StrEnum):
    """The kernels that look up tables on a CPU.

    ``FUSED``: FBGEMM's kernel for sharded tables that are pooled. ``DENSE``: its kernel for
    replicated tables. ``SEQUENCE``: its kernel for tables that are not pooled.
    """

    FUSED = "fused"
    DENSE = "dense"
    SEQUENCE = "sequence"


OPERATOR_COUNTS = 8
"""How many counts an operator of any class has (:mod:`costmodels.cpu.dense`)."""


def _counted(*lengths: int) -> Any:
    """A field of seconds per count, of which there are so many, or one of these numbers."""
    return field(metadata={"lengths": lengths})


class _Constants:
    """Seconds per count, which fit this version, and are finite and not below 0.

    With negative seconds per count, times would not be convex, and bounds would be wrong.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            InvalidValueError: the numbers are those of another version, below 0 or not finite.
        """
        counted = ((getattr(self, f.name), f.metadata.get("lengths")) for f in fields(self))  # type: ignore[arg-type]
        self._require_fit(all(not lengths or len(found) in lengths for found, lengths in counted))
        settle(self, f"{self._what} (correct or calibrate again): ")

    @property
    def _what(self) -> str:
        """The constants as messages call them, such as ``lookup constants``."""
        return re.sub("(?<=[a-z])C", " c", type(self).__name__).lower()

    def _require_fit(self, fits: bool) -> None:  # noqa: FBT001
        require(fits, f"{self._what} do not fit this version's counts: calibrate again")


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """A learned factor exp(f(x)) of a shard, where x are the logarithms of its shape.

    f(x) = sum_i weight_i exp(-|(x - x_i) / length|^2 / 2), limited to -limit..limit. This is a
    kernel regression.

    Attributes:
        points_ratio: the points x_i; without points the factor is 1.
        weights_ratio: the weight of each point.
        lengths_ratio: the length for each number of the shape.
        limit_ratio: the limit of f(x).
    """

    points_ratio: tuple[tuple[Finite, ...], ...] = ()
    weights_ratio: tuple[Finite, ...] = ()
    lengths_ratio: tuple[Positive, ...] = ()
    limit_ratio: Amount = 0.5

    def __post_init__(self) -> None:
        """Check the numbers."""
        settle(self, "learned factor (correct or calibrate again): ")


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupConstants(_Constants):
    """The constants of the forward and the backward lookup of one kernel.

    A forward lookup counts the call, bags, output elements, indices, looked up elements, and
    *misses*: rows that miss L2, their cache lines, rows that miss L3, and their lines.

    The backward lookup of a pooled table counts the call, bags, indices, passes of their sort,
    gathered elements, gathered lines beyond L2, distinct rows, their elements, and misses. That of
    a replicated table, whose gradient is as large as the table, counts the elements of the table,
    and those beyond L3, as well. That of a table that is not pooled counts the call, indices,
    gathered elements, distinct rows, their elements, and distinct rows in far memory.

    The shape, for the learned factors, is indices, distinct rows, columns, rows, bags, reuse
    (indices per distinct row), repeats (the probability that two indices are the same row), and
    misses of L2 per index.

    Attributes:
        forward_s: seconds per count of the forward lookup.
        backward_s: seconds per count of the kernel's backward lookup.
        forward_residual, backward_residual: learned factors on the seconds.
    """

    forward_s: tuple[Amount, ...] = _counted(NUM_FORWARD)
    backward_s: tuple[Amount, ...] = _counted(*NUM_BACKWARD.values())
    forward_residual: Residual = Residual()
    backward_residual: Residual = Residual()

    def __post_init__(self) -> None:
        """Check that there is one number for each count, and one for each number of a shape."""
        residuals = (self.forward_residual, self.backward_residual)
        widths = {len(row) for r in residuals for row in (r.lengths_ratio, *r.points_ratio)}
        self._require_fit(widths <= {0, NUM_SHAPE})
        _Constants.__post_init__(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConstants(_Constants):
    """How much longer a table takes in a step than alone, where caches are cold.

    Attributes:
        forward_s: a factor on the seconds that the table takes alone; seconds per table; and
            further seconds per bag, per element of the bags' vectors, and per index.
        backward_s: the same for the backward lookup.
    """

    forward_s: tuple[Amount, ...] = _counted(5)
    backward_s: tuple[Amount, ...] = _counted(5)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeConstants(_Constants):
    """The constants of the exchanges of one sharding type (:mod:`costmodels.cpu.exchange`).

    Attributes:
        input_s: seconds per count of the exchange of indices.
        output_s: seconds per count of the exchange of pooled vectors.
        gradient_s: seconds per count of the exchange of their gradients.
    """

    input_s: tuple[Amount, ...] = _counted(5)
    output_s: tuple[Amount, ...] = _counted(4)
    gradient_s: tuple[Amount, ...] = _counted(4)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveConstants(_Constants):
    """The constants of single collectives (:mod:`costmodels.cpu.exchange`).

    Attributes:
        all_to_all_s: seconds per count of :func:`costmodels.cpu.exchange.all_to_all_counts`.
        reduce_scatter_s, all_gather_s, all_reduce_s: seconds per count of
            :func:`costmodels.cpu.exchange.buffer_counts`.
    """

    all_to_all_s: tuple[Amount, ...] = _counted(6)
    reduce_scatter_s: tuple[Amount, ...] = _counted(4)
    all_gather_s: tuple[Amount, ...] = _counted(4)
    all_reduce_s: tuple[Amount, ...] = _counted(4)


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseConstants(_Constants):
    """The constants of small MLPs in training steps (:mod:`costmodels.cpu.dense`).

    Attributes:
        forward_s: seconds per count of the forward pass of all layers.
        backward_s: seconds per count of the backward pass of the top MLP.
        update_s: seconds per count of the backward pass of the bottom MLP and the optimizer.
    """

    forward_s: tuple[Amount, ...] = _counted(6)
    backward_s: tuple[Amount, ...] = _counted(6)
    update_s: tuple[Amount, ...] = _counted(9)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorConstants(_Constants):
    """The constants of single operators of any dense part (:mod:`costmodels.cpu.dense`).

    Attributes:
        forward_s: classes of operators, with the seconds per count of their forward pass.
        backward_s: the same for the backward pass.
        update_s: seconds per count of a step of the optimizer (stochastic gradient descent).
        sigma_ratio: log-standard deviation of the errors of forward and backward pass together, on
            chains of operators that were left out of the fit.
    """

    forward_s: tuple[tuple[str, tuple[Amount, ...]], ...]
    backward_s: tuple[tuple[str, tuple[Amount, ...]], ...]
    update_s: tuple[Amount, ...] = _counted(7)
    sigma_ratio: Amount

    def __post_init__(self) -> None:
        """Check that there is a number for each count; old files have fewer."""
        by_class = (*self.forward_s, *self.backward_s)
        self._require_fit(all(len(counts_s) == OPERATOR_COUNTS for _, counts_s in by_class))
        _Constants.__post_init__(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientConstants(_Constants):
    """The constants of the gradients of replicated tables.

    Attributes:
        fixed_s: seconds if there are replicated tables at all.
        per_byte_s: seconds per byte of their gradients.
    """

    fixed_s: Amount
    per_byte_s: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Caches:
    """Bytes of the caches of a core, from which counts of cache misses follow.

    Attributes:
        l2_bytes: of the core's own cache.
        l3_bytes: of the shared cache that the core can count on.
    """

    l2_bytes: Positive
    l3_bytes: Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuConstants(Caches, _Constants):
    """All constants of a machine.

    Attributes:
        machine: name of the machine.
        world_size: number of ranks that the calibration ran with.
        call_s: seconds of a fused lookup without work, forward and backward together.
        group: how much longer sharded tables take in a step.
        replicated_group: how much longer replicated tables take in a step.
        fused: lookups of pooled tables.
        replicated: lookups of replicated tables.
        sequence: lookups of unpooled tables.
        exchange_s: seconds that the exchanges of indices, vectors and gradients take once in a
            step, for any number of sharding types.
        table_wise, column_wise, row_wise: exchanges of each sharding type.
        collective: single collectives.
        dense: small MLPs in training steps.
        gradient: gradients of replicated tables.
        sigmas_ratio: kinds of time and the pace of the machine, with the log-standard deviation of
            each, from points that were left out of the fit.
        operators: single operators; None if the calibration did not measure them.
        pace_s: seconds that fixed work took beside the training steps of the calibration, which say
            how slow the machine was; None if the calibration did not measure them.
    """

    machine: str
    world_size: Several
    call_s: Amount
    group: GroupConstants
    replicated_group: GroupConstants
    fused: LookupConstants
    replicated: LookupConstants
    sequence: LookupConstants
    exchange_s: tuple[Amount, ...]
    table_wise: ExchangeConstants
    column_wise: ExchangeConstants
    row_wise: ExchangeConstants
    collective: CollectiveConstants
    dense: DenseConstants
    gradient: GradientConstants
    sigmas_ratio: tuple[tuple[str, Amount], ...] = ()
    operators: OperatorConstants | None = None
    pace_s: Amount | None = None

    def __post_init__(self) -> None:
        """Check the numbers, and that there is one for each count of a kernel's backward lookup."""
        counts = {name: len(getattr(self, name).backward_s) for name in NUM_BACKWARD}
        self._require_fit(counts == NUM_BACKWARD)
        _Constants.__post_init__(self)

    @property
    def kernel_latency_s(self) -> float:
        """Seconds per kernel of a fused lookup without work: one kernel forward, three backward."""
        return self.call_s / 4.0

    def lookups(self, kernel: CpuKernel) -> LookupConstants:
        """The constants of the lookups by one kernel."""
        kinds = {CpuKernel.FUSED: self.fused, CpuKernel.DENSE: self.replicated}
        return kinds.get(kernel, self.sequence)
