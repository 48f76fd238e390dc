"""Quantized communication: what travels between ranks instead of the vectors as they are.

TorchRec compresses three exchanges of embeddings and their gradients, each with a codec per
direction (``qcomm_codecs_registry`` of a sharder); FBGEMM's ``quantize_comm.py`` and
``quantize_utils.py``, 1.8, do it. Index exchanges and replicated tables are never compressed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from costmodels.errors import require

_SCALED_TOGETHER: Final = 32
_SCALE_BYTES: Final = 8.0
"""A scale and an offset in fp32 per row of int8, or of fp8 with rows."""


class Precision(StrEnum):
    """Element type on the wire; fp32 means that vectors travel as they are."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"
    MX4 = "mx4"


_ELEMENT_BYTES: Final = {
    Precision.FP32: 4.0,
    Precision.FP16: 2.0,
    Precision.BF16: 2.0,
    Precision.FP8: 1.0,
    Precision.INT8: 1.0,
    Precision.MX4: 0.5,
}
_FURTHER_PASSES: Final = {Precision.FP16: 2, Precision.BF16: 2, Precision.INT8: 1}
"""Passes over the vectors before the one that writes the wire: a clamped copy, or a row's range."""
_SUMMED: Final = (Precision.FP32, Precision.FP16, Precision.BF16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """One codec. ``row_dim`` elements share a scale; 0 means FBGEMM's default, none for fp8."""

    precision: Precision = Precision.FP32
    row_dim: int = 0

    def __post_init__(self) -> None:
        """Check the rows."""
        require(0 <= self.row_dim <= 2**31, f"row_dim must be 0..2^31, got {self.row_dim}")

    @property
    def compresses(self) -> bool:
        """Whether anything changes on the wire."""
        return self.precision is not Precision.FP32

    @property
    def scaled_together(self) -> int:
        """Elements of a row, all of which share a scale; 0 for a codec without scales."""
        if self.precision in (Precision.INT8, Precision.MX4):
            return self.row_dim or _SCALED_TOGETHER
        return self.row_dim if self.precision is Precision.FP8 else 0

    @property
    def wire_bytes(self) -> float:
        """Bytes per element on the wire, with the scales of its row."""
        row = self.scaled_together
        if not row:
            return _ELEMENT_BYTES[self.precision]
        if self.precision is Precision.MX4:
            return 0.5 + 1.0 / row
        return (-(-row // 4) * 4 + _SCALE_BYTES) / row

    @property
    def torchrec_bytes(self) -> float:
        """Bytes per element in TorchRec's estimates: the size of the wire's element type."""
        return 1.0 if self.precision is Precision.MX4 else _ELEMENT_BYTES[self.precision]

    @property
    def can_be_summed(self) -> bool:
        """Whether collectives that add can carry it: scales of rows have no sum."""
        return self.precision in _SUMMED

    def encode_bytes(self, element_bytes: float) -> float:
        """Device bytes per element that quantizing reads and writes."""
        if not self.compresses:
            return 0.0
        return (1 + _FURTHER_PASSES.get(self.precision, 0)) * element_bytes + self.wire_bytes

    def decode_bytes(self, element_bytes: float) -> float:
        """Device bytes per element that reading the wire and writing vectors takes."""
        return self.wire_bytes + element_bytes if self.compresses else 0.0


_PLAIN: Final = Codec()


@dataclass(frozen=True, slots=True, kw_only=True)
class Codecs:
    """Codecs of one exchange: of vectors forward, of their gradients backward."""

    forward: Codec = _PLAIN
    backward: Codec = _PLAIN

    @property
    def compresses(self) -> bool:
        """Whether either direction does."""
        return self.forward.compresses or self.backward.compresses

    @property
    def can_be_summed(self) -> bool:
        """Whether both directions survive a reduce-scatter and its all-gather."""
        return self.forward.can_be_summed and self.backward.can_be_summed


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """Codecs of a table's exchanges; None where its sharder names none for that exchange.

    ``all_to_all`` is of pooled vectors, ``reduce_scatter`` of the partial sums of row blocks, with
    the all-gather of their gradients, ``sequence`` of unpooled vectors.
    """

    all_to_all: Codecs | None = None
    reduce_scatter: Codecs | None = None
    sequence: Codecs | None = None

    @staticmethod
    def of(
        forward: Precision = Precision.FP32, backward: Precision = Precision.FP32
    ) -> Communication:
        """One pair of precisions for all exchanges, as TorchRec's ``get_qcomm_codecs_registry``.

        Fp8 and mx4 cannot be summed, so reduce-scatter takes fp16 forward and bf16 backward
        instead. Int8 has no such fallback: see :attr:`sums_rows`.
        """
        if forward is Precision.FP32 and backward is Precision.FP32:
            return Communication()
        both = Codecs(forward=Codec(precision=forward), backward=Codec(precision=backward))
        narrow = (Precision.FP8, Precision.MX4)
        sums = Codecs(
            forward=Codec(precision=Precision.FP16 if forward in narrow else forward),
            backward=Codec(precision=Precision.BF16 if backward in narrow else backward),
        )
        return Communication(all_to_all=both, reduce_scatter=sums, sequence=both)

    @property
    def compresses(self) -> bool:
        """Whether any exchange does."""
        every = (self.all_to_all, self.reduce_scatter, self.sequence)
        return any(c is not None and c.compresses for c in every)

    @property
    def sums_rows(self) -> bool:
        """Whether pooled tables can be cut by rows: their partial sums travel and are added."""
        return self.reduce_scatter is None or self.reduce_scatter.can_be_summed

    def exchange(self, *, sums: bool, is_pooled: bool) -> Codecs:
        """Codecs of one exchange.

        Args:
            sums: partial sums of row blocks are added on the way.
            is_pooled: bags become one vector.
        """
        pooled = self.reduce_scatter if sums else self.all_to_all
        return (pooled if is_pooled else self.sequence) or Codecs()


NOT_COMPRESSED: Final = Communication()
