"""``dcn``: a low-rank cross network."""

from dataclasses import dataclass
from typing import final

from costmodels.layers import parts
from costmodels.layers.base import AbstractLayer, Built, Flow


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Dcn(AbstractLayer):
    """Cross layers x0 * (U (V x) + b) + x, where x0 is what reaches the first of them.

    Reference: Wang et al. 2021 (arXiv 2008.13535), equation 2.

    Attributes:
        num_layers: number of cross layers.
        low_rank: rank of U and V.
    """

    num_layers: int
    low_rank: int

    def build(self, flow: Flow) -> Built:
        """A copy of the vectors side by side; then two products and the cross terms per layer."""
        joined, met = parts.joined(flow)
        crossed = parts.cross(met, self.num_layers, self.low_rank)
        return self.placed((*joined, *crossed), met)
