"""Fits constants to the measured rows of configs/published: those that ship, and those without.

    python -m benchmarks.fit_published transformers    shares of rates: costmodels/sustained.py
    python -m benchmarks.fit_published attention       work of HSTU's attention: the same file
    python -m benchmarks.fit_published dense           kernels of dense parts: dense/kernels.py
    python -m benchmarks.fit_published single-gpu --left-out

Without ``--left-out`` it prints the constants that ship. With it, it fits them anew without each
model, device or family in turn, and writes them to configs/published/left_out.json, from which
``shardplan validate published`` tells how far predictions are from rows that a fit has not seen.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from typing import Any, Final

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.dense.kernels import KernelConstants
from costmodels.dense.roofline import DenseRoofline
from costmodels.errors import require
from costmodels.iteration.base import StageTimes
from costmodels.pipeline import CostPipeline
from costmodels.sustained import (
    POINTWISE,
    PRIOR_SIGMA,
    ScoreWork,
    Shares,
    Works,
    generation_of,
)
from planner.io.documents import configs_folder
from planner.validation.cases import (
    LEFT_OUT_FILE,
    Case,
    StepCase,
    grouped,
    json_file,
    left_out_groups,
)
from planner.validation.kernels import (
    DLRM,
    DOTS,
    FAMILY_OUT,
    GRAPHS,
    PRODUCTS,
    KernelCase,
    attention_cases,
    dense_cases,
)
from planner.validation.steps import (
    priced,
    single_gpu_cases,
    transformer_cases,
)

Kept = Callable[[Case, Case], bool]


def _other(title: str, *same: str) -> Kept:
    """Whether a case may be fitted to another one: of another group, and of the same others."""
    return lambda case, other: (
        case.groups[title] != other.groups[title]
        and all(case.groups[name] == other.groups[name] for name in same)
    )


LEFT_OUT: Final[dict[str, dict[str, Kept]]] = {
    "transformers": {
        way: _other(title) for way, (title, _) in left_out_groups("transformers").items()
    },
    "attention": {way: _other(titles[0]) for way, titles in left_out_groups("attention").items()},
    "dense": {FAMILY_OUT: _other("family")},
    "single-gpu": {
        "model left out, same GPU": _other("model", "GPU"),
        "model left out, all GPUs": _other("model"),
        "GPU left out": _other("GPU"),
    },
}
"""For each kind of fit: whether a case may be fitted to another one."""


# ------------------------------------------------------------------ shares of rates


TRIED: Final = np.geomspace(0.4, 1.25, 7)
"""Shares of the rates at which operators are priced; :func:`_between` reads between them."""
_WEIGHT: Final = 0.05
"""Standard error of ln(time) that each row is taken to have. The larger it is, the more the prior
counts."""
_FEWEST: Final = 3
"""A group with fewer rows has no shares of its own: it gets those of a device that was not
measured."""
PRIOR: Final = Shares(product_ratio=0.85, memory_ratio=0.9)
"""Shares that a device is expected to have before anything is measured on it. Each fit adds a
penalty for the distance from them, so that few measurements do not decide alone."""
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


def fit_shares(parts: Sequence[SecondsByShare]) -> dict[str, Shares]:
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


def fitted_shares(cases: Sequence[StepCase]) -> dict[str, Shares]:
    """The shares of each group (generation and precision), fitted to all its cases on one host.

    On several hosts a step depends on the network too.
    """
    found: dict[str, Shares] = {}
    alone = (c for c in cases if c.topology.num_hosts == 1)
    for own in grouped(alone, lambda c: c.groups["generation"]).values():
        found |= _fitted(tuple(own))
    return dict(sorted(found.items()))


@cache
def _fitted(cases: tuple[StepCase, ...]) -> dict[str, Shares]:
    """The shares of one generation."""
    return fit_shares([parts_of(case) for case in cases])


@cache
def parts_of(case: StepCase) -> SecondsByShare:
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
    _, simulated = priced(case, PRIOR).simulate(case.plan)
    return SecondsByShare(
        group=case.groups["device"],
        family=case.groups["family"],
        product_s=product_s,
        memory_s=memory_s,
        flash_s=flash_s,
        rest_s=simulated.iteration_time_s / count - whole_s,
        measured_s=case.measured_s,
    )


# ------------------------------------------------------------------ work of attention


_START: Final = (0.8, 300.0, 4e-6, 4e-6)
_LIMITS: Final = ((0.1, 1.0, 1e-9, 1e-9), (1.0, 1e4, 1e-3, 1e-4))
"""Where a fit begins, and the least and greatest values that it may take: for the product ratio,
the FLOP of a score, and the seconds of a block and of the start
(:class:`costmodels.sustained.ScoreWork`). The product ratio is at most 1, because no kernel's
products are faster than large products alone."""
SCORE_FIELDS: Final = ("product_ratio", "score_flops", "block_s", "start_s")
"""The fields of :class:`costmodels.sustained.ScoreWork` that are fitted."""
_PULL: Final = np.array((0.3, 0.3, 0.03, 0.03))
"""Error of every case that counts as much as a generation's value being e times the mean of the
generations. The first two depend on the arithmetic of a score, which is the same everywhere."""


def fit_attention(cases: Sequence[KernelCase]) -> dict[str, Works]:
    """The work of both passes on each generation, by least squares of relative errors.

    Args:
        cases: the cases that it is fitted to.
    """
    names = sorted({generation_of(c.topology.device) for c in cases})
    passes = [
        _fit_pass([c for c in cases if (c.groups["pass"] == "backward") == x], names)
        for x in (False, True)
    ]
    return {name: (passes[0][name], passes[1][name]) for name in names}


def _fit_pass(cases: Sequence[KernelCase], names: Sequence[str]) -> dict[str, ScoreWork]:
    """The work of one pass on each of these generations."""
    from scipy.optimize import least_squares

    is_backward = cases[0].groups["pass"] == "backward"

    def works(logs: np.ndarray) -> dict[str, ScoreWork]:
        values = np.exp(logs).reshape(len(names), -1).tolist()
        return {
            name: replace(
                POINTWISE[name][is_backward],
                **dict(zip(SCORE_FIELDS, row, strict=True)),
            )
            for name, row in zip(names, values, strict=True)
        }

    def errors(logs: np.ndarray) -> np.ndarray:
        found = works(logs)
        off = [
            math.log(c.seconds((found[generation_of(c.topology.device)],) * 2) / c.measured_s)
            for c in cases
        ]
        rows = logs.reshape(len(names), -1)
        pulled = math.sqrt(len(cases) / len(names)) * _PULL * (rows - rows.mean(axis=0))
        return np.concatenate([off, pulled.ravel()])

    start, low, high = (np.tile(np.log(x), len(names)) for x in (_START, *_LIMITS))
    return works(least_squares(errors, start, bounds=(low, high)).x)


# ------------------------------------------------------------------ kernels of dense parts


KERNELS_PRIOR: Final = KernelConstants(
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
FIXED: Final = frozenset({"chunk_parameters", "join_s", "join_ratio"})
"""Constants that are not fitted: they are known from the source code of the kernels, or measured
kernel by kernel."""
_SPREAD: Final = 0.7
"""Standard deviation of ln(constant) around its start that the penalty of the fit assumes."""
_ERROR: Final = 0.1
"""Standard deviation of ln(predicted / measured) of a point that the fit assumes."""
_LARGEST: Final = float(np.log(4.0))
"""How far, as a logarithm, a constant may move from its start."""
_STEP: Final = 0.05
"""Change of ln(constant) by which a slope is measured."""
_ROUNDS: Final = 4
"""Rounds of the fit, each with slopes of its own. Further ones change constants by under 1 %."""
_RIDGE: Final = 1e-9
"""Added to the diagonal of the equations of a round, so that they can always be solved."""
_WEIGHTS: Final = {PRODUCTS: 0.1, DOTS: 0.5, GRAPHS: 0.0, DLRM: 0.5}
"""How much a point of a family counts in the fit; a step counts 1."""


def fit_kernels(
    points: Sequence[KernelCase], start: KernelConstants = KERNELS_PRIOR
) -> KernelConstants:
    """The constants with the least squares of ln(predicted / measured) and of the penalty.

    Every constant stays within a factor of 4 of its start, to which the penalty pulls it. A
    constant that no point depends on keeps its start.

    Args:
        points: what was measured.
        start: the constants that the fit starts from.

    Raises:
        InvalidValueError: there are no points, or a measured time is not positive.
    """
    require(bool(points), "the fit of kernels needs measured points, got none")
    good = all(p.measured_s > 0 for p in points)
    require(good, "the fit of kernels needs measured times above 0")
    names = [f.name for f in fields(start) if f.name not in FIXED]
    moved = np.zeros(len(names))
    for _ in range(_ROUNDS):
        moved = _improved(points, start, names, moved)
    return _moved(start, names, moved)


def _improved(
    points: Sequence[KernelCase], start: KernelConstants, names: list[str], moved: FloatArray
) -> FloatArray:
    """One Gauss-Newton step of the logarithms ``[constants]`` by which constants are moved."""
    errors = _errors(points, _moved(start, names, moved))
    nears = moved + _STEP * np.eye(len(names))
    slopes = np.stack([_errors(points, _moved(start, names, near)) for near in nears], axis=1)
    slopes = (slopes - errors[:, None]) / _STEP
    weights = np.array([_weight_ratio(p) for p in points]) / _ERROR**2
    penalty = 1.0 / _SPREAD**2
    left = slopes.T @ (weights[:, None] * slopes) + (penalty + _RIDGE) * np.eye(len(names))
    right = -slopes.T @ (weights * errors) - penalty * moved
    return np.clip(moved + np.linalg.solve(left, right), -_LARGEST, _LARGEST)


def _weight_ratio(point: KernelCase) -> float:
    """How much a point counts in the fit."""
    family = point.groups["family"]
    return next((w for start, w in _WEIGHTS.items() if family.startswith(start)), 1.0)


def _errors(points: Sequence[KernelCase], constants: KernelConstants) -> FloatArray:
    """ln(predicted / measured) ``[points]``."""
    return np.array([np.log(p.seconds(constants) / p.measured_s) for p in points])


def _moved(start: KernelConstants, names: list[str], moved: FloatArray) -> KernelConstants:
    """The constants multiplied by the exponentials of ``moved``."""
    changed = {n: getattr(start, n) * float(np.exp(m)) for n, m in zip(names, moved, strict=True)}
    return replace(start, **changed)


# ------------------------------------------------------------------ a host's launches


_LAUNCHES: Final = np.geomspace(0.5, 2.5, 33)
"""Launch latencies that a fit tries, as multiples of the system's; neighbours are 5 % apart."""
_BETWEEN_S: Final = np.linspace(0.0, 3e-3, 31)
"""Times between steps that a fit tries, in seconds; neighbours are 0.1 ms apart."""
_ISSUED: Final = tuple(f.name for f in fields(StageTimes) if f.name.endswith("_host_s"))
"""The stage times that are proportional to the launch latency."""


