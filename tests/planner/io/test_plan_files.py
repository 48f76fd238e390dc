"""Plans out and in again: ours, TorchRec's, and files that are neither."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.sharding import (
    ComputeKernel,
    Plan,
    ShardingOption,
    ShardingType,
    TablePlacement,
    place,
)
from costmodels.topology import Topology
from costmodels.workload import Workload
from planner.io import load_plan, plan_text, result_to_json, save_plan
from planner.io.plan.plan_file import PlanSchema, plan_to_json
from planner.result import Candidate, PlanningResult, ScenarioTime
from planner.support.status import Status
from tests.planner.io.files import refused, write
from tests.planner.report.report_samples import make_result, make_topology, make_workload
from tests.strategies import planned_workloads

MODULE = "embedding_bag_collection"


@pytest.fixture
def result() -> PlanningResult:
    return make_result()


def as_json(result: PlanningResult) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(plan_text(result))
    return data


def dump(folder: Path, data: object) -> Path:
    return write(folder, "plan.json", json.dumps(data))


def load(path: Path, result: PlanningResult) -> Plan:
    return load_plan(path, result.problem.workload, result.problem.topology).plan


# ------------------------------------------------------------------ round trips


def test_round_trip(tmp_path: Path, result: PlanningResult) -> None:
    path = tmp_path / "runs" / "plan.json"
    save_plan(path, result)
    saved = load_plan(path, result.problem.workload, result.problem.topology)
    assert saved.plan == result.plan
    assert saved.system == "test_box"
    assert (saved.world_size, saved.local_world_size) == (4, 4)
    assert saved.batch_size_per_rank == 4096
    assert saved.warnings == ()
    assert load_plan(path).plan == result.plan
    assert [p.name for p in path.parent.iterdir()] == ["plan.json"]


def renamed(plan: Plan, names: dict[str, str]) -> Plan:
    placements = tuple(replace(p, table=names[p.table]) for p in plan.placements)
    return Plan(placements=placements)


@given(
    planned_workloads(), st.sampled_from(["same", "namesakes", "root", "foreign"]), st.booleans()
)
def test_any_plan_comes_back(
    tmp_path_factory: pytest.TempPathFactory,
    planned: tuple[Workload, Topology, Plan],
    modules: str,
    bare: bool,
) -> None:
    """Whatever the modules are called, with our keys around the plan or without."""
    workload, topology, plan = planned
    names = {t.name: t.name for t in workload.tables}
    if modules == "namesakes":
        names = {t.name: f"m{i}.table" for i, t in enumerate(workload.tables)}
    tables = tuple(
        replace(
            t,
            name=names[t.name],
            module={"same": t.module, "namesakes": f"m{i}"}.get(modules, ""),
        )
        for i, t in enumerate(workload.tables)
    )
    workload, plan = replace(workload, tables=tables), renamed(plan, names)
    tree = plan_to_json(plan, workload, topology.local_world_size)
    if modules == "foreign":
        tree = {"model.sparse_arch.ebc": tree[""]}
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    path.write_text(json.dumps(tree if bare else {"plan": tree, "schema_version": 1}))
    saved = load_plan(path, workload, topology)
    key = {t.name: i for i, t in enumerate(workload.tables)}
    assert sorted(saved.plan.placements, key=lambda p: key[p.table]) == list(plan.placements)


def without_shards(tree: dict[str, Any]) -> dict[str, Any]:
    return {
        module: {
            name: {k: v for k, v in entry.items() if k != "shards"}
            for name, entry in entries.items()
        }
        for module, entries in tree.items()
    }


def one_of_each(workload: Workload, topology: Topology) -> Plan:
    """Every sharding type once, in even pieces, on two hosts of two."""
    choices: list[tuple[ShardingType, ComputeKernel, int, tuple[int, ...]]] = [
        (ShardingType.DATA_PARALLEL, ComputeKernel.DENSE, 1, ()),
        (ShardingType.TABLE_WISE, ComputeKernel.FUSED, 1, (2,)),
        (ShardingType.COLUMN_WISE, ComputeKernel.FUSED_UVM, 2, (3, 0)),
        (ShardingType.ROW_WISE, ComputeKernel.FUSED, 1, ()),
        (ShardingType.TABLE_ROW_WISE, ComputeKernel.FUSED, 1, (1,)),
        (ShardingType.TABLE_COLUMN_WISE, ComputeKernel.FUSED, 2, (2, 3)),
        (ShardingType.GRID_SHARD, ComputeKernel.FUSED_UVM_CACHING, 2, (1, 0)),
    ]
    placements: list[TablePlacement] = []
    for table, (kind, kernel, pieces, where) in zip(workload.tables, choices, strict=True):
        option = ShardingOption(
            table=table.name,
            sharding_type=kind,
            kernel=kernel,
            column_widths=(table.embedding_dim // pieces,) * pieces,
            cache_load_factor_ratio=0.2 if kernel is ComputeKernel.FUSED_UVM_CACHING else None,
        )
        size = {"world_size": topology.world_size, "local_world_size": topology.local_world_size}
        placements.append(place(option, table.num_embeddings, where, **size))
    return Plan(placements=tuple(placements))


def test_shards_may_be_left_out(tmp_path: Path) -> None:
    """Checkpoints of some tools keep types and ranks only."""
    workload, topology = make_workload(7), make_topology(2, 2)
    plan = one_of_each(workload, topology)
    tree = without_shards(plan_to_json(plan, workload, topology.local_world_size))
    del tree[MODULE]["table_6"]["cache_load_factor"]
    saved = load_plan(dump(tmp_path, tree), workload, topology)
    assert saved.plan == plan
    assert "1 cached tables name no load factor: 0.2 is taken" in saved.warnings[0]


def test_what_torchrec_writes(tmp_path: Path) -> None:
    """No shards for replicated tables, no load factor, unknown keys, ranks as they are."""
    workload, topology = make_workload(2), make_topology(1, 2)
    shard = {"shard_offsets": [0, 0], "shard_sizes": [2000, 64], "placement": "rank:1/cuda:1"}
    tables = {
        "table_0": {"sharding_type": "data_parallel", "compute_kernel": "dense", "ranks": [0, 1]},
        "table_1": {
            "sharding_type": "table_wise",
            "compute_kernel": "fused_uvm_caching",
            "ranks": [1],
            "shards": [shard],
            "cache_params": {"load_factor": 0.3, "algorithm": "LRU"},
        },
    }
    path = dump(tmp_path, {"plan": {"sparse.ebc": tables}})
    replicated, cached = load_plan(path, workload, topology).plan.placements
    assert replicated.ranks == (0, 1)
    assert cached.cache_load_factor_ratio == 0.3
    assert load_plan(dump(tmp_path, {"plan": tables}), workload).plan.placements[1] == cached


def test_names_of_the_file_are_kept_without_a_workload(tmp_path: Path) -> None:
    shard = {"shard_offsets": [0, 0], "shard_sizes": [8, 4], "placement": "rank:0/cpu"}
    entry = {"sharding_type": "table_wise", "compute_kernel": "fused", "shards": [shard]}
    path = dump(tmp_path, {"a": {"t": entry}, "b": {"t": entry, "u": entry}})
    assert [p.table for p in load_plan(path).plan.placements] == ["a.t", "b.t", "u"]


# ------------------------------------------------------------------ plan.json and --json


def test_the_document_follows_its_schema(result: PlanningResult) -> None:
    data = result_to_json(result)
    assert list(data)[:2] == ["plan", "schema_version"]
    assert json.loads(json.dumps(data)) == data
    document = PlanSchema.model_validate(data)
    assert document.solver is not None
    assert set(PlanSchema.model_fields) <= set(data)
    assert data["solver"]["gap_ratio"] == 0
    assert data["memory"]["per_rank"][0]["used_bytes"] == 41 * 2**30
    assert data["provenance"][0]["source"] == "datasheet"


def test_what_a_plan_was_made_for_is_read_back(result: PlanningResult, tmp_path: Path) -> None:
    solver = replace(result.solver, objective="worst memory", torchrec_defaults=True)
    times = tuple(
        ScenarioTime(name=name, time_s=1.0, low_s=0.9, high_s=1.2, samples_per_s=1e3)
        for name in ("itself", "a", "b")
    )
    save_plan(tmp_path / "plan.json", replace(result, solver=solver, scenarios=times))
    saved = load_plan(tmp_path / "plan.json")
    assert saved.objective == "worst memory"
    assert saved.torchrec_defaults
    assert saved.num_scenarios == 2
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps({"plan": result_to_json(result)["plan"]}))
    assert load_plan(bare).objective is None
    assert load_plan(bare).num_scenarios == 0


def test_no_clock_unless_the_clock_ended_it(result: PlanningResult) -> None:
    def after(seconds: float, status: Status) -> PlanningResult:
        steps = ((seconds, 1.0, None),)
        solver = replace(result.solver, seconds=seconds, progress=steps, status=status)
        return replace(result, solver=solver)

    assert plan_text(after(1.0, Status.GAP)) == plan_text(after(2.0, Status.GAP))
    timed = result_to_json(after(2.0, Status.TIME_LIMIT))["solver"]
    assert timed["seconds"] == 2.0
    assert timed["progress"] == [[2.0, 1.0, None]]


def test_what_is_not_finite_is_null(result: PlanningResult) -> None:
    estimate = replace(result.estimate, samples_per_s=float("inf"))
    best: Candidate = replace(result.best, estimate=estimate)
    broken = replace(result, best=best, solver=replace(result.solver, bound=None))
    data = json.loads(plan_text(broken))
    assert data["predicted"]["samples_per_s"] is None
    assert data["solver"]["gap_ratio"] is None


def test_the_hash_is_of_the_inputs(result: PlanningResult) -> None:
    problem = result.problem

    def hash_of(**changes: Any) -> str:
        data = result_to_json(replace(result, problem=replace(problem, **changes)))
        return str(data["inputs_hash"])

    same = hash_of()
    assert hash_of(workload=make_workload()) == same
    assert hash_of(workload=replace(problem.workload, batch_size_per_rank=8)) != same
    assert hash_of(topology=replace(problem.topology, domain_size=8)) != same
    assert len(same) == 64


# ------------------------------------------------------------------ files that are no plan

ENTRY = ("plan", MODULE, "table_1")
SHARD = (*ENTRY, "shards", 0)

# name: (path of the value, new value or None to delete it, what one line must contain)
SLIPS: dict[str, tuple[tuple[str | int, ...], object, tuple[str, ...]]] = {
    "no type": ((*ENTRY, "sharding_type"), None, ("table_1", "'sharding_type' is missing")),
    "unknown type": ((*ENTRY, "sharding_type"), "rowwise", ("'rowwise'", "row_wise")),
    "type null": ((*ENTRY, "sharding_type"), ..., ("value None", "must be one of")),
    "unknown kernel": ((*ENTRY, "compute_kernel"), "key_value", ("'key_value'", "fused_uvm")),
    "kernel against type": ((*ENTRY, "compute_kernel"), "dense", ("table_1", "data_parallel")),
    "load factor of fused": ((*ENTRY, "cache_load_factor"), 1.5, ("1.5", "below 1")),
    "ranks as text": ((*ENTRY, "ranks"), "1", ("ranks", "'1'", "list")),
    "rank negative": ((*ENTRY, "ranks"), [-1], ("ranks[0]", "value -1", "at least 0")),
    "rank as bool": ((*ENTRY, "ranks"), [True], ("ranks[0]", "True", "whole number")),
    "ranks disagree": ((*ENTRY, "ranks"), [2], ("table_1", "[2]", "[1]")),
    "neither": (ENTRY, {"sharding_type": "table_wise", "compute_kernel": "fused"}, ("neither",)),
    "placement": ((*SHARD, "placement"), "cuda:1", ("placement", "'cuda:1'", "rank:")),
    "placement huge": ((*SHARD, "placement"), f"rank:{'9' * 5000}/cuda:0", ("placement", "match")),
    "table missing": (ENTRY, None, ("'table_1' (2000 x 64)", "in the workload, not in the plan")),
    "offset missing": ((*SHARD, "shard_offsets"), [0], ("shard_offsets", "at least 2")),
    "size as float": ((*SHARD, "shard_sizes"), [2000.0, 64], ("2000.0", "whole number")),
    "size negative": ((*SHARD, "shard_sizes"), [-1, 64], ("shard_sizes[0]", "-1", "at least 0")),
    "too few rows": ((*SHARD, "shard_sizes"), [1999, 64], ("1999 x 64 in the plan", "2000 x 64")),
    "too many columns": ((*SHARD, "shard_sizes"), [2000, 65], ("2000 x 65 in the plan",)),
    "a hole": ((*SHARD, "shard_offsets"), [1000, 0], ("table_1", "3000 x 64 in the plan")),
    "unknown table": (
        ("plan", MODULE, "spare"),
        {
            "sharding_type": "table_wise",
            "compute_kernel": "fused",
            "ranks": [0],
            "shards": [
                {"shard_offsets": [0, 0], "shard_sizes": [9, 4], "placement": "rank:0/cuda:0"}
            ],
        },
        ("'spare' (9 x 4)", "in the plan, not in the workload"),
    ),
    "another size": (("world_size",), 8, ("value 8", "not for 4", "--gpus 8")),
    "world size as text": (("world_size",), "4", ("world_size", "'4'", "whole number")),
    "newer version": (("schema_version",), 99, ("value 99", "update shardplan")),
    "version zero": (("schema_version",), 0, ("schema_version", "value 0", "at least 1")),
    "plan a list": (("plan",), [], ("plan", "value []", "keys and values")),
    "module a list": (("plan", MODULE), [], (MODULE, "keys and values")),
    "table a word": (ENTRY, "table_wise", ("table_1", "'table_wise'", "keys and values")),
}


def set_at(data: Any, keys: tuple[str | int, ...], value: object) -> None:
    for key in keys[:-1]:
        data = data[key]
    if value is None:
        del data[keys[-1]]
    else:
        data[keys[-1]] = None if value is ... else value


@pytest.mark.parametrize("name", SLIPS)
def test_slip(name: str, tmp_path: Path, result: PlanningResult) -> None:
    keys, value, expected = SLIPS[name]
    data = as_json(result)
    set_at(data, keys, value)
    path = dump(tmp_path, data)
    refused(lambda: load(path, result), path, *expected)


TEXTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "empty": ("", ("not well-formed JSON",)),
    "yaml": ("name: tiny\n", ("not well-formed JSON",)),
    "a list": ("[]", ("the key 'plan'",)),
    "nothing in it": ("{}", ("the key 'plan'",)),
    "not a plan": ('{"a": 1}', ("keys and values",)),
    "nan": ('{"plan": {}, "world_size": NaN}', ("NaN is not a number",)),
    "infinity": ('{"plan": {}, "world_size": -Infinity}', ("-Infinity is not a number",)),
    "key twice": ('{"plan": {}, "plan": {}}', ("'plan' given twice",)),
    "deep": ("[" * 100_000, ("nested too deeply",)),
}


@pytest.mark.parametrize("name", TEXTS)
def test_text(name: str, tmp_path: Path, result: PlanningResult) -> None:
    text, expected = TEXTS[name]
    path = write(tmp_path, "plan.json", text)
    refused(lambda: load(path, result), path, *expected)


def test_a_file_cut_off(tmp_path: Path, result: PlanningResult) -> None:
    text = plan_text(result)
    for share in (0.1, 0.5, 0.9, 0.999):
        path = write(tmp_path, "plan.json", text[: int(len(text) * share)])
        refused(lambda path=path: load(path, result), path, "not well-formed JSON")  # type: ignore[misc]


def test_another_model(tmp_path: Path, result: PlanningResult) -> None:
    """Each table that differs has a line, up to twenty."""
    path = tmp_path / "plan.json"
    save_plan(path, result)
    other = make_workload(60, prefix="other")
    lines = refused(lambda: load_plan(path, other, make_topology()), path, "and 44 more")
    assert len(lines) == 21
    assert "table 'table_0' (1000 x 64): in the plan, not in the workload" in lines[0]


def test_another_cluster(tmp_path: Path, result: PlanningResult) -> None:
    path = dump(tmp_path, {"plan": as_json(result)["plan"]})
    small = make_topology(1, 2)
    refused(lambda: load_plan(path, result.problem.workload, small), path, "table_3", "0..1")


# name: (table, its ranks, what one line must contain)
LAYOUTS: dict[str, tuple[str, list[int], str]] = {
    "uneven pieces": ("table_2", [0, 1, 2], "64 columns are no multiple of 3"),
    "table on two ranks": ("table_1", [0, 1], "a table_wise table lives on one rank"),
    "rows out of order": ("table_3", [3, 2, 1, 0], "row_wise needs [0, 1, 2, 3]"),
    "rows on half a host": ("table_4", [1, 2], "table_row_wise needs"),
    "blocks over hosts": ("table_6", [1, 2, 3, 0], "grid_shard needs"),
    "no ranks": ("table_1", [], "neither shards nor ranks"),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_that_cannot_be_worked_out(name: str, tmp_path: Path) -> None:
    table, ranks, expected = LAYOUTS[name]
    workload, topology = make_workload(7), make_topology(2, 2)
    tree = without_shards(plan_to_json(one_of_each(workload, topology), workload, 2))
    tree[MODULE][table]["ranks"] = ranks
    path = dump(tmp_path, tree)
    refused(lambda: load_plan(path, workload, topology), path, table, expected)


def test_layouts_need_what_they_rest_on(tmp_path: Path) -> None:
    workload, topology = make_workload(7), make_topology(2, 2)
    tree = without_shards(plan_to_json(one_of_each(workload, topology), workload, 2))
    path = dump(tmp_path, tree)
    refused(lambda: load_plan(path), path, "table_1", "only known with the workload")
    refused(lambda: load_plan(path, workload), path, "table_6", "give local_world_size")


def test_a_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    refused(lambda: load_plan(path), path, "No such file")
