"""``dot``: the pairwise interaction of a DLRM."""

from dataclasses import dataclass
from typing import final

from costmodels.layers import parts
from costmodels.layers.base import AbstractLayer, Built, Flow


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Dot(AbstractLayer):
    """Dot products of all pairs of vectors, looked-up and dense, followed by the dense vector.

    Reference: Naumov et al. 2019 (arXiv 1906.00091).
    """

    def build(self, flow: Flow) -> Built:
        """A copy of the vectors side by side, a batched product, and the choice of pairs."""
        operators, met = parts.dot(flow)
        return self.placed(operators, met)