def fit_host(cases: Sequence[StepCase]) -> tuple[float, float]:
    """The launch latency, as a multiple of the system's, and the seconds between steps.

    They are the pair with the least mean of |ln(predicted / measured)| over the cases.
    """
    errors = np.mean([np.abs(np.log(_tried_s(c) / c.measured_s)) for c in cases], axis=0)
    launches, between_s = divmod(int(errors.argmin()), _BETWEEN_S.size)
    return float(_LAUNCHES[launches]), float(_BETWEEN_S[between_s])


@cache
def _tried_s(case: StepCase) -> FloatArray:
    """Seconds ``[pairs]`` of a case with each launch latency and each time between steps."""
    launches, between_s = (
        a.reshape(-1, 1) for a in np.meshgrid(_LAUNCHES, _BETWEEN_S, indexing="ij")
    )
    pipeline = CostPipeline(replace(case.workload, between_steps_s=0.0), case.topology)
    times = pipeline.stage_times(pipeline.plan_work(case.plan))
    issued = {name: getattr(times, name) * launches for name in _ISSUED}
    issued["copy_host_s"] = issued["copy_host_s"] + between_s
    return pipeline.scheduled(replace(times, **issued), (launches.size, 1))[1].iteration_time_s


# ------------------------------------------------------------------ what is fitted


