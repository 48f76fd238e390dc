"""``deepfm``: a linear term, all pairs of looked-up vectors, and an MLP."""

from dataclasses import dataclass
from typing import final

from costmodels.layers import parts
from costmodels.layers.base import AbstractLayer, Built, Flow


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
        joined, met = parts.joined(flow)
        batch, dtype, name = met.batch_size, met.dtype, self.prefix
        first = parts.linear(f"{name}.first", batch, met.width, 1, dtype, keeps_input=False)
        deep = parts.mlp(f"{name}.deep", batch, (met.width, *self.sizes), dtype, keeps_input=False)
        last = parts.linear(f"{name}.last", batch, self.sizes[-1], 1, dtype, keeps_input=False)
        one = parts.streamed(name, (batch, 1), dtype)
        # The products of all pairs: half of the square of the sum less the sum of the squares.
        width, pairs = elements // vectors, f"{name}.pairs"
        rows, shape, row = batch * width, (batch, vectors, width), (batch, width)
        products = (
            parts.reduced(pairs, shape, dtype, result=rows, saved=rows),
            parts.streamed(pairs, row, dtype),
            parts.streamed(pairs, shape, dtype, saved=rows * vectors),
            parts.reduced(pairs, shape, dtype, result=rows),
            parts.streamed(pairs, row, dtype, reads=2.0),
            parts.reduced(pairs, row, dtype, result=batch),
        )
        operators = (*joined, *products, first, one, one, *deep, last, one)
        return self.placed(operators, met.after(1))
