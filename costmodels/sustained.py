"""The shares of a device's rates that dense compute reaches when it fills most of a training step.

The efficiency in a system file is that of one large product alone on a cool card. Attention models
keep the matrix units busy for most of a step. The card then reaches its power limit and lowers its
clock, and not all products of a model are large. So such a step reaches only a share of the rate
for products, which depends on the generation of the device and on the precision. Operators between
products reach a share of the streaming bandwidth. While rows are looked up, the matrix units rest.
Products between long lookups therefore reach the full rate (:func:`sustained_ratio`).

``python -m benchmarks.fit_published transformers`` computes ``SHARES`` from the measured training
steps of configs/published/transformers.csv and prints them. ``shardplan validate published --what
transformers`` compares predicted steps with the measured ones, also with shares that are fitted
without the model or the family that is predicted.
"""

from dataclasses import dataclass, replace
from typing import Final, Self

from costmodels.datatypes import DataType
from costmodels.topology import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Shares of a device's rates; 1 is the rate of a short burst, and a fit may exceed it a little.

    Attributes:
        product_ratio: rate of large products over that of one large product alone.
        memory_ratio: rate of operators between products over the streaming bandwidth.
        flash_1_ratio: rate of the kernels of FlashAttention 1 over that of FlashAttention-2. The
            default 0.6 is the value that fits are pulled to; nothing is measured there.
    """

    product_ratio: float
    memory_ratio: float
    flash_1_ratio: float = 0.6

    def capped(self) -> Self:
        """The same shares of products and memory, cut to 1, which is that of a short burst."""
        product, memory = min(1.0, self.product_ratio), min(1.0, self.memory_ratio)
        return replace(self, product_ratio=product, memory_ratio=memory)


BURSTS: Final = Shares(product_ratio=1.0, memory_ratio=1.0)
"""For short dense parts between long lookups, as in a DLRM: the full rates of the device."""
PRIOR_SIGMA: Final = 0.15
"""Standard deviation of ln(share of products) around what a device is expected to have before
anything is measured on it (``benchmarks/fit_published.py``). The interval of a predicted step is
widened by it on devices to which no share is fitted."""
SHARES: Final = {
    "A100 half": Shares(product_ratio=0.830, memory_ratio=0.840, flash_1_ratio=0.652),
    "H100 half": Shares(product_ratio=0.772, memory_ratio=1.017, flash_1_ratio=0.669),
    "V100 fp32": Shares(product_ratio=0.994, memory_ratio=0.805),
    "V100 half": Shares(product_ratio=0.740, memory_ratio=0.805),
}
"""Shares by generation and precision ("half": two bytes or fewer an element), as the first command
above prints them, rounded to 0.001."""
UNMEASURED: Final = Shares(product_ratio=0.780, memory_ratio=0.883)
"""Shares of generations to which nothing is fitted: the geometric means of the fitted generations
in half precision. One measurement is 2 % above 0.780: large products in fp8 on GB200, repeated for
long on random numbers, reach 2907 TFLOP/s (Azure/AI-benchmarking-guide, ND GB200 v6). That is 0.797
of the rate of a short burst, which is 0.729 of the 5000 TFLOP/s of the datasheet."""
UNMEASURED_FP32: Final = replace(UNMEASURED, product_ratio=0.994)
"""The same for products in fp32, with the share of V100. Products in fp32 do not use the matrix
units, whose power is what makes a card lower its clock. The steps of BERT on V100, the only ones in
fp32 to which a share is fitted, therefore nearly reach the rate of a short burst."""
STEP_GROUPS: Final = (
    0.119, 0.177, 0.173, 0.174, 0.080, 0.056, 0.035, 0.024,
    0.076, 0.025, 0.100, 0.083, 0.067, 0.011, 0.057,
)  # fmt: skip
"""Root mean square of ln(predicted / measured) of the steps of each model, with shares fitted
without that model. In this order: BERT-large, fine-tuned BERT-large, the nine sizes of MPT from 70b
down to 125m, BERT-base, GPT-2, Llama 2, fine-tuned BERT-base. The second command prints the errors
by model and device. They say how wrong the step of a further model may be
(:mod:`costmodels.uncertainty`)."""
GENERATIONS: Final = ("V100", "A100", "H100", "B200")
"""Generations of devices, which are looked for in the name of a device."""
_SAME: Final = {"A800": "A100", "H200": "H100", "GH200": "H100", "H800": "H100", "B300": "B200"}
"""Devices with the chip of a generation under another name, or with the next step of that chip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreWork:
    """What determines the seconds of a kernel of fused attention in one pass.

    Attributes:
        product_ratio: rate of the kernel's matrix products over that of large products.
        score_flops: the activation of one score (softmax or another one) takes as long as this
            number of FLOP does at the rate of large products.
        block_s: seconds that 128 queries of a block take beside their scores, in which their data
            arrive and leave.
        start_s: seconds in which the kernel starts and ends, beside those of any product.
        rows: queries of a block.
        is_tiled: whether the block that is worked on at a time shrinks as heads get wider, because
            it has to fit into registers. ``product_ratio`` is then that of heads of 128 elements.
    """

    product_ratio: float
    score_flops: float = 0.0
    block_s: float = 0.0
    start_s: float = 0.0
    rows: int = 128
    is_tiled: bool = False

    def slowed(self, ratio: float) -> Self:
        """The work of a kernel that takes ``1 / ratio`` times as long as this one in every part."""
        return replace(
            self,
            product_ratio=self.product_ratio * ratio,
            score_flops=self.score_flops / ratio,
            block_s=self.block_s / ratio,
        )


