"""``dcn``: a low-rank cross network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from costmodels.layers import _parts
from costmodels.layers.base import AbstractLayer, Built, Flow, check_sizes


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Dcn(AbstractLayer):
    """``num_layers`` cross layers x0 * (U (V x) + b) + x of rank ``low_rank``.

    Reference: Wang et al. 2021 (arXiv 2008.13535), equation 2.
    """

    num_layers: int
    low_rank: int

    def __post_init__(self) -> None:
        """Check the sizes."""
        check_sizes(self.prefix, num_layers=self.num_layers, low_rank=self.low_rank)

    def build(self, flow: Flow) -> Built:
        """Copy of the vectors, then two products and the cross terms per layer."""
        joined, met = _parts.joined(flow)
        crossed = _parts.cross(met, self.num_layers, self.low_rank)
        return self.placed((*joined, *crossed), met)
