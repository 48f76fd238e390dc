"""Training steps of transformers that others measured (``validate published --what transformers``).

Each row of configs/published/transformers.csv is a model, batch, sequence length, precision and
system with a printed throughput. It is rebuilt as a workload without tables; its time is that of
one micro-batch, with its part of the optimizer's step. The rows are:

- BERT on 1 and 8 GPUs; MPT on A100 at 512, 2048, 8192 and 32,768 positions on one host, and at 2048
  on eight; the steps of a lesson on GPT-2. These come from a survey: the rows of quality A and B
  that PyTorch ran (and one of JAX on H100), on shipped systems, with figures exact to 3 %.
- MPT on H100 at the same lengths and numbers of hosts.
- Fine-tuning of BERT in fp16 on single V100, A100 and H100 cards, from Lambda's logs (the median
  over the steps of a run, and over machines of one kind).

Rows that print no gradient accumulation are taken to have one micro-batch, because their times
exceed those of the later release by the optimizer's step. MPT on A100 with 40 GB was measured with
a PyTorch older than 2.1, so that its checkpoints compute whole blocks again. BERT was pre-trained
with compiled blocks from NVIDIA's release 21.11 on, as its README says. All rows of BERT ran the
scripts of NVIDIA/DeepLearningExamples (DLPerf and Lambda run them too), which pad the vocabulary of
30,522 words to 30,528, a multiple of 8 (run_pretraining.py and run_squad.py). MPT trains with the
fused loss that its code takes where the configuration names none, and those of the benchmark name
none (mosaicml/llm-foundry, ``loss_fn``).

Nothing is fitted to the rows of transformers_unfitted.csv, which come from other sources: Llama 3
and 2, GPT-3 5B and Nemotron-15B as NVIDIA prints them for H100, B200, GB200 and GB300
(Megatron-Bridge, NeMo, dgxc-benchmarking) without pipeline and context parallelism; Llama 3.1 8B in
fp8 from logs of MLPerf 5.1; torchtitan on H200; BERT on A100 as NVIDIA prints it; Lambda's other
kinds of cards, and groups of eight cards; MPT on H100 at other lengths and on more hosts.

The shares of a device's rates (:mod:`costmodels.sustained`) are fitted to the rows on one host. How
good predictions are is shown by fits that leave out the model of a row, its whole family, or all
rows of its generation of devices.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.dense.base import dense_parameters
from costmodels.dense.roofline import DenseRoofline
from costmodels.estimates import Estimate
from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan
from costmodels.sustained import PRIOR, PRIOR_SIGMA, Shares, group_of
from costmodels.system_models import default_models
from costmodels.workload import Framework
from planner.validation.cases import (
    AS_SHIPPED,
    UNSEEN,
    Part,
    Prediction,
    StepCase,
    csv_rows,
    grouped,
    left_out,
    system,
    within,
    workload_of,
)

TRIED: Final = np.geomspace(0.4, 1.25, 7)
"""Shares of the rates at which operators are priced; :func:`_between` reads between them."""
_WEIGHT: Final = 0.05
"""Standard error of ln(time) that each row is taken to have. The larger it is, the more the prior
counts."""
_FEWEST: Final = 3
"""A group with fewer rows has no shares of its own: it gets those of a device that was not
measured."""
_PRIOR_SIGMA: Final = (0.12, 0.2)
"""Log-standard deviations of the memory share and of the rate of FlashAttention 1 around the prior.
The smaller they are, the closer fits stay to the prior."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondsByShare:
    """The seconds of a case's micro-batch, by the share that they depend on.

    Attributes:
        group: the group of the case.
        family: the family of its model.
        product_s: ``[len(TRIED)]`` seconds at each share of the product rate, if memory were
            infinitely fast.
        memory_s: ``[len(TRIED)]`` further seconds at each share of the memory bandwidth.
        flash_s: further seconds of FlashAttention 1, at the rates of FlashAttention 2 and of large
            products.
        rest_s: further seconds, which depend on no share.
        measured_s: measured seconds.
    """

    group: str
    family: str
    product_s: FloatArray
    memory_s: FloatArray
    flash_s: float
    rest_s: float
    measured_s: float

    def time_s(self, shares: Shares) -> float:
        """Seconds of the micro-batch with these shares."""
        flash_s = self.flash_s / (shares.product_ratio * shares.flash_1_ratio)
        product_s = _between(self.product_s, shares.product_ratio)
        return product_s + _between(self.memory_s, shares.memory_ratio) + flash_s + self.rest_s


