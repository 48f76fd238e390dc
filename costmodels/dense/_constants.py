"""Constants of the kernels that a GPU runs for the operators of a dense part.

They are fitted to the GPU times of whole training steps, of single products and of their kernels
on one H200 (configs/published/gpu_h200.jsonl; :mod:`planner.validation.dense_kernels`). On other
GPUs the rates of their system files apply in their place, and times that grow with the number of
rows are multiplied by ``REFERENCE_MULTIPROCESSORS`` over the number of their multiprocessors. The
least times of kernels grow with the device's time from one kernel to the next, and those of a sort
with the time in which the device sorts an index (:meth:`KernelConstants.on`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from costmodels.topology import Device

REFERENCE_MULTIPROCESSORS: Final = 132
"""Multiprocessors of the H200, to which the times per row, element and score belong."""
REFERENCE_LATENCY_S: Final = 1.88e-6
"""``kernel_latency`` of the H200: 50 queued additions of 8 elements take so long each."""
REFERENCE_SORT_RATE_PER_S: Final = 5e9
"""``sort_rate`` of the H200's system file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelConstants:
    """What kernels take beside their FLOP and bytes.

    Attributes:
        kernel_s: the least time of a kernel that is no product, with the gap before it.
        product_s: the least time of a matrix product or a fused attention, with the gap before it.
        wave_s: seconds in which the tiles of a wave are filled and written.
        split_s: seconds of the kernel that adds up the parts of a split inner dimension.
        outer_s: seconds of each outer product of two vectors in a batched product.
        vector_s: seconds of each product of a matrix and a vector in a batched product.
        vector_ratio: share of the streaming bandwidth that a product with a vector reaches.
        half_even_ratio: rate of a product in a type of two bytes whose rows are no multiples of 16
            bytes, over that of an aligned one.
        half_odd_ratio: the same where rows are no multiples of 4 bytes either.
        tf32_ratio: the same for products in TF32 whose rows are no multiples of 16 bytes.
        sum_s: the least time of the gradient of a bias, which is a sum over rows.
        sum_row_s: further seconds for each of its rows.
        sum_element_s: further seconds for each of its elements.
        norm_row_s: seconds for each row of a norm in its forward pass.
        norm_gradient_row_s: the same in the kernel of the gradient of its input.
        norm_weight_row_s: the same in the kernel of the gradients of its weights.
        score_s: seconds for each score of fused attention in a type of four bytes, forward.
        score_element_s: further seconds for each element of a query or a value, on average.
        score_gradient_s: as ``score_s``, backward.
        score_gradient_element_s: as ``score_element_s``, backward.
        picked_s: seconds for each pair of a dot interaction whose gradient is added up by index.
        sorted_s: seconds for each pair whose index is sorted for that.
        sort_s: the least time of that sort.
        join_s: seconds for each tensor that a kernel joins to one. With ``join_ratio`` it gives the
            kernels of five traces of DLRMs with 16 to 51 tables within 13 %.
        join_ratio: share of the streaming bandwidth that such a kernel reaches.
        chunk_s: seconds of the last blocks of a fused optimizer, which each work on a chunk.
        pass_s: the same of each kernel of an optimizer that is not fused.
        chunk_parameters: parameters that one launch of a fused optimizer updates.
    """

    kernel_s: float
    product_s: float
    wave_s: float
    split_s: float
    outer_s: float
    vector_s: float
    vector_ratio: float
    half_even_ratio: float
    half_odd_ratio: float
    tf32_ratio: float
    sum_s: float
    sum_row_s: float
    sum_element_s: float
    norm_row_s: float
    norm_gradient_row_s: float
    norm_weight_row_s: float
    score_s: float
    score_element_s: float
    score_gradient_s: float
    score_gradient_element_s: float
    picked_s: float
    sorted_s: float
    sort_s: float
    join_s: float
    join_ratio: float
    chunk_s: float
    pass_s: float
    chunk_parameters: int

    def on(self, device: Device) -> KernelConstants:
        """The constants of a device with its own ``kernel_latency`` and ``sort_rate``."""
        later = device.kernel_latency_s / REFERENCE_LATENCY_S
        longer = REFERENCE_SORT_RATE_PER_S / device.sort_rate_per_s
        return replace(
            self,
            kernel_s=self.kernel_s * later,
            product_s=self.product_s * later,
            sorted_s=self.sorted_s * longer,
        )


PRIOR: Final = KernelConstants(
    kernel_s=1e-6,
    product_s=2e-6,
    wave_s=1e-6,
    split_s=3e-6,
    outer_s=15e-9,
    vector_s=2.5e-9,
    vector_ratio=0.6,
    half_even_ratio=0.3,
    half_odd_ratio=0.15,
    tf32_ratio=0.3,
    sum_s=8e-6,
    sum_row_s=0.5e-9,
    sum_element_s=1.0e-12,
    norm_row_s=1.5e-9,
    norm_gradient_row_s=0.8e-9,
    norm_weight_row_s=3e-9,
    score_s=4e-12,
    score_element_s=0.1e-12,
    score_gradient_s=12e-12,
    score_gradient_element_s=0.15e-12,
    picked_s=0.2e-9,
    sorted_s=0.06e-9,
    sort_s=40e-6,
    join_s=0.27e-6,
    join_ratio=0.71,
    chunk_s=25e-6,
    pass_s=8e-6,
    chunk_parameters=21_000_000,
)
"""What a fit starts from and is pulled to, in round numbers. Times per row and per kernel are those
of queued additions, of normalizations and of sums of one H200; the rates of products whose rows are
not aligned are those of kernels that load 4 and 2 bytes at a time."""
KERNELS: Final = KernelConstants(
    kernel_s=2.36e-06,
    product_s=2.94e-06,
    wave_s=4.58e-07,
    split_s=3.54e-06,
    outer_s=1.67e-08,
    vector_s=2.56e-09,
    vector_ratio=0.734,
    half_even_ratio=0.429,
    half_odd_ratio=0.119,
    tf32_ratio=0.356,
    sum_s=4.81e-06,
    sum_row_s=3.98e-10,
    sum_element_s=7.46e-13,
    norm_row_s=1.8e-09,
    norm_gradient_row_s=8.66e-10,
    norm_weight_row_s=3.28e-09,
    score_s=4.09e-12,
    score_element_s=1.13e-13,
    score_gradient_s=1.29e-11,
    score_gradient_element_s=1.83e-13,
    picked_s=1.7e-10,
    sorted_s=5.27e-11,
    sort_s=3.02e-05,
    join_s=2.7e-07,
    join_ratio=0.71,
    chunk_s=1.61e-05,
    pass_s=6.97e-06,
    chunk_parameters=21_000_000,
)
"""The constants that ship, as ``shardplan validate published --what dense --fit`` prints them."""