Works = tuple[ScoreWork, ScoreWork]
"""What determines the seconds of the forward pass, and of the backward pass."""

_SOFTMAX: Final[dict[tuple[int, str], Works]] = {
    (2, ""): (ScoreWork(product_ratio=0.75), ScoreWork(product_ratio=0.6)),
    (2, "H100"): (ScoreWork(product_ratio=0.45), ScoreWork(product_ratio=0.4)),
    (2, "B200"): (ScoreWork(product_ratio=0.205), ScoreWork(product_ratio=0.18)),
    (3, ""): (ScoreWork(product_ratio=0.885, score_flops=266.0), ScoreWork(product_ratio=0.65)),
}
"""Attention with softmax. Keys are the version of FlashAttention, and the generation of the device;
empty for all others. Version 3 exists on H100 and later only. The values are not fitted, but chosen
inside published ranges:

- Version 2 reaches 50 to 73 % of the peak of an A100 forward, and less backward (Dao 2023, arXiv
  2307.08691). It reaches 35 % of the peak of an H100 (Shah et al. 2024, arXiv 2407.08608).
- Version 3 reaches up to 75 % of the peak of an H100 forward, and 1.5 to 1.75 times the rate of
  version 2 backward (Shah et al. 2024).
- Large products reach 87 % of the peak of an A100 and 80 % of that of an H100, by which these
  figures are divided.

Where heads are narrow, version 3 is limited by the activation of scores. It is taken to cost 266
FLOP a score forward, the mean of the two generations of ``POINTWISE``. Heads of 128 elements then
reach 80 % of the rate of large products.

Instructions of version 2 cannot keep the matrix units of B200 and later busy. Forward it reached
374 TFLOP/s on GB200, and 328 on H100 in the same program (Azure/AI-benchmarking-guide, results of
ND GB200 v6 and ND H100 v5). Backward was not measured; it is taken to be slower than forward by the
same factor as on H100."""
POINTWISE: Final[dict[str, Works]] = {
    "B200": (
        ScoreWork(product_ratio=1.0, score_flops=327.0, block_s=4.02e-6, start_s=0.88e-6, rows=256),
        ScoreWork(product_ratio=0.735, score_flops=885.0, block_s=9.71e-6, start_s=5.61e-6),
    ),
    "H100": (
        ScoreWork(product_ratio=0.913, score_flops=318.0, block_s=2.64e-6, start_s=3.59e-6),
        ScoreWork(
            product_ratio=0.688, score_flops=947.0, block_s=3.92e-6, start_s=5.3e-6, is_tiled=True
        ),
    ),
}
"""Attention without softmax (HSTU), by generation of the device. ``python -m
benchmarks.fit_published attention`` computes these values from the times in
configs/published/hstu_attention.csv and prints them. ``shardplan validate published --what
attention`` compares the model with the times, also with a width of heads or a device left out.
Forward, kernels on B200 work on 256 queries at a time: 128 positions take nearly as long as 256."""
_TRITON_RATIOS: Final = (0.66, 0.43)
"""Rates of Triton's kernels of pointwise attention over those of CUTLASS's, forward and backward,
where no Triton kernel was fitted. Forward: ten rows of an H100 in hstu_attention_triton.csv over
CUTLASS's times of the same shapes. Backward: a layer of HSTU with 4 heads of 256 elements on an
H100 is so much longer with Triton's kernels that its attention takes 2.13 to 2.24 times as long in
both passes together, at 1024 to 8192 positions (NVIDIA/recsys-examples, hstu_layer_perf.png)."""
_TRITON_AMD: Final[Works] = (
    ScoreWork(product_ratio=0.613, score_flops=320.0, block_s=1.217e-5),
    ScoreWork(product_ratio=0.181, score_flops=320.0, block_s=5.33e-5),
)
"""Triton's kernels of attention on AMD, fitted to 21 rows of MI350X and MI355X in
configs/published/hstu_attention_triton.csv (4.8 % forward, 7.7 % backward) with the FLOP of a
score of ``POINTWISE``. All have heads of 128 elements. Twenty are of softmax; the one of HSTU lies
between them. Backward they reach a tenth of the peak."""


