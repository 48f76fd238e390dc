"""The bound by patterns, computed in another process beside the search.

It raises the bound alone, so that the speed of the other process cannot change the plan. It may do
as much work as the search has left when it begins, and the search waits for it at the end. If no
process can be started, it is computed then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from planner.search.base import Record
from planner.search.bounds.patterns.pattern_bound import PatternBound, Proof
from planner.search.bounds.patterns.task import PatternTask
from planner.search.common.linear import LinearModel
from planner.search.common.other_process import OtherProcess, serve_standard_streams
from planner.search.common.schedule import Schedule
from planner.space.effort import Meter

_MOST_S: Final = 600.0
"""Most nominal seconds of a proof, also in a search without a limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the other process is asked to prove.

    Attributes:
        task: options of tables and the known plan.
        bound: what is known already.
        most_s: nominal seconds that it may take.
    """

    task: PatternTask
    bound: float
    most_s: float


class PatternsBeside:
    """The bound by patterns of one search; ask :meth:`worth_it` first.

    Args:
        task: options of tables and the known plan.
        record: of the search.
    """

    def __init__(self, task: PatternTask, record: Record) -> None:
        """Begin in another process, or wait until the proof is collected."""
        meter = record.evaluate.meter
        self._begun_s = meter.spent_s
        self._request: Request | None = Request(
            task=task,
            bound=task.base_s if record.bound is None else record.bound,
            most_s=min(meter.left_s, _MOST_S),
        )
        self._other = OtherProcess(__name__)
        self._is_beside = self._other.send(self._request)

    @staticmethod
    def worth_it(model: LinearModel, record: Record, schedule: Schedule) -> bool:
        """Whether ranks hold so few pieces, and options are so few, that it helps in time."""
        space, gap = model.space, record.gap_ratio
        placed = int((~space.is_uniform).sum())
        most_tables = schedule.pattern_tables_per_rank * space.world_size
        return (
            space.world_size >= schedule.pattern_ranks
            and space.num_tables <= most_tables
            and 0 < placed <= schedule.pattern_options
            and record.evaluate.meter.left_s >= schedule.pattern_work_s
            and gap is not None
            and gap >= schedule.pattern_gap_ratio
        )

    def collect(self, record: Record) -> None:
        """Wait for the proof, and take it.

        Its work counts as work of the search as far as the search did less meanwhile.
        """
        request, self._request = self._request, None
        if request is None:
            return
        if self._is_beside:
            self._other.wait(lambda: record.cut)
            replies: list[Proof] = list(self._other.replies)
        else:
            replies = list(answer(request, lambda: record.cut))
        if not replies:
            return
        meter, last = record.evaluate.meter, replies[-1]
        beside_s = meter.spent_s - self._begun_s
        meter.spend(max(last.spent_s - beside_s, 0.0))
        record.raise_bound(min(last.bound, record.value), "patterns")

    def close(self) -> None:
        """End the process."""
        self._other.close()


def answer(request: Request, stopped: Callable[[], bool] = lambda: False) -> Iterator[Proof]:
    """Prove one target after the other, and yield each.

    Args:
        request: what to prove.
        stopped: is asked often; True ends the proof with what it has.
    """
    meter = Meter(request.most_s)
    proof = PatternBound(request.task, request.bound, meter)

    def ended() -> bool:
        return meter.is_empty or stopped()

    goes_on = True
    while goes_on and not ended():
        goes_on = proof.advance(ended)
        yield Proof(bound=proof.bound, spent_s=meter.spent_s)


if __name__ == "__main__":
    serve_standard_streams(answer)
