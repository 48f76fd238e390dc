"""A system file that inherits measured curves and changes a link: the link counts."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from costmodels.collective.base import AbstractCollectiveModel, Basis, balanced_s
from costmodels.datatypes import FloatArray
from costmodels.measured.curves import Collective
from costmodels.system_models import collective_model
from costmodels.topology import Link, Topology
from costmodels.units import GB, US
from planner import io
from planner.io.documents import configs_folder, names
from planner.io.system.system_file import links_measured
from planner.models import collective_model_of_device
from tests.networks import with_links
from tests.planner.cli.command_line import Run
from tests.planner.cli.conftest import run  # noqa: F401 - a fixture

EVERY = tuple(Collective)
SIZES = np.geomspace(64.0, 2.0**33, 40)
WITH_CURVES = tuple(n for n in names("systems") if io.load_system(n).collective_curves)
SHAPES = ((2, 2), (8, 8), (16, 8), (64, 8), (2, 1))


def changed(topology: Topology, level: str, **values: float) -> Topology:
    """The system with one of its links (``host`` or ``network``) edited."""
    links = topology.links
    link: Link = replace(getattr(links, level), **values)
    return with_links(
        topology, replace(links, host=link) if level == "host" else replace(links, network=link)
    )


@functools.lru_cache(maxsize=16)
def model_of(topology: Topology) -> AbstractCollectiveModel:
    """One for all collectives of a system: its curves take longer to read than to ask."""
    return collective_model(topology)


def times(topology: Topology, collective: Collective) -> FloatArray:
    return balanced_s(model_of(topology), collective, SIZES, topology)


@pytest.fixture
def slow_box(tmp_path: Path) -> Path:
    text = (configs_folder() / "systems" / "h100_sxm.yaml").read_text(encoding="utf-8")
    text = re.sub(r"bandwidth: 317 GB/s \(.*", "bandwidth: 10 GB/s (user, mine)", text)
    path = tmp_path / "box.yaml"
    path.write_text(text.replace("name: h100_sxm", "name: box", 1), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", WITH_CURVES)
def test_the_links_of_shipped_systems_are_those_that_were_measured(name: str) -> None:
    topology = io.load_system(name)
    for known in (topology, replace(topology, name="copy")):
        assert links_measured(known) == topology.links
        assert collective_model(known).remarks(known) == ()


def test_curves_of_a_file_of_ones_own_hold_for_the_links_beside_them() -> None:
    topology = replace(io.load_system("h100_sxm"), collective_curves=("mine.csv", "h100_sxm"))
    assert links_measured(topology) is None


@pytest.mark.parametrize("name", WITH_CURVES)
@pytest.mark.parametrize("collective", EVERY)
def test_a_slower_link_slows_large_messages_by_as_much(name: str, collective: Collective) -> None:
    for gpus, per_host in SHAPES:
        level = "host" if gpus == per_host else "network"
        base = io.load_system(name, gpus=gpus, gpus_per_host=per_host)
        if gpus > base.domain_size or level == "host":
            rate = getattr(base.links, level).bandwidth_bytes_per_s
            slow = times(changed(base, level, bandwidth_bytes_per_s=rate / 40.0), collective)
            ratio = slow / times(base, collective)
            assert (ratio >= 1.0 - 1e-9).all()
            assert (np.diff(slow) >= -1e-15).all()
            expected = 40.0 if level == "host" else 1.5  # rings may be bound by the fabric
            assert ratio[-1] >= 0.95 * expected


def test_a_rescaled_time_is_extrapolated_with_a_wider_interval() -> None:
    base = io.load_system("h100_sxm")
    edited = changed(base, "host", bandwidth_bytes_per_s=250 * GB)
    own, other = (
        collective_model(t).confidence(Collective.ALL_TO_ALL, 2.0**24, t) for t in (base, edited)
    )
    assert (own.basis, other.basis) == (Basis.MEASURED, Basis.EXTRAPOLATED)
    assert own.spread_ratio < other.spread_ratio < 1.0


def test_a_longer_latency_is_felt_at_every_size_and_a_shorter_one_leaves_time() -> None:
    base = io.load_system("h100_sxm")
    model = collective_model_of_device(base)
    for collective in EVERY:
        here = balanced_s(model, collective, SIZES, base)
        late = changed(base, "host", latency_s=base.host_link.latency_s + 100 * US)
        assert (balanced_s(model, collective, SIZES, late) - here >= 99 * US).all()
        none = balanced_s(model, collective, SIZES, changed(base, "host", latency_s=0.0))
        assert ((none > 0) & (none < here)).all()


def test_plan_and_predict_obey_the_link_and_say_so(
    run: Run,  # noqa: F811
    slow_box: Path,
    tmp_path: Path,
) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("collective,size_bytes,ranks\nall_to_all,268435456,8\n", encoding="utf-8")
    fast = run("predict", "collective", str(rows), "--system", "h100_sxm")
    slow = run("predict", "collective", str(rows), "--system", str(slow_box))
    was, now = (float(r.out.splitlines()[1].split(",")[3]) for r in (fast, slow))
    assert 28 < now / was < 34
    assert "measured" in fast.out
    assert "extrapolated" in slow.out
    assert "links.host.bandwidth is 10 GB/s instead of 317 GB/s" in slow.err
    assert "rescaled" not in fast.err
    plan = ("plan", "small_demo", "--evaluations", "8", "--json", "--system")
    before, after = (json.loads(run(*plan, name).out) for name in ("h100_sxm", str(slow_box)))
    assert after["predicted"]["iteration_time_s"] > before["predicted"]["iteration_time_s"]
    assert any("10 GB/s instead of 317 GB/s" in text for text in after["warnings"])
    assert not any("rescaled" in text for text in before["warnings"])
