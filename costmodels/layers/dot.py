"""``dot``: the pairwise interaction of a DLRM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from costmodels.layers import _parts
from costmodels.layers.base import AbstractLayer, Built, Flow


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Dot(AbstractLayer):
    """Dot products of all pairs of looked-up vectors and the dense one, beside the dense one.

    Reference: Naumov et al. 2019 (arXiv 1906.00091).
    """

    def build(self, flow: Flow) -> Built:
        """Copy, batched product, choice of pairs."""
        operators, met = _parts.dot(flow)
        return self.placed(operators, met)
