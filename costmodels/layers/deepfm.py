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
        batch, part = met.batch_size, parts.Part(name=self.prefix, dtype=met.dtype)
        first = part.named("first").linear(batch, met.width, 1, saved=0)
        deep = part.named("deep").mlp(batch, (met.width, *self.sizes), keeps_input=False)
        last = part.named("last").linear(batch, self.sizes[-1], 1, saved=0)
        one = part.streamed((batch, 1))
        # The products of all pairs: half of the square of the sum less the sum of the squares.
        width, pairs = elements // vectors, part.named("pairs")
        rows, shape, row = batch * width, (batch, vectors, width), (batch, width)
        products = (
            pairs.reduced(shape, result=rows, saved=rows),
            pairs.streamed(row),
            pairs.streamed(shape, saved=rows * vectors),
            pairs.reduced(shape, result=rows),
            pairs.streamed(row, reads=2.0),
            pairs.reduced(row, result=batch),
        )
        operators = (*joined, *products, first, one, one, *deep, last, one)
        return self.placed(operators, met.after(1))
