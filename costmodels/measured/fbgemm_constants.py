"""The constants of FBGEMM's table-batched lookups, in physical units, with the range of each."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Final

from costmodels.errors import require


def _constant(default: float, most: float) -> Any:
    """A constant with its shipped value and the largest one that a fit or a file may give."""
    return field(default=default, metadata={"most": most})


@dataclass(frozen=True, slots=True, kw_only=True)
class FbgemmConstants:
    """What FBGEMM's kernels cost; the formulas are in :class:`costmodels.lookup.fbgemm.Fbgemm`.

    The shipped values are fitted to the rows of one H200 in ``configs/published/gpu_h200.jsonl``
    (FBGEMM 1.6) by :func:`costmodels.calibration.fit_fbgemm.fit_fbgemm`. Passes are ratios over the
    bandwidth of the device. Seconds are those of a device whose second-level cache delivers
    ``l2_bandwidth_bytes_per_s``; on another one they are divided by the ratio of these bandwidths,
    which grow with multiprocessors and clock. Floors and chains are the same on all devices.

    Attributes:
        l2_bandwidth_bytes_per_s: of the device on which the seconds were measured.
        forward_floor_s: forward call with next to nothing to do: bounds check and one kernel.
        forward_index_s: to check and read one index.
        forward_bag_s: to begin a bag, and to check its offsets.
        forward_chunk_s: to add 128 elements of a row to a bag.
        forward_row_passes_ratio: device memory, over the 128-byte lines of rows that miss.
        output_passes_ratio: device memory, over the bytes of outputs.
        chain_hit_s, chain_miss_s: what each index of a bag adds to the time of the last bags, which
            read their rows one after the other: always, and where a row misses the cache. Times
            1 + columns / 128.
        backward_floor_s: backward call with next to nothing to do: sort, run lengths, two updates.
        sorted_index_s: to linearize, sort and encode one index.
        segment_chunk_s: to add the gradient of one index to its row, for each part of a warp.
        updated_row_s: to begin a distinct row.
        rounded_chunk_s: to round 128 elements of a distinct row to 16 bits by random numbers.
        long_segment_s, long_segment_chunk_s: for a row with more than 32 indices, which a block of
            threads adds up: always, and for each 128 columns.
        update_passes_ratio: device memory, over the lines of a row and its state, both ways.
        gradient_passes_ratio: device memory, over the bytes of gradients of bags that miss.
        link_passes_ratio: host link, over the bytes of rows that are read from host memory.
        link_row_s: host link, for each such row.
        link_update_passes_ratio: host link, over the 64-byte lines of rows that are updated there.
        link_update_row_s: host link, for each such row.
        cache_floor_s: to prepare a cache in front of host memory, however few indices there are.
        cache_backward_floor_s: what such a cache adds to a backward call.
        cache_index_s: to find one distinct index in it.
        cache_insert_s: to insert a row.
    """

    l2_bandwidth_bytes_per_s: float = _constant(5.5e12, 1e15)
    forward_floor_s: float = _constant(1.01e-05, 1e-3)
    forward_index_s: float = _constant(4.3e-12, 1e-8)
    forward_bag_s: float = _constant(2.61e-10, 1e-7)
    forward_chunk_s: float = _constant(3.47e-11, 1e-8)
    forward_row_passes_ratio: float = _constant(0.762, 20.0)
    output_passes_ratio: float = _constant(1.66, 20.0)
    chain_hit_s: float = _constant(5.1e-08, 1e-5)
    chain_miss_s: float = _constant(1.82e-07, 1e-5)
    backward_floor_s: float = _constant(9.76e-05, 2e-3)
    sorted_index_s: float = _constant(3.65e-11, 1e-8)
    segment_chunk_s: float = _constant(5.36e-11, 1e-8)
    updated_row_s: float = _constant(1.05e-10, 1e-7)
    rounded_chunk_s: float = _constant(2.6e-10, 1e-7)
    long_segment_s: float = _constant(2.5e-08, 1e-5)
    long_segment_chunk_s: float = _constant(1.33e-08, 1e-5)
    update_passes_ratio: float = _constant(1.33, 20.0)
    gradient_passes_ratio: float = _constant(1.81, 20.0)
    link_passes_ratio: float = _constant(0.875, 20.0)
    link_row_s: float = _constant(3.78e-10, 1e-6)
    link_update_passes_ratio: float = _constant(1.2, 20.0)
    link_update_row_s: float = _constant(5.75e-10, 1e-6)
    cache_floor_s: float = _constant(0.000131, 5e-3)
    cache_backward_floor_s: float = _constant(4.68e-05, 5e-3)
    cache_index_s: float = _constant(1.4e-09, 1e-6)
    cache_insert_s: float = _constant(3.56e-09, 1e-6)

    def __post_init__(self) -> None:
        """Check that every constant is in its range.

        Raises:
            InvalidValueError: names the first that is not.
        """
        for name, most in MOST.items():
            value = getattr(self, name)
            least = 0.0 if name in FITTED else most * 1e-6
            require(
                least <= value <= most,
                f"lookup constants: {name} must be {least:g}..{most:g}, got {value}",
            )


MOST: Final[dict[str, float]] = {f.name: f.metadata["most"] for f in fields(FbgemmConstants)}
"""The largest value of each constant."""
FITTED: Final = tuple(name for name in MOST if name != "l2_bandwidth_bytes_per_s")
"""The constants that a fit finds; times are linear in them."""
