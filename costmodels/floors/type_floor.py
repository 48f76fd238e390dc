"""The shortest iteration of all plans with one set of sharding types, and its chains of steps.

A few made-up ranks run the steps of an iteration. Some durations are left open: the *leaves*. Each
leaf depends on the plan through one phase. For given leaves, the iteration takes as long as the
longest chain of steps that wait for one another. A chain that is longest for some leaves is still a
lower bound for any other leaves, because an iteration takes at least as long as each of its chains.
So every chain gives a lower bound that is linear in the leaves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.floors.phases import Seconds
from costmodels.iteration.base import Program, Step
from costmodels.iteration.timing import run

_FOREVER_S: Final = 1e6
"""Seconds of a leaf that takes longer than everything else in an iteration."""
_ROUNDING: Final = 1e-13
"""Share by which sums of durations are lowered, so that rounding cannot raise a bound."""
_SHRINK: Final = 0.97
"""Slope of the line under a leaf, over the slope of its growing part. It is a little below 1, so
that one line with a positive constant lies below the leaf at every size."""
_PHASES_S: Final = np.concatenate([[0.0], np.geomspace(1e-9, 1e4, 105)])
"""Phase durations, each about a third larger than the one before, at which leaves are compared with
their lines first."""
_SPLITS: Final = 5
"""How often the intervals between these are halved where a line may come close to its leaf; points
are 0.9 % apart then."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Leaf:
    """One duration that depends on the plan.

    Attributes:
        phase: index of the phase that it depends on.
        is_line: whether the duration is equal to its line.
        duration_s: the least duration for a given maximum of the phase.
        constant_s, slope_ratio: the line ``constant_s + slope_ratio * phase``, which is never above
            the duration.
    """

    phase: int
    is_line: bool
    duration_s: Seconds
    constant_s: float
    slope_ratio: float


def line(phase: int) -> Leaf:
    """A leaf whose duration is the phase itself."""
    return Leaf(
        phase=phase,
        is_line=True,
        duration_s=lambda seconds: seconds,
        constant_s=0.0,
        slope_ratio=1.0,
    )


def leaf(phase: int, duration_s: Seconds, share_ratio: float = 1.0) -> Leaf:
    """A leaf with a straight line that is never above its duration.

    The slope of the line is fixed. Its constant is the least distance between the duration and a
    line of this slope through 0, over all phases (:func:`_least_room`). Beyond the last phase that
    is looked at, the line is below ``share_ratio`` times the phase, and durations never are.

    Args:
        phase: index of the phase that the duration depends on.
        duration_s: from the phase to the duration; it never falls.
        share_ratio: the least duration over the phase, for long phases.
    """
    last_s, slope = share_ratio * float(_PHASES_S[-1]), share_ratio * _SHRINK
    constant_s = max(0.0, min(_least_room(duration_s, slope), (1.0 - _SHRINK) * last_s))
    return Leaf(
        phase=phase, is_line=False, duration_s=duration_s, constant_s=constant_s, slope_ratio=slope
    )


