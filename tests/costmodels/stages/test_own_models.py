"""Models of users whose answers have another shape or kind than what they are asked for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest

from costmodels.collective.alpha_beta import AlphaBeta
from costmodels.collective.base import AbstractCollectiveModel
from costmodels.datatypes import FloatArray
from costmodels.dense.base import AbstractDenseModel, DenseTimes
from costmodels.discovery import of_users
from costmodels.lookup.base import NUM_LOOKUP_WORK, AbstractLookupModel, LookupShards
from costmodels.lookup.roofline import Roofline
from costmodels.pipeline import CostPipeline
from costmodels.stages.models import CostModels
from costmodels.system_models import ScaledLookup
from costmodels.topology import Topology
from costmodels.workload import Workload
from planner import load_system, load_workload, plan
from tests.costmodels.stages.stand_ins import models_of

Change = Callable[[FloatArray], Any]
SYSTEM = load_system("h100_sxm", gpus=16)


def same(seconds: FloatArray) -> FloatArray:
    """No change."""
    return seconds


@final
@dataclass(frozen=True)
class Network(AbstractCollectiveModel):
    """Alpha-beta whose answers are changed."""

    fixed: Change = same
    exchange: Change = same
    reduce: Change = same
    whole: Change = same
    inner: AlphaBeta = field(default_factory=AlphaBeta)

    def fixed_s(self, topology: Topology, *, ranks: int, across_hosts: bool) -> float:
        """Latency."""
        found = self.inner.fixed_s(topology, ranks=ranks, across_hosts=across_hosts)
        return self.fixed(np.asarray(found)) if self.fixed is not same else found

    def all_to_all(self, send: FloatArray, receive: FloatArray, topology: Topology) -> FloatArray:
        """Seconds per rank."""
        found = self.inner.all_to_all(send, receive, topology)
        return found if self.exchange is same else self.exchange(found)

    def all_to_all_s(self, send: FloatArray, receive: FloatArray, topology: Topology) -> FloatArray:
        """Seconds with what is fixed."""
        found = super().all_to_all_s(send, receive, topology)
        return found if self.whole is same else self.whole(found)

    def reduce_scatter(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool
    ) -> FloatArray:
        """Seconds."""
        found = self.inner.reduce_scatter(num_bytes, topology, within_host=within_host)
        return found if self.reduce is same else self.reduce(found)


@final
@dataclass(frozen=True)
class Reads(AbstractLookupModel):
    """A roofline whose answers are changed."""

    work: Change = same
    forward: Change = same
    inner: Roofline = field(default_factory=Roofline)

    def shards_work(self, shards: LookupShards, topology: Topology) -> FloatArray:
        """Work."""
        return np.asarray(self.work(self.inner.shards_work(shards, topology)))

    def forward_time(self, work: FloatArray, topology: Topology) -> FloatArray:
        """Seconds."""
        found = self.inner.forward_time(work, topology)
        return found if self.forward is same else self.forward(found)

    def backward_time(self, work: FloatArray, topology: Topology) -> FloatArray:
        """Seconds."""
        return self.inner.backward_time(work, topology)


@final
@dataclass(frozen=True)
class Layers(AbstractDenseModel):
    """A dense part whose times are of any kind."""

    answer: Any

    def times(self, workload: Workload, topology: Topology) -> DenseTimes:
        """What was asked for."""
        return self.answer() if callable(self.answer) else self.answer


def with_column(value: float) -> Change:
    """Work whose second column has a value."""
    return lambda work: np.where(np.arange(NUM_LOOKUP_WORK) == 1, value, work)


def numbers(value: Any) -> DenseTimes:
    """Times that are all the same."""
    return DenseTimes(**{f.name: value for f in fields(DenseTimes)})


def texts() -> DenseTimes:
    """Times of which one is a text."""
    times: dict[str, Any] = {f.name: 1.0 for f in fields(DenseTimes)}
    return DenseTimes(**{**times, "optimizer_s": "1"})


FAULTS = [
    (Network(fixed=lambda s: np.ones(2)), "Network: fixed_s must give one number, got array"),
    (Network(fixed=lambda s: None), "Network: fixed_s must give one number, got None"),
    (Network(exchange=lambda s: s.max(axis=-1)), r"all_to_all .* \(2, 16\) here, got one of .*2,"),
    (Network(exchange=lambda s: s[..., None]), r"all_to_all .* got one of shape \(2, 16, 1\)"),
    (Network(exchange=lambda s: 1e-3), r"all_to_all .* got 0\.001"),
    (Network(reduce=lambda s: float(s.sum())), "reduce_scatter must give an array"),
    (Reads(forward=lambda s: s.sum(axis=-1)), r"Reads: forward_time .* \(2, 4\) here"),
    (Reads(forward=lambda s: None), "forward_time .* got None"),
    (ScaledLookup(inner=Reads(forward=lambda s: s.sum()), factor_ratio=2.0), "Reads: forward_time"),
    (Reads(work=lambda w: w[:, :5]), r"Reads: shards_work gives an array of shape .*, 5\), not "),
    (Reads(work=np.sum), r"Reads: shards_work gives an array of shape \(\), not "),
    (Reads(work=with_column(np.nan)), "a shard of table 'user' has nan of STREAM_DRAM"),
    (Reads(work=with_column(np.inf)), "a shard of table 'user' has inf of STREAM_DRAM"),
    (Reads(work=with_column(-1.0)), "a shard of table 'user' has -1 of STREAM_DRAM"),
    (Layers(None), "Layers: times must return DenseTimes of numbers, got None"),
    (Layers((1.0, 2.0)), "Layers: times must return DenseTimes of numbers, got"),
    (Layers(texts), "Layers: times must return DenseTimes of numbers, got DenseTimes"),
    (Layers(lambda: numbers(np.ones(3))), "Layers: times must return DenseTimes of numbers"),
    (Network(whole=lambda s: s.max(axis=-1)), r"Network: all_to_all_s must .* got one of shape"),
]


@pytest.mark.parametrize(("model", "fault"), FAULTS, ids=[f for _, f in FAULTS])
def test_what_a_model_gives_is_refused_by_its_name(model: Any, fault: str) -> None:
    """It said that nothing fits, took the price, or ended in the middle of the search."""
    with pytest.raises(ValueError, match=fault):
        plan(load_workload("small_demo"), SYSTEM, models=models_of(model), max_evaluations=30)


def test_a_fixed_time_may_be_an_array_of_one_number() -> None:
    """As ``np.where`` gives it."""
    model = Network(fixed=lambda s: np.where(s > 0, s, 1e-5))
    CostPipeline(load_workload("small_demo"), SYSTEM, models_of(model))


def test_sound_models_of_users_are_taken_on_any_number_of_ranks() -> None:
    """The stand-ins themselves are sound."""
    for gpus in (1, 3, 24):
        for model in (Network(), Reads(), ScaledLookup(inner=Reads(), factor_ratio=2.0)):
            system = load_system("h100_sxm", gpus=gpus, gpus_per_host=min(gpus, 8))
            CostPipeline(load_workload("small_demo"), system, models_of(model))


def test_a_model_of_a_user_is_found_inside_others() -> None:
    """And shipped models are none."""
    own = Reads()
    assert of_users(own) is own
    assert of_users(ScaledLookup(inner=own, factor_ratio=2.0)) is own
    assert of_users(ScaledLookup(inner=Roofline(), factor_ratio=2.0)) is None


def test_shapes_of_models_that_are_asked_directly() -> None:
    """Work is checked where a model prices all shards at once, too."""

    class Columns(Roofline):
        def shards_work(self, shards: Any, topology: Topology) -> FloatArray:
            return super().shards_work(shards, topology)[:, :4]

    with pytest.raises(ValueError, match=r"Columns: shards_work gives .*, 4\), not"):
        plan(
            load_workload("small_demo"),
            SYSTEM,
            models=CostModels(lookup=Columns()),
            max_evaluations=30,
        )


OWN_FILE = """
from costmodels.collective.alpha_beta import AlphaBeta
from costmodels.collective.base import AbstractCollectiveModel


