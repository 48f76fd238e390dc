"""Spreads from left-out groups and from sources; which of two plans is faster."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.lookup_gpu import left_out
from costmodels.errors import InvalidValueError
from costmodels.estimates import RELATIVE_SIGMA, Z90, Provenance, Source
from costmodels.uncertainty import (
    FRAMEWORK_GROUPS,
    LOOKUP_GROUPS,
    PLAN_SIGMA,
    faster_probability,
    group_sigma,
    rate_sigma,
    sigmas,
)
from costmodels.workload import DenseArch, Framework, Interaction, Workload
from tests.strategies import make_table, make_topology, make_workload


def known(**sources: Source) -> tuple[Provenance, ...]:
    return tuple(
        Provenance(name=name.replace("__", "."), value="1", source=source)
        for name, source in sources.items()
    )


def test_few_groups_get_students_t() -> None:
    """t(0.95, 3) = 2.3534; a new group has variance (1 + 1/4) of the mean square."""
    assert group_sigma((0.1,) * 4) * Z90 == pytest.approx(2.3534 * 0.1 * math.sqrt(1.25), rel=1e-4)
    assert group_sigma((0.1,) * 2) > group_sigma((0.1,) * 4) > group_sigma((0.1,) * 40) > 0.1
    with pytest.raises(InvalidValueError, match="two groups"):
        group_sigma((0.1,))


@pytest.mark.parametrize("groups", [2, 3, 4, 5, 8, 31, 200])
def test_students_t_is_that_of_the_tables(groups: int) -> None:
    from scipy.special import stdtrit

    size = math.sqrt(1.0 + 1.0 / groups)
    assert group_sigma((1.0,) * groups) * Z90 / size == pytest.approx(
        stdtrit(groups - 1, 0.95), rel=1e-12
    )


def test_a_group_left_out_moves_by_what_it_had_pulled() -> None:
    assert left_out([[0.1, -0.1], [0.3]]) == pytest.approx((0.2, 0.6))


def test_intervals_of_new_groups_hold_nine_in_ten() -> None:
    """Errors of groups drawn from one normal law, the spread estimated from four of them."""
    rng = np.random.default_rng(0)
    inside = []
    for _ in range(2000):
        *groups, new = rng.normal(0.0, 0.1, 5)
        inside.append(abs(new) <= Z90 * group_sigma([abs(float(g)) for g in groups]))
    assert 0.88 <= np.mean(inside) <= 0.96


def test_a_rate_counts_by_how_strongly_time_depends_on_it() -> None:
    weak = Source.DEFAULT
    strong = known(device__hbm_bandwidth=Source.MEASURED, device__l2_bandwidth=weak)
    bad = known(device__hbm_bandwidth=weak, device__l2_bandwidth=Source.MEASURED)
    sigma = rate_sigma(make_topology(provenance=strong), "lookup")
    assert sigma == pytest.approx(math.hypot(0.7 * 0.05, 0.15 * RELATIVE_SIGMA[weak]))
    assert rate_sigma(make_topology(provenance=bad), "lookup") > 2 * sigma


def test_links_that_no_rank_crosses_do_not_matter() -> None:
    sources = known(
        links__host__bandwidth=Source.MEASURED, links__network__bandwidth=Source.DEFAULT
    )
    one = rate_sigma(make_topology(1, 8, provenance=sources), "collective")
    two = rate_sigma(make_topology(2, 8, provenance=sources), "collective")
    assert one == pytest.approx(0.8 * 0.05)
    assert two == pytest.approx(0.8 * math.hypot(0.05, 0.30))


def test_measured_rates_leave_what_the_model_misses() -> None:
    sources = known(device__hbm_bandwidth=Source.MEASURED)
    topology = make_topology(provenance=sources)
    found = dict(sigmas(topology, collective_spread_ratio=0.2))
    assert found["lookup"] > group_sigma(LOOKUP_GROUPS)
    assert found["collective"] == pytest.approx(math.log(1.2) / Z90)
    assert dict(sigmas(topology))["collective"] > found["collective"]


@given(st.floats(0.5, 2.0), st.floats(0.0, 0.5))
def test_shared_errors_cancel_between_plans(ratio: float, sigma: float) -> None:
    """However large the shared error, the probability follows the ratio of the two times."""
    shared = np.exp(np.random.default_rng(1).normal(0.0, sigma, 64))
    alone = faster_probability(np.ones(64), np.full(64, ratio))
    together = faster_probability(shared, ratio * shared)
    assert together == pytest.approx(alone, abs=1e-9)
    assert faster_probability(ratio * shared, shared) == pytest.approx(1.0 - together, abs=1e-9)


def test_plans_within_noise_are_not_told_apart() -> None:
    ours = np.ones(8)
    assert faster_probability(ours, ours) == 0.5
    assert faster_probability(ours, ours * math.exp(PLAN_SIGMA)) == pytest.approx(0.76, abs=0.01)
    assert faster_probability(ours, ours * 1.1) > 0.99


def test_a_framework_that_was_never_measured_widens_the_dense_part_alone() -> None:
    topology = replace(make_topology(), provenance=known(device__flops__fp32=Source.DATASHEET))
    own, foreign = dict(sigmas(topology)), dict(sigmas(topology, is_foreign=True))
    wider = math.hypot(own.pop("dense"), group_sigma(FRAMEWORK_GROUPS))
    assert foreign.pop("dense") == pytest.approx(wider, rel=1e-12)
    assert foreign == own


def test_which_framework_a_workload_may_have() -> None:
    """Without tables nothing says which it is; what the user says is taken."""
    arch = DenseArch(num_dense_features=8, top_mlp=(4, 1), interaction=Interaction.CAT)
    alone = Workload(name="w", tables=(), batch_size_per_rank=8, dense=arch)
    beside = make_workload(make_table("t0"), dense=arch)
    assert alone.is_foreign
    assert not beside.is_foreign
    assert replace(beside, dense=replace(arch, compiled=True)).is_foreign
    assert replace(beside, dense=replace(arch, framework=Framework.OTHER)).is_foreign
    assert not replace(alone, dense=replace(arch, framework=Framework.MEASURED)).is_foreign
