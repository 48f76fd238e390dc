"""Quantized communication: the format in which looked-up vectors travel between ranks.

TorchRec can compress three exchanges of vectors and of their gradients, each with one codec forward
and one backward (``qcomm_codecs_registry`` of a sharder). The formats are those of FBGEMM 1.8,
``quantize_comm.py`` and ``quantize_utils.py``. Index exchanges and replicated tables are never
compressed.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

from costmodels.datatypes import DataType
from costmodels.errors import require

_SCALED_TOGETHER: Final = 32
"""Elements that share a scale in int8 and mx4 by FBGEMM's default."""
_SCALE_BYTES: Final = 8.0
"""Bytes that a row of int8, or of fp8 with rows, has beside its elements: a scale and an offset in
fp32."""


class Precision(StrEnum):
    """Element type between ranks ("on the wire"); fp32 means that vectors travel as they are."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"
    MX4 = "mx4"


_FURTHER_PASSES: Final = {Precision.FP16: 2, Precision.BF16: 2, Precision.INT8: 1}
"""Reads and writes of the vectors beside the read of the kernel that writes the compressed ones:
a clamped copy for fp16 and bf16, a read that finds the range of each row for int8."""
_SUMMED: Final = (Precision.FP32, Precision.FP16, Precision.BF16)
"""Formats whose values can be added up, because they have no scales."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """What compresses vectors in one direction of one exchange.

    Attributes:
        precision: format on the wire.
        row_dim: elements that share a scale (a *row* of the codec). 0 means FBGEMM's default: 32
            for int8 and mx4, no scales for fp8.
    """

    precision: Precision = Precision.FP32
    row_dim: int = 0

    def __post_init__(self) -> None:
        """Check the elements of a row."""
        require(0 <= self.row_dim <= 2**31, f"row_dim must be 0..2^31, got {self.row_dim}")

    @property
    def compresses(self) -> bool:
        """Whether anything is compressed: with fp32, vectors travel as they are."""
        return self.precision is not Precision.FP32

    @property
    def scaled_together(self) -> int:
        """Elements that share a scale; 0 for a codec without scales."""
        if self.precision in (Precision.INT8, Precision.MX4):
            return self.row_dim or _SCALED_TOGETHER
        return self.row_dim if self.precision is Precision.FP8 else 0

    @property
    def wire_bytes(self) -> float:
        """Bytes per element on the wire, with the element's part of the scales."""
        row = self.scaled_together
        if not row:
            return float(DataType(self.precision).num_bytes)
        if self.precision is Precision.MX4:
            # A row of mx4 has one exponent of a byte.
            return 0.5 + 1.0 / row
        # Rows of one-byte elements are padded to whole 4 bytes.
        return (-(-row // 4) * 4 + _SCALE_BYTES) / row

    @property
    def torchrec_bytes(self) -> float:
        """Bytes per element by which TorchRec's estimates count: without scales, 1 for mx4."""
        is_mx4 = self.precision is Precision.MX4
        return 1.0 if is_mx4 else float(DataType(self.precision).num_bytes)

    @property
    def can_be_summed(self) -> bool:
        """Whether a reduce-scatter can add up compressed values: not if they have scales."""
        return self.precision in _SUMMED

    def encode_bytes(self, element_bytes: float) -> float:
        """Device bytes per element that compressing reads and writes.

        Args:
            element_bytes: bytes of an element of the vectors as they are.
        """
        if not self.compresses:
            return 0.0
        return (1 + _FURTHER_PASSES.get(self.precision, 0)) * element_bytes + self.wire_bytes

    def decode_bytes(self, element_bytes: float) -> float:
        """Device bytes per element that decompressing reads and writes; as ``encode_bytes``."""
        return self.wire_bytes + element_bytes if self.compresses else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Codecs:
    """The codecs of one exchange: of its vectors forward, and of their gradients backward."""

    forward: Codec = Codec()
    backward: Codec = Codec()


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """The codecs of a table's exchanges; None if its sharder names none for an exchange.

    Attributes:
        all_to_all: codecs of pooled vectors.
        reduce_scatter: codecs of partial sums, if a table is cut by rows. Backward, the gradients
            of these sums travel by an all-gather.
        sequence: codecs of unpooled vectors.
    """

    all_to_all: Codecs | None = None
    reduce_scatter: Codecs | None = None
    sequence: Codecs | None = None

    @classmethod
    def of(cls, forward: Precision = Precision.FP32, backward: Precision = Precision.FP32) -> Self:
        """The same formats for all exchanges, as TorchRec's ``get_qcomm_codecs_registry`` sets.

        Values in fp8 and mx4 cannot be added up. A reduce-scatter therefore takes fp16 forward and
        bf16 backward in their place. There is no such replacement for int8; see :attr:`sums_rows`.

        Args:
            forward: format of vectors.
            backward: format of their gradients.
        """
        if forward is Precision.FP32 and backward is Precision.FP32:
            return cls()
        both = Codecs(forward=Codec(precision=forward), backward=Codec(precision=backward))
        narrow = (Precision.FP8, Precision.MX4)
        sums = Codecs(
            forward=Codec(precision=Precision.FP16 if forward in narrow else forward),
            backward=Codec(precision=Precision.BF16 if backward in narrow else backward),
        )
        return cls(all_to_all=both, reduce_scatter=sums, sequence=both)

    @property
    def compresses(self) -> bool:
        """Whether anything is compressed in any exchange."""
        every = filter(None, (self.all_to_all, self.reduce_scatter, self.sequence))
        return any(codec.compresses for c in every for codec in (c.forward, c.backward))

    @property
    def sums_rows(self) -> bool:
        """Whether pooled tables can be cut by rows, because their partial sums can be added up."""
        sums = self.reduce_scatter
        return sums is None or (sums.forward.can_be_summed and sums.backward.can_be_summed)

    def exchange(self, *, sums: bool, is_pooled: bool) -> Codecs:
        """The codecs of one exchange; those of unpooled vectors do not depend on ``sums``.

        Args:
            sums: whether the exchange adds up partial sums of tables that are cut by rows.
            is_pooled: whether the vectors are pooled.
        """
        pooled = self.reduce_scatter if sums else self.all_to_all
        return (pooled if is_pooled else self.sequence) or Codecs()