def fit(parts: Sequence[SecondsByShare]) -> dict[str, Shares]:
    """The shares of one generation with the least errors of ln(time), pulled to the prior.

    Each precision has its own share of the product rate. The share of the memory bandwidth and the
    rate of FlashAttention 1 are common to all precisions. Precisions with fewer than three rows are
    left out.

    One share is changed at a time, by smaller and smaller factors. Errors above two standard errors
    count by their size instead of their square, so that a single row cannot decide. Rows of one
    family have similar errors, so that n of them together count as much as root(n) rows.

    Args:
        parts: the seconds of the cases of one generation.

    Returns:
        The shares of each group.
    """
    counts = Counter(p.group for p in parts)
    groups = sorted(g for g, count in counts.items() if count >= _FEWEST)
    chosen = [p for p in parts if p.group in groups]
    rows = Counter((p.group, p.family) for p in chosen)
    weights = np.array([rows[p.group, p.family] ** -0.5 for p in chosen])
    prior = [PRIOR.memory_ratio, PRIOR.flash_1_ratio, *[PRIOR.product_ratio] * len(groups)]
    sigmas = [*_PRIOR_SIGMA, *[PRIOR_SIGMA] * len(groups)]
    values, width = list(prior), 0.4

    def shares(tried: list[float]) -> dict[str, Shares]:
        memory, flash, *products = tried
        return {
            group: Shares(product_ratio=product, memory_ratio=memory, flash_1_ratio=flash)
            for group, product in zip(groups, products, strict=True)
        }

    def loss(tried: list[float]) -> float:
        by_group = shares(tried)
        errors = [math.log(p.time_s(by_group[p.group]) / p.measured_s) / _WEIGHT for p in chosen]
        size = np.abs(np.array(errors))
        huber = np.where(size < 2.0, 0.5 * size**2, 2.0 * (size - 1.0))
        pulls = zip(tried, prior, sigmas, strict=True)
        pulled = sum(0.5 * (math.log(v / p) / s) ** 2 for v, p, s in pulls)
        return float((weights * huber).sum()) + pulled

    while groups and width > 1e-3:
        before = list(values)
        for i in range(len(values)):
            steps = (-width, 0.0, width)
            tries = [[*values[:i], values[i] * math.exp(s), *values[i + 1 :]] for s in steps]
            values = min(tries, key=loss)
        if values == before:
            width *= 0.5
    return shares(values)


def unmeasured(found: Mapping[str, Shares], precision: str = "half") -> Shares:
    """The shares of a device of a generation that was not measured.

    They are geometric means over the measured generations, or the prior if there are none. Products
    of each precision have a mean of their own, because products in fp32 do not use the matrix
    units; this mean is at most 1.

    Args:
        found: shares of the measured groups.
        precision: ``half`` or ``fp32``.
    """
    known = {group.split()[0]: shares for group, shares in found.items()}
    products = [s.product_ratio for group, s in found.items() if group.split()[1] == precision]
    shares = PRIOR
    if known:
        memory = _mean([s.memory_ratio for s in known.values()])
        shares = replace(shares, memory_ratio=memory)
    if products:
        shares = replace(shares, product_ratio=min(1.0, _mean(products)))
    return shares


def _mean(ratios: list[float]) -> float:
    """The geometric mean."""
    return float(np.exp(np.mean(np.log(ratios))))


def _between(seconds: FloatArray, ratio: float) -> float:
    """Seconds at any share, interpolated in the logarithms of share and seconds.

    Args:
        seconds: ``[len(TRIED)]`` seconds at the shares in :data:`TRIED`.
        ratio: the share.
    """
    return math.exp(np.interp(math.log(ratio), np.log(TRIED), np.log(seconds)))


