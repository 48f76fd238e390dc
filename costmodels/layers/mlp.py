"""``mlp``: linear layers, each followed by an activation."""

from dataclasses import dataclass
from typing import final

from costmodels.layers import parts
from costmodels.layers.base import AbstractLayer, Built, Flow


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Mlp(AbstractLayer):
    """Linear layers with bias, each followed by an activation.

    Looked-up vectors enter it side by side.

    Attributes:
        sizes: output widths of the layers.
    """

    sizes: tuple[int, ...]

    def build(self, flow: Flow) -> Built:
        """A matrix product and an activation for each size."""
        joined, met = parts.joined(flow, self.prefix)
        sizes = (met.width, *self.sizes)
        part = parts.Part(name=self.prefix, dtype=met.dtype)
        operators = part.mlp(met.positions, sizes, is_input=met.is_input)
        return self.placed((*joined, *operators), met.after(self.sizes[-1]))
