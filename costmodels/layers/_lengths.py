"""Sequences of different length: what a batch of them holds, and how much batches differ."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import fmean, pstdev

from costmodels.errors import require
from costmodels.operators import BATCHED, Operator


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Equally likely lengths of a sequence, such as its quantiles; none are empty.

    Where they are balanced, the data loader hands sequences out so that ranks have equal work.
    """

    values: tuple[int, ...]
    is_balanced: bool = False

    @classmethod
    def of(cls, where: str, values: tuple[int, ...], seq: int, *, is_balanced: bool) -> Lengths:
        """Those of a layer of ``seq`` positions; without values all sequences have that many.

        Raises:
            InvalidValueError: a length is not 1 to ``seq``, or there are none to balance.
        """
        wrong = [v for v in values if not 1 <= v <= seq]
        require(not wrong, f"layer {where}: lengths must be 1..seq ({seq}), got {wrong[:3]}")
        require(
            bool(values) or not is_balanced,
            f"layer {where}: balanced sequences need lengths; without, all have seq positions",
        )
        return cls(values=values or (seq,), is_balanced=is_balanced)

    @property
    def mean(self) -> float:
        """Mean length."""
        return fmean(self.values)

    @property
    def seen(self) -> int:
        """Positions of the sequence of a position picked at random: mean square over mean."""
        return round(fmean(v * v for v in self.values) / self.mean)

    def rows(self, batch_size: int) -> int:
        """Positions of a batch, on average."""
        return round(batch_size * self.mean)

    def uneven(self, operators: tuple[Operator, ...], batch_size: int) -> tuple[Operator, ...]:
        """The operators with the deviation of their work from batch to batch.

        Attention follows the sum of squared lengths, all else the sum of lengths; of independent
        sequences the deviation of a sum falls with the root of their number. No batch has more than
        one of longest sequences.
        """
        if len(self.values) == 1 or self.is_balanced:
            return operators
        root = math.sqrt(batch_size)
        squares = [float(v * v) for v in self.values]
        linear = pstdev(self.values) / self.mean / root
        squared = pstdev(squares) / fmean(squares) / root
        longest = max(self.values)
        most = longest / self.mean, longest**2 / fmean(squares)
        return tuple(
            replace(o, deviation_ratio=squared, most_ratio=most[1])
            if _is_pairwise(o)
            else replace(o, deviation_ratio=linear, most_ratio=most[0])
            for o in operators
        )


def _is_pairwise(operator: Operator) -> bool:
    """Whether it works on pairs of positions: attention, its products, and scores by head."""
    return operator.kind in BATCHED or len(operator.shape) == 3
