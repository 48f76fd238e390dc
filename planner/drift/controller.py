"""When to move to a new plan: once staying has lost a quarter of the time of the move.

Before every period the controller is told what the plan in use costs under the latest data, and
what other plans cost, with the moves to them. It adds up what staying has lost against the best of
them since the last move. It moves when this sum, including the loss of the coming period, is at
least a share s of the time of the move.

The share s = 1/4 is chosen because it is equally good in two cases:

- The loss grows evenly from nothing, as with data that drift at a constant speed. Moving at share s
  then costs ``(1 + s) / (2 sqrt(s))`` times as much as moving at the best moment, which is when
  staying has lost as much as a whole move takes.
- The loss comes at once and stays, as after a sudden change. Moving at share s then costs ``1 + s``
  times as much as moving at once.

Both are 1.25 for s = 1/4. With s = 1, as in the usual rule for renting or buying, they are 1 and 2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_LEAST_GAIN: Final = 1e-9
_SHARE: Final = 0.25
"""The controller moves when staying has lost this share of the time of a move."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A plan that could be used instead: its seconds per iteration, and seconds of the move."""

    iteration_s: float
    move_s: float


@dataclass(slots=True)
class Controller:
    """Decides before every period whether to move; ``lost_s`` is what staying has lost so far."""

    lost_s: float = 0.0

    def choose(self, now_s: float, offers: Sequence[Offer], num_iterations: float) -> int | None:
        """Which offer to move to, or None to stay.

        Args:
            now_s: seconds per iteration of the plan in use under the latest data.
            offers: other plans under the same data.
            num_iterations: iterations of a period.

        Returns:
            Position in ``offers`` of a faster plan, or None. A move reduces the loss so far in
            proportion to the share of the present loss that the new plan avoids.
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
