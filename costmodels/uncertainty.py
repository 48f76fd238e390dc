"""How wrong a prediction may be: log-normal factors on each kind of time.

The spread of a kind of time joins two parts, which are taken as independent. The first is what the
model misses even where its rates are known; it comes from calibration points that were left out of
the fit group by group. The second is how uncertain the rates are by their source, each counted by
how strongly the time depends on it. Systems whose ranks are CPU cores are calibrated as a whole;
their spread is that of their least certain source.

Two plans on one system share the rates and most of what the model misses, so both get the same
random factors. Each plan also has an error of its own (``PLAN_SIGMA``). ``shardplan validate
intervals`` compares this with the published pairs of plans on one system.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import Final, NamedTuple

import numpy as np

from costmodels.datatypes import DataType, FloatArray
from costmodels.errors import require
from costmodels.estimates import RELATIVE_SIGMA, Z90, Source
from costmodels.sustained import PRIOR_SIGMA, SHARES, STEP_GROUPS, generation_of, group_of
from costmodels.topology import FITTED_KINDS, Topology


class Scale(NamedTuple):
    """Factors on the four kinds of time; each is ``[samples, 1]``, or a single 1."""

    lookup_ratio: FloatArray = np.ones(1)
    collective_ratio: FloatArray = np.ones(1)
    dense_ratio: FloatArray = np.ones(1)
    host_ratio: FloatArray = np.ones(1)


UNSCALED: Final = Scale()
"""No factor on any kind of time."""

MACHINE: Final = "machine"
"""The pace of the machine: a factor that all kinds of time have in common."""
LOOKUP_GROUPS: Final = (0.032, 0.051, 0.041, 0.136)
"""Root mean square of ln(predicted / measured) per group of lookups in device memory, by the law of
kernels other than FBGEMM's: H100 adam, H100 sgd (each from the other), V100 uniform and Criteo
forwards, to which nothing was fitted. ``benchmarks/lookup_gpu.py`` prints them."""
CACHED_GROUPS: Final = (0.076, 0.097, 0.068, 0.093)
"""The same behind a cache in front of host memory: H100, adam and sgd, two sizes of the cache."""
COLLECTIVE_GROUPS: Final = (0.19, 0.21, 0.14, 0.25)
"""The same of collectives from 1 MiB on, by alpha-beta with measured rates: A100, H100, H200,
B200."""
DENSE_GROUPS: Final = (0.143, 0.017, 0.160, 0.104)
"""The same of the sums of all matrix products of two models, forward and backward, on V100 (traces
of Lin et al.)."""
FRAMEWORK_GROUPS: Final = (0.150, 0.291, 0.120, 0.212)
"""The same of training steps of BERT in frameworks to which nothing was fitted: TensorFlow 2 and 1
with XLA, OneFlow and MXNet (configs/published/transformers_frameworks.csv). ``shardplan validate
published --what transformers`` prints them. Two others of 2020 that join no kernels, TensorFlow
without XLA and PaddlePaddle, took half as long again in fp32, and two to three times as long in
fp16; they are not counted."""
DENSE_FAMILIES: Final = (0.111, 0.126, 0.160, 0.089, 0.020, 0.140, 0.032, 0.078, 0.085, 0.100)
"""The same of the GPU times of the steps of ten model families on H200, with constants of kernels
that were fitted without the family: BERT, DCN, GPT, HSTU, Llama, MLP, MMoE, MoE, SASRec and two
towers. ``shardplan validate published --what dense`` prints them."""
_MEASURED_GENERATION: Final = "H100"
"""Generation of the cards whose kernels were measured: H100 and H200. The errors on V100
(``DENSE_GROUPS``) stand for those on all other generations."""
PLAN_SIGMA: Final = 0.015
"""Error of one plan's time that another plan on the same system does not share. It is at least what
the same job on identical hardware varies by between sites of MLPerf's rounds: 1.5 % (standard
deviation)."""
_ELASTICITIES: Final[dict[str, dict[str, float]]] = {
    "lookup": {
        **{"device.hbm_bandwidth": 0.7, "device.update_efficiency": 0.4},
        **{"device.sort_rate": 0.15, "device.l2_bandwidth": 0.15},
    },
    "collective": {
        **{"links.host.bandwidth": 0.8, "links.host.latency": 0.2, "links.domain.bandwidth": 0.8},
        **{"links.network.bandwidth": 0.8, "links.network.latency": 0.2},
    },
    "dense": {"device.flops_efficiency": 0.8, "device.hbm_bandwidth": 0.2},
}
"""How strongly a time depends on a rate: the relative change of the time over that of the rate, for
batches that fill the device. The larger it is, the more an uncertain rate widens the interval."""
_WHOLE: Final = {
    "lookup": ("device.hbm_bandwidth", "device.l2_bandwidth", "device.update_efficiency"),
    "collective": ("links.",),
    "dense": ("device.flops",),
    "host": ("host.eager_call",),
}
"""How the names of the rates begin whose least certain source decides the spread of a system that
is calibrated as a whole."""
HOST_GROUPS: Final = (0.12, 0.12, 0.15, 0.15, 0.16, 0.12, 0.11, 0.11, 0.07, 0.07, 0.14, 0.13)
"""Root mean square of ln(predicted / measured) of steps that an H200's host decides, with its calls
measured, per family: MLP, DCN, MMoE, BERT, GPT, Llama, SASRec, HSTU, MoE, two towers, TorchRec
without and with a pipeline. No step was fitted. ``validate published --what steps`` prints them."""
_CARRIED_HOST_SIGMA: Final = 0.1
"""Log-standard deviation of what the calls of a step cost on another machine than the H200's, whose
eager call is known. A law of kernels alone erred by 17 % on steps of the H200 that were left out of
its fit, and by 20 % on those of another machine, scaled by its eager call."""
_UNMEASURED_HOST_SIGMA: Final = math.log(7.0) / Z90
"""Log-standard deviation of the calls of a host that was never measured: nine of ten hosts are
within a factor of seven of the usual one. An eager call took 24 and 39 us on two virtual machines,
and takes 4 to 6 us on bare metal."""
_NUM_SAMPLES = 64
"""Random factors of each kind that a time is computed with. More make intervals smoother and each
estimate slower."""
_INSIDE: Final = 0.9
"""Probability that a true time lies inside its interval."""
_HALVINGS: Final = 80
"""Steps of the bisection for Student's t; after them the angle is exact in float64."""
_SEED = 20240229
"""The random factors are the same in every run, so that two plans can be compared under them."""