_FILE: Final = "transformers.csv"
"""Steps to which shares are fitted."""
UNFITTED: Final = "transformers_unfitted.csv"
"""Steps to which nothing is fitted."""
FRAMEWORKS: Final = "transformers_frameworks.csv"
"""Steps of BERT on V100 and A100 in frameworks other than PyTorch, from the same survey. Their
family is the framework. Cards with 16 GB are priced as those with 32 GB, and the host issues
nothing, as these frameworks run whole graphs."""
NAIVE: Final = "6ND roofline"
"""The name of the predictions of :func:`naive_s`."""
MODEL_OUT: Final = "model left out"
"""The name of the predictions with shares that are fitted without the model of the case."""
LEFT_OUT: Final[dict[str, Callable[[TransformerCase, TransformerCase], bool]]] = {
    MODEL_OUT: lambda case, other: case.model != other.model,
    "family left out": lambda case, other: case.family != other.family,
    "generation left out": lambda case, other: case.generation != other.generation,
}
"""For each kind of fit: whether a case may be fitted to another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerCase(StepCase):
    """One measured micro-batch of a model without tables.

    Attributes:
        family: family of its model, such as MPT.
        model: name of its model.
    """

    family: str
    model: str

    @property
    def group(self) -> str:
        """The generation of the device, a space, and the precision: cases that share shares."""
        return group_of(self.topology.device, self.workload.dense.dtype)

    @property
    def generation(self) -> str:
        """The generation of the device."""
        return self.group.split()[0]

    @property
    def is_fitted(self) -> bool:
        """Whether shares are fitted to the case: on several hosts it depends on the network too."""
        return self.topology.num_hosts == 1


def load_cases(name: str = _FILE) -> tuple[TransformerCase, ...]:
    """Every case of a shipped file, in file order.

    Raises:
        InvalidInputError: a row cannot be read.
    """
    return tuple(_case(row, name) for row in csv_rows(name))


def fitted_shares(cases: Sequence[TransformerCase]) -> dict[str, Shares]:
    """The shares of each group (generation and precision), fitted to all its cases on one host."""
    found: dict[str, Shares] = {}
    for own in grouped((c for c in cases if c.is_fitted), lambda c: c.generation).values():
        found |= _fitted(tuple(own))
    return dict(sorted(found.items()))


@cache
def _fitted(cases: tuple[TransformerCase, ...]) -> dict[str, Shares]:
    """The shares of one generation."""
    return fit([parts_of(case) for case in cases])


def predictions(cases: Sequence[TransformerCase]) -> tuple[Prediction[TransformerCase], ...]:
    """All cases with their predictions, as shipped and with shares fitted to other cases."""
    fits = left_out(cases, cases, LEFT_OUT, lambda kept: fitted_shares([cases[i] for i in kept]))

    def shares(case: TransformerCase, found: dict[str, Shares]) -> Shares:
        """Those of its own group, or of a generation that was not measured."""
        others = {g: s for g, s in found.items() if g.split()[0] != case.generation}
        return found.get(case.group) or unmeasured(others, case.group.split()[1])

    return tuple(
        Prediction(
            case=case,
            predicted={
                AS_SHIPPED: estimate(case),
                **{name: estimate(case, shares(case, found[i])) for name, found in fits.items()},
                NAIVE: within(naive_s(case)),
            },
        )
        for i, case in enumerate(cases)
    )


def parts() -> tuple[Part, ...]:
    """The rows that shares are fitted to, those of other sources, and those of other frameworks."""
    return (
        Part(
            "fitted",
            "Transformers, micro-batch",
            predictions(load_cases()),
            by={"model": lambda c: c.model, "device": lambda c: c.group},
            judged=MODEL_OUT,
        ),
        Part(
            "unfitted",
            "Steps to which nothing is fitted, micro-batch",
            unfitted(UNFITTED),
            by={
                "model": lambda c: f"{c.model}, {c.workload.dense.dtype.value}",
                "device": lambda c: c.topology.name,
            },
        ),
        Part(
            "frameworks",
            "Steps of BERT in other frameworks, nothing fitted",
            unfitted(FRAMEWORKS),
            by={"framework": lambda c: c.family},
        ),
    )


def unfitted(name: str, shares: Shares | None = None) -> tuple[Prediction[TransformerCase], ...]:
    """The cases of a file to which nothing is fitted, with their predictions.

    Args:
        name: name of the file.
        shares: shares of the rates; None for the shipped ones.
    """
    return tuple(
        Prediction(case=c, predicted={UNSEEN: estimate(c, shares)}) for c in load_cases(name)
    )


def estimate(case: TransformerCase, shares: Shares | None = None) -> Estimate:
    """The estimate of the time of a micro-batch.

    Args:
        case: the case.
        shares: shares of the rates; None for the shipped ones.
    """
    found = _pipeline(case, shares).estimate(Plan(placements=()))
    count, time = case.workload.gradient_accumulation, found.time
    return replace(
        time, time_s=time.time_s / count, low_s=time.low_s / count, high_s=time.high_s / count
    )


def naive_s(case: TransformerCase) -> float:
    """Seconds of a naive roofline: six FLOP per parameter and position, at half the peak rate."""
    layers = case.workload.dense.layers
    positions = case.workload.batch_size_per_rank * max(getattr(x, "seq", 1) for x in layers)
    flop = 6.0 * dense_parameters(case.workload) * positions
    return flop / (0.5 * case.topology.device.matrix_rate(case.workload.dense.dtype))


@cache
def parts_of(case: TransformerCase) -> SecondsByShare:
    """The seconds of a case by what they depend on: shares act on dense part and optimizer."""
    count = case.workload.gradient_accumulation
    none = 1e9  # a share at which what it acts on takes no time

    def dense_s(product: float, memory: float, flash: float) -> float:
        shares = Shares(product_ratio=product, memory_ratio=memory, flash_1_ratio=flash)
        t = DenseRoofline(shares=shares).times(case.workload, case.topology)
        passes_s = t.bottom_forward_s + t.top_forward_s + t.top_backward_s + t.bottom_backward_s
        return float(passes_s + t.optimizer_s / count)

    product_s = np.array([dense_s(share, none, none) for share in TRIED])
    alone_s = dense_s(1.0, none, none)
    memory_s = np.array([dense_s(1.0, share, none) - alone_s for share in TRIED])
    flash_s = dense_s(1.0, none, 1.0) - alone_s
    whole_s = dense_s(PRIOR.product_ratio, PRIOR.memory_ratio, PRIOR.flash_1_ratio)
    _, simulated = _pipeline(case, PRIOR).simulate(Plan(placements=()))
    return SecondsByShare(
        group=case.group,
        family=case.family,
        product_s=product_s,
        memory_s=memory_s,
        flash_s=flash_s,
        rest_s=simulated.iteration_time_s / count - whole_s,
        measured_s=case.measured_s,
    )


def _pipeline(case: TransformerCase, shares: Shares | None) -> CostPipeline:
    """The pipeline that prices a case; ``shares`` None for the shipped ones."""
    models = default_models(case.topology)
    if shares is not None:
        models = replace(models, dense=DenseRoofline(shares=shares))
    return CostPipeline(case.workload, case.topology, models)


def _case(row: dict[str, str], file: str) -> TransformerCase:
    """The case of a row of a file."""
    framework = Framework.OTHER if file == FRAMEWORKS else Framework.MEASURED
    dense = {**json.loads(row["dense"]), "framework": framework.value}
    values = {"name": row["case"], "training": json.loads(row["training"]), "dense": dense}
    return TransformerCase(
        name=row["case"],
        family=row["family"],
        model=row["model"],
        workload=workload_of(file, values),
        topology=system(row["system"], int(row["gpus"]), int(row["gpus_per_host"])),
        measured_s=float(row["measured_ms"]) * 1e-3,
        reference=row["source"],
    )
