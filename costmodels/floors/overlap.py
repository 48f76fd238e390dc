"""What communication beside the top of the dense part adds to every iteration.

Communication slows compute down that runs beside it: a compute step takes longer by the slow-down
ratio r times the seconds of communication beside it in a first pass over the steps
(:mod:`costmodels.iteration.timing`). Two kinds of communication run beside the top under
every plan, where all ranks train the same dense part and the bottom runs beside no exchange:

- *The all-reduces of its gradients* run beside the pieces of its backward pass that follow them,
  for A seconds if no piece waits for its host.
- *The exchange of the next batch's indices* begins soon after the host has issued the top. What is
  left of it when the top begins runs beside the top.

**Indices.** Let u be the moment at which the top begins on the rank q where it begins last, and C
the seconds of its passes. Let indices travel from s on, for D seconds or more. At least ``X = D -
(u - s)`` of them come after u. In the first pass, let rank q wait for its host for G seconds of the
top, in all. It ends the top at u + C + G, and X - G seconds or more of the exchange are beside its
passes. So in the second pass the top ends at both of these moments or later:

    u + C + G    and    u + C + r (X - G).

Whatever G is, the later one is at least ``u + C + X r / (1 + r)``.

**All-reduces.** The same holds with v, the last moment at which a rank begins the backward pass,
and with A in place of X. There G also holds how much later than rank q any other rank ends the top.
Both together are beside the top for X + A - 2 G seconds at least, so that r / (1 + 2 r) takes the
place of r / (1 + r).

**Limits.** A stage begins when its first operator is issued, and the host issues the exchange after
the last one of the forward pass: s is at most h and one issue later than u, with h the host time of
the other operators. Between two exchanges of indices it may need one more issue. So X counts up to
C less h and so many issues. If h is longer than the forward pass, u is the moment at which its last
operator is issued instead, h is 0, and C is the backward pass alone. An all-reduce does not wait
for its host if a piece takes longer than to issue the rest of the piece and one collective. If one
does, each begins at most one issue later than A supposes: A is then less by one issue.

The bound with X falls as the top begins later, but less than it rises with u. It is therefore a
chain of steps of which those before the top count a little less than in full (:class:`SlowedTop`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodels.iteration.base import GRADIENT_ALL_REDUCE, INPUT_DIST, ISSUED, Program, Stream
from costmodels.iteration.timing import schedule

_ROUNDING: Final = 1e-12
"""Share by which sums of durations are lowered, so that rounding cannot raise a bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowedTop:
    """A chain to the end of the top: ``share_ratio`` times what is before it, and a constant.

    Attributes:
        start: position in the program of a step of the top.
        end: position of the last step of the top.
        share_ratio: how much of a second before ``start`` is a second of the chain.
        constant_s: seconds from there to the finish of ``end``.
    """

    start: int
    end: int
    share_ratio: float
    constant_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TopOverlap:
    """What is known of communication beside the top, for plans of one set of sharding types.

    Attributes:
        slowdown_ratio: r, seconds of compute lost per second of communication beside it.
        forward: position in the program of the step at which the top begins.
        pieces: positions of the pieces of its backward pass.
        forward_s, backward_s: seconds of both passes from there on, with nothing beside them;
            together C.
        all_reduces_s: A, seconds in which all-reduces run beside the backward pass.
        exchange: position of the first exchange of indices; None if the iteration waits for it.
        issues_s: seconds in which a host issues the rest of the forward pass and all exchanges of
            indices.
    """

    slowdown_ratio: float
    forward: int
    pieces: tuple[int, ...]
    forward_s: float
    backward_s: float
    all_reduces_s: float
    exchange: int | None
    issues_s: float

    @property
    def always(self) -> tuple[SlowedTop, ...]:
        """The chain that counts all-reduces, which every plan has; nothing without all-reduces."""
        r = self.slowdown_ratio
        slowed_s = self.all_reduces_s * r / (1.0 + r)
        if slowed_s <= 0:
            return ()
        return (self._chain(self.pieces[0], 1.0, self.backward_s + slowed_s),)

    def slowed(self, begun_s: float, sent_s: float, hidden_s: float) -> SlowedTop | None:
        """The chain that counts the exchange of indices too.

        Args:
            begun_s: u is at least this.
            sent_s: s is at least this.
            hidden_s: D, least seconds of the exchange, over all sharding types.

        Returns:
            None if the exchange may be over when the top begins.
        """
        passes_s = self.forward_s + self.backward_s
        last_s = min(min(begun_s, sent_s) + hidden_s, begun_s + passes_s - self.issues_s)
        if self.exchange is None or last_s <= begun_s:
            return None
        r = self.slowdown_ratio
        share = r / (1.0 + (2.0 if self.all_reduces_s > 0 else 1.0) * r)
        beside_s = share * (last_s + self.all_reduces_s)
        return self._chain(self.forward, 1.0 - share, passes_s + beside_s)

    def _chain(self, start: int, share_ratio: float, constant_s: float) -> SlowedTop:
        return SlowedTop(
            start=start,
            end=self.pieces[-1],
            share_ratio=share_ratio,
            constant_s=constant_s * (1.0 - _ROUNDING),
        )


