"""One plan for several scenarios: the same tables with other index distributions or batch sizes.

The works of the S scenarios lie side by side in one array, ``[..., W, S x F]`` (W ranks, F columns
of work each), so that a search moves a table in all scenarios at once. A plan must fit in memory in
every scenario. Proofs and packings look only at the memory of the scenario that leaves least of it.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.estimates import IterationEstimate, MemoryLedger
from costmodels.pipeline import CostPipeline
from costmodels.shard_work.cells import OptionWork
from costmodels.sharding import Plan, ShardingOption, ShardingType
from costmodels.workload import Table, Workload
from planner.errors import refuse_any
from planner.space.objective import AbstractObjective, Cut


class ScenarioRule(StrEnum):
    """Which value of the scenarios a robust search minimizes: the worst, or the mean."""

    WORST = "worst"
    MEAN = "mean"


def check_scenarios(workload: Workload, scenarios: Sequence[Workload]) -> None:
    """Refuse scenarios that have other tables than the workload.

    Raises:
        InvalidInputError: one line for each scenario in which a table has another name, shape,
            type, pooling, module or other features, or the tables another order.
    """
    problems = []
    shapes = {t.name: _shape(t) for t in workload.tables}
    for scenario in scenarios:
        other = {t.name: _shape(t) for t in scenario.tables}
        differ = sorted(n for n in {*shapes, *other} if shapes.get(n) != other.get(n))
        same_order = [t.name for t in scenario.tables] == [t.name for t in workload.tables]
        if differ or not same_order:
            what = f"table {differ[0]!r}" if differ else "the order of tables"
            problems.append(
                f"scenario {scenario.name!r} differs from {workload.name!r} in {what}; only "
                "batches and how often rows are looked up may differ"
            )
    refuse_any(problems)


def _shape(table: Table) -> tuple[object, ...]:
    """What makes a table another one; how often its rows are looked up is left out."""
    return (
        *(table.num_embeddings, table.embedding_dim, table.dtype, table.communication),
        *(table.pooling, table.is_weighted, table.module, [f.name for f in table.features]),
    )


class ScenarioPipeline(CostPipeline):
    """Prices plans in several scenarios at once.

    Estimates and samples, which reports show, are those of the first scenario: the workload itself.
    """

    def __init__(self, pipelines: Sequence[CostPipeline]) -> None:
        """Join one pipeline per scenario; all are for one topology."""
        first = pipelines[0]
        super().__init__(first.workload, first.topology, first.models)
        self.pipelines = tuple(pipelines)
        self.num_features = sum(p.num_features for p in pipelines)
        left = [float(p.device_limits.min()) for p in pipelines]
        self._tightest = int(np.argmin(left))

    def options_work(self, options: Sequence[ShardingOption]) -> list[OptionWork]:
        """The works of each option in all scenarios, side by side."""
        of_each = zip(*(p.options_work(options) for p in self.pipelines), strict=True)
        return [OptionWork.of(np.concatenate([w.full for w in ws], axis=-1)) for ws in of_each]

    def plan_work(self, plan: Plan) -> FloatArray:
        """The work of a plan in all scenarios, side by side: ``[W, S x F]``."""
        return np.concatenate([p.plan_work(plan) for p in self.pipelines], axis=-1)

    def split(self, work: FloatArray) -> list[FloatArray]:
        """Take the works of the scenarios apart again."""
        return np.split(work, len(self.pipelines), axis=-1)

    def device_bytes(self, work: FloatArray) -> FloatArray:
        """Embedding bytes on each device in the scenario that leaves least memory."""
        return self.pipelines[self._tightest].device_bytes(self.split(work)[self._tightest])

    def host_bytes(self, work: FloatArray) -> FloatArray:
        """Embedding bytes in each host's memory in the scenario that leaves least device memory."""
        return self.pipelines[self._tightest].host_bytes(self.split(work)[self._tightest])

    def overflow_bytes(self, work: FloatArray, allowed_ratio: float) -> FloatArray:
        """Bytes beyond the limits of memory, added up over the scenarios."""
        works = zip(self.pipelines, self.split(work), strict=True)
        return np.asarray(sum(p.overflow_bytes(w, allowed_ratio) for p, w in works))

    @cached_property
    def device_limits(self) -> FloatArray:
        """Device bytes for embeddings, ``[W]``, in the scenario that leaves least device memory."""
        return self.pipelines[self._tightest].device_limits

    def iteration_times(self, work: FloatArray) -> FloatArray:
        """Seconds per iteration of the slowest scenario."""
        works = zip(self.pipelines, self.split(work), strict=True)
        return np.asarray(np.max([p.iteration_times(w) for p, w in works], axis=0))

    def estimate(self, plan: Plan) -> IterationEstimate:
        """Everything about one iteration of a plan in the first scenario.

        Raises:
            InvalidValueError: the plan is not one of this workload on this many ranks.
        """
        return self.pipelines[0].estimate(plan)

    def sampled_times(self, plan: Plan) -> FloatArray:
        """Iteration times ``[samples]`` in the first scenario."""
        return self.pipelines[0].sampled_times(plan)

    def memory(self, plan: Plan) -> MemoryLedger:
        """The ledger of the scenario that leaves least free on its fullest rank.

        A scenario in which the plan does not fit comes before all others. Ranks may differ in
        memory, so the scenario with most bytes on a rank is not always the one that leaves least.
        """
        ledgers = [p.memory(plan) for p in self.pipelines]
        return min(ledgers, key=lambda ledger: (ledger.fits, ledger.fullest.headroom_bytes))


