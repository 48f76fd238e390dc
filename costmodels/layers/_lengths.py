"""Sequences of different lengths: how much work a batch of them has, and how batches differ."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import fmean, pstdev

from costmodels.errors import require
from costmodels.operators import BATCHED, Operator


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """The lengths that sequences have.

    Attributes:
        values: equally likely lengths in positions, such as quantiles of the data.
        is_balanced: whether the data loader hands sequences out so that all ranks have equal work.
        repeats: samples of a batch that have the same sequence, because data in the order of users
            bring a user's samples together.
    """

    values: tuple[int, ...]
    is_balanced: bool = False
    repeats: int = 1

    @classmethod
    def of(
        cls,
        where: str,
        values: tuple[int, ...],
        seq: int,
        *,
        is_balanced: bool,
        repeats: int = 1,
    ) -> Lengths:
        """The lengths of the sequences that a layer takes.

        Args:
            where: the name of the layer.
            values: equally likely lengths; empty if all sequences have ``seq`` positions.
            seq: the greatest length that the layer takes.
            is_balanced: as in the class.
            repeats: as in the class.

        Raises:
            InvalidValueError: a length is not in 1..``seq``, or ``is_balanced`` is given without
                lengths.
        """
        wrong = [v for v in values if not 1 <= v <= seq]
        require(not wrong, f"layer {where}: lengths must be 1..seq ({seq}), got {wrong[:3]}")
        require(
            bool(values) or not is_balanced,
            f"layer {where}: balanced sequences need lengths; without, all have seq positions",
        )
        return cls(values=values or (seq,), is_balanced=is_balanced, repeats=repeats)

    @property
    def mean(self) -> float:
        """The mean length."""
        return fmean(self.values)

    @property
    def seen(self) -> int:
        """Mean length of the sequence to which a random position belongs.

        It is the mean of the squared lengths over the mean length, because long sequences have more
        positions.
        """
        return round(fmean(v * v for v in self.values) / self.mean)

    def rows(self, batch_size: int) -> int:
        """Mean number of positions of a batch of ``batch_size`` sequences."""
        return round(batch_size * self.mean)

    def uneven(self, operators: tuple[Operator, ...], batch_size: int) -> tuple[Operator, ...]:
        """The operators with how much their work differs from batch to batch.

        The work of attention is proportional to the sum of the squared lengths of a batch, and all
        other work to the sum of its lengths. The relative deviation of a sum over independent
        sequences falls with the root of their number, which repeats make smaller. The most work
        that a batch can have is that of a batch in which every sequence has the greatest length.

        Args:
            operators: the operators of a layer.
            batch_size: sequences of a batch.
        """
        if len(self.values) == 1 or self.is_balanced:
            return operators
        root = math.sqrt(max(1.0, batch_size / self.repeats))
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
    """Whether an operator works on pairs of positions: attention, its products, or its scores.

    Scores are the operators on three axes: heads, queries and keys.
    """
    return operator.kind in BATCHED or len(operator.shape) == 3
