"""``deepfm``: a linear term, all pairs of looked-up vectors, and an MLP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from costmodels.layers import _parts, joins
from costmodels.layers.base import AbstractLayer, Built, Flow
from costmodels.operators import Operator


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DeepFm(AbstractLayer):
    """The sum of a linear term, the products of all pairs of looked-up vectors, and an MLP.

    All looked-up vectors need the same width. What comes from the layer before enters the MLP and
    the linear term. Reference: Guo et al. 2017 (arXiv 1703.04247), equations 1 to 4.

    Attributes:
        sizes: output widths of the layers of the MLP; a last linear layer turns them into one
            number.
    """

    sizes: tuple[int, ...]

    def build(self, flow: Flow) -> Built:
        """The operators, which give one number per sample."""
        vectors, elements = flow.num_vectors, flow.num_elements
        self.need(
            vectors > 0 and elements % vectors == 0,
            f"needs looked-up vectors of one width, but {vectors} vectors of "
            f"{elements} elements reach it",
        )
        joined, met = joins.joined(flow)
        batch, dtype, name = met.batch_size, met.dtype, self.prefix
        first = _parts.linear(f"{name}.first", batch, met.width, 1, dtype, keeps_input=False)
        deep = _parts.mlp(f"{name}.deep", batch, (met.width, *self.sizes), dtype, keeps_input=False)
        last = _parts.linear(f"{name}.last", batch, self.sizes[-1], 1, dtype, keeps_input=False)
        one = _parts.streamed(name, (batch, 1), dtype)
        pairs = self._pairs(batch, vectors, elements // vectors, met)
        operators = (*joined, *pairs, first, one, one, *deep, last, one)
        return self.placed(operators, met.after(1))

    def _pairs(self, batch: int, vectors: int, width: int, flow: Flow) -> tuple[Operator, ...]:
        """Products of all pairs: half of the square of the sum less the sum of the squares.

        Args:
            batch: samples.
            vectors: looked-up vectors per sample.
            width: elements of one vector.
            flow: what reaches the operators.
        """
        name, dtype, rows = f"{self.prefix}.pairs", flow.dtype, batch * width
        shape, kept = (batch, vectors, width), batch * vectors * width
        return (
            _parts.reduced(name, shape, dtype, result=rows, saved=rows),
            _parts.streamed(name, (batch, width), dtype),
            _parts.streamed(name, shape, dtype, saved=kept),
            _parts.reduced(name, shape, dtype, result=rows),
            _parts.streamed(name, (batch, width), dtype, reads=2.0),
            _parts.reduced(name, (batch, width), dtype, result=batch),
        )