def top_overlap(program: Program, name: str, *, issue_s: float, num_types: int) -> TopOverlap:
    """Find out what runs beside the top.

    Args:
        program: of made-up ranks that begin every step no later than any plan, and that all have
            the same dense part, not sharded.
        name: of the top.
        issue_s: seconds in which a host issues one collective.
        num_types: the most sharding types of a plan, each with an exchange of indices of its own.
    """
    steps = program.steps
    forward = _named(program, f"{name} forward", Stream.COMPUTE)[-1]
    pieces = _named(program, f"{name} backward", Stream.COMPUTE)
    reduced = _named(program, GRADIENT_ALL_REDUCE, Stream.COMMUNICATION)
    sent = _named(program, INPUT_DIST, Stream.DATA_DIST)
    forward_s, rest_s = float(np.min(steps[forward].duration_s)), _rest_s(program, forward)
    if forward_s < rest_s:
        forward, forward_s, rest_s = forward + 1, 0.0, 0.0
    pieces_s = [float(np.min(steps[i].duration_s)) for i in pieces]
    waits = any(
        s < _rest_s(program, i) + issue_s
        for i, s, _ in zip(pieces, pieces_s, reduced, strict=False)
    )
    reduced_s = _all_reduces_s(program, pieces, reduced) - (issue_s if waits else 0.0)
    return TopOverlap(
        slowdown_ratio=program.overlap_slowdown_ratio,
        forward=forward,
        pieces=pieces,
        forward_s=forward_s,
        backward_s=sum(pieces_s),
        all_reduces_s=max(reduced_s, 0.0),
        exchange=sent[0] if sent and sent[0] > forward else None,
        issues_s=rest_s + issue_s * num_types,
    )


def _named(program: Program, start: str, stream: Stream) -> tuple[int, ...]:
    """Positions of the steps of a stream whose names begin so, without the ends of their issue."""
    return tuple(
        i
        for i, s in enumerate(program.steps)
        if s.stream is stream and s.name.startswith(start) and not s.name.endswith(ISSUED)
    )


def _rest_s(program: Program, step: int) -> float:
    """Seconds in which the host issues a stage after its first operators (:data:`ISSUED`)."""
    return float(np.max(program.steps[step + 1].host_s))


def _all_reduces_s(program: Program, pieces: Sequence[int], reduced: Sequence[int]) -> float:
    """Seconds in which all-reduces run beside the pieces, if nothing waits for a host."""
    chosen = sorted((*pieces, *(i + 1 for i in pieces), *reduced))
    place = {i: n for n, i in enumerate(chosen)}
    steps = tuple(
        replace(
            program.steps[i],
            duration_s=program.steps[i].duration_s.min(keepdims=True),
            after=tuple(place[j] for j in program.steps[i].after if j in place),
            host_s=np.zeros(1),
        )
        for i in chosen
    )
    alone = schedule(Program(steps=steps, overlap_slowdown_ratio=0.0), (1,))
    end_s = float(alone.finish_s[place[pieces[-1]]][0])
    both = [(alone.start_s[place[i]][0], alone.finish_s[place[i]][0]) for i in reduced]
    beside_s = sum(max(min(float(finish), end_s) - float(start), 0.0) for start, finish in both)
    return beside_s * (1.0 - _ROUNDING)
