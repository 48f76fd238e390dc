"""The constants of FBGEMM's table-batched lookups, in physical units, with the range of each."""

from dataclasses import dataclass
from typing import Annotated, Final, get_type_hints

from costmodels.fields import Range, settle


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

    l2_bandwidth_bytes_per_s: Annotated[float, Range(1e9, 1e15)] = 5.5e12
    forward_floor_s: Annotated[float, Range(0, 1e-3)] = 1.01e-05
    forward_index_s: Annotated[float, Range(0, 1e-8)] = 4.3e-12
    forward_bag_s: Annotated[float, Range(0, 1e-7)] = 2.61e-10
    forward_chunk_s: Annotated[float, Range(0, 1e-8)] = 3.47e-11
    forward_row_passes_ratio: Annotated[float, Range(0, 20.0)] = 0.762
    output_passes_ratio: Annotated[float, Range(0, 20.0)] = 1.66
    chain_hit_s: Annotated[float, Range(0, 1e-5)] = 5.1e-08
    chain_miss_s: Annotated[float, Range(0, 1e-5)] = 1.82e-07
    backward_floor_s: Annotated[float, Range(0, 2e-3)] = 9.76e-05
    sorted_index_s: Annotated[float, Range(0, 1e-8)] = 3.65e-11
    segment_chunk_s: Annotated[float, Range(0, 1e-8)] = 5.36e-11
    updated_row_s: Annotated[float, Range(0, 1e-7)] = 1.05e-10
    rounded_chunk_s: Annotated[float, Range(0, 1e-7)] = 2.6e-10
    long_segment_s: Annotated[float, Range(0, 1e-5)] = 2.5e-08
    long_segment_chunk_s: Annotated[float, Range(0, 1e-5)] = 1.33e-08
    update_passes_ratio: Annotated[float, Range(0, 20.0)] = 1.33
    gradient_passes_ratio: Annotated[float, Range(0, 20.0)] = 1.81
    link_passes_ratio: Annotated[float, Range(0, 20.0)] = 0.875
    link_row_s: Annotated[float, Range(0, 1e-6)] = 3.78e-10
    link_update_passes_ratio: Annotated[float, Range(0, 20.0)] = 1.2
    link_update_row_s: Annotated[float, Range(0, 1e-6)] = 5.75e-10
    cache_floor_s: Annotated[float, Range(0, 5e-3)] = 0.000131
    cache_backward_floor_s: Annotated[float, Range(0, 5e-3)] = 4.68e-05
    cache_index_s: Annotated[float, Range(0, 1e-6)] = 1.4e-09
    cache_insert_s: Annotated[float, Range(0, 1e-6)] = 3.56e-09

    def __post_init__(self) -> None:
        """Check that every constant is in its range.

        Raises:
            InvalidValueError: names the first that is not.
        """
        settle(self, "lookup constants: ")


_KINDS: Final = get_type_hints(FbgemmConstants, include_extras=True)
MOST: Final[dict[str, float]] = {n: kind.__metadata__[0].most for n, kind in _KINDS.items()}
"""The largest value of each constant."""
FITTED: Final = tuple(name for name in MOST if name != "l2_bandwidth_bytes_per_s")
"""The constants that a fit finds; times are linear in them."""
