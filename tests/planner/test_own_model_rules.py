"""Own models that break a rule of bounds are refused by name; before, their bounds were wrong."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.collective.alpha_beta import AlphaBeta
from costmodels.collective.base import AbstractCollectiveModel
from costmodels.datatypes import FloatArray
from costmodels.errors import InvalidValueError
from costmodels.lookup.base import AbstractLookupModel, LookupShards
from costmodels.lookup.roofline import Roofline
from costmodels.measured.curves import Collective
from costmodels.pipeline import CostPipeline
from costmodels.stages.models import CostModels, require_rules
from costmodels.system_models import ScaledCollective
from costmodels.topology import Topology
from planner import load_system, load_workload, plan
from planner.cli.run import run
from planner.objectives.iteration import IterationTime
from planner.objectives.phases import SynchronizedPhases
from planner.problem import PlanningProblem
from planner.search.bounds.proofs import linear_floor
from planner.solving.prepare import search_space
from planner.space.objective import AbstractObjective
from tests.costmodels.stages.stand_ins import models_of
from tests.planner.fullest_device import FullestDevice


@final
@dataclass(frozen=True)
class Network(AbstractCollectiveModel):
    """Alpha-beta with changed all-to-alls, reduce-scatters or all-gathers."""

    power: float = 1.0
    more_s: float = 0.0
    mean_ratio: float = 0.0
    pays: bool = False
    within_more_s: float = 0.0
    falls: bool = False
    whole_ratio: float = 1.0
    inner: AlphaBeta = field(default_factory=AlphaBeta)

    @property
    def pays_for_others(self) -> bool:
        """As it was asked to say."""
        return self.pays

    def fixed_s(self, topology: Topology, *, ranks: int, across_hosts: bool) -> float:
        """Latency."""
        return self.inner.fixed_s(topology, ranks=ranks, across_hosts=across_hosts)

    def all_to_all(self, send: FloatArray, receive: FloatArray, topology: Topology) -> FloatArray:
        """Seconds per rank."""
        seconds = self.inner.all_to_all(send, receive, topology)
        mean = seconds.mean(axis=-1, keepdims=True)
        mixed = (1 - self.mean_ratio) * seconds + self.mean_ratio * mean
        return np.asarray(mixed**self.power + self.more_s)

    def reduce_scatter(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool
    ) -> FloatArray:
        """Seconds."""
        seconds = self.inner.reduce_scatter(num_bytes, topology, within_host=within_host)
        if self.falls:
            seconds = np.maximum(1e-3 - seconds, 0.0) * (num_bytes > 0)
        return seconds + (self.within_more_s if within_host else 0.0)

    def buffer_s(
        self, kind: Collective, num_bytes: FloatArray, topology: Topology, *, within_host: bool
    ) -> FloatArray:
        """Seconds with what is fixed; no bound rests on those of an all-gather."""
        seconds = super().buffer_s(kind, num_bytes, topology, within_host=within_host)
        ratios = {
            Collective.REDUCE_SCATTER: self.whole_ratio,
            Collective.ALL_GATHER: 0.8,
            Collective.ALL_REDUCE: 1.0,
        }
        return seconds * ratios[kind]


@final
@dataclass(frozen=True)
class Reads(AbstractLookupModel):
    """A roofline with a latency in front of forward lookups, or with the shorter of two times."""

    latency_s: float = 0.0
    shorter: bool = False
    inner: Roofline = field(default_factory=Roofline)

    def shards_work(self, shards: LookupShards, topology: Topology) -> FloatArray:
        """As the roofline."""
        return self.inner.shards_work(shards, topology)

    def forward_time(self, work: FloatArray, topology: Topology) -> FloatArray:
        """Seconds."""
        return self.inner.forward_time(work, topology) + self.latency_s

    def backward_time(self, work: FloatArray, topology: Topology) -> FloatArray:
        """Seconds."""
        if self.shorter:
            return np.minimum(1e-9 * work[..., 0], 1e-12 * work[..., 6])
        return self.inner.backward_time(work, topology)


FAULTS = {
    "a latency in the growing part": (Network(more_s=1e-5), "no work takes 1e-05 s"),
    "a root": (Network(power=0.5), "twice the work"),
    "nearly proportional": (Network(power=0.999), "twice the work"),
    "ranks that pay for others": (Network(mean_ratio=0.5), "pays_for_others is False"),
    "a latency inside hosts": (Network(within_more_s=1.0), "reduce-scatter inside a host"),
    "less time for more bytes": (Network(falls=True), "reduce-scatter inside a host"),
    "a whole below its part": (Network(whole_ratio=1e-3), "its fixed part"),
    "a latency of lookups": (Reads(latency_s=1e-6), "forward lookup with no work"),
    "the shorter of two times": (Reads(shorter=True), "backward lookup with the mean of two"),
}
SYSTEM = load_system("h100_sxm", gpus=16)


@pytest.mark.parametrize("name", FAULTS)
def test_a_search_with_a_bound_refuses_it(name: str) -> None:
    """It proved bounds that no plan had to keep."""
    model, fault = FAULTS[name]
    workload = load_workload("small_demo")
    with pytest.raises(InvalidValueError, match=f"{type(model).__name__}: .*{fault}"):
        plan(workload, SYSTEM, models=models_of(model), max_evaluations=50)


@pytest.mark.parametrize("name", FAULTS)
def test_a_search_without_a_bound_takes_it(name: str) -> None:
    """Prices need no rule."""
    models, workload = models_of(FAULTS[name][0]), load_workload("small_demo")
    found = plan(workload, SYSTEM, models=models, strategy="random", max_evaluations=20)
    assert found.solver.bound is None


def test_models_that_keep_the_rules_are_taken() -> None:
    """Also one whose ranks pay for others and which says so."""
    for model in (Network(), Network(mean_ratio=0.5, pays=True), Reads()):
        require_rules(models_of(model), SYSTEM)
        require_rules(models_of(model), load_system("h100_sxm", gpus=1))


def test_a_model_is_tried_out_inside_another() -> None:
    """Factors of runs wrap the model of a user."""
    one = ScaledCollective(inner=Network(), factor_ratio=1.5)
    require_rules(CostModels(collective=one), SYSTEM)
    with pytest.raises(InvalidValueError, match="cost model Network: an all-to-all"):
        require_rules(CostModels(collective=replace(one, inner=Network(power=0.9))), SYSTEM)


@given(
    power=st.floats(0.2, 1.8).filter(lambda p: abs(p - 1) > 1e-4),
    gpus=st.sampled_from([2, 8, 24, 128]),
)
def test_every_other_power_of_the_bytes_is_found(power: float, gpus: int) -> None:
    """Whatever the system."""
    with pytest.raises(InvalidValueError, match="all-to-all"):
        require_rules(models_of(Network(power=power)), load_system("h100_sxm", gpus=gpus))


def test_the_command_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line, with exit code 2."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", "")
    file = tmp_path / f"late_{tmp_path.name}.py"
    file.write_text(
        "from costmodels.collective.alpha_beta import AlphaBeta\n"
        "from costmodels.collective.base import AbstractCollectiveModel\n\n\n"
        "class Late(AbstractCollectiveModel):\n"
        "    def fixed_s(self, topology, *, ranks, across_hosts):\n"
        "        return 0.0\n\n"
        "    def all_to_all(self, send, receive, topology):\n"
        "        return AlphaBeta().all_to_all(send, receive, topology) + 1e-5\n\n"
        "    def reduce_scatter(self, num_bytes, topology, *, within_host):\n"
        "        return AlphaBeta().reduce_scatter(num_bytes, topology, within_host=within_host)\n"
    )
    flags = ["--system", "h100_sxm", "--gpus", "8", "--model", f"collective={file}"]
    assert run(["plan", "small_demo", *flags, "--evaluations", "20"]) == 2
    error = capsys.readouterr().err
    assert (
        "cost model Late: an all-to-all with no work takes 1e-05 s, and may take only 0 s" in error
    )
    assert "Traceback" not in error


def test_collectives_that_never_run_are_not_asked_for() -> None:
    """A model that knows no collective of one rank was refused on hosts of one rank."""

    @dataclass(frozen=True)
    class Table(AbstractCollectiveModel):
        inner: AlphaBeta = field(default_factory=AlphaBeta)

        def fixed_s(self, topology: Topology, *, ranks: int, across_hosts: bool) -> float:
            return self.inner.fixed_s(topology, ranks=ranks, across_hosts=across_hosts)

        def all_to_all(
            self, send: FloatArray, receive: FloatArray, topology: Topology
        ) -> FloatArray:
            return self.inner.all_to_all(send, receive, topology)

        def reduce_scatter(
            self, num_bytes: FloatArray, topology: Topology, *, within_host: bool
        ) -> FloatArray:
            ranks = topology.local_world_size if within_host else topology.world_size
            slower = {2: 0.9, 4: 0.8, 8: 0.75}[ranks]
            found = self.inner.reduce_scatter(num_bytes, topology, within_host=within_host)
            return found / slower

    system = load_system("h100_sxm", gpus=4, gpus_per_host=1)
    plan(load_workload("small_demo"), system, models=models_of(Table()), max_evaluations=20)


def test_objectives_of_users_are_no_way_around() -> None:
    """They were given false proofs."""

    space = search_space(
        PlanningProblem(
            workload=load_workload("small_demo"),
            topology=SYSTEM,
            models=models_of(Network(power=0.9)),
        ),
        make_pipeline=CostPipeline,
    )
    inner = SynchronizedPhases(space)

    class Twice(AbstractObjective):
        name = "twice"
        values, gradient, always = inner.values, inner.gradient, inner.always
        weights = inner.weights

    for objective in (Twice(), inner, IterationTime(space)):
        with pytest.raises(InvalidValueError, match="cost model Network"):
            linear_floor(space, objective)
    linear_floor(space, FullestDevice(space))
