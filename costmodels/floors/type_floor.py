"""The shortest iteration of plans of one set of sharding types, and its chains of steps.

Made-up ranks run the steps of an iteration in which some durations are left open. These *leaves*
depend on the plan, each through one phase. Where leaves are given, the iteration takes as long as
the longest chain of steps that wait for one another. Every chain, taken with other leaves, is still
no longer than the iteration: that makes it a lower bound that is linear in the leaves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.floors.exchange_floor import Seconds
from costmodels.iteration.base import FloatArray, Program, Step

_FOREVER_S: Final = 1e6
_ROUNDING: Final = 1e-13
"""Share taken off sums of durations."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Leaf:
    """One duration that depends on the plan.

    Attributes:
        phase: index of the phase that sets it.
        is_line: whether it is the line below.
        duration_s: the least it takes where the phase has a given maximum.
        constant_s, slope_ratio: a line ``constant_s + slope_ratio * phase`` that is nowhere above
            it.
    """

    phase: int
    is_line: bool
    duration_s: Seconds
    constant_s: float
    slope_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Path:
    """One chain of steps: it takes ``constant_s + counts @ leaves`` seconds, whatever the leaves.

    ``counts`` ``[L]`` says how often each leaf is on it. Every iteration takes at least as long as
    every one of its chains.
    """

    constant_s: float
    counts: FloatArray


class TypeFloor:
    """Plans that use one set of sharding types, as a program of made-up ranks.

    Attributes:
        leaves: the durations that depend on the plan.
        phases: ``[L]`` the phase of each leaf.
    """

    def __init__(self, leaves: tuple[Leaf, ...], program: Program, counts: FloatArray) -> None:
        """Keep the parts.

        Args:
            leaves: what depends on the plan.
            program: the steps of the made-up ranks, all leaves at zero.
            counts: ``[steps, R, L]`` how much of each leaf a step takes on each of the ranks.
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
        """Leaves ``[N, L]`` by the models themselves, from the maxima of their phases, alike."""
        columns = [leaf.duration_s(maxima[:, i]) for i, leaf in enumerate(self.leaves)]
        return np.stack(columns, axis=-1)

    def lines(self, maxima: FloatArray) -> FloatArray:
        """The same ``[L]`` by the lines below them, which hold for maxima of any size."""
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
        """The chain of steps that takes longest where leaves take ``[L]`` seconds."""
        walk = _Walk.of(self._steps, self._own_s + self._counts @ leaves, self._host_s)
        counts, constant_s = np.zeros(len(self.leaves)), 0.0
        if walk.end_s <= self._floor_s:
            return Path(constant_s=self._floor_s, counts=counts)
        node: _Node | None = walk.last
        while node is not None:
            is_step, i, rank = node
            if is_step:
                counts += self._counts[i, rank]
            constant_s += float((self._own_s if is_step else self._host_s)[i, rank])
            node = walk.before[node]
        return Path(constant_s=constant_s * (1.0 - _ROUNDING), counts=counts)

    def own_s(self, step_name: str) -> float:
        """Seconds of a step of the first rank beside its leaves."""
        return float(self._own_s[self._named(step_name), 0])

    def issue_s(self, step_name: str) -> float:
        """Seconds in which the host issues a step of the first rank."""
        return float(self._host_s[self._named(step_name), 0])

    def waits_for_host(self, step_name: str, rank: int) -> bool:
        """Whether a rank starts a step when the host has issued it, however long leaves are."""
        forever = np.full(len(self.leaves), _FOREVER_S)
        walk = _Walk.of(self._steps, self._own_s + self._counts @ forever, self._host_s)
        i, rank = self._named(step_name), rank % self._own_s.shape[1]
        return walk.before[True, i, rank] == (False, i, rank)

    def _named(self, step_name: str) -> int:
        return next(i for i, step in enumerate(self._steps) if step.name == step_name)


_Node = tuple[bool, int, int]
"""(True, step, rank): the end of a step; (False, step, rank): the host has issued it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Walk:
    """What each step, and each issue by the host, waited for last on each rank.

    Attributes:
        before: the node before each node on its chain; None at the start.
        last: the node that ends last, at ``end_s``.
    """

    before: dict[_Node, _Node | None]
    last: _Node
    end_s: float

    @classmethod
    def of(cls, steps: tuple[Step, ...], durations_s: FloatArray, host_s: FloatArray) -> _Walk:
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
    return found[0]
