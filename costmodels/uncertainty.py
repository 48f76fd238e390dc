"""How wrong may the inputs be? Log-normal factors on each kind of time, shared by all plans."""

from __future__ import annotations

from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from costmodels.estimates import RELATIVE_SIGMA, Source
from costmodels.topology import Topology

FloatArray = NDArray[np.float64]

KINDS = ("lookup", "collective", "dense", "host")
_PREFIXES = {
    "lookup": ("device.hbm_bandwidth", "device.l2_bandwidth", "device.update_efficiency"),
    "collective": ("links.",),
    "dense": ("device.flops",),
    "host": ("device.launch_latency",),
}
_NUM_SAMPLES = 64
_SEED = 20240229


def sigmas(topology: Topology) -> tuple[tuple[str, float], ...]:
    """Log-standard deviation of each kind of time, by the weakest source it rests on."""
    found = []
    for kind in KINDS:
        sources = [p.source for p in topology.provenance if p.name.startswith(_PREFIXES[kind])]
        weakest = max(sources, key=lambda s: s.strength, default=Source.USER)
        found.append((kind, RELATIVE_SIGMA[weakest]))
    return tuple(found)


@lru_cache(maxsize=64)
def sampled_factors(spread: tuple[tuple[str, float], ...]) -> dict[str, FloatArray]:
    """Factors ``[samples, 1]`` per kind: stratified normal draws, the same at every call."""
    rng = np.random.default_rng(_SEED)
    factors = {}
    for kind, sigma in spread:
        strata = (rng.permutation(_NUM_SAMPLES) + 0.5) / _NUM_SAMPLES
        factors[kind] = np.exp(sigma * _normal_quantile(strata))[:, None]
    return factors


def _normal_quantile(probability: FloatArray) -> FloatArray:
    """Inverse normal distribution function."""
    inverse = NormalDist().inv_cdf
    return np.array([inverse(float(p)) for p in probability])
