"""``mmoe``: experts whose results each task mixes by a gate of its own."""

from dataclasses import dataclass, replace
from functools import partial
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
        rows, dtype, out = met.positions, met.dtype, self.expert_sizes[-1]
        name, count, width, is_input = self.prefix, self.experts, met.width, met.is_input
        mlp, moved = partial(parts.mlp, keeps_input=False), parts.streamed
        sizes, tower = (width, *self.expert_sizes), (out, *self.tower_sizes)
        expert = mlp(f"{name}.expert", rows, sizes, dtype, is_input=is_input)
        kept, gated, softmax = rows * (count * out + width), f"{name}.gate", OperatorKind.SOFTMAX
        known = moved(f"{name}.mix", (rows, count, out), dtype, saved=kept)
        given = {"bias": False, "keeps_input": False, "left_gradient": not is_input}
        task = (
            parts.linear(gated, rows, width, count, dtype, **given),
            moved(gated, (rows, count), dtype, kind=softmax, saved=rows * count),
            parts.batched(gated, (rows, 1, count, out), dtype, saved=rows * out),
            *mlp(f"{name}.tower", rows, tower, dtype),
        )
        operators = (
            *joined,
            *(replace(o, num_repeats=count) for o in expert),
            known,
            *(replace(o, num_repeats=self.tasks) for o in task),
        )
        return self.placed(operators, met.after(self.tasks * self.tower_sizes[-1]))
