"""A convex minorant of any collective model: a constant plus a share of the growing part.

Measured curves bend the wrong way for a proof: their rate rises with size. A lower bound needs
convex times, so it prices plans with ``shrink`` of the growing part plus the largest constant that
stays below the curve at every size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Final, final

import numpy as np

from costmodels.collective.base import AbstractCollectiveModel, FloatArray, Level
from costmodels.topology import Topology

SHRINK: Final = 0.97
_SIZES: Final = np.concatenate([[0.0], np.geomspace(1.0, 1e12, 3001)])


@final
@dataclass(frozen=True, slots=True)
class AffineMinorant(AbstractCollectiveModel):
    """t >= constant + 0.97 growth, with the constant found on a grid of sizes 0.9 % apart.

    Between two sizes of the grid the time is at least that of the lower one and the growth at most
    that of the upper one; beyond the grid 3 % of the growth exceeds any constant. For an all-to-all
    over fabric and network the smaller of both constants holds, because time does not fall when
    bytes are added.
    """

    inner: AbstractCollectiveModel
    sources: ClassVar[tuple[str, ...]] = ("convex minorant of the model it wraps",)

    def fixed_s(self, topology: Topology, *, ranks: int, across_hosts: bool) -> float:
        """An empty collective of the model."""
        return self.inner.fixed_s(topology, ranks=ranks, across_hosts=across_hosts)

    def all_to_all(self, send: FloatArray, receive: FloatArray, topology: Topology) -> FloatArray:
        """Share of the growth."""
        return np.asarray(SHRINK * self.inner.all_to_all(send, receive, topology))

    def reduce_scatter(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool
    ) -> FloatArray:
        """Share of the growth."""
        grown = self.inner.reduce_scatter(num_bytes, topology, within_host=within_host)
        return np.asarray(SHRINK * grown)

    def all_reduce(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool = False
    ) -> FloatArray:
        """Share of the growth."""
        return np.asarray(
            SHRINK * self.inner.all_reduce(num_bytes, topology, within_host=within_host)
        )

    def all_to_all_s(self, send: FloatArray, receive: FloatArray, topology: Topology) -> FloatArray:
        """Constant plus share of the growth."""
        constant = _all_to_all_constant(self.inner, topology, send.shape[-2])
        return self.all_to_all(send, receive, topology) + constant

    def reduce_scatter_s(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool
    ) -> FloatArray:
        """Constant plus share of the growth, for reduce-scatter."""
        constant = _ring_constant(self.inner, topology, "reduce_scatter", within_host=within_host)
        return self.reduce_scatter(num_bytes, topology, within_host=within_host) + constant

    def all_gather_s(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool
    ) -> FloatArray:
        """Constant plus share of the growth, for all-gather."""
        constant = _ring_constant(self.inner, topology, "all_gather", within_host=within_host)
        return self.reduce_scatter(num_bytes, topology, within_host=within_host) + constant

    def all_reduce_s(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool = False
    ) -> FloatArray:
        """Constant plus share of the growth, for all-reduce."""
        constant = _ring_constant(self.inner, topology, "all_reduce", within_host=within_host)
        return self.all_reduce(num_bytes, topology, within_host=within_host) + constant


@lru_cache(maxsize=256)
def _all_to_all_constant(model: AbstractCollectiveModel, topology: Topology, ranks: int) -> float:
    """Largest valid constant over the levels that the members use."""
    constants = []
    for level in Level:
        num_bytes = np.zeros((len(_SIZES), ranks, len(Level)))
        num_bytes[..., level] = _SIZES[:, None]
        full = model.all_to_all_s(num_bytes, num_bytes, topology).max(axis=-1)
        growth = model.all_to_all(num_bytes, num_bytes, topology).max(axis=-1)
        constants.append(_constant(full, growth))
    return min(constants)


@lru_cache(maxsize=256)
def _ring_constant(
    model: AbstractCollectiveModel, topology: Topology, name: str, *, within_host: bool
) -> float:
    times: dict[str, Callable[..., FloatArray]] = {
        "reduce_scatter": model.reduce_scatter_s,
        "all_gather": model.all_gather_s,
        "all_reduce": model.all_reduce_s,
    }
    grow = model.all_reduce if name == "all_reduce" else model.reduce_scatter
    full = times[name](_SIZES, topology, within_host=within_host)
    return _constant(full, grow(_SIZES, topology, within_host=within_host))


def _constant(full: FloatArray, growth: FloatArray) -> float:
    """Least of ``full - SHRINK * growth`` on and between the sizes of the grid; not negative."""
    room = full[:-1] - SHRINK * growth[1:]
    return max(0.0, float(room.min()))