def _least_room(duration_s: Seconds, slope: float) -> float:
    """A lower bound, over all phases, on the duration minus ``slope`` times the phase (the *room*).

    In an interval the room is at least the duration at its lower end minus ``slope`` times its
    upper end. Only intervals whose bound is below the least room seen at any point are halved
    further; none is left to halve where a phase adds less to a duration than its last digit.
    """
    low_s, high_s = _PHASES_S[:-1], _PHASES_S[1:]
    at_low_s = duration_s(low_s)
    proven = np.inf
    for _ in range(_SPLITS):
        room, reached = at_low_s - slope * high_s, at_low_s - slope * low_s
        open_ = room < reached.min(initial=np.inf)
        proven = min(proven, float(room[~open_].min(initial=np.inf)))
        low_s, high_s, at_low_s = low_s[open_], high_s[open_], at_low_s[open_]
        middle_s = np.where(low_s > 0, np.sqrt(low_s * high_s), 0.5 * high_s)
        at_middle_s = duration_s(middle_s)
        low_s = np.concatenate([low_s, middle_s])
        high_s = np.concatenate([middle_s, high_s])
        at_low_s = np.concatenate([at_low_s, at_middle_s])
    return min(proven, float((at_low_s - slope * high_s).min(initial=np.inf)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Path:
    """One chain of steps, which takes ``constant_s + counts @ leaves`` seconds.

    Attributes:
        constant_s: seconds of the chain that are not in leaves.
        counts: ``[L]`` how often each leaf is on the chain.
    """

    constant_s: float
    counts: FloatArray


class TypeFloor:
    """A lower bound on plans that use one set of sharding types, as a program of made-up ranks.

    Attributes:
        leaves: the durations that depend on the plan.
        phases: ``[L]`` the phase of each leaf.
    """

    def __init__(self, leaves: tuple[Leaf, ...], program: Program, counts: FloatArray) -> None:
        """Keep the parts.

        Args:
            leaves: the durations that depend on the plan.
            program: the steps of the made-up ranks with all leaves at zero.
            counts: ``[steps, R, L]`` how often each leaf is part of a step on each rank.
        """
        self.leaves = leaves
        self.phases = np.array([leaf.phase for leaf in leaves], dtype=np.int64)
        self._steps = program.steps
        self._counts = counts
        shape = counts.shape[:2]
        self._own_s: FloatArray = np.zeros(shape)
        self._host_s: FloatArray = np.zeros(shape)
        for i, step in enumerate(program.steps):
            self._own_s[i], self._host_s[i] = step.duration_s, step.host_s
        self._floor_s = program.floor_s

    def leaf_seconds(self, maxima: FloatArray) -> FloatArray:
        """Durations ``[N, L]`` of the leaves, from the maxima ``[N, L]`` of their phases."""
        columns = [leaf.duration_s(maxima[:, i]) for i, leaf in enumerate(self.leaves)]
        return np.stack(columns, axis=-1)

    def lines(self, maxima: FloatArray) -> FloatArray:
        """Lower bounds ``[L]`` of the leaves by their lines, from maxima ``[L]`` of the phases."""
        pairs = [(leaf.constant_s, leaf.slope_ratio) for leaf in self.leaves]
        constants_s, slopes = np.array(pairs).T
        return np.asarray(constants_s + slopes * maxima)

    def seconds(self, leaves: FloatArray) -> FloatArray:
        """Shortest iterations ``[N]`` for leaves ``[N, L]``."""
        durations = [s + leaves @ c.T for s, c in zip(self._own_s, self._counts, strict=True)]
        shape = len(leaves), self._own_s.shape[1]
        return np.maximum(run(self._steps, durations, shape).iteration_time_s, self._floor_s)

    def longest_path(self, leaves: FloatArray) -> Path:
        """The chain of steps that takes longest if the leaves take ``[L]`` seconds."""
        walk = _Walk(self._steps, self._own_s + self._counts @ leaves)
        counts, constant_s = np.zeros(len(self.leaves)), 0.0
        if walk.end_s <= self._floor_s:
            return Path(constant_s=self._floor_s, counts=counts)
        # Walk back from the step that ends last, and add up what the steps on the way take.
        node: _Node | None = walk.last
        while node is not None:
            is_step, i, rank = node
            if is_step:
                counts += self._counts[i, rank]
            constant_s += float((self._own_s if is_step else self._host_s)[i, rank])
            node = walk.before(node)
        return Path(constant_s=constant_s * (1.0 - _ROUNDING), counts=counts)

    def own_s(self, step_name: str) -> float:
        """Seconds of a step on the first rank, without its leaves."""
        return float(self._own_s[self._named(step_name), 0])

    def issue_s(self, step_name: str) -> float:
        """Seconds that the host of the first rank needs to issue a step."""
        return float(self._host_s[self._named(step_name), 0])

    def waits_for_host(self, step_name: str, rank: int) -> bool:
        """Whether a step of a rank waits for its host alone, however long the leaves are."""
        forever = np.full(len(self.leaves), _FOREVER_S)
        walk = _Walk(self._steps, self._own_s + self._counts @ forever)
        i, rank = self._named(step_name), rank % self._own_s.shape[1]
        return walk.before((True, i, rank)) == (False, i, rank)

    def _named(self, step_name: str) -> int:
        """Position of the step with this name."""
        return next(i for i, step in enumerate(self._steps) if step.name == step_name)


_Node = tuple[bool, int, int]
"""(True, step, rank): the end of a step. (False, step, rank): the moment the host has issued it."""


class _Walk:
    """What each step, and each issue by the host, waited for last on each rank.

    Attributes:
        last: the node that ends last, at ``end_s``.
    """

    def __init__(self, steps: tuple[Step, ...], durations_s: FloatArray) -> None:
        """Run the steps with durations ``[steps, R]``."""
        self._steps = steps
        found = run(steps, list(durations_s), durations_s.shape[1:])
        self._issued_s, self._finish_s = np.stack(found.issued_s), np.stack(found.finish_s)
        self.end_s = float(found.iteration_time_s)
        ranks = durations_s.shape[1]
        at, rank = divmod(int(self._finish_s.argmax()), ranks)
        self.last: _Node = True, at, rank
        if self.end_s > self._finish_s[at, rank]:
            self.last = False, len(steps) - 1, int(found.host_s.argmax())
        latest: dict[str, int] = {}
        self._held: list[list[int]] = []
        for i, step in enumerate(steps):
            earlier = [latest[step.stream]] if step.stream in latest else []
            self._held.append([*step.after, *earlier])
            latest[step.stream] = i

    def before(self, node: _Node) -> _Node | None:
        """The node before a node on its chain; None at the start.

        Of nodes that end at the same moment, the host counts first, then the steps that are named.
        """
        is_step, i, rank = node
        if not is_step:
            if not i:
                return None
            waited = self._finish_s[i - 1, rank] > self._issued_s[i - 1, rank]
            return bool(self._steps[i - 1].blocks_host and waited), i - 1, rank
        ends = np.stack([self._issued_s[i], *self._finish_s[self._held[i]]])
        if self._steps[i].collective:
            rank = int(ends.max(axis=0).argmax())
        last = int(ends[:, rank].argmax())
        return (True, self._held[i][last - 1], rank) if last else (False, i, rank)
