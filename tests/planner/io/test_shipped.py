"""Everything that is shipped loads, says where its numbers come from, and is up to date."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from costmodels.estimates import Source
from planner import io
from planner.errors import InvalidInputError
from planner.io.documents import configs_folder
from planner.io.schemas import Strict
from planner.io.workload.workload_file import load_workload_file
from planner.io.workload.workload_schema import (
    DenseSchema,
    MemorySchema,
    TableSchema,
    TrainingSchema,
)
from planner.support.files import write_text_atomic
from tests.planner.io.files import SYSTEM

SCHEMAS = {
    "workload": io.workload_json_schema,
    "system": io.system_json_schema,
    "plan": io.plan_json_schema,
}


def test_the_promised_names() -> None:
    assert set(io.names("systems")) >= {
        *("v100_32gb_sxm", "a100_40gb_sxm", "a100_80gb_sxm", "h100_sxm", "h100_pcie", "h200_sxm"),
        *("b200_sxm", "gb200", "l40", "l40s", "a40", "torchrec_defaults", "cpu_gloo"),
        *("a10g", "a100_pcie", "h100_nvl", "mi300x", "mi355x", "b300", "gb300"),
    }
    assert set(io.names("workloads")) >= {
        *("dlrm_dcnv2_mlperf", "dlrm_criteo_terabyte", "synthetic_300", "small_demo"),
    }


@pytest.mark.parametrize("name", io.names("systems"))
def test_system(name: str) -> None:
    system = io.load_system(name, gpus=16)
    assert system.name == name
    assert system.world_size == 16
    assert len(system.provenance) >= 18
    for number in system.provenance:
        assert number.source is not Source.USER, number
        assert number.reference, number
    device = system.device
    assert 0.4 < system.host_link.bandwidth_bytes_per_s / 1e9 < 1800
    across_s = system.network_link.latency_s
    if system.network_link.fabric:  # a kind's start-up comes on top of that inside a host
        across_s += system.host_link.latency_s
    assert across_s >= system.host_link.latency_s
    assert device.l2_bandwidth_bytes_per_s >= device.hbm_bandwidth_bytes_per_s


def test_torchrec_defaults() -> None:
    """TorchRec 1.8's constants: 897 GiB/s HBM, 600 and 12.5 GiB/s links, 128 GiB per rank."""
    system = io.load_system("torchrec_defaults")
    gib = 2.0**30
    assert system.device.hbm_capacity_bytes == 80 * gib
    assert system.device.hbm_bandwidth_bytes_per_s == pytest.approx(897 * gib, rel=1e-12)
    assert system.host_link.bandwidth_bytes_per_s == pytest.approx(600 * gib, rel=1e-12)
    assert system.network_link.bandwidth_bytes_per_s == pytest.approx(12.5 * gib, rel=1e-12)
    assert system.host.ddr_bandwidth_bytes_per_s == pytest.approx(51 * gib, rel=1e-12)
    assert system.host.device_link_bandwidth_bytes_per_s == pytest.approx(32 * gib, rel=1e-12)
    assert system.host.ddr_capacity_bytes == 8 * 128 * gib


@pytest.mark.parametrize("name", io.names("workloads"))
def test_workload(name: str) -> None:
    file = load_workload_file(name)
    assert file.workload.name == name
    assert file.workload.reserved_bytes > 0
    assert all(t.pooling_factor > 0 for t in file.workload.tables)


def test_mlperf_workload() -> None:
    workload = io.load_workload("dlrm_dcnv2_mlperf")
    assert len(workload.tables) == 26
    assert sum(t.num_embeddings for t in workload.tables) == 204_184_588
    assert sum(t.pooling_factor for t in workload.tables) == 214
    assert {t.embedding_dim for t in workload.tables} == {128}


def test_the_template_is_a_workload(tmp_path: Path) -> None:
    path = tmp_path / "workload.yaml"
    path.write_text(io.read_template())
    file = load_workload_file(path)
    assert len(file.workload.tables) >= 3
    assert len(file.constraints.tables) >= 2


@pytest.mark.parametrize("schema", [TrainingSchema, TableSchema, DenseSchema, MemorySchema])
def test_the_template_names_every_key(schema: type[Strict]) -> None:
    words = set(re.findall(r"\w+", io.read_template()))
    assert schema.model_fields.keys() <= words


def test_an_installation_without_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.io.documents._PLACES", (tmp_path / "a", tmp_path / "b"))
    with pytest.raises(InvalidInputError, match="install the package again"):
        io.load_system("h100_sxm")


def test_an_installed_copy_is_found_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "_configs" / "systems"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text(SYSTEM)
    monkeypatch.setattr("planner.io.documents._PLACES", (tmp_path / "_configs", configs_folder()))
    assert io.names("systems") == ("mine",)
    assert io.load_system("mine").name == "box"


def test_a_file_here_wins_over_a_shipped_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "h200_sxm").mkdir()
    assert io.load_system("h200_sxm").name == "h200_sxm"
    (tmp_path / "h100_sxm").write_text(SYSTEM)
    assert io.load_system("h100_sxm").name == "box"


# ------------------------------------------------------------------ JSON Schema


def refresh_schemas() -> None:
    """Write the schemas anew: ``python -c 'from tests... import refresh_schemas; ...'``."""
    for kind, schema in SCHEMAS.items():
        path = configs_folder() / "schema" / f"{kind}.schema.json"
        write_text_atomic(path, json.dumps(schema(), indent=1) + "\n")


@pytest.mark.parametrize("kind", SCHEMAS)
def test_schema_files_are_up_to_date(kind: str) -> None:
    path = configs_folder() / "schema" / f"{kind}.schema.json"
    assert json.loads(path.read_text()) == SCHEMAS[kind](), (
        "run: python -c 'from tests.planner.io.test_shipped import refresh_schemas as r; r()'"
    )


def branches(schema: dict[str, Any], *path: str) -> Any:
    """A part of a schema, references followed."""
    part: Any = schema
    for key in path:
        part = part["properties"][key]
        while "$ref" in part:
            part = schema["$defs"][part["$ref"].rsplit("/", 1)[1]]
    return part


def test_schemas_tell_editors_what_to_write() -> None:
    workload, system = io.workload_json_schema(), io.system_json_schema()
    assert workload["additionalProperties"] is False
    assert set(workload["required"]) == {"name", "training"}
    reserve = branches(workload, "memory", "reserve")
    assert "GiB" in reserve["pattern"]
    batch = branches(workload, "training", "batch_size_per_rank")
    assert [b["type"] for b in batch["anyOf"]] == ["number", "string"]
    rate = branches(system, "device", "hbm_bandwidth")
    assert rate["type"] == "string"
    share = branches(system, "device", "update_efficiency")
    assert [b["type"] for b in share["anyOf"]] == ["string", "number"]
    assert io.plan_json_schema()["required"] == ["plan"]
