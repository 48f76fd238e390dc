"""Every key of a workload, system or constraint file has an effect, or a reason for having none.

Each leaf of the JSON schemas is set to other legal values in documents that use what it is about.
One of these edits has to change what is told: the price of a plan, its memory or a remark; for a
constraint, the plan that is found.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

from costmodels.errors import CostModelError
from costmodels.topology import Topology
from planner import PlanningProblem, SearchSettings, estimate, io, load_system, solve
from planner.errors import PlannerError
from planner.io.constraints import TableConstraintSchema
from planner.io.documents import Document
from planner.io.workload.workload_file import workload_file_of
from planner.result import usd_per_billion_samples
from tests.planner.io.field_documents import DOCUMENTS, LISTED, TABLES, fixed_plan
from tests.planner.io.schema_leaves import (
    Json,
    Keys,
    leaves,
    other_values,
    places,
    value_at,
    with_value,
)
from tests.strategies import make_topology

SCHEMAS: Final = {
    "workload": leaves(io.workload_json_schema()),
    "system": leaves(io.system_json_schema()),
}
CONSTRAINTS: Final = leaves(io.constraints_json_schema())
BUSY: Final = {**TABLES[0], "embedding_dim": 256, "pooling_factor": 600.0}
MODEL: Final = {**DOCUMENTS["dlrm"]["workload"], "tables": [BUSY, *TABLES[1:6]]}
QUICK: Final = SearchSettings(max_evaluations=5, with_baselines=False)

WITHOUT_EFFECT: Final = {
    "workload name": "It names the workload.",
    "workload tables[].name": "It names the table.",
    "workload assumed": "It says what of the file is assumed; see found/test_assumed.py.",
    "workload tables[].module": "TorchRec's plan names tables by their module.",
    "workload tables[].features": "Their number is that of the pooling factors; names are names.",
    "workload tables[].distribution.stats": "It names a file, see profiling/test_stats_file.py.",
    "workload dense.operators.batch_size_per_rank": "It has to be that of the training.",
    "workload dense.operators.source": "It says where the operators come from.",
    "workload dense.operators.before_tables[].name": "It names the operator.",
    "workload dense.operators.after_tables[].name": "It names the operator.",
    "system base": "It names a file, see test_network_kinds.py.",
    "system name": "It names the system.",
    "system description": "It describes the system.",
    "system device.name": "It names the device.",
    "system host.ddr_bandwidth": "Topologies for TorchRec have it; times rest on the link alone.",
}
"""Leaves that change nothing in what is told of a plan, and why."""

WORDS: Final[dict[str, list[Any]]] = {
    "workload dense.bottom_mlp": [[128, 64]],
    "workload dense.top_mlp": [[64, 1]],
    "workload dense.operators.before_tables[].shape": [[2, 1024, 512, 512]],
    "workload dense.operators.after_tables[].shape": [[2, 1024, 512, 512]],
    "workload dense.operators.before_tables[].function": ["exp"],
    "workload dense.operators.after_tables[].function": ["exp"],
    "workload training.batch_size_per_rank": [256],
    "workload training.batch_shares": [[1, 2, 1, 1, 1, 1, 1, 1]],
    "workload tables[].features": [["other"]],
    "workload tables[].distribution.rows_per_range": [[[10.0, 100.0, 890.0], [0.0, 0.0, 0.0]]],
    "workload tables[].distinct_per_batch": [0.05],
    "workload tables[].distribution.unique_rows": [[[100.0, 20.0]]],
    "workload tables[].distribution.hot_share": [[0.3, 0.9]],
    "system device.flops": [{"fp32": "5 TFLOP/s"}],
    "system different_ranks[].ranks": [[2, 3]],
    "system different_hosts[].hosts": [[2, 3]],
    "system collective_curves": [["h100_sxm"]],
    "system lookup": [{"forward_floor_s": 5e-4}],
    "system fitted.spread": [[[0.1], [0.0, 0.2], [0.0, 0.0, 0.1], [0.0, 0.0, 0.0, 0.1]]],
}
"""Other values of lists and words, which a schema does not tell; ``other`` for any name."""

CROSS: Final = {"kind": "dcn", "num_layers": 1, "low_rank": 8}
UNIFORM: Final = {"kind": "uniform"}
STEEP: Final = {"kind": "bins", "rows": [100.0, 900.0], "probability": [0.0055, 0.0005]}
WHOLE: Final[dict[str, tuple[str, Keys, Any]]] = {
    "workload dense.layers[].kind": ("layers", ("dense", "layers"), [CROSS]),
    "workload dense.ops": ("operators", ("dense",), {"ops": "operators.json"}),
    "workload tables[].distribution.kind": ("dlrm", ("tables", 0, "distribution"), UNIFORM),
    "workload tables[].distribution.rows": ("dlrm", ("tables", 4, "distribution"), STEEP),
    "workload tables[].distribution.probability": ("dlrm", ("tables", 4, "distribution"), STEEP),
    "system calibration": ("cores", ("calibration",), None),
}
"""Leaves that change together with others: a document, the section, and what it holds then."""

ONE, TWO = {"tables": "whole"}, ["whole", "cached"]
PAIR: Final = {"tables": TWO}
BY_ROWS: Final = ["row_wise", "table_row_wise", "grid_shard"]
COLUMNS: Final = {"sharding_types": ["column_wise"]}
UVM: Final = {**ONE, "kernels": ["fused_uvm_caching"]}
RULES: Final[dict[str, tuple[Json, Json]]] = {
    "sharding_types": (ONE, {**ONE, "sharding_types": ["table_wise"]}),
    "forbid_sharding_types": (ONE, {**ONE, "forbid_sharding_types": BY_ROWS}),
    "kernels": (ONE, UVM),
    "forbid_kernels": (ONE, {**ONE, "forbid_kernels": ["fused", "dense"]}),
    "ranks": ({**ONE, "ranks": [0]}, {**ONE, "ranks": [1]}),
    "hosts": ({**ONE, "hosts": [0]}, {**ONE, "hosts": [1]}),
    "min_column_width": ({**ONE, **COLUMNS}, {**ONE, **COLUMNS, "min_column_width": 256}),
    "cache_load_factors": (UVM, {**UVM, "cache_load_factors": [0.7]}),
    "pairs": (ONE, {**ONE, "pairs": [["row_wise", "fused_uvm_caching"]]}),
    "tables": ({**UVM, "tables": "whole"}, {**UVM, "tables": "cached"}),
    "together": ({"apart": TWO}, {"together": TWO}),
    "apart": ({"together": TWO}, {"apart": TWO}),
    "on": ({"together": TWO}, {"together": TWO, "on": "host"}),
    "max_tables_per_rank": ({**PAIR, "max_tables_per_rank": 2}, {**PAIR, "max_tables_per_rank": 1}),
    "max_tables_per_host": ({**PAIR, "max_tables_per_host": 2}, {**PAIR, "max_tables_per_host": 1}),
    "max_shards_per_rank": ({**PAIR, "max_shards_per_rank": 2}, {**PAIR, "max_shards_per_rank": 1}),
    "max_shards_per_host": ({**PAIR, "max_shards_per_host": 4}, {**PAIR, "max_shards_per_host": 1}),
    "device_memory": ({"device_memory": "30 GiB"}, {"device_memory": "3 GiB"}),
    "host_memory": ({"host_memory": "30 GiB"}, {"host_memory": "3 GiB"}),
}
"""Of each key of a constraint, an entry and one that differs in it."""

FIELDS: Final = [
    f"{kind} {leaf}"
    for kind, schema in SCHEMAS.items()
    for leaf in schema
    if not leaf.startswith(("constraints[].", "tables[].constraints."))
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file of operators that differ from those of the documents."""
    path = tmp_path_factory.mktemp("fields")
    operators = {**LISTED["operators"], "after_tables": []}
    (path / "operators.json").write_text(json.dumps(operators), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def before(folder: Path) -> dict[str, str]:
    """What is told of each document as it stands."""
    return {name: told(document, folder) for name, document in DOCUMENTS.items()}


def told(document: Json, folder: Path) -> str:
    """Time with its parts and interval, memory, price and remarks; not the sources of numbers."""
    file = workload_file_of(Document(folder / "model.yaml", document["workload"], {}))
    path = folder / "box.json"
    path.write_text(json.dumps(document["system"]), encoding="utf-8")
    topology = load_system(path, gpus=document["gpus"])
    found = estimate(file.workload, topology, fixed_plan(file.workload, topology))
    usd = usd_per_billion_samples(found.estimate.time.time_s, file.workload, topology)
    return repr((found.estimate, found.memory, usd, file.warnings))


def edited(field: str) -> Iterator[tuple[str, Json]]:
    """Documents with another value of one field, and the names of those they were made from."""
    kind, leaf = field.split(" ")
    if field in WHOLE:
        name, keys, value = WHOLE[field]
        document = DOCUMENTS[name]
        yield name, {**document, kind: with_value(document[kind], keys, value)}
        return
    for name, document in DOCUMENTS.items():
        for keys in places(document[kind], leaf):
            values = other_values(SCHEMAS[kind][leaf], value_at(document[kind], keys))
            for value in WORDS.get(field, values or ["other"]):
                yield name, {**document, kind: with_value(document[kind], keys, value)}
            if field in WITHOUT_EFFECT:
                break


def changes(field: str, folder: Path, before: dict[str, str]) -> bool:
    """Whether an edit that is not refused changes what is told."""
    for name, document in edited(field):
        with suppress(PlannerError, CostModelError):
            if told(document, folder) != before[name]:
                return True
    return False


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_changes_what_is_told_unless_it_says_why_not(
    field: str, folder: Path, before: dict[str, str]
) -> None:
    assert changes(field, folder, before) != (field in WITHOUT_EFFECT)


def test_exceptions_are_about_fields_that_there_are() -> None:
    assert {*WITHOUT_EFFECT, *WORDS, *WHOLE} <= set(FIELDS)


def test_time_between_steps_gets_a_remark_on_cores_which_do_not_count_it(folder: Path) -> None:
    cores = DOCUMENTS["cores"]
    keys, remark = ("training", "between_steps"), "between_steps is not counted on CPU cores"
    assert remark not in told(cores, folder)
    for value, expected in (("2 ms", True), ("0 s", False)):
        workload = with_value(cores["workload"], keys, value)
        assert (remark in told({**cores, "workload": workload}, folder)) is expected


def test_products_on_calibrated_cores_get_a_remark_unless_they_are_in_fp32(folder: Path) -> None:
    cores = DOCUMENTS["cores"]
    plain = {"num_dense_features": 13, "bottom_mlp": [64], "top_mlp": [1], "interaction": "cat"}
    for dtype, expected in (("bf16", True), ("fp16", True), ("fp32", False), ("tf32", False)):
        workload = {**cores["workload"], "dense": {**plain, "dtype": dtype}}
        remark = f"calibrated in fp32: products in {dtype} are priced as such"
        assert (remark in told({**cores, "workload": workload}, folder)) is expected, dtype


def test_numbers_that_calibrated_cores_do_not_use_get_a_remark(folder: Path) -> None:
    """The user wrote them, and every time comes from the calibration."""
    cores = DOCUMENTS["cores"]
    for keys, value, expected in (
        (("links", "host", "bandwidth"), "3 GB/s", True),
        (("device", "sort_rate"), 1e9, True),
        (("links", "host", "bandwidth"), "3 GB/s (calibrated, this machine)", False),
        (("device", "kernel_latency"), "9 us", False),
        (("device", "hbm_capacity"), "9 GiB", False),
    ):
        system = with_value(cores["system"], keys, value)
        found = told({**cores, "system": system}, folder)
        remark = re.search("by their calibration, so that (.*) of the system change nothing", found)
        assert remark is not None
        assert (".".join(keys) in remark[1].split(", ")) is expected, keys


# ------------------------------------------------------------------ constraints


@functools.cache
def planned_text(workload: str) -> str:
    """The plan found, and the memory that the constraints leave."""
    file = workload_file_of(Document(Path("model.yaml"), json.loads(workload), {}))
    problem = PlanningProblem(workload=file.workload, topology=box(), constraints=file.constraints)
    result = solve(problem, search=QUICK)
    return repr((result.plan, result.best.memory))


@functools.cache
def box() -> Topology:
    """Two hosts of two ranks."""
    return make_topology(2, 2)


def planned(workload: Json) -> str:
    """The same of a workload as values; several tests ask for one."""
    return planned_text(json.dumps(workload))


def constrained(entry: Json) -> Json:
    """The workload with one constraint, or without where the entry holds no rule."""
    return {**MODEL, "constraints": [entry] if set(entry) != {"tables"} else []}


@pytest.mark.parametrize("key", [leaf.rpartition(".")[2] for leaf in CONSTRAINTS])
def test_a_key_of_a_constraint_changes_the_plan(key: str) -> None:
    one, other = RULES[key]
    assert planned(constrained(one)) != planned(constrained(other))


@pytest.mark.parametrize("key", TableConstraintSchema.model_fields)
def test_the_same_key_in_a_table_does_what_it_does_for_a_pattern(key: str) -> None:
    entry = RULES[key][1]
    own = {name: value for name, value in entry.items() if name != "tables"}
    in_table = with_value(MODEL, ("tables", 0, "constraints"), own)
    assert planned(in_table) == planned(constrained(entry))
