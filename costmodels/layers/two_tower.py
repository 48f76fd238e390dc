"""``two_tower``: one MLP for users, one for items, and the scores of all pairs of a batch."""

from dataclasses import dataclass
from typing import final

from costmodels.datatypes import DataType
from costmodels.layers import parts
from costmodels.layers.base import AbstractLayer, Built, Flow
from costmodels.operators import OperatorKind


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TwoTower(AbstractLayer):
    """Two MLPs, the products of all pairs of a user and an item of the batch, and a softmax loss.

    The softmax is over the items of the batch. Reference: Yi et al. 2019 (RecSys), section 3.

    Attributes:
        sizes: output widths of the layers of each MLP.
        user_elements: how many of the elements that reach the layer are the user's; these come
            first. 0 for half of them.
    """

    sizes: tuple[int, ...]
    user_elements: int = 0

    def build(self, flow: Flow) -> Built:
        """Both MLPs, one product of the whole batch, log-softmax and loss."""
        joined, met = parts.joined(flow, self.prefix)
        rows, dtype = met.batch_size, met.dtype
        part = parts.Part(name=self.prefix, dtype=dtype)
        user = self.user_elements or met.width // 2
        item = met.width - user
        self.need(
            item > 0 and user > 0,
            f"user_elements must leave some for the item, got {user} of {met.width}",
        )
        # The log-softmax of all scores, whose result autocast casts to fp32 for the loss.
        cast = parts.CAST_BYTES if dtype.num_bytes == DataType.FP16.num_bytes else 0.0
        count, plain = rows * rows, float(rows * rows) * dtype.num_bytes
        scores = part.named("scores")
        operators = (
            *joined,
            *part.named("user").mlp(rows, (user, *self.sizes), is_input=met.is_input),
            *part.named("item").mlp(rows, (item, *self.sizes), is_input=met.is_input),
            scores.matmul((1, rows, self.sizes[-1], rows)),
            scores.streamed(
                (rows, rows),
                kind=OperatorKind.SOFTMAX,
                saved=count,
                read_bytes=2.0 * plain + cast * count,
                backward_bytes=4.0 * plain + 1.5 * cast * count,
            ),
            scores.streamed((rows,), kind=OperatorKind.GATHER),
        )
        return self.placed(operators, met.after(1))