def sigmas(
    topology: Topology,
    *,
    collective_spread_ratio: float | None = None,
    sustained_dtype: DataType = DataType.FP32,
    sustained_ratio: float = 0.0,
    is_foreign: bool = False,
) -> tuple[tuple[str, float], ...]:
    """Log-standard deviation of each kind of time of a whole plan.

    Args:
        topology: tells where its rates come from.
        collective_spread_ratio: 90 % spread of the system's collectives; None for that of
            :data:`COLLECTIVE_GROUPS` and of the rates of links.
        sustained_dtype: type of the products.
        sustained_ratio: how far the dense part is from a short burst (0) to one that fills the
            whole step (1); its spread is interpolated between those of the two.
        is_foreign: whether the dense part may run in a framework that was never measured.
    """
    if topology.calibration or not topology.provenance:
        return tuple((kind, _weakest(topology, _WHOLE[kind])) for kind in FITTED_KINDS)
    is_measured = generation_of(topology.device) == _MEASURED_GENERATION
    model = {
        "lookup": group_sigma(LOOKUP_GROUPS),
        "collective": group_sigma(COLLECTIVE_GROUPS),
        "dense": group_sigma(DENSE_FAMILIES if is_measured else DENSE_GROUPS),
        "host": math.hypot(group_sigma(HOST_GROUPS), _CARRIED_HOST_SIGMA),
    }
    found = {kind: math.hypot(model[kind], rate_sigma(topology, kind)) for kind in FITTED_KINDS}
    if sustained_ratio:
        filled = step_sigma(topology, sustained_dtype)
        found["dense"] += sustained_ratio * (filled - found["dense"])
    if is_foreign:
        found["dense"] = math.hypot(found["dense"], group_sigma(FRAMEWORK_GROUPS))
    if collective_spread_ratio is not None:
        found["collective"] = math.log1p(collective_spread_ratio) / Z90
    return tuple(found.items())


def step_sigma(topology: Topology, dtype: DataType) -> float:
    """Log-standard deviation of dense compute that fills most of a step.

    Where the shares of the device's rates were fitted to measured steps, this is the error of
    models that were left out of the fit. On other devices the spread of the prior and of the rates
    come in addition.
    """
    known, device = group_sigma(STEP_GROUPS), topology.device
    if group_of(device, device.rated_type(dtype)) in SHARES:
        return known
    return math.hypot(known, PRIOR_SIGMA, rate_sigma(topology, "dense"))


def rate_sigma(topology: Topology, kind: str) -> float:
    """Log-standard deviation of one kind of time from the sources of the system's rates."""
    if kind == "host":
        known = _weakest(topology, _WHOLE[kind])
        return _UNMEASURED_HOST_SIGMA if host_is_assumed(topology) else known
    parts = [
        weight * _weakest(topology, (name,))
        for name, weight in _ELASTICITIES[kind].items()
        if any(p.name.startswith(name) for p in topology.provenance) and _matters(name, topology)
    ]
    return math.hypot(*parts) if parts else RELATIVE_SIGMA[Source.USER]


