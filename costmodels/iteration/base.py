"""Steps and programs, of which every training pipeline consists.

All ranks run the same program. A step runs on one stream. It starts after the steps before it on
that stream, after the steps that it names, and after the host thread has issued it. A collective
starts when the last rank has arrived at it, and takes the same time on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray
from costmodels.errors import InvalidValueError

LOOKUP_FORWARD: Final = "lookup forward"
LOOKUP_BACKWARD: Final = "lookup backward"
INPUT_COPY: Final = "input copy"
INPUT_DIST: Final = "input dist"
GRADIENT_ALL_REDUCE: Final = "gradient all-reduce"
"""Names of steps that other modules look for in a program; the last two begin the names of several.
"""
ISSUED: Final = ", issued"
"""Ends the name of the moment at which the host has issued the last operator of a stage."""
_ROUNDING_S: Final = 1e-12
"""Seconds below 0 that a difference of two equal times can have."""


def _none() -> FloatArray:
    """No time."""
    return np.zeros(1)


class Stream(StrEnum):
    """The queue of a rank that a step runs on; steps of one stream run one after the other."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    DATA_DIST = "data_dist"
    PREFETCH = "prefetch"
    COPY = "copy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of the program.

    Attributes:
        name: shown to people.
        stream: the queue it runs on.
        duration_s: seconds, broadcastable to ``[..., R]`` (plans, R ranks).
        after: indices of earlier steps that must have finished on the same rank.
        host_s: seconds that the host needs to issue it, broadcastable to ``[..., R]``.
        collective: whether it starts only when all ranks have arrived at it.
        present: ``[..., 1]``, False for plans that do not have this step; None if all have it. A
            step that is not there holds up no other step of its stream, and takes no time.
        blocks_host: whether the host waits until it has finished.
    """

    name: str
    stream: Stream
    duration_s: FloatArray
    after: tuple[int, ...] = ()
    host_s: FloatArray = field(default_factory=_none)
    collective: bool = False
    present: BoolArray | None = None
    blocks_host: bool = False

    @property
    def is_present(self) -> bool:
        """For a program of a single plan: whether the plan has this step."""
        return self.present is None or bool(np.all(self.present))


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The steps of an iteration, in the order in which the host issues them.

    Attributes:
        steps: the same for all ranks.
        overlap_slowdown_ratio: seconds of compute lost per second of communication beside it.
        floor_s: the shortest possible iteration for other reasons, such as the rate of the input.
    """

    steps: tuple[Step, ...]
    overlap_slowdown_ratio: float
    floor_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyTimes:
    """Durations ``[..., 1]`` of the collectives of one sharding type.

    Attributes:
        name: of the sharding type.
        present: ``[..., 1]`` which plans have the type; None if all have it.
        input_s: the exchange of indices.
        outputs_s: each collective of the output exchange, with its name, in forward order.
        gradients_s: the same collectives in the backward pass, which runs them in reverse order;
            listed in forward order. None if they take as long as forward.
    """

    name: str
    present: BoolArray | None
    input_s: FloatArray
    outputs_s: tuple[tuple[str, FloatArray], ...]
    gradients_s: tuple[FloatArray, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecTimes:
    """Seconds ``[..., R]`` of the kernels of quantized communication.

    Attributes:
        output_quantize_s: encoding of the vectors that a rank sends.
        output_dequantize_s: decoding of the vectors that arrive.
        gradient_quantize_s: encoding of the gradients that a rank sends.
        gradient_dequantize_s: decoding of the gradients that arrive.
        host_s: seconds that the host needs to issue each of these four steps.
    """

    output_quantize_s: FloatArray
    output_dequantize_s: FloatArray
    gradient_quantize_s: FloatArray
    gradient_dequantize_s: FloatArray
    host_s: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """Durations of all stages: ``[..., R]`` of compute, ``[..., 1]`` of collectives.

    ``*_host_s`` are the seconds that the host needs to issue a step of that kind. ``bottom`` is the
    dense part before the looked-up vectors arrive, ``top`` the rest of it.

    Attributes:
        cache_fetch_s: what caches in front of host memory do before the lookup.
        families: collectives of each sharding type.
        input_splits_s: exchange of the sizes of the index exchange.
        bucket_s: all-reduces of gradients beside the backward pass; with a sharded dense part, the
            reduce-scatters of all pieces but the last.
        tail_bucket_s: the last all-reduce.
        overlap_slowdown_ratio: see :class:`Program`.
        floor_s: see :class:`Program`.
        dense_names: names of bottom and top, for people.
        single_stream: whether everything runs one after the other, and inputs are not copied.
        has_tables: whether there is anything to look up.
        input_copy_s: the copy of a batch to the device, and what is done to indices there.
        copy_host_s: host seconds that issuing the copy takes, and those between two steps.
        copy_blocks_host: whether the host waits for that copy.
        codecs: None where no exchange is compressed.
        piece_ratio: a dense part that is sharded over the ranks runs in pieces; this is the share
            of each piece. Empty for other dense parts.
        gather_s: all-gather of the parameters of each piece, before its forward pass and again
            before its backward pass.
        last_scatter_s: reduce-scatter of the gradients of the last piece.
        earlier_s: all micro-batches of a step but the last one; None if there are none.
    """

    bottom_forward_s: FloatArray
    top_forward_s: FloatArray
    top_backward_s: FloatArray
    bottom_backward_s: FloatArray
    optimizer_s: FloatArray
    lookup_forward_s: FloatArray = field(default_factory=_none)
    lookup_backward_s: FloatArray = field(default_factory=_none)
    cache_fetch_s: FloatArray = field(default_factory=_none)
    families: tuple[FamilyTimes, ...] = ()
    input_splits_s: FloatArray
    bucket_s: tuple[FloatArray, ...]
    tail_bucket_s: FloatArray = field(default_factory=_none)
    bottom_host_s: FloatArray
    top_host_s: FloatArray
    lookup_host_s: FloatArray = field(default_factory=_none)
    collective_host_s: FloatArray
    floor_s: float
    dense_names: tuple[str, str]
    overlap_slowdown_ratio: float = 0.0
    single_stream: bool = False
    has_tables: bool = True
    top_backward_host_s: FloatArray = field(default_factory=_none)
    bottom_backward_host_s: FloatArray = field(default_factory=_none)
    lookup_backward_host_s: FloatArray = field(default_factory=_none)
    optimizer_host_s: FloatArray = field(default_factory=_none)
    input_copy_s: FloatArray = field(default_factory=_none)
    copy_host_s: FloatArray = field(default_factory=_none)
    copy_blocks_host: bool = False
    codecs: CodecTimes | None = None
    piece_ratio: tuple[float, ...] = ()
    gather_s: tuple[FloatArray, ...] = ()
    last_scatter_s: FloatArray = field(default_factory=_none)
    earlier_s: FloatArray | None = None


Node = tuple[int, int]
"""(rank, step index)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """One simulated iteration.

    Attributes:
        arrival_s: ``[steps, R]`` when a step could start, if it did not have to wait for other
            ranks.
        start_s: ``[steps, R]`` when it starts; later than the arrival only in collectives.
        finish_s: ``[steps, R]`` when it finishes.
        iteration_time_s: when all ranks have finished.
        released_by: from a (rank, step) to the (rank, step) that it waited for last; None if it was
            the host thread, or nothing.
        last: the (rank, step) that finished last; None if the host finished last.
    """

    arrival_s: FloatArray
    start_s: FloatArray
    finish_s: FloatArray
    iteration_time_s: float
    released_by: Callable[[Node], Node | None]
    last: Node | None


def require_times(seconds: FloatArray | float, what: str) -> None:
    """Raise :class:`InvalidValueError` unless all times, in any shape, are finite and at least 0.

    Args:
        seconds: what a cost model has given.
        what: what takes so long, for the message.
    """
    values = np.asarray(seconds)
    least, most = (values.min(), values.max()) if values.size else (0.0, 0.0)
    if not (least >= -_ROUNDING_S and most < np.inf):
        wrong = most if least >= -_ROUNDING_S else least
        message = (
            f"{what} takes {wrong:.4g} s by the cost models, but times must be finite and at least "
            "0; correct the model that gives it"
        )
        raise InvalidValueError(message)
