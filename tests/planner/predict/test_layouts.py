"""One layout of hosts and network cards has one price, in every way of saying it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest

import planner
from costmodels.collective.base import balanced_s
from costmodels.fabrics import FABRICS, STATES
from costmodels.measured.curves import Collective
from costmodels.sharding import Plan, ShardingType
from costmodels.system_models import collective_model
from costmodels.topology import Topology
from planner.io import load_system
from planner.io.documents import names
from tests.planner.cases import first
from tests.planner.cli.command_line import Run
from tests.planner.cli.conftest import run  # noqa: F401 - a fixture
from tests.planner.io.files import write
from tests.strategies import make_placement, make_table, make_workload

SYSTEMS = tuple(
    name
    for name in names("systems")
    for system in (load_system(name, gpus=64),)
    if not system.calibration and system.domain_size == system.local_world_size
)
"""Of GPUs, where a domain is a host."""
SIZES = (1e3, 2e5, 3.3e7, 1e9)
DENSE = """\
name: dense
training: {batch_size_per_rank: 256}
dense: {num_dense_features: 64, bottom_mlp: [2048, 2048, 1], top_mlp: []}
tables: []
"""


class Drawn:
    """A system on a network of a kind, and a layout of its ranks."""

    def __init__(self, seed: int, folder: Path) -> None:
        rng = np.random.default_rng(seed)
        self.folder = folder
        self.base = str(rng.choice(SYSTEMS))
        self.hosts, self.local = int(rng.choice([2, 3, 4, 8, 16])), int(rng.choice([1, 2, 4, 8]))
        self.gpus = self.hosts * self.local
        self.network = (
            f"{{fabric: {rng.choice(list(FABRICS))}, nic: {rng.choice([3, 12.5, 25, 50, 100])} "
            f"GB/s, nics_per_host: {rng.choice([1, 2, 3, 4, 8, 16])}, "
            f"state: {rng.choice(list(STATES))}}}"
        )

    def file(self, per_host: int, more: str = "", layout: str = "") -> Path:
        """A system file that says so many ranks per host."""
        text = (
            f"base: {self.base}\nname: box\nlayout: {{gpus_per_host: {per_host}{layout}}}\n"
            f"links: {{network: {self.network}}}\n{more}"
        )
        return write(self.folder, f"box_{per_host}_{len(text)}.yaml", text)

    def systems(self) -> list[Topology]:
        """The layout by a file, by an argument, by a file on top, by domains, by equal ranks."""
        gpus, local = self.gpus, self.local
        files = [self.file(said) for said in (1, 2, 4, 8, 16)]
        found = [load_system(path, gpus=gpus, gpus_per_host=local) for path in files]
        above = f"base: {files[-1].name}\nname: box\nlayout: {{gpus_per_host: {local}}}\n"
        equal = "different_ranks: [{ranks: [1], speed: 1}]\n"
        other = (
            self.file(local),
            self.file(local, layout=f", domain_size: {local}"),
            self.file(local, more=equal),
            write(self.folder, "above.yaml", above),
        )
        return [*found, *(load_system(path, gpus=gpus) for path in other)]


def prices(system: Topology) -> list[float]:
    """Of each collective at some sizes, and of a step whose table is cut by rows."""
    model = collective_model(system)
    found = [float(balanced_s(model, c, np.array(s), system)) for c in Collective for s in SIZES]
    table = make_table()
    plan = Plan(placements=(make_placement(table, ShardingType.ROW_WISE, system),))
    return [*found, planner.estimate(make_workload(table), system, plan).estimate.time.time_s]


@pytest.mark.parametrize("seed", first(range(200), 8))
def test_every_way_of_saying_a_layout_has_one_price(seed: int, tmp_path: Path) -> None:
    drawn = Drawn(seed, tmp_path)
    told, *others = [prices(system) for system in drawn.systems()]
    assert all(other == told for other in others)


@pytest.mark.parametrize("seed", first(range(50), 3))
def test_commands_price_the_layout_that_they_are_told(
    run: Run,  # noqa: F811
    seed: int,
    tmp_path: Path,
) -> None:
    """By two of three columns of a table, and by flags, on files that say other layouts."""
    drawn = Drawn(seed, tmp_path)
    hosts, local, gpus = drawn.hosts, drawn.local, drawn.gpus
    rows = "".join(
        f"{c.value},{a},{b},{ranks},{int(size)}\n"
        for c in Collective
        for size in SIZES
        for a, b, ranks in ((hosts, local, gpus), (hosts, local, ""), (hosts, "", gpus))
    )
    table = write(tmp_path, "rows.csv", f"collective,nodes,gpus_per_node,ranks,size_bytes\n{rows}")
    workload = write(tmp_path, "dense.yaml", DENSE)
    priced, steps = [], []
    for said in (1, 8):
        path = drawn.file(said)
        done = run("predict", "collective", table, "--system", path)
        assert done.code == 0, done.err
        priced.append([row["predicted_us"] for row in csv.DictReader(io.StringIO(done.out))])
        for size in (("--gpus", gpus), ("--hosts", hosts)):
            flags = ("--system", path, *size, "--gpus-per-host", local)
            steps.append(run("estimate", workload, *flags, "--json"))
    assert priced[0] == priced[1]
    assert all(len(set(priced[0][i : i + 3])) == 1 for i in range(0, len(priced[0]), 3))
    found = {json.dumps(json.loads(step.out)["predicted"]) for step in steps}
    assert len(found) == 1
