"""Hidden factors and noise, recovered from the times of random plans."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from costmodels.calibration.fitting import geomean_error
from costmodels.measured.curves import Collective
from costmodels.pipeline import CostPipeline
from costmodels.system_models import default_models, scaled
from costmodels.topology import FITTED_KINDS, FittedFactors, with_host_factor
from costmodels.uncertainty import sigmas
from costmodels.workload import NO_DENSE_PART
from planner import io
from planner.errors import InvalidInputError
from planner.fit.estimate import Fit, Predictor, Run, fit
from planner.io.documents import configs_folder
from planner.io.system.system_writer import write_fitted_system
from planner.models import models_of
from planner.problem import PlanningProblem
from planner.search.random import random_assignment
from planner.trace.kineto import traces
from planner.trace.reading import read_trace
from tests.planner import cases

KEPT = 6
"""Runs that are never fitted to."""


class Truth:
    """A system whose times are off by hidden factors, and random plans that were run on it."""

    def __init__(self, seed: int, count: int, *, noise: float = 0.01) -> None:
        rng = np.random.default_rng(seed)
        model = cases.synthetic(8, seed=seed, batch=16384)
        tables = tuple(replace(t, embedding_dim=64) for t in model.tables)
        self.model = replace(model, tables=tables, dense=cases.dlrm().dense)
        self.system = cases.topology(*((1, 4), (2, 2))[seed % 2])
        self.problem = PlanningProblem(workload=self.model, topology=self.system)
        space = cases.space(self.model, self.system, cases.DEVICE_ONLY)
        self.logs = rng.normal(0.0, 0.15, 4) + rng.normal(0.0, 0.25)
        self.factors = FittedFactors(
            **{f"{k}_ratio": float(v) for k, v in zip(FITTED_KINDS, np.exp(self.logs), strict=True)}
        )
        plans = [space.plan(random_assignment(space, rng)) for _ in range(count)]
        self.pipeline = CostPipeline(
            self.model,
            with_host_factor(self.system, self.factors.host_ratio),
            scaled(default_models(self.system), self.factors),
        )
        self.runs = tuple(
            Run(
                name=str(i),
                plan=plan,
                iteration_s=float(self.pipeline.iteration_times(self.pipeline.plan_work(plan)))
                * math.exp(rng.normal(0.0, noise)),
            )
            for i, plan in enumerate(plans)
        )

    def error(self, found: Fit | None) -> float:
        """On the runs that are kept apart; without a fit, that before."""
        kept = self.runs[-KEPT:]
        logs = np.zeros(4) if found is None else np.log(found.factors.ratios)
        predicted = Predictor(self.problem, kept).iterations_s(logs)
        return geomean_error(np.log(predicted / np.array([r.iteration_s for r in kept])))

    def profiled(self, index: int, ranks: tuple[int, ...], folder: Path) -> Run:
        """A run with traces of some ranks."""
        run = self.runs[index]
        found = []
        for name, data in traces(self.pipeline, run.plan, ranks=ranks):
            path = folder / name
            path.write_bytes(data)
            found.append(read_trace(path))
        return replace(run, traces=tuple(found))


@pytest.mark.parametrize("seed", cases.first(range(12), 1))
def test_more_runs_predict_other_plans_better(seed: int) -> None:
    truth = Truth(seed, 6 + KEPT)
    assert truth.error(fit(truth.problem, truth.runs[:6])) < 0.03
    two = fit(truth.problem, truth.runs[:2])
    assert truth.error(two) < max(0.06, truth.error(None))


def test_the_number_of_factors_grows_with_the_evidence() -> None:
    truth = Truth(2, 6)
    found = [fit(truth.problem, truth.runs[:n]) for n in (1, 3, 6)]
    settled = [f.num_settled for f in found]
    assert settled[0] == pytest.approx(1.0, abs=0.25)
    assert settled[0] < settled[1] < settled[2] < 4.0
    assert found[0].left_out_ratio is None
    # A single time says that the whole machine is slower or faster, not which part of it.
    assert max(np.ptp(np.log(found[0].factors.ratios)), 1e-9) < abs(truth.logs).max()
    # What the runs cannot tell stays as open as it was.
    assert found[2].settled_ratio[3] < 0.2 < max(found[2].settled_ratio)


def test_traces_settle_each_kind(tmp_path: Path) -> None:
    truth = Truth(3, 1, noise=0.0)
    found = fit(truth.problem, [truth.profiled(0, (0, 2), tmp_path)])
    told = np.log(found.factors.ratios)[:3]
    assert told == pytest.approx(truth.logs[:3], abs=0.06)
    assert found.errors[0].fitted_s == pytest.approx(truth.runs[0].iteration_s, rel=0.02)


@pytest.mark.parametrize("seed", [4, pytest.param(5, marks=pytest.mark.slow)])
def test_intervals_of_runs_left_out_hold_them(seed: int) -> None:
    truth = Truth(seed, 8, noise=0.02)
    errors = fit(truth.problem, truth.runs).errors
    assert sum(e.low_s <= e.measured_s <= e.high_s for e in errors) >= 7
    one = fit(truth.problem, truth.runs[:1]).errors[0]
    assert max(e.high_s / e.low_s for e in errors) < 1.5
    assert one.high_s / one.low_s > 1.08  # noise of one plan is never fitted away


def test_a_fitted_system_is_written_and_read(tmp_path: Path) -> None:
    model = replace(cases.synthetic(4, seed=1, batch=8192), dense=cases.dlrm().dense)
    system = io.load_system("h100_sxm", gpus=8)
    problem = PlanningProblem(workload=model, topology=system)
    space = cases.space(model, system, cases.DEVICE_ONLY)
    rng = np.random.default_rng(0)
    plans = [space.plan(random_assignment(space, rng)) for _ in range(2)]
    base = CostPipeline(model, system, models_of(problem))
    runs = [
        Run(name=str(i), plan=p, iteration_s=1.4 * base.estimate(p).time.time_s)
        for i, p in enumerate(plans)
    ]
    found = fit(problem, runs)
    told = {"settled_ratio": found.settled_ratio, "num_runs": 2}
    path = tmp_path / "mine.yaml"
    assert write_fitted_system(path, "h100_sxm", system, found.factors, **told) == (path,)
    mine = io.load_system(path, gpus=8)
    assert mine.fitted is not None
    assert mine.fitted.ratios == pytest.approx(found.factors.ratios, rel=1e-5)
    call_s = system.host.eager_call_s * found.factors.host_ratio
    assert mine.host.eager_call_s == pytest.approx(call_s, rel=1e-5)
    origins = {p.name: p.source.value for p in mine.provenance if p.name.startswith("fitted.")}
    assert origins["fitted.host"] == "default"  # the runs do not tell it
    assert "calibrated" in origins.values()
    assert len(mine.provenance) == len(system.provenance) + 4
    pipeline = CostPipeline(model, mine)
    for plan, error in zip(plans, found.errors, strict=True):
        time = pipeline.estimate(plan).time
        assert time.time_s == pytest.approx(error.fitted_s, rel=1e-4)
        before = base.estimate(plan).time
        assert time.low_s < error.measured_s < time.high_s
        assert time.high_s / time.low_s < before.high_s / before.low_s
    # A second fit rests on the first: factors multiply, and there is one block of them.
    again = tmp_path / "again.yaml"
    write_fitted_system(again, path, mine, FittedFactors(lookup_ratio=2.0), **told)
    twice = io.load_system(again, gpus=8)
    assert twice.fitted is not None
    assert twice.fitted.lookup_ratio == pytest.approx(2.0 * mine.fitted.lookup_ratio, rel=1e-5)
    assert again.read_text().count("fitted:") == 1
    with pytest.raises(InvalidInputError, match="name another file"):
        write_fitted_system(path, path, mine, found.factors, **told)


SPREAD = tuple((*[0.0] * row, 0.1) for row in range(4))
FACTORS = FittedFactors(collective_ratio=2.0, spread_ratio=SPREAD)


def test_factors_of_before_are_multiplied_and_the_base_stays_as_it_is(tmp_path: Path) -> None:
    """A file says what it says once; what stands beside the factors in the base holds."""
    given, written = tmp_path / "box.yaml", tmp_path / "again.yaml"
    rows = ("lookup: 1", "# ours", "collective: 3", "dense: 1", "host: 1")
    lines = [f"  {row} (user, me)" if ":" in row else row for row in rows]
    spread = f"  spread: {[list(row) for row in SPREAD]}"
    text = "\n".join(["name: box", "base: h100_sxm", "fitted:", *lines, spread, "price: 3 USD/h"])
    given.write_text(text)
    before = io.load_system(given)
    write_fitted_system(written, given, before, FACTORS, settled_ratio=[1.0] * 4, num_runs=2)
    after = io.load_system(written)
    assert before.fitted is not None
    assert after.fitted is not None
    assert after.fitted.collective_ratio == 6.0
    assert after.price_per_device_usd_per_hour == before.price_per_device_usd_per_hour == 3.0
    assert after.name == "box"
    assert given.read_text() == text


def test_a_base_of_ones_own_is_found_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its own base and the files that they name, wherever the two are named from.

    No file is written but the one that the user names.
    """
    monkeypatch.chdir(tmp_path)
    here, there = Path("here"), Path("there")
    shipped = configs_folder() / "calibrations"
    for folder in (here, there):
        folder.mkdir()
    (here / "curves.csv").write_bytes((shipped / "collectives.csv").read_bytes())
    (there / "curves.csv").write_text("mine")
    (here / "a.yaml").write_text("name: a\nbase: h100_sxm\ncollective_curves: [curves.csv]\n")
    (here / "b.yaml").write_text("name: b\nbase: a.yaml\nlayout: {gpus_per_host: 4}\n")
    (here / "c.yaml").write_text("name: c\nbase: b.yaml\nprice: 3 USD/h\n")
    before = io.load_system(here / "c.yaml")
    collective = default_models(before).collective
    path = there / "mine.yaml"
    told = {"settled_ratio": [1.0] * 4, "num_runs": 2}
    assert write_fitted_system(path, here / "c.yaml", before, FACTORS, **told) == (path,)
    assert sorted(p.name for p in there.iterdir()) == ["curves.csv", "mine.yaml"]
    assert (there / "curves.csv").read_text() == "mine"
    monkeypatch.chdir("/")
    after = io.load_system(tmp_path / path)
    assert (after.local_world_size, after.price_per_device_usd_per_hour) == (4, 3.0)
    kept = default_models(after).collective
    size = np.array([1e6, 1e8])
    expected = 2.0 * collective.buffer_s(Collective.ALL_REDUCE, size, before, within_host=False)
    assert kept.buffer_s(Collective.ALL_REDUCE, size, after, within_host=False) == pytest.approx(
        expected
    )


