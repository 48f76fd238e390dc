"""Chooses plans for N hosts and for fewer hosts together, so that a lost host moves few bytes.

For every number of hosts, one plan is searched alone. Other plans begin from a plan for one host
more: the shards of the host with the fewest bytes are put on the other hosts, and the search may
then move as many bytes as that takes, or up to three times as many.

A chain has one plan for each number of hosts, each within a tolerance of the fastest plan for its
hosts. The family is the chain that moves the fewest bytes. If the mean time between failures is
known, it is the chain that loses the least time to moves and to slower iterations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Final

from costmodels.pipeline import CostPipeline
from costmodels.sharding import ShardingType
from planner import api
from planner.errors import InfeasibleError, InvalidInputError, NoPlanFoundError, StoppedError
from planner.family.losses import after_a_loss, host_losses
from planner.family.near import NearPlanInUse
from planner.family.request import FamilyRequest, check, fewer_hosts
from planner.family.telling import checkpoint, notes
from planner.problem import PlanningProblem
from planner.result import Candidate, FamilyMember, HostLoss, PlanFamily, PlanningResult
from planner.search.auto import Auto
from planner.search.base import OPTIMALITY_GAP, AbstractStrategy
from planner.search.common.leave_out import SearchPart
from planner.settings import SearchSettings
from planner.space.objective import MakePipeline
from planner.support.status import Status

_BUDGETS: Final = (1.0, 1.5, 3.0)
"""Bytes that a search from a larger plan may move, as multiples of those that the lost host forces
it to move."""
_MOST: Final = 3
"""From this many plans for one number of hosts, plans for one host fewer are searched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """A plan for some number of hosts, and the cheapest chain that leads to it.

    Attributes:
        result: the plan.
        cost: cost of the chain: bytes that move, or seconds if the time between failures is known.
        before: the plan for one host more in that chain.
    """

    result: PlanningResult
    cost: float = 0.0
    before: _Node | None = None

    @property
    def time_s(self) -> float:
        return self.result.estimate.time.time_s


def with_family(
    result: PlanningResult,
    asked: FamilyRequest,
    *,
    search: SearchSettings,
    make_pipeline: MakePipeline = CostPipeline,
    should_stop: Callable[[], bool] = lambda: False,
    progress: Callable[[str], None] = lambda _: None,
) -> PlanningResult:
    """Add a family of plans to a result; the plan of the returned result is its first member.

    That plan can be another one than the best, up to the tolerance. If a plan in use limits what
    moves, the plan of the result is kept.

    Args:
        result: the result of a search on all hosts.
        asked: how many hosts may be lost, and how much slower members may be.
        search: how to search for each further plan.
        make_pipeline: makes what prices plans, as in :func:`planner.api.solve`.
        should_stop: called again and again; if it is True, the result is returned as it is.
        progress: called with each number of hosts that is done.

    Raises:
        InvalidInputError: hosts differ, something is tied to single ranks or hosts, or there are
            too few hosts.
        InfeasibleError: it is proven that no plan fits on one of the smaller numbers of hosts.
        NoPlanFoundError: a search ended without a plan that fits.
    """
    check(result.problem, asked)
    maker = _Maker(result, asked, search, make_pipeline, should_stop)
    try:
        return maker.family(progress)
    except StoppedError:
        return result


