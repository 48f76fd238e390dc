"""Training steps of transformers that others measured (``validate published --what transformers``).

Each row of configs/published/transformers.csv is a model, batch, sequence, precision and system
with a printed throughput, rebuilt as a workload without tables. The file holds the rows of quality
A and B of a survey that PyTorch ran (and one of JAX on H100), on a system of ours, whose printed
figure is exact to 3 %: BERT on 1 and 8 GPUs; MPT on A100 at 512, 2048, 8192 and 32,768 positions on
one host, and at 2048 on eight; the steps of a lesson on GPT-2. To these come MPT on H100 at the
same lengths and numbers of hosts, and fine-tuning of BERT in fp16 on single V100, A100 and H100
cards (Lambda's logs: the median time of a step, and of machines of one kind). Rows whose
accumulation is not printed are of one micro-batch: they exceed those of the later release by the
optimizer's step. Times are those of one micro-batch, with its part of the optimizer's step. MPT on
A100 with 40 GB was measured with a PyTorch older than 2.1, so that its checkpoints compute whole
blocks again; BERT was pre-trained by compiled blocks from NVIDIA's release 21.11 on, whose README
says so.

Nothing is fitted to the rows of transformers_unfitted.csv. They are other sources: Llama 3 and 2,
GPT-3 5B and Nemotron-15B as NVIDIA prints them for H100, B200, GB200 and GB300 (Megatron-Bridge,
NeMo, dgxc-benchmarking) where neither pipeline nor context parallelism is used; Llama 3.1 8B in fp8
from logs of MLPerf 5.1; torchtitan on H200; BERT on A100 as NVIDIA prints it; Lambda's cards of
other kinds and in groups of eight; MPT on H100 at the other lengths and on more hosts.

The shares of a device's rates (:mod:`costmodels.sustained`) are fitted to the rows on one
host. What a prediction is worth shows where they are fitted without the row's model, without its
whole family, and without all rows of its generation of devices.
"""

from __future__ import annotations

import csv
import io as text_io
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.dense.base import dense_parameters
from costmodels.dense.roofline import Roofline
from costmodels.estimates import Estimate
from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan
from costmodels.sustained import PRIOR, PRIOR_SIGMA, Shares, group_of
from costmodels.topology import Topology
from costmodels.validation.metrics import ErrorSummary, summarize_errors
from costmodels.workload import Workload
from planner import io
from planner.io.documents import Document
from planner.io.library import configs_folder
from planner.io.workload.workload_file import workload_file_of
from planner.models import default_models

_FILE: Final = "transformers.csv"
UNFITTED: Final = "transformers_unfitted.csv"
"""Steps to which nothing is fitted."""
_TRIED: Final = np.geomspace(0.4, 1.25, 7)
"""Shares of the rates at which operators are timed; between them the logarithm bends."""
_WEIGHT: Final = 0.05
"""Standard error of ln time that a row is taken to have."""
_FEWEST: Final = 3
"""Rows of a group below which its shares are those of a device that was not measured."""
_PRIOR_SIGMA: Final = (0.12, 0.2)
"""Spread of the shares of memory and of old fused attention before anything is measured."""