def test_bounds_hold_on_a_fitted_system() -> None:
    """A factor on every model leaves the bound below every plan, and scales both."""
    space = cases.tiny(1)
    rng = np.random.default_rng(0)
    factors = FittedFactors(lookup_ratio=1.7, collective_ratio=0.6, dense_ratio=1.3)
    system = replace(space.problem.topology, fitted=factors)
    pipeline = CostPipeline(space.problem.workload, system)
    for _ in range(20):
        work = pipeline.plan_work(space.plan(random_assignment(space, rng)))
        phases = pipeline.phases.times(work).max(axis=-2)
        assert pipeline.phases.base_s + float(phases @ pipeline.phases.weights) <= float(
            pipeline.iteration_times(work)
        ) * (1 + 1e-9)


def test_bad_runs_are_refused() -> None:
    truth = Truth(0, 1)
    with pytest.raises(InvalidInputError, match="above 0"):
        replace(truth.runs[0], iteration_s=0.0)
    with pytest.raises(InvalidInputError, match="one run at least"):
        fit(truth.problem, [])
    other = replace(truth.problem, workload=cases.synthetic(3))
    with pytest.raises(InvalidInputError, match="run 0"):
        fit(other, truth.runs)


def test_work_that_no_run_has_keeps_its_factor_and_spread() -> None:
    """One rank has no collectives; a step time that is far off says nothing about them."""
    model = replace(cases.synthetic(4, seed=1, batch=8192), dense=cases.dlrm().dense)
    problem = PlanningProblem(workload=model, topology=io.load_system("h100_sxm", gpus=1))
    space = cases.space(model, problem.topology, cases.DEVICE_ONLY)
    plan = space.plan(random_assignment(space, np.random.default_rng(0)))
    time_s = CostPipeline(model, problem.topology, models_of(problem)).estimate(plan).time.time_s
    found = fit(problem, [Run(name="0", plan=plan, iteration_s=3.0 * time_s)])
    assert "collective" in found.absent
    assert found.factors.collective_ratio == 1.0
    at = FITTED_KINDS.index("collective")
    rows = np.array([[*row, *[0.0] * (3 - i)] for i, row in enumerate(found.factors.spread_ratio)])
    left = rows @ rows.T
    assert left[at].sum() == pytest.approx(left[at, at])  # independent of all others
    assumed = dict(sigmas(problem.topology))["collective"]
    assert assumed > 0.03  # of more ranks; a single rank has nothing to be unsure of
    assert math.sqrt(left[at, at]) == pytest.approx(assumed, rel=1e-4)
    assert min(found.factors.lookup_ratio, found.factors.dense_ratio) > 1.0


def test_measured_work_that_is_not_predicted_is_no_evidence(tmp_path: Path) -> None:
    """Kernels of the dense part in the trace of a workload without one."""
    truth = Truth(3, 1, noise=0.0)
    run = truth.profiled(0, (0,), tmp_path)
    bare = replace(truth.problem, workload=replace(truth.model, dense=NO_DENSE_PART))
    found = fit(bare, [run])
    assert "dense" in found.absent
    assert found.factors.dense_ratio == 1.0
    assert found.noise_ratio < 0.1
