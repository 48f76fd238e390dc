"""``mmoe``: experts whose results each task mixes by a gate of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

from costmodels.layers import _joins, _parts
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

    def __post_init__(self) -> None:
        """Refuse sizes that are out of range."""
        self.check_sizes("experts", "tasks", "expert_sizes", "tower_sizes")

    def build(self, flow: Flow) -> Built:
        """All experts; then gate, softmax, weighted sum and tower of each task."""
        joined, met = _joins.joined(flow, self.prefix)
        rows, dtype, out = met.positions, met.dtype, self.expert_sizes[-1]
        name, count = self.prefix, self.experts
        expert = _parts.mlp(
            f"{name}.expert",
            rows,
            (met.width, *self.expert_sizes),
            dtype,
            keeps_input=False,
            is_input=met.is_input,
        )
        known = _parts.streamed(
            f"{name}.mix",
            (rows, count, out),
            dtype,
            saved=rows * (count * out + met.width),
        )
        gate = _parts.linear(f"{name}.gate", rows, met.width, count, dtype, bias=False)
        task = (
            replace(gate, saved_bytes=0.0, left_gradient=not met.is_input),
            _parts.streamed(
                f"{name}.gate",
                (rows, count),
                dtype,
                kind=OperatorKind.SOFTMAX,
                saved=rows * count,
            ),
            _parts.batched(f"{name}.gate", (rows, 1, count, out), dtype, saved=rows * out),
            *_parts.mlp(f"{name}.tower", rows, (out, *self.tower_sizes), dtype, keeps_input=False),
        )
        operators = (
            *joined,
            *(replace(o, num_repeats=count) for o in expert),
            known,
            *(replace(o, num_repeats=self.tasks) for o in task),
        )
        return self.placed(operators, met.after(self.tasks * self.tower_sizes[-1]))
