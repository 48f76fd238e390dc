"""Steps, programs, and what every pipeline is built from.

All ranks run the same program. A step runs on one stream, after its predecessors on that stream,
after the steps it names, and after the host thread has issued it. A collective starts when the
last rank arrives and takes the same time everywhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


LOOKUP_FORWARD: Final = "lookup forward"
LOOKUP_BACKWARD: Final = "lookup backward"
INPUT_COPY: Final = "input copy"


class Stream(StrEnum):
    """Where a step runs."""

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
        stream: where it runs.
        duration_s: seconds, broadcastable to ``[..., R]``.
        after: indices of earlier steps that must have finished on this rank.
        host_s: host seconds to issue it, broadcastable to ``[..., R]``.
        collective: starts at the latest arrival of all ranks.
        present: ``[..., 1]`` False where a plan does not have this step at all: it is then in no
            other step's way on its stream, and has no duration and no host seconds.
        blocks_host: the host waits until it has finished.
    """

    name: str
    stream: Stream
    duration_s: FloatArray
    after: tuple[int, ...] = ()
    host_s: FloatArray = field(default_factory=lambda: np.zeros(1))
    collective: bool = False
    present: BoolArray | None = None
    blocks_host: bool = False

    @property
    def is_present(self) -> bool:
        """Whether the one plan of a program has this step."""
        return self.present is None or bool(np.all(self.present))


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Steps in the order the host issues them.

    ``overlap_slowdown_ratio`` is the compute time lost per second of communication beside it.
    ``floor_s`` is the shortest possible iteration for reasons outside the program, such as the
    input rate.
    """

    steps: tuple[Step, ...]
    overlap_slowdown_ratio: float
    floor_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyTimes:
    """Collectives of one sharding type.

    ``present`` ``[..., 1]`` says which plans have the type, None that all have it. Seconds
    ``[..., 1]`` of the index exchange, and of each step of the output exchange forward. The
    backward runs them in reverse; ``gradients_s`` are its times, in the same order, None where they
    are the same.
    """

    name: str
    present: BoolArray | None
    input_s: FloatArray
    outputs_s: tuple[tuple[str, FloatArray], ...]
    gradients_s: tuple[FloatArray, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecTimes:
    """Seconds ``[..., R]`` of the kernels of quantized communication, and host seconds of each."""

    quantize_s: FloatArray
    dequantize_s: FloatArray
    quantize_gradient_s: FloatArray
    dequantize_gradient_s: FloatArray
    host_s: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """Durations of everything in an iteration.

    ``[..., R]`` for compute and ``[..., 1]`` for collectives; ``*_host_s`` are host seconds to
    issue each kind of step. On a ``single_stream`` everything runs one after the other, and inputs
    are not copied. ``input_copy_s`` is the copy of a batch to the device; the host waits for it if
    ``copy_blocks_host``. ``codecs`` is None where no exchange is compressed. A dense part that is
    sharded over the ranks runs in pieces, each with its share of the dense part (``piece_ratio``):
    ``gather_s`` brings its parameters before its forward and again before its backward pass, whose
    gradients take ``bucket_s``, and those of the last piece ``last_scatter_s``. ``earlier_s`` are
    the micro-batches of a step before the last one. ``dense_names`` are the two sides of the dense
    part, for people.
    """

    bottom_forward_s: FloatArray
    top_forward_s: FloatArray
    top_backward_s: FloatArray
    bottom_backward_s: FloatArray
    optimizer_s: FloatArray
    lookup_forward_s: FloatArray
    lookup_backward_s: FloatArray
    cache_fetch_s: FloatArray
    families: tuple[FamilyTimes, ...]
    input_splits_s: FloatArray
    bucket_s: tuple[FloatArray, ...]
    tail_bucket_s: FloatArray
    bottom_host_s: FloatArray
    top_host_s: FloatArray
    lookup_host_s: FloatArray
    collective_host_s: FloatArray
    overlap_slowdown_ratio: float
    floor_s: float
    dense_names: tuple[str, str]
    single_stream: bool = False
    has_tables: bool = True
    top_backward_host_s: FloatArray = field(default_factory=lambda: np.zeros(1))
    bottom_backward_host_s: FloatArray = field(default_factory=lambda: np.zeros(1))
    lookup_backward_host_s: FloatArray = field(default_factory=lambda: np.zeros(1))
    optimizer_host_s: FloatArray = field(default_factory=lambda: np.zeros(1))
    input_copy_s: FloatArray = field(default_factory=lambda: np.zeros(1))
    copy_host_s: FloatArray = field(default_factory=lambda: np.zeros(1))
    copy_blocks_host: bool = False
    codecs: CodecTimes | None = None
    piece_ratio: tuple[float, ...] = ()
    gather_s: tuple[FloatArray, ...] = ()
    last_scatter_s: FloatArray = field(default_factory=lambda: np.zeros(1))
    earlier_s: FloatArray | None = None


class AbstractPipeline(ABC):
    """Orders the stages of one steady-state iteration."""

    __slots__ = ()

    @abstractmethod
    def program(self, times: StageTimes) -> Program:
        """The steps, in issue order."""

    @property
    @abstractmethod
    def exposes_input_dist(self) -> bool:
        """Whether the index exchange of a batch precedes its lookup in the same iteration."""

    @property
    @abstractmethod
    def exposes_fetch(self) -> bool:
        """Whether cache rows are fetched on the compute stream before the lookup."""

    @property
    @abstractmethod
    def overlaps_bottom(self) -> bool:
        """Whether bottom MLP and dense all-reduces run beside the exchanges and the update."""
