"""The shares of a device's rates that dense compute reaches when it fills most of a training step.

The efficiency of a device is that of one large product alone on a cool card. Attention models keep
the matrix units busy for most of a step. The card then runs at its power limit and lowers its
clock, and the products of a model are not all large. What such steps reach is a share of the rate
for each generation of devices and precision; operators between products reach a share of the
streaming rate. While rows are looked up, the matrix units rest, so that products between long
lookups reach the full rate (:func:`sustained_ratio`).

``shardplan validate published --what transformers --fit`` computes ``SHARES`` from the measured
training steps of configs/published/transformers.csv and prints them; without ``--fit`` the command
holds them against the steps, with models and families left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from costmodels.datatypes import DataType
from costmodels.topology import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Shares of a device's rates, by what limits an operator.

    Attributes:
        product_ratio: share of the rate that large products reach.
        memory_ratio: share of the streaming bandwidth.
        flash_1_ratio: rate of FlashAttention over that of FlashAttention-2.
    """

    product_ratio: float
    memory_ratio: float
    flash_1_ratio: float = 0.6

    def capped(self) -> Shares:
        """The same shares, none of them above 1, the share of a short burst."""
        product, memory = min(1.0, self.product_ratio), min(1.0, self.memory_ratio)
        return replace(self, product_ratio=product, memory_ratio=memory)


