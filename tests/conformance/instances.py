"""One instance of every model that discovery finds: what the conformance suites run on."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import TypeVar

import numpy as np

from costmodels import discovery
from costmodels.distribution.base import AbstractIndexDistribution
from costmodels.distribution.empirical import Empirical
from costmodels.distribution.uniform import Uniform
from costmodels.distribution.zipf import Zipf

T = TypeVar("T")


def build(package: ModuleType, name: str, base: Callable[..., T]) -> T:
    """The model of a file, which needs no arguments."""
    kind = discovery.load(package, name, base)
    needed = [
        p.name
        for p in inspect.signature(kind).parameters.values()
        if p.default is inspect.Parameter.empty
    ]
    assert not needed, f"{package.__name__}.{name} needs {needed}"
    return kind()


def laws(rows: int, *, scattered: bool = True) -> dict[str, list[AbstractIndexDistribution]]:
    """Laws of every file in ``costmodels/distribution`` over ``rows`` rows.

    A new file needs an entry; one that cannot be ordered by frequency is left out there.
    """
    zipf = [(0.0, 0.0), (0.5, 0.0), (0.9, 2.7), (1.0, 0.0), (1.05, 0.0), (1.3, 50.0), (2.0, 0.0)]
    measured = np.array([3.0, 40.0, 500.0]), np.array([0.1, 0.01, 0.0003])
    return {
        "uniform": [Uniform(num_embeddings=rows, scattered=scattered)],
        "zipf": [
            *(Zipf(num_embeddings=rows, exponent=s, shift=q, scattered=scattered) for s, q in zipf),
            Zipf(num_embeddings=rows, exponent=1.1, scattered=scattered, ids_per_draw=7),
        ],
        "empirical": [Empirical.from_bins(*measured, rows)] if scattered else [],
    }
