"""``attention_pooling``: a history is summed with weights that say how well it fits a target."""

from dataclasses import dataclass
from typing import final

from costmodels.layers import parts
from costmodels.layers.base import AbstractLayer, Built, Flow


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPooling(AbstractLayer):
    """Pools a history of positions by attention to a target vector.

    An MLP with a last linear layer scores each position of the history. Its input is the target,
    the position, their difference and their product. The result is the sum of the positions,
    weighted by their scores, beside the target. The layer takes target and history as they come out
    of tables; how many elements reach it is not checked. Reference: Zhou et al. 2018 (arXiv
    1706.06978), section 4.3.

    Attributes:
        seq: positions of the history.
        width: elements of a position, and of the target.
        sizes: output widths of the layers of the MLP.
    """

    seq: int
    width: int
    sizes: tuple[int, ...]

    def build(self, flow: Flow) -> Built:
        """The MLP's input, the MLP on every position, and the product with the weights."""
        part, batch = parts.Part(name=self.prefix, dtype=flow.dtype), flow.batch_size
        rows, width = batch * self.seq, self.width
        operators = (
            part.streamed((rows, width)),
            part.streamed((rows, width), saved=rows * width),
            part.streamed((rows, 4 * width), saved=rows * 4 * width),
            *part.mlp(rows, (4 * width, *self.sizes), keeps_input=False),
            part.linear(rows, self.sizes[-1], 1, saved=0),
            part.batched((batch, 1, self.seq, width), saved=rows),
            part.streamed((batch, 2 * width)),
        )
        met = parts.joined(flow)[1] if flow.num_elements else flow
        return self.placed(operators, met.after(2 * width, 1))