class _Maker:
    """Searches plans for one number of hosts after the other, starting with all hosts."""

    def __init__(
        self,
        result: PlanningResult,
        asked: FamilyRequest,
        search: SearchSettings,
        make_pipeline: MakePipeline,
        should_stop: Callable[[], bool],
    ) -> None:
        self.result, self.asked, self.should_stop = result, asked, should_stop
        self.search = replace(search, with_baselines=False, kept_s=0.0)
        self.make_pipeline = make_pipeline
        self.alone = [result]

    def family(self, progress: Callable[[str], None]) -> PlanningResult:
        """Search plans for all numbers of hosts, and choose the cheapest chain through them."""
        kept = self._first()
        fastest = [min(kept, key=lambda n: n.time_s)]
        for lost in range(1, self.asked.lost_hosts + 1):
            problem = fewer_hosts(self.result.problem, self.asked, lost)
            kept = self._next(problem, kept)
            fastest.append(min(kept, key=lambda n: n.time_s))
            progress(f"{problem.topology.num_hosts} hosts")
        node: _Node | None = min(kept, key=lambda n: n.cost)
        chain: list[_Node] = []
        while node is not None:
            chain.insert(0, node)
            node = node.before
        return self._told(chain, fastest)

    def solve(self, problem: PlanningProblem, *, search: SearchSettings) -> PlanningResult:
        """Search a plan for a further problem.

        Raises:
            StoppedError: ``should_stop`` was True.
            PlannerError: in the cases of :func:`planner.api.solve`.
        """
        found = api.solve(
            problem, search=search, make_pipeline=self.make_pipeline, should_stop=self.should_stop
        )
        self._refuse_stop()
        return found

    def _searching(self, strategy: AbstractStrategy) -> SearchSettings:
        """The settings with another strategy, which needs no proofs: a bound is known already."""
        return replace(self.search, strategy=strategy)

    def _first(self) -> list[_Node]:
        """Plans for all hosts: the best one, and others that a lost host may change less."""
        result = self.result
        found = [result]
        if result.problem.move_limit is None:
            found += [_with_plan(result, runner) for runner in result.runners_up]
            kinds = {p.sharding_type for p in result.plan.placements}
            if ShardingType.ROW_WISE in kinds:
                found += self._without_row_wise(result)
        return self._kept([_Node(result=r, cost=self._waiting(r, found)) for r in found])

    def _without_row_wise(self, result: PlanningResult) -> list[PlanningResult]:
        """The best plan without row-wise tables, all of whose rows shift when a host is lost."""
        rules = result.problem.constraints
        kinds = tuple(k for k in rules.sharding_types if k is not ShardingType.ROW_WISE)
        problem = replace(result.problem, constraints=replace(rules, sharding_types=kinds))
        try:
            other = self.solve(
                problem, search=self._searching(Auto(frozenset({SearchPart.PROOFS})))
            )
        except (InfeasibleError, InvalidInputError):
            return []
        except NoPlanFoundError:
            self._refuse_stop()
            return []
        return [_with_plan(result, other.best)]

    def _next(self, problem: PlanningProblem, before: Sequence[_Node]) -> list[_Node]:
        """Plans for one host fewer, each with the cheapest chain to it."""
        alone = self._alone(problem)
        self.alone.append(alone)
        found = [alone]
        for node in before:
            found += self._from_larger(problem, alone, node.result)
        nodes = []
        for result in found:
            waiting = self._waiting(result, found)
            chains = [(n.cost + self._moving(n.result, result) + waiting, n) for n in before]
            cost, parent = min(chains, key=lambda c: c[0])
            nodes.append(_Node(result=result, cost=cost, before=parent))
        return self._kept(nodes)

    def _alone(self, problem: PlanningProblem) -> PlanningResult:
        hosts = problem.topology.num_hosts
        where = f"with {hosts} {'host' if hosts == 1 else 'hosts'} left: "
        try:
            return self.solve(problem, search=self.search)
        except InfeasibleError as error:
            message = f"{where}{error}"
            raise InfeasibleError(
                message, shortfall_bytes=error.shortfall_bytes, advice=error.advice
            ) from error
        except NoPlanFoundError as error:
            self._refuse_stop()
            message = f"{where}{error}"
            raise NoPlanFoundError(message) from error

    def _from_larger(
        self, problem: PlanningProblem, alone: PlanningResult, larger: PlanningResult
    ) -> list[PlanningResult]:
        """Plans near a larger one, with more and more bytes that may move.

        If the time between failures is not known, it ends with the first plan that is within the
        tolerance of the plan that was found alone.
        """
        limit = after_a_loss(larger.plan, problem.workload, problem.topology)
        if limit is None:
            return []
        found = []
        for budget in _BUDGETS:
            asked = replace(limit, max_bytes=budget * (limit.max_bytes or 0.0))
            try:
                near = self.solve(
                    replace(problem, move_limit=asked), search=self._searching(NearPlanInUse())
                )
            except NoPlanFoundError:
                self._refuse_stop()
                continue
            except InfeasibleError:
                continue
            found.append(_with_plan(alone, near.best))
            close = found[-1].estimate.time.time_s <= self._most_s(alone)
            if close and self.asked.mtbf_s is None:
                break
        return found

    def _refuse_stop(self) -> None:
        """Raise ``StoppedError`` if the search was stopped; finding nothing then proves nothing."""
        if self.should_stop():
            message = "stopped before the family was complete"
            raise StoppedError(message)

    def _kept(self, nodes: Sequence[_Node]) -> list[_Node]:
        """The fastest plan, and the plans with the cheapest chains within the tolerance of it."""
        fastest = min(nodes, key=lambda n: n.time_s)
        close = [n for n in nodes if n.time_s <= self._most_s(fastest.result) and n is not fastest]
        close.sort(key=lambda n: (n.cost, self._forced_bytes(n.result), n.time_s))
        return [fastest, *close[: _MOST - 1]]

    def _forced_bytes(self, result: PlanningResult) -> float:
        """About how many bytes other ranks have to receive if one more host is lost."""
        if result.problem.topology.num_hosts == 1:
            return 0.0
        smaller = fewer_hosts(result.problem, self.asked).topology
        limit = after_a_loss(result.plan, result.problem.workload, smaller)
        return math.inf if limit is None else limit.max_bytes or 0.0

    def _most_s(self, fastest: PlanningResult) -> float:
        return fastest.estimate.time.time_s * (1 + self.asked.tolerance_ratio)

    def _waiting(self, result: PlanningResult, others: Sequence[PlanningResult]) -> float:
        """Seconds lost to a slower plan until the next host fails."""
        if self.asked.mtbf_s is None:
            return 0.0
        fastest_s = min(r.estimate.time.time_s for r in others)
        slower = result.estimate.time.time_s / fastest_s - 1.0
        return slower * self.asked.mtbf_s / result.problem.topology.num_hosts

    def _moving(self, before: PlanningResult, after: PlanningResult) -> float:
        """Bytes received, or seconds if failures are known: the mean over the hosts to lose."""
        losses = self._losses(before, after)
        if self.asked.mtbf_s is None:
            return mean(loss.received_bytes for loss in losses)
        return mean(loss.time_s for loss in losses)

    def _losses(self, before: PlanningResult, after: PlanningResult) -> tuple[HostLoss, ...]:
        problem, rate = after.problem, self.asked.restore_bytes_per_s
        return host_losses(before.plan, after.plan, problem.workload, problem.topology, rate)

    def _told(self, chain: Sequence[_Node], fastest: Sequence[_Node]) -> PlanningResult:
        members = []
        for level, (node, quickest) in enumerate(zip(chain, fastest, strict=True)):
            losses: tuple[HostLoss, ...] = ()
            alone, to_fastest = losses, losses
            if level:
                losses = self._losses(chain[level - 1].result, node.result)
                alone = self._losses(self.alone[level - 1], self.alone[level])
                to_fastest = self._losses(chain[level - 1].result, quickest.result)
            saved, interval_s = checkpoint(node.result, self.asked.mtbf_s)
            members.append(
                FamilyMember(
                    result=node.result,
                    fastest_s=quickest.time_s,
                    losses=losses,
                    alone=alone,
                    alone_s=self.alone[level].estimate.time.time_s,
                    to_fastest=to_fastest,
                    checkpoint_bytes=saved,
                    checkpoint_interval_s=interval_s,
                )
            )
        family = PlanFamily(members=tuple(members), notes=notes(self.asked, members))
        return replace(members[0].result, family=family)


def _with_plan(result: PlanningResult, other: Candidate) -> PlanningResult:
    """A result with another plan of the same problem, compared with the same bound.

    If the plan is slower than one that was proven optimal, the status changes. The plan can also be
    faster than the bound, if it keeps a cut of a larger plan that is not among the listed options;
    the bound is then lowered to its time.
    """
    others = (c for c in (result.best, *result.runners_up) if c.plan != other.plan)
    value, found = other.estimate.time.time_s, result.solver
    solver = replace(
        found,
        value=value,
        bound=None if found.bound is None else min(found.bound, value),
        separable_value=None,
        balanced_value=None,
    )
    if solver.status is Status.OPTIMAL and (solver.gap_ratio or 0.0) > OPTIMALITY_GAP:
        solver = replace(solver, status=Status.GAP)
    best = replace(other, name=result.best.name)
    return replace(result, best=best, solver=solver, runners_up=tuple(others))
