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
from costmodels.floors.exchange_floor import Seconds
from costmodels.iteration.base import Program, Step

_FOREVER_S: Final = 1e6
"""Seconds of a leaf that takes longer than everything else in an iteration."""
_ROUNDING: Final = 1e-13
"""Share by which sums of durations are lowered, so that rounding cannot raise a bound."""


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

    def __init__(
        self,
        leaves: tuple[Leaf, ...],
        program: Program,
        counts: FloatArray,
    ) -> None:
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
        finish: list[FloatArray] = []
        streams: dict[str, FloatArray] = {}
        host = np.zeros((len(leaves), self._own_s.shape[1]))
        end = host
        for i, step in enumerate(self._steps):
            host = host + self._host_s[i]
            ready = np.maximum(host, streams.get(step.stream, host))
            for j in step.after:
                ready = np.maximum(ready, finish[j])
            if step.collective:
                ready = ready.max(axis=1, keepdims=True)
            done = ready + self._own_s[i] + leaves @ self._counts[i].T
            streams[step.stream] = done
            if step.blocks_host:
                host = np.maximum(host, done)
            finish.append(done)
            end = np.maximum(end, done)
        last: FloatArray = np.maximum(end, host).max(axis=1)
        return np.maximum(last, self._floor_s)

    def longest_path(self, leaves: FloatArray) -> Path:
        """The chain of steps that takes longest if the leaves take ``[L]`` seconds."""
        walk = _Walk.of(self._steps, self._own_s + self._counts @ leaves, self._host_s)
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
            node = walk.before[node]
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
        walk = _Walk.of(self._steps, self._own_s + self._counts @ forever, self._host_s)
        i, rank = self._named(step_name), rank % self._own_s.shape[1]
        return walk.before[True, i, rank] == (False, i, rank)

    def _named(self, step_name: str) -> int:
        """Position of the step with this name."""
        return next(i for i, step in enumerate(self._steps) if step.name == step_name)


_Node = tuple[bool, int, int]
"""(True, step, rank): the end of a step. (False, step, rank): the moment the host has issued it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Walk:
    """For each step, and for each issue by the host, what it waited for last on each rank.

    Attributes:
        before: the node before each node on its chain; None at the start.
        last: the node that ends last, at ``end_s``.
    """

    before: dict[_Node, _Node | None]
    last: _Node
    end_s: float

    @classmethod
    def of(
        cls,
        steps: tuple[Step, ...],
        durations_s: FloatArray,
        host_s: FloatArray,
    ) -> _Walk:
        """Run the steps with durations and host times ``[steps, R]``."""
        ranks = range(durations_s.shape[1])
        before: dict[_Node, _Node | None] = {}
        finish_s = np.zeros(durations_s.shape)
        streams: dict[str, int] = {}
        clock: list[tuple[float, _Node | None]] = [(0.0, None) for _ in ranks]
        for i, step in enumerate(steps):
            for r in ranks:
                before[False, i, r] = clock[r][1]
                clock[r] = (clock[r][0] + float(host_s[i, r]), (False, i, r))
            held = [*step.after, *([streams[step.stream]] if step.stream in streams else [])]
            ready = [
                max([clock[r], *((float(finish_s[j, r]), (True, j, r)) for j in held)], key=_time)
                for r in ranks
            ]
            if step.collective:
                ready = [max(ready, key=_time)] * len(ready)
            for r in ranks:
                before[True, i, r] = ready[r][1]
                finish_s[i, r] = ready[r][0] + durations_s[i, r]
                if step.blocks_host:
                    clock[r] = max(clock[r], (float(finish_s[i, r]), (True, i, r)), key=_time)
            streams[step.stream] = i
        ends = [(float(finish_s[i, r]), (True, i, r)) for i in range(len(steps)) for r in ranks]
        end_s, last = max([*ends, *((t, n) for t, n in clock if n is not None)], key=_time)
        return cls(before=before, last=last, end_s=end_s)


def _time(found: tuple[float, _Node | None]) -> float:
    """The moment of a pair of moment and node, by which pairs are compared."""
    return found[0]