AS_SHIPPED: Final = "as shipped (fitted to all)"
NAIVE: Final = "6ND roofline"
MODEL_OUT: Final = "model left out"
LEFT_OUT: Final[dict[str, Callable[[TransformerCase, TransformerCase], bool]]] = {
    MODEL_OUT: lambda case, other: case.model != other.model,
    "family left out": lambda case, other: case.family != other.family,
    "generation left out": lambda case, other: case.generation != other.generation,
}
"""Which other cases a case may be fitted to, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerCase:
    """One measured micro-batch."""

    name: str
    family: str
    model: str
    workload: Workload
    topology: Topology
    measured_s: float
    reference: str

    @property
    def group(self) -> str:
        """Generation of the device, and precision."""
        return group_of(self.topology.device, self.workload.dense.dtype)

    @property
    def generation(self) -> str:
        """Generation of the device."""
        return self.group.split()[0]

    @property
    def is_fitted(self) -> bool:
        """Whether shares are fitted to it: on several hosts the network is in question too."""
        return self.topology.num_hosts == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerPrediction:
    """A case with its predictions by what they were fitted to: ``AS_SHIPPED`` and ``LEFT_OUT``."""

    case: TransformerCase
    predicted: dict[str, Estimate]
    naive_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A case to which nothing is fitted, and what is predicted for it."""

    case: TransformerCase
    predicted: Estimate

    @property
    def error_ratio(self) -> float:
        """Signed relative error."""
        return self.predicted.time_s / self.case.measured_s - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """Seconds of a case's micro-batch by what they depend on.

    ``product_s`` at each of the shares tried, with the least that operators between products take;
    ``memory_s`` what those take beside it at each share; ``flash_s`` of old fused attention at the
    rate of new, with products at the device's rate.
    """

    group: str
    family: str
    product_s: FloatArray
    memory_s: FloatArray
    flash_s: float
    rest_s: float
    measured_s: float

    def time_s(self, shares: Shares) -> float:
        """At any shares."""
        flash_s = self.flash_s / (shares.product_ratio * shares.flash_1_ratio)
        product_s = _between(self.product_s, shares.product_ratio)
        return product_s + _between(self.memory_s, shares.memory_ratio) + flash_s + self.rest_s


def load_cases(name: str = _FILE) -> tuple[TransformerCase, ...]:
    """Every case of a shipped file, in file order.

    Raises:
        InvalidInputError: a row cannot be read.
    """
    path = configs_folder() / "published" / name
    rows = csv.DictReader(text_io.StringIO(path.read_text(encoding="utf-8")))
    return tuple(_case(row, path) for row in rows)


def predictions(cases: Sequence[TransformerCase]) -> tuple[TransformerPrediction, ...]:
    """All cases predicted, as shipped and with shares fitted to other cases."""
    parts = [_parts(case) for case in cases]

    @cache
    def fitted_to(kept: tuple[int, ...]) -> dict[str, Shares]:
        return fit([parts[i] for i in kept])

    def fitted(case: TransformerCase, name: str) -> Shares:
        kept: dict[str, list[int]] = {}
        for i, other in enumerate(cases):
            if other.is_fitted and LEFT_OUT[name](case, other):
                kept.setdefault(other.generation, []).append(i)
        own = fitted_to(tuple(kept.pop(case.generation, [])))
        others = [fitted_to(tuple(rows)) for rows in kept.values()]
        return own.get(case.group) or unmeasured(
            {g: s for found in others for g, s in found.items()}, case.group.split()[1]
        )

    return tuple(
        TransformerPrediction(
            case=case,
            predicted={
                AS_SHIPPED: estimate(case),
                **{name: estimate(case, fitted(case, name)) for name in LEFT_OUT},
            },
            naive_s=naive_s(case),
        )
        for case in cases
    )


def unfitted(name: str, shares: Shares | None = None) -> tuple[Prediction, ...]:
    """The cases of a file to which nothing is fitted, as shipped or with other shares."""
    return tuple(Prediction(case=c, predicted=estimate(c, shares)) for c in load_cases(name))


def fitted_shares(cases: Sequence[TransformerCase]) -> dict[str, Shares]:
    """Shares of every group of devices and precision, from all cases on one host."""
    generations: dict[str, list[_Parts]] = {}
    for case in cases:
        if case.is_fitted:
            generations.setdefault(case.generation, []).append(_parts(case))
    found: dict[str, Shares] = {}
    for parts in generations.values():
        found |= fit(parts)
    return dict(sorted(found.items()))


def unmeasured(found: Mapping[str, Shares], precision: str = "half") -> Shares:
    """Shares of a device of another generation than those whose shares by group are given.

    They are the geometric means of the generations'; without one, the prior. Products in fp32 do
    without the matrix units, and have a mean of their own, 1 at most.
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
    return float(np.exp(np.mean(np.log(ratios))))


def fit(parts: Sequence[_Parts]) -> dict[str, Shares]:
    """Shares of one generation with the least errors of ln time, pulled to the prior.

    Each precision has its own share of the product rate; that of the streaming rate, and old fused
    attention's, are those of all. A precision with fewer than three rows is left out. One share is
    improved after the other. Errors above two standard errors count by their size instead of their
    square, so that a single row does not decide. Rows of a family err alike: together they count as
    the root of their number.
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