BURSTS: Final = Shares(product_ratio=1.0, memory_ratio=1.0)
"""For short dense parts between long lookups, as in a DLRM: the full rates of the device."""
PRIOR: Final = Shares(product_ratio=0.85, memory_ratio=0.9)
"""Each fit is pulled towards these shares, with the weight of one measurement."""
PRIOR_SIGMA: Final = 0.15
"""Log-standard deviation of the share of products around the prior, in the fits."""
SHARES: Final = {
    "A100 half": Shares(product_ratio=0.847, memory_ratio=0.807, flash_1_ratio=0.668),
    "H100 half": Shares(product_ratio=0.769, memory_ratio=0.961, flash_1_ratio=0.680),
    "V100 fp32": Shares(product_ratio=0.980, memory_ratio=0.787),
    "V100 half": Shares(product_ratio=0.720, memory_ratio=0.787),
}
"""By generation and precision: printed by the command above with ``--fit``, rounded."""
UNMEASURED: Final = Shares(product_ratio=0.777, memory_ratio=0.848)
"""For generations to which nothing is fitted: the geometric means of the others. Large products in
fp8 on GB200, repeated for long on random numbers, reach 0.797 of the rate of a short burst: 2907
TFLOP/s (Azure/AI-benchmarking-guide, ND GB200 v6) of 0.729 times 5000."""
UNMEASURED_FP32: Final = replace(UNMEASURED, product_ratio=0.98)
"""The same of products in fp32. They do not use the matrix units, which is what takes a card to its
power limit: steps of BERT on V100, the only ones in fp32 that a share is fitted to, nearly reach
the rate of bursts."""
STEP_GROUPS: Final = (
    0.116, 0.172, 0.094, 0.060, 0.189, 0.184, 0.085, 0.038, 0.030, 0.031, 0.067, 0.044, 0.066,
    0.066, 0.013,
)  # fmt: skip
"""Root mean square of ln(predicted / measured) per model, with shares fitted without it: BERT-large
and its fine-tuning, BERT-base and its; MPT from 70b to 125m; GPT-2; Llama 2. The command prints
them by model and device."""
GENERATIONS: Final = ("V100", "A100", "H100", "B200")
_SAME: Final = {"A800": "A100", "H200": "H100", "GH200": "H100", "H800": "H100", "B300": "B200"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreWork:
    """How long a kernel of fused attention takes in one pass.

    Attributes:
        product_ratio: rate of its products over that of large products.
        score_flops: the activation of one score (softmax or another) takes as long as so many FLOP
            of its products.
        block_s: seconds of a block beside its scores, in which its data arrive and leave.
    """

    product_ratio: float
    score_flops: float = 0.0
    block_s: float = 0.0

    def slowed(self, ratio: float) -> ScoreWork:
        """The work of a kernel that reaches ``ratio`` of this rate."""
        return ScoreWork(
            product_ratio=self.product_ratio * ratio,
            score_flops=self.score_flops / ratio,
            block_s=self.block_s / ratio,
        )


Works = tuple[ScoreWork, ScoreWork]
"""Work of the forward and of the backward pass."""

_SOFTMAX: Final[dict[tuple[int, bool], Works]] = {
    (2, False): (ScoreWork(product_ratio=0.75), ScoreWork(product_ratio=0.6)),
    (2, True): (ScoreWork(product_ratio=0.45), ScoreWork(product_ratio=0.4)),
    (3, True): (
        ScoreWork(product_ratio=0.885, score_flops=276.0),
        ScoreWork(product_ratio=0.65),
    ),
}
"""FlashAttention by version of the kernel and whether the device is an H100 or later. Version 2
reaches 50 to 73 % of an A100's peak forward and less backward (Dao 2023, arXiv 2307.08691), and
35 % of an H100's; version 3 up to 75 % of that, 1.5 to 1.75 times version 2 backward (Shah et al.
2024, arXiv 2407.08608); large products reach 87 and 80 %. The middle of these ranges, not fitted.
Version 3 is limited by the activation of scores where heads are narrow: that takes what those of
``POINTWISE`` take forward, and heads of 128 elements reach 80 % of the rate of large products."""
_SOFTMAX_2_B200: Final[Works] = (
    ScoreWork(product_ratio=0.205),
    ScoreWork(product_ratio=0.18),
)
"""Version 2 on B200 and later, whose matrix units its instructions do not fill: 374 TFLOP/s forward
on GB200, where H100 reached 328 in the same program (Azure/AI-benchmarking-guide, results of ND
GB200 v6 and ND H100 v5); backward as much less as on H100."""
POINTWISE: Final[dict[str, Works]] = {
    "B200": (
        ScoreWork(product_ratio=1.0, score_flops=274.0, block_s=5.55e-6),
        ScoreWork(product_ratio=0.73, score_flops=701.0, block_s=1.147e-5),
    ),
    "H100": (
        ScoreWork(product_ratio=0.891, score_flops=278.0, block_s=3.39e-6),
        ScoreWork(product_ratio=0.558, score_flops=0.0, block_s=4.83e-6),
    ),
}
"""Attention without softmax (HSTU) by generation of the device. ``shardplan validate published
--what attention --fit`` computes it from the times in configs/published/hstu_attention.csv and
prints it; without ``--fit`` the command holds the model against them, also with a width of heads or
a device left out."""
_UNMEASURED: Final = "H100"
"""The generation whose constants pointwise attention has on devices that were not measured."""
_TRITON_RATIO: Final = 0.46
"""Rate of Triton's kernels of pointwise attention over CUTLASS's. With them a layer of HSTU with 4
heads of 256 elements takes so much longer on an H100 that its attention must take 2.13 to 2.24
times as long, at 1024 to 8192 positions (NVIDIA/recsys-examples, hstu_layer_perf.png beside the
kernels' times)."""


def softmax_works(version: int, device: Device, shares: Shares) -> Works:
    """The work of a kernel of FlashAttention of this version on this device."""
    generation = generation_of(device)
    is_late = generation in ("H100", "B200")
    forward, backward = _SOFTMAX[version if is_late and version > 2 else 2, is_late]
    if generation == "B200" and version <= 2:
        forward, backward = _SOFTMAX_2_B200
    if version == 1:
        factor = shares.flash_1_ratio
        return forward.slowed(factor), backward.slowed(factor)
    return forward, backward


def pointwise_works(version: int, device: Device) -> Works:
    """The work of a kernel of HSTU's attention: version 1 is Triton's, any other CUTLASS's."""
    forward, backward = POINTWISE.get(generation_of(device), POINTWISE[_UNMEASURED])
    if version == 1:
        return forward.slowed(_TRITON_RATIO), backward.slowed(_TRITON_RATIO)
    return forward, backward


def generation_of(device: Device) -> str:
    """The generation by which kernels of attention differ."""
    return group_of(device, DataType.BF16).split()[0]


def group_of(device: Device, dtype: DataType) -> str:
    """Generation and precision, as keys of ``SHARES`` have them.

    A device of no known generation has its own name in place of one.
    """
    names = {**_SAME, **{g: g for g in GENERATIONS}}
    found = next((names[n] for n in sorted(names, key=len, reverse=True) if n in device.name), "")
    kind = dtype.value if dtype.num_bytes == DataType.FP32.num_bytes else "half"
    return f"{found or device.name} {kind}"


def shares_of(device: Device, dtype: DataType) -> Shares:
    """The shares for operators in ``dtype``; those of unmeasured devices if none were fitted.

    Products in other types are never slower than those in fp32, because a library takes the faster
    kernel. (On some cards the listed rate in tf32 is that in fp32.)
    """
    known = _priced_as(device, dtype)
    own, plain = _group_shares(device, known), _group_shares(device, DataType.FP32)
    least = plain.product_ratio * device.matrix_rate(DataType.FP32) / device.matrix_rate(known)
    return replace(own, product_ratio=max(own.product_ratio, least))


def _group_shares(device: Device, dtype: DataType) -> Shares:
    other = UNMEASURED_FP32 if dtype is DataType.FP32 else UNMEASURED
    return SHARES.get(group_of(device, dtype), other)


def is_fitted(device: Device, dtype: DataType) -> bool:
    """Whether the shares were fitted to measured steps of this generation and precision."""
    return group_of(device, _priced_as(device, dtype)) in SHARES


def _priced_as(device: Device, dtype: DataType) -> DataType:
    """The type whose rate products in ``dtype`` get: the slowest listed one if it is not listed."""
    rates = dict(device.flops_per_s)
    return dtype if dtype in rates else min(rates, key=lambda listed: rates[listed])


def sustained_ratio(added_s: float, lookup_s: float) -> float:
    """How far a dense part is from a short burst (0) to one that fills the whole step (1).

    Dense part and lookups together take the longer of two times: what they take at the full rates,
    or what the dense part alone takes at sustained rates. A step with longer lookups, or with a
    larger dense part, is therefore never shorter. Where lookups get faster, the dense part may take
    longer, but by no more than what the lookups gain.

    Args:
        added_s: how much longer the dense part takes at sustained rates than in a burst.
        lookup_s: seconds of lookups in the same step.
    """
    if not lookup_s:
        return 1.0
    return 1.0 - lookup_s / added_s if added_s > lookup_s else 0.0
