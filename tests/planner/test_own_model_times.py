"""Times of an own model that are not finite, or below 0, are an error, and not "nothing fits"."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import final

import numpy as np
import pytest

from costmodels.collective.alpha_beta import AlphaBeta
from costmodels.collective.base import AbstractCollectiveModel
from costmodels.datatypes import FloatArray
from costmodels.dense.base import AbstractDenseModel, DenseTimes
from costmodels.dense.roofline import DenseRoofline as DenseRoofline
from costmodels.lookup.base import AbstractLookupModel, LookupShards
from costmodels.lookup.roofline import Roofline
from costmodels.stages.models import CostModels
from costmodels.topology import Topology
from costmodels.workload import Workload
from planner import estimate, load_system, load_workload, plan

WRONG = (math.nan, math.inf, -1.0)


def odd(model: Odd | OddLookup, seconds: FloatArray, what: str) -> FloatArray:
    """Seconds of ``what``; those above 0 are wrong if the model is odd there."""
    wrong = np.where(seconds > 0, model.wrong_s, seconds)
    return np.asarray(wrong if model.what == what else seconds)


@final
@dataclass(frozen=True, slots=True)
class Odd(AbstractCollectiveModel):
    """Alpha-beta, but for one collective, whose busy ranks take a time that is wrong."""

    wrong_s: float
    what: str
    inner: AlphaBeta = field(default_factory=AlphaBeta)

    def fixed_s(self, topology: Topology, *, ranks: int, across_hosts: bool) -> float:
        """Latency, or what is wrong."""
        seconds = self.inner.fixed_s(topology, ranks=ranks, across_hosts=across_hosts)
        return self.wrong_s if self.what == "fixed" else seconds

    def all_to_all(self, send: FloatArray, receive: FloatArray, topology: Topology) -> FloatArray:
        """Seconds per rank."""
        return odd(self, self.inner.all_to_all(send, receive, topology), "all_to_all")

    def reduce_scatter(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool
    ) -> FloatArray:
        """Seconds per rank."""
        seconds = self.inner.reduce_scatter(num_bytes, topology, within_host=within_host)
        return odd(self, seconds, "within a host" if within_host else "over all")


@final
@dataclass(frozen=True, slots=True)
class OddLookup(AbstractLookupModel):
    """A roofline whose forward or backward lookups take a time that is wrong."""

    wrong_s: float
    what: str
    inner: Roofline = field(default_factory=Roofline)

    def shards_work(self, shards: LookupShards, topology: Topology) -> FloatArray:
        """As the roofline."""
        return self.inner.shards_work(shards, topology)

    def forward_time(self, work: FloatArray, topology: Topology) -> FloatArray:
        """Seconds."""
        return odd(self, self.inner.forward_time(work, topology), "forward")

    def backward_time(self, work: FloatArray, topology: Topology) -> FloatArray:
        """Seconds."""
        return odd(self, self.inner.backward_time(work, topology), "backward")


@final
@dataclass(frozen=True, slots=True)
class OddDense(AbstractDenseModel):
    """A roofline whose optimizer takes a time that is wrong."""

    wrong_s: float

    def times(self, workload: Workload, topology: Topology) -> DenseTimes:
        """As the roofline, but for the optimizer."""
        return replace(DenseRoofline().times(workload, topology), optimizer_s=self.wrong_s)


COLLECTIVES = ("fixed", "all_to_all", "within a host", "over all")


@pytest.mark.parametrize("wrong_s", WRONG)
@pytest.mark.parametrize("what", [*COLLECTIVES, "forward", "backward", "dense"])
def test_a_search_says_what_takes_a_wrong_time(what: str, wrong_s: float) -> None:
    """It said "nothing fits", as if that were proven, or left such plans out in silence."""
    models = CostModels(collective=Odd(wrong_s=wrong_s, what=what))
    if what in ("forward", "backward"):
        models = CostModels(lookup=OddLookup(wrong_s=wrong_s, what=what))
    if what == "dense":
        models = CostModels(dense=OddDense(wrong_s=wrong_s))
    workload, system = load_workload("small_demo"), load_system("h100_sxm", gpus=16)
    with pytest.raises(ValueError, match=r"takes .* must be finite"):
        plan(workload, system, models=models, max_evaluations=100)


def test_a_model_without_wrong_times_is_searched() -> None:
    """The stand-ins themselves are sound."""
    workload, system = load_workload("small_demo"), load_system("h100_sxm", gpus=16)
    models = CostModels(collective=Odd(wrong_s=0.0, what="nothing"))
    found = plan(workload, system, models=models, max_evaluations=100)
    assert found.solver.bound is not None
    priced = estimate(workload, system, found.plan, models=models)
    assert priced.estimate.time.time_s == pytest.approx(found.solver.value)