class Mine(AbstractCollectiveModel):

    def __init__(self, factor=2.0):
        self.factor, self.beside = factor, object()

    def fixed_s(self, topology, *, ranks, across_hosts):
        return 0.0

    def all_to_all(self, send, receive, topology):
        return FACTOR * AlphaBeta().all_to_all(send, receive, topology)

    def reduce_scatter(self, num_bytes, topology, *, within_host):
        return AlphaBeta().reduce_scatter(num_bytes, topology, within_host=within_host)
"""
HASH = """
import sys
from dataclasses import replace
from costmodels.system_models import ScaledCollective
from costmodels.stages.models import CostModels
from planner import load_system, load_workload
from planner.io.plan.result_json import inputs_hash
from planner.problem import PlanningProblem
sys.path.insert(0, sys.argv[1])
from mine import Mine
problem = PlanningProblem(
    workload=load_workload("small_demo"), topology=load_system("h100_sxm", gpus=8)
)
for model in (Mine(), Mine(3.0), ScaledCollective(inner=Mine(), factor_ratio=1.5)):
    print(inputs_hash(replace(problem, models=CostModels(collective=model))))
"""


def test_a_changed_formula_is_another_problem(tmp_path: Path) -> None:
    """Journals went on with results of the old formula, or with none: each run had other hashes."""

    def hashes(factor: str) -> list[str]:
        (tmp_path / "mine.py").write_text(OWN_FILE.replace("FACTOR", factor))
        command = [sys.executable, "-c", HASH, str(tmp_path)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    before = hashes("2.0")
    assert hashes("2.0") == before
    assert not set(hashes("3.0")) & set(before)
    assert len(set(before)) == 3


class Helper:
    """Something that a model may hold, without a text of its own."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Slots:
    """The same without a dictionary."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def long(value: float) -> FloatArray:
    """An array whose text leaves out the number that differs."""
    found = np.zeros(5000)
    found[2500] = value
    return found


@pytest.mark.parametrize(
    "made",
    [long, Helper, Slots, lambda v: (long(v),), lambda v: {"a": [Helper(v), 1.0]}, np.float32],
)
def test_whatever_a_model_holds_tells_it_from_others(made: Callable[[float], Any]) -> None:
    """Unlike models with one hash would be given the results of each other."""
    one, same_one, other = (models_of(Layers(made(v))).description for v in (1.0, 1.0, 2.0))
    assert one == same_one != other


def test_what_has_no_text_of_its_own_is_never_taken_for_another() -> None:
    """Functions are told apart, also where that means to search again."""
    one, other = (models_of(Layers(f)).description for f in (lambda: 1.0, lambda: 2.0))
    assert one != other
    holder = Helper(None)
    holder.value = holder
    assert models_of(Layers(holder)).description
    assert not CostModels().description