def host_is_assumed(topology: Topology) -> bool:
    """Whether what an eager call costs the host is a default, not measured on a machine."""
    return any(
        p.name == "host.eager_call" and p.source is Source.DEFAULT for p in topology.provenance
    )


def group_sigma(groups: Sequence[float]) -> float:
    """Log-standard deviation for a group of measurements that was never seen.

    The error of a new group has the mean square of the known groups, and this mean is uncertain
    when there are few groups. The 90 % interval is therefore that of Student's t with one degree of
    freedom less than there are groups, for a variance of that mean square times 1 + 1 / groups. The
    result is the normal standard deviation that has the same interval.

    Args:
        groups: root mean square error of each group, predicted without it.

    Raises:
        InvalidValueError: fewer than two groups.
    """
    require(len(groups) >= 2, f"a spread needs two groups at least, got {len(groups)}")
    square = float(np.mean(np.square(groups))) * (1.0 + 1.0 / len(groups))
    return _student_95(len(groups) - 1) * math.sqrt(square) / Z90


@lru_cache(maxsize=256)
def _student_95(freedom: int) -> float:
    """95 % quantile of Student's t, whose probability is a finite sum for whole degrees of freedom.

    The probability that t lies within +-sqrt(freedom) tan(angle) is solved for the angle by
    bisection (Abramowitz and Stegun 26.7.3 and 26.7.4). Importing it from scipy takes longer than
    pricing a plan.
    """
    odd, steps = freedom % 2, np.arange(freedom % 2 + 1, freedom, 2)
    low, high = 0.0, math.pi / 2
    for _ in range(_HALVINGS):
        angle = 0.5 * (low + high)
        ratios = np.append(math.cos(angle) ** odd, steps / (steps + 1) * math.cos(angle) ** 2)
        inside = math.sin(angle) * float(np.cumprod(ratios)[:-1].sum())
        inside = 2.0 / math.pi * (angle + inside) if odd else inside
        low, high = (angle, high) if inside < _INSIDE else (low, angle)
    return math.tan(low) * math.sqrt(freedom)


def faster_probability(ours_s: FloatArray, theirs_s: FloatArray) -> float:
    """Probability that the first of two plans is the faster one; one half for equal plans.

    Args:
        ours_s: times ``[samples]`` under the errors that all plans share.
        theirs_s: the other plan's under the same draws.
    """
    apart = np.log(theirs_s / ours_s) / (math.sqrt(2.0) * PLAN_SIGMA)
    return float(np.mean([*map(NormalDist().cdf, apart.tolist())]))


@lru_cache(maxsize=64)
def sampled_factors(
    spread: tuple[tuple[str, float], ...], joint_ratio: tuple[tuple[float, ...], ...] = ()
) -> dict[str, FloatArray]:
    """Random factors ``[samples, 1]`` of each kind: stratified normal draws, equal at every call.

    Args:
        spread: log-standard deviation of each kind, taken as independent. If it has
            :data:`MACHINE`, that is one more factor, common to all kinds.
        joint_ratio: in place of ``spread``, the rows of a lower triangular matrix over the kinds,
            as in :class:`costmodels.topology.FittedFactors`; empty to use ``spread``.
    """
    rng = np.random.default_rng(_SEED)
    draws = {}
    for kind, _ in spread:
        strata = (rng.permutation(_NUM_SAMPLES) + 0.5) / _NUM_SAMPLES
        draws[kind] = np.array([*map(NormalDist().inv_cdf, strata.tolist())])
    if not joint_ratio:
        known = dict(spread)
        common = known.pop(MACHINE) * draws[MACHINE] if MACHINE in known else 0.0
        return {k: np.exp(sigma * draws[k] + common)[:, None] for k, sigma in known.items()}
    rows = dict(zip(FITTED_KINDS, joint_ratio, strict=True))
    return {
        kind: np.exp(sum(w * draws[k] for w, k in zip(row, FITTED_KINDS, strict=False)))[:, None]
        for kind, row in rows.items()
    }


def _weakest(topology: Topology, prefixes: tuple[str, ...]) -> float:
    """Log-standard deviation of the least certain source among numbers with these prefixes."""
    return RELATIVE_SIGMA[topology.weakest_source(prefixes)]


def _matters(name: str, topology: Topology) -> bool:
    """Whether a rate matters: links of a level that no rank crosses do not."""
    if name.startswith("links.network"):
        return topology.world_size > topology.domain_size
    if name.startswith("links.domain"):
        return min(topology.domain_size, topology.world_size) > topology.local_world_size
    return True
