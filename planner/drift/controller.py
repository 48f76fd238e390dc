"""When to move to a new plan: once the time lost by staying has reached a share of the move.

Before every period the controller is told what the plan in use costs under the latest data, and
what other plans cost together with the moves to them. It adds up what staying has lost against the
best of them since the last move. It moves when this sum, with the loss of one more period, is at
least a quarter of the time of the move.

The quarter is the share that is equally good in two worlds. Where the loss grows evenly from
nothing, as with data that drift at a constant speed, moving at a share s of the move costs
``(1 + s) / (2 sqrt(s))`` of what the best moment does, which is a whole move. Where the loss comes
at once and lasts, as after a sudden change, it costs ``1 + s`` of what an immediate move does. Both
are 1.25 at a quarter; a whole move, as the rule for renting or buying has it, would be 1 and 2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_LEAST_GAIN: Final = 1e-9
_SHARE: Final = 0.25
"""Share of a move's time that staying may lose before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A plan that could be moved to: seconds per iteration then, and seconds of the move once."""

    iteration_s: float
    move_s: float


@dataclass(slots=True)
class Controller:
    """Decides before every period whether to move; ``lost_s`` is what staying has cost so far."""

    lost_s: float = 0.0

    def choose(self, now_s: float, offers: Sequence[Offer], num_iterations: float) -> int | None:
        """Which offer to move to, or None to stay.

        Args:
            now_s: seconds per iteration of the plan in use under the latest data.
            offers: other plans under the same data.
            num_iterations: of a period.

        Returns:
            Position in ``offers``, of one that is faster now. A move takes away as much of the loss
            as it saves of it.
        """
        least_s = _LEAST_GAIN * now_s * num_iterations
        saved = [(now_s - o.iteration_s) * num_iterations for o in offers]
        most_s = max(saved, default=0.0)
        if most_s <= least_s:
            return None
        self.lost_s += most_s
        # What one offer would have saved of the loss, in proportion to what it saves now.
        worth = [
            self.lost_s * s / most_s - _SHARE * o.move_s if s > least_s else -math.inf
            for s, o in zip(saved, offers, strict=True)
        ]
        best = max(range(len(offers)), key=worth.__getitem__)
        if worth[best] < 0:
            return None
        self.lost_s *= 1.0 - saved[best] / most_s
        return best