def softmax_works(version: int, device: Device, shares: Shares) -> Works:
    """What determines the seconds of a kernel of FlashAttention.

    Args:
        version: 1, 2 or 3. Version 3 exists on H100 and later only; elsewhere version 2 is taken.
        device: what runs the kernel.
        shares: gives the rate of version 1 over that of version 2.
    """
    generation = generation_of(device)
    is_late = generation in ("H100", "B200")
    key = (2, generation if is_late else "")
    forward, backward = _SOFTMAX[(3, "") if is_late and version > 2 else key]
    if version == 1:
        factor = shares.flash_1_ratio
        return forward.slowed(factor), backward.slowed(factor)
    return forward, backward


def pointwise_works(version: int, device: Device) -> Works:
    """What determines the seconds of a kernel of HSTU's attention on a device.

    Version 1 is Triton's kernel, any other version CUTLASS's, which does not exist on AMD. Devices
    that were not measured have the values of the H100.
    """
    if device.name.startswith("MI"):
        return _TRITON_AMD
    forward, backward = POINTWISE.get(generation_of(device), POINTWISE["H100"])
    if version == 1:
        return forward.slowed(_TRITON_RATIOS[0]), backward.slowed(_TRITON_RATIOS[1])
    return forward, backward


def generation_of(device: Device) -> str:
    """The generation of a device, by which kernels of attention differ; its name if unknown."""
    return group_of(device, DataType.BF16).split()[0]


def group_of(device: Device, dtype: DataType) -> str:
    """Generation and precision of operators in ``dtype``, such as "A100 half", a key of ``SHARES``.

    The name of the device stands in the place of the generation if that is not known.
    """
    names = {**_SAME, **{g: g for g in GENERATIONS}}
    found = next((names[n] for n in sorted(names, key=len, reverse=True) if n in device.name), "")
    kind = dtype.value if dtype.num_bytes == DataType.FP32.num_bytes else "half"
    return f"{found or device.name} {kind}"


def shares_of(device: Device, dtype: DataType) -> Shares:
    """The shares for operators in ``dtype``; those of unmeasured devices if none were fitted.

    The share of products is raised where products in ``dtype`` would be slower than products in
    fp32, because a library takes the faster kernel. (Some cards list the same rate for both.)
    """
    known = device.rated_type(dtype)
    own, plain = _group_shares(device, known), _group_shares(device, DataType.FP32)
    least = plain.product_ratio * device.matrix_rate(DataType.FP32) / device.matrix_rate(known)
    return replace(own, product_ratio=max(own.product_ratio, least))


def _group_shares(device: Device, dtype: DataType) -> Shares:
    """The shares fitted to the device's generation in this precision, or the unmeasured ones."""
    other = UNMEASURED_FP32 if dtype is DataType.FP32 else UNMEASURED
    return SHARES.get(group_of(device, dtype), other)


def sustained_ratio(added_s: float, lookup_s: float) -> float:
    """Where a dense part lies between a short burst (0) and one that fills the whole step (1).

    The ratio is chosen so that dense part and lookups together take the longer of two times: what
    both take at full rates, or what the dense part alone takes at sustained rates. So a step never
    gets shorter by longer lookups or by a larger dense part. If lookups get faster, the dense part
    may take longer, but by no more than the lookups gain.

    Args:
        added_s: seconds that the dense part takes longer at sustained rates than in a short burst.
        lookup_s: seconds of lookups in the same step.
    """
    if not lookup_s:
        return 1.0
    return 1.0 - lookup_s / added_s if added_s > lookup_s else 0.0