def _shares_for(case: Case, found: Mapping[str, Shares]) -> dict[str, float]:
    """Those of a case's own group, or of a generation that was not measured."""
    generation, precision = case.groups["device"].split()
    others = {g: s for g, s in found.items() if g.split()[0] != generation}
    return asdict(found.get(case.groups["device"]) or unmeasured(others, precision))


def _works_for(case: Case, found: Mapping[str, Works]) -> list[dict[str, float]]:
    """Those of a case's own generation, or of the other one."""
    works = found.get(generation_of(case.topology.device)) or next(iter(found.values()))
    return [{name: getattr(work, name) for name in SCORE_FIELDS} for work in works]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of fit: its cases, its fit, and what of a fit a case is priced with."""

    cases: Callable[[], Iterable[Any]]
    fit: Callable[[Sequence[Any]], Any]
    told: Callable[[Any, Any], Any]


KINDS: Final = {
    "transformers": Kind(cases=transformer_cases, fit=fitted_shares, told=_shares_for),
    "attention": Kind(cases=attention_cases, fit=fit_attention, told=_works_for),
    "dense": Kind(cases=dense_cases, fit=fit_kernels, told=lambda _, found: asdict(found)),
    "single-gpu": Kind(cases=single_gpu_cases, fit=fit_host, told=lambda _, found: found),
}


def left_out(
    kind: str, cases: Sequence[Case] | None = None, asked: Callable[[Case], bool] = lambda _: True
) -> dict[str, dict[str, Any]]:
    """The constants without each group, for each way of leaving cases out.

    Args:
        kind: of :data:`KINDS`.
        cases: what is fitted to; None for all that were measured.
        asked: for which cases constants are wanted.
    """
    own, of = KINDS[kind], tuple(KINDS[kind].cases() if cases is None else cases)
    fitted: dict[Hashable, Any] = {}
    groups = left_out_groups(kind)
    found: dict[str, dict[str, Any]] = {way: {} for way in groups}
    for way, titles in groups.items():
        for case in filter(asked, of):
            key = case.key(titles)
            if key in found[way] or case.groups.get("family") == PRODUCTS:
                continue
            kept = tuple(i for i, other in enumerate(of) if LEFT_OUT[kind][way](case, other))
            if kept not in fitted:
                fitted[kept] = own.fit([of[i] for i in kept])
            found[way][key] = own.told(case, fitted[kept])
    return found


def write_left_out(kind: str) -> None:
    """Replace the constants of a kind in the shipped file."""
    path = configs_folder() / "published" / LEFT_OUT_FILE
    known = json_file(LEFT_OUT_FILE) if path.exists() else {}
    known = {**known, kind: left_out(kind)}
    blocks = []
    for name, ways in sorted(known.items()):
        lines = (
            f"  {json.dumps(way)}: {{\n"
            + ",\n".join(f"   {json.dumps(k)}: {json.dumps(v)}" for k, v in found.items())
            + "}"
            for way, found in ways.items()
        )
        blocks.append(f" {json.dumps(name)}: {{\n" + ",\n".join(lines) + "}")
    path.write_text("{\n" + ",\n".join(blocks) + "\n}\n", encoding="utf-8")


def lines_of(what: str) -> list[str]:
    """The constants of a kind, a line for each device or constant."""
    found = KINDS[what].fit(tuple(KINDS[what].cases()))
    if what == "dense":
        return [f"{name:26} {value:.3g}" for name, value in asdict(found).items()]
    if what == "single-gpu":
        return [f"launches x {found[0]:.3f}   between steps {found[1] * 1e3:.1f} ms"]
    if what == "attention":
        return [
            f"{name + ' ' + passed:18} products {work.product_ratio:.3f}   FLOP of a score "
            f"{work.score_flops:.0f}   us of a block {work.block_s * 1e6:.2f}   of the start "
            f"{work.start_s * 1e6:.2f}"
            for name, both in found.items()
            for passed, work in zip(("forward", "backward"), both, strict=True)
        ]
    rest = {f"other devices {x}": unmeasured(found, x) for x in ("fp32", "half")}
    return [
        f"{name:20} products {s.product_ratio:.3f}   memory {s.memory_ratio:.3f}   "
        f"flash 1 {s.flash_1_ratio:.3f}"
        for name, s in {**found, **rest}.items()
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the constants of the kind that is asked for, or write those without each group."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=tuple(KINDS))
    parser.add_argument("--left-out", action="store_true")
    options = parser.parse_args(arguments)
    if options.left_out:
        write_left_out(options.what)
    else:
        print("\n".join(lines_of(options.what)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
