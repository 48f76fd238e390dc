"""``moe``: a mixture of experts, of which each position uses a few."""

from dataclasses import dataclass
from typing import final

from costmodels.layers import parts
from costmodels.layers.base import AbstractLayer, Built, Flow
from costmodels.operators import OperatorKind


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Moe(AbstractLayer):
    """A mixture of experts: a gate sends each position to a few of several small networks.

    All experts take equal shares of the positions (capacity factor 1), so that they run as batched
    products. Reference: Lepikhin et al. 2020 (GShard, arXiv 2006.16668), section 2.2.

    Attributes:
        experts: number of experts.
        top: to how many experts each position goes.
        ffn: inner width of an expert, in elements.
    """

    experts: int
    top: int
    ffn: int

    def __post_init__(self) -> None:
        """Refuse sizes that are out of range."""
        AbstractLayer.__post_init__(self)
        self.need(
            self.top <= self.experts,
            f"top must be at most experts, got {self.top} of {self.experts}",
        )

    def build(self, flow: Flow) -> Built:
        """The gate, the choice of experts, rows to them, their two products, and rows back."""
        joined, met = parts.joined(flow, self.prefix)
        rows, width, experts, ffn = met.positions, met.width, self.experts, self.ffn
        part = parts.Part(name=self.prefix, dtype=met.dtype)
        share = -(-rows * self.top // experts)
        taken = experts * share
        gate, chosen, taking, giving = map(part.named, ("gate", "experts", "take", "give"))
        weights, inner = experts * width * ffn, (experts, share, ffn, width)
        outer = experts, share, width, ffn
        softmax, other, gather = OperatorKind.SOFTMAX, OperatorKind.OTHER, OperatorKind.GATHER
        operators = (
            *joined,
            gate.linear(rows, width, experts, bias=False, left_gradient=not met.is_input),
            gate.streamed((rows, experts), kind=softmax, saved=rows * experts),
            gate.streamed((rows, experts), kind=other, saved=2 * taken, num_sorted=rows * self.top),
            taking.streamed((taken, width), kind=gather, saved=taken * width),
            chosen.batched(outer, num_parameters=weights, left_gradient=not met.is_input),
            chosen.streamed((taken, ffn), saved=taken * ffn),
            chosen.batched(inner, num_parameters=weights, saved=taken * width),
            giving.streamed((taken, width), saved=taken * (1 + width)),
            giving.streamed((rows, width)),
            giving.streamed((rows, width), reads=2.0, kind=gather),
        )
        return self.placed(operators, met.after(width))
