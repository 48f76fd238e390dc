"""``moe``: a mixture of experts, of which each position uses a few."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

from costmodels.errors import require
from costmodels.layers import _joins, _parts
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
        self.check_sizes("experts", "top", "ffn")
        require(
            self.top <= self.experts,
            f"layer {self.prefix}: top must be at most experts, got {self.top} of {self.experts}",
        )

    def build(self, flow: Flow) -> Built:
        """The gate, the choice of experts, rows to them, their two products, and rows back."""
        joined, met = _joins.joined(flow, self.prefix)
        rows, width, dtype = met.positions, met.width, met.dtype
        name, experts, ffn = self.prefix, self.experts, self.ffn
        share = -(-rows * self.top // experts)
        taken = experts * share
        operators = (
            *joined,
            replace(
                _parts.linear(f"{name}.gate", rows, width, experts, dtype, bias=False),
                left_gradient=not met.is_input,
            ),
            _parts.streamed(
                f"{name}.gate",
                (rows, experts),
                dtype,
                kind=OperatorKind.SOFTMAX,
                saved=rows * experts,
            ),
            replace(
                _parts.streamed(
                    f"{name}.gate", (rows, experts), dtype, kind=OperatorKind.OTHER,
                    saved=2 * taken,
                ),
                num_sorted=rows * self.top,
            ),
            _parts.streamed(
                f"{name}.take", (taken, width), dtype, kind=OperatorKind.GATHER,
                saved=taken * width,
            ),
            replace(
                _parts.batched(
                    f"{name}.experts", (experts, share, width, ffn), dtype,
                    num_parameters=experts * width * ffn,
                ),
                left_gradient=not met.is_input,
            ),
            _parts.streamed(
                f"{name}.experts", (taken, ffn), dtype, saved=taken * ffn
            ),
            _parts.batched(
                f"{name}.experts", (experts, share, ffn, width), dtype,
                num_parameters=experts * width * ffn, saved=taken * width,
            ),
            _parts.streamed(
                f"{name}.give", (taken, width), dtype, saved=taken * (1 + width)
            ),
            _parts.streamed(f"{name}.give", (rows, width), dtype),
            _parts.streamed(
                f"{name}.give", (rows, width), dtype, reads=2.0, kind=OperatorKind.GATHER
            ),
        )  # fmt: skip
        return self.placed(operators, met.after(width))