def estimate(case: TransformerCase, shares: Shares | None = None) -> Estimate:
    """Time of a micro-batch; by other shares than the shipped ones where given."""
    found = _pipeline(case, shares).estimate(Plan(placements=()))
    count, time = case.workload.gradient_accumulation, found.time
    return replace(
        time, time_s=time.time_s / count, low_s=time.low_s / count, high_s=time.high_s / count
    )


def naive_s(case: TransformerCase) -> float:
    """Six FLOP per parameter and position at half the peak rate."""
    layers = case.workload.dense.layers
    positions = case.workload.local_batch_size * max(getattr(x, "seq", 1) for x in layers)
    flop = 6.0 * dense_parameters(case.workload) * positions
    return flop / (0.5 * case.topology.device.matrix_rate(case.workload.dense.dtype))


def summarize(
    found: Sequence[TransformerPrediction],
) -> dict[str, ErrorSummary]:
    """Errors by what was fitted to, and of the naive roofline."""
    measured = [p.case.measured_s for p in found]
    errors = {
        name: summarize_errors(
            [p.predicted[name].time_s for p in found],
            measured,
            low=[p.predicted[name].low_s for p in found],
            high=[p.predicted[name].high_s for p in found],
        )
        for name in (AS_SHIPPED, *LEFT_OUT)
    }
    return {**errors, NAIVE: summarize_errors([p.naive_s for p in found], measured)}


@cache
def _parts(case: TransformerCase) -> _Parts:
    """What the shares act on: the dense part of every micro-batch and the optimizer."""
    count = case.workload.gradient_accumulation
    none = 1e9

    def dense_s(product: float, memory: float, flash: float) -> float:
        shares = Shares(product_ratio=product, memory_ratio=memory, flash_1_ratio=flash)
        t = Roofline(shares=shares).times(case.workload, case.topology)
        passes_s = t.bottom_forward_s + t.top_forward_s + t.top_backward_s + t.bottom_backward_s
        return float(passes_s + t.optimizer_s / count)

    product_s = np.array([dense_s(share, none, none) for share in _TRIED])
    alone_s = dense_s(1.0, none, none)
    memory_s = np.array([dense_s(1.0, share, none) - alone_s for share in _TRIED])
    flash_s = dense_s(1.0, none, 1.0) - alone_s
    whole_s = dense_s(PRIOR.product_ratio, PRIOR.memory_ratio, PRIOR.flash_1_ratio)
    _, simulated = _pipeline(case, PRIOR).simulate(Plan(placements=()))
    return _Parts(
        group=case.group,
        family=case.family,
        product_s=product_s,
        memory_s=memory_s,
        flash_s=flash_s,
        rest_s=simulated.iteration_time_s / count - whole_s,
        measured_s=case.measured_s,
    )


def _between(seconds: FloatArray, ratio: float) -> float:
    """Seconds at a share between those tried; their logarithm bends with that of the share."""
    return math.exp(np.interp(math.log(ratio), np.log(_TRIED), np.log(seconds)))


def _pipeline(case: TransformerCase, shares: Shares | None) -> CostPipeline:
    models = default_models(case.topology)
    if shares is not None:
        models = replace(models, dense=Roofline(shares=shares))
    return CostPipeline(case.workload, case.topology, models)


@cache
def _system(name: str, gpus: int, gpus_per_host: int) -> Topology:
    return io.load_system(name, gpus=gpus, gpus_per_host=gpus_per_host)


def _case(row: dict[str, str], path: Path) -> TransformerCase:
    document = Document(
        path,
        {
            "name": row["case"],
            "training": json.loads(row["training"]),
            "dense": json.loads(row["dense"]),
        },
        {},
    )
    return TransformerCase(
        name=row["case"],
        family=row["family"],
        model=row["model"],
        workload=workload_file_of(document).workload,
        topology=_system(row["system"], int(row["gpus"]), int(row["gpus_per_host"])),
        measured_s=float(row["measured_ms"]) * 1e-3,
        reference=row["source"],
    )