def _joined(name: str) -> Any:
    """A property of an objective over scenarios: that of all of them, one after the other."""
    return property(lambda self: np.concatenate([getattr(o, name) for o in self._inner]))


class RobustObjective(AbstractObjective):
    """The worst or the mean of one objective over scenarios.

    Its phases are the phases of all scenarios, one scenario after the other. A cut is a linear
    lower bound on the objective. The mean of the scenarios' cuts bounds the mean of the objectives,
    and so the worst of them; the cut of a single scenario bounds the worst.
    """

    name = "robust"

    def __init__(self, inner: Sequence[AbstractObjective], how: ScenarioRule) -> None:
        """Join the objectives ``inner``, one for each scenario."""
        self.name = f"{how} {inner[0].name}"  # type: ignore[misc]
        self._inner = tuple(inner)
        self._how = how
        self._sizes = np.cumsum([0, *(len(o.weights) for o in inner)])

    weights, parts, hidden = map(_joined, ("weights", "parts", "hidden"))

    @property
    def slowness(self) -> FloatArray | None:
        """How many times as long the phases of all scenarios take on each rank; None if alike."""
        found = [slow for o in self._inner if (slow := o.slowness) is not None]
        return np.concatenate(found, axis=1) if len(found) == len(self._inner) else None

    def values(self, work: FloatArray) -> FloatArray:
        """The worst or the mean of the scenarios' values."""
        return self._merge([o.values(part) for o, part in self._parts(work)])

    def proven_values(self, work: FloatArray, values: FloatArray) -> FloatArray:
        """The worst or the mean of the scenarios' proven values."""
        proven = [o.proven_values(part, o.values(part)) for o, part in self._parts(work)]
        return np.minimum(values, self._merge(proven))

    def _parts(self, work: FloatArray) -> Iterator[tuple[AbstractObjective, FloatArray]]:
        """The objective of each scenario with its part of the work ``[..., S x F]``."""
        return zip(self._inner, np.split(work, len(self._inner), axis=-1), strict=True)

    def _merge(self, values: Sequence[FloatArray]) -> FloatArray:
        """The worst or the mean of the values of the scenarios."""
        merge = np.max if self._how is ScenarioRule.WORST else np.mean
        return np.asarray(merge(np.stack(values), axis=0))

    def gradient(self, row: FloatArray) -> FloatArray:
        """The tangents of each scenario's phases, at its own part of the work."""
        from scipy.linalg import block_diag  # which takes long to load

        return np.asarray(block_diag(*(o.gradient(part) for o, part in self._parts(row))))

    def always(self) -> Cut:
        """The mean of the scenarios' cuts."""
        return self._mean([o.always() for o in self._inner])

    def cut(
        self,
        phases: FloatArray,
        types: frozenset[ShardingType],
        optional: frozenset[ShardingType] = frozenset(),
    ) -> Cut | None:
        """A lower bound that is as high as possible at given phase durations.

        For the mean, the mean of the scenarios' best cuts; for the worst, the highest of them.
        """
        best, values = [], []
        for i, inner in enumerate(self._inner):
            own = phases[self._sizes[i] : self._sizes[i + 1]]
            found = inner.always(), inner.cut(own, types, optional)
            cuts = [cut for cut in found if cut is not None]
            heights = [c.base + float(c.slopes @ own) for c in cuts]
            best.append(cuts[int(np.argmax(heights))])
            values.append(max(heights))
        if self._how is ScenarioRule.MEAN:
            return self._mean(best)
        at = int(np.argmax(values))
        slopes = np.zeros(int(self._sizes[-1]))
        slopes[self._sizes[at] : self._sizes[at + 1]] = best[at].slopes
        return Cut(base=best[at].base, slopes=slopes)

    def _mean(self, cuts: Sequence[Cut]) -> Cut:
        count = len(cuts)
        return Cut(
            base=sum(c.base for c in cuts) / count,
            slopes=np.concatenate([c.slopes for c in cuts]) / count,
        )
