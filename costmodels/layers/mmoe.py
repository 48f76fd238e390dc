"""``mmoe``: experts whose results each task mixes by a gate of its own."""

from dataclasses import dataclass, replace
from typing import final

from costmodels.layers import parts
from costmodels.layers.base import AbstractLayer, Built, Flow
from costmodels.operators import OperatorKind


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Mmoe(AbstractLayer):
    """A multi-gate mixture of experts. Reference: Ma et al. 2018 (KDD), equations 5 to 7.

    Every expert is an MLP. For each task, a gate weighs the results of all experts, and a tower,
    which is an MLP too, works on their weighted sum.

    Attributes:
        experts: number of experts.
        tasks: number of tasks.
        expert_sizes: output widths of the layers of an expert.
        tower_sizes: output widths of the layers of a tower.
    """

    experts: int
    tasks: int
    expert_sizes: tuple[int, ...]
    tower_sizes: tuple[int, ...]

    def build(self, flow: Flow) -> Built:
        """All experts; then gate, softmax, weighted sum and tower of each task."""
        joined, met = parts.joined(flow, self.prefix)
        rows, part = met.positions, parts.Part(name=self.prefix, dtype=met.dtype)
        out, count, width, is_input = self.expert_sizes[-1], self.experts, met.width, met.is_input
        sizes, tower = (width, *self.expert_sizes), (out, *self.tower_sizes)
        expert = part.named("expert").mlp(rows, sizes, keeps_input=False, is_input=is_input)
        kept, gate = rows * (count * out + width), part.named("gate")
        known = part.named("mix").streamed((rows, count, out), saved=kept)
        task = (
            gate.linear(rows, width, count, bias=False, saved=0, left_gradient=not is_input),
            gate.streamed((rows, count), kind=OperatorKind.SOFTMAX, saved=rows * count),
            gate.batched((rows, 1, count, out), saved=rows * out),
            *part.named("tower").mlp(rows, tower, keeps_input=False),
        )
        operators = (
            *joined,
            *(replace(o, num_repeats=count) for o in expert),
            known,
            *(replace(o, num_repeats=self.tasks) for o in task),
        )
        return self.placed(operators, met.after(self.tasks * self.tower_sizes[-1]))
