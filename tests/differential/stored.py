"""Cases as files: whatever once found a fault stays as it was, however problems are drawn later."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from costmodels import estimates, operators, sharding, topology, workload
from costmodels.distribution.empirical import Empirical
from costmodels.distribution.uniform import Uniform
from costmodels.distribution.zipf import Zipf
from costmodels.layers.attention_pooling import AttentionPooling
from costmodels.layers.dcn import Dcn
from costmodels.layers.deepfm import DeepFm
from costmodels.layers.dlrm import Dlrm
from costmodels.layers.dot import Dot
from costmodels.layers.hstu import Hstu, Kernel
from costmodels.layers.mlp import Mlp
from costmodels.layers.mmoe import Mmoe
from costmodels.layers.moe import Moe
from costmodels.layers.transformer import Checkpoint, Transformer
from costmodels.layers.two_tower import TwoTower
from costmodels.topology import Topology
from costmodels.training import communication
from planner import problem
from planner import scenarios as robust
from planner.io.system.system_file import with_measurements
from tests.differential.case import Case
from tests.differential.drawing.calibrated import calibration_path

FOLDER = Path(__file__).resolve().parent / "found"

_KEY = "is"
_KNOWN: dict[str, Any] = {
    cls.__name__: cls
    for module in (
        communication,
        estimates,
        operators,
        sharding,
        topology,
        workload,
        problem,
        robust,
    )
    for cls in vars(module).values()
    if isinstance(cls, type) and (dataclasses.is_dataclass(cls) or issubclass(cls, Enum))
} | {cls.__name__: cls for cls in (Empirical, Uniform, Zipf, Case)}
_KNOWN |= {
    cls.__name__: cls
    for cls in (
        AttentionPooling,
        Dcn,
        DeepFm,
        Dlrm,
        Dot,
        Hstu,
        Kernel,
        Checkpoint,
        Mlp,
        Mmoe,
        Moe,
        Transformer,
        TwoTower,
    )
}


def stored_names() -> list[str]:
    """Names of the files in :data:`FOLDER`."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def save(case: Case, path: Path, found: list[str]) -> None:
    """Write a case with what it found, so that ``load`` gives the same case back."""
    values = {"found": found, "case": _encoded(case)}
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in values.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def load(path: Path) -> Case:
    """The case of a file."""
    case = _decoded(json.loads(path.read_text(encoding="utf-8"))["case"])
    if not isinstance(case, Case):
        msg = f"{path} holds no case"
        raise TypeError(msg)
    return case


def faults_found(path: Path) -> list[str]:
    """What the case of a file found, one line for each fault."""
    return [str(line) for line in json.loads(path.read_text(encoding="utf-8"))["found"]]


def _encoded(value: object) -> Any:
    if isinstance(value, Enum):
        return {_KEY: type(value).__name__, "value": value.value}
    if isinstance(value, Topology) and value.calibration:
        value = dataclasses.replace(value, calibration=Path(value.calibration).name)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            f.name: _encoded(getattr(value, f.name))
            for f in dataclasses.fields(value)
            if f.init and f.compare and getattr(value, f.name) != f.default
        }
        return {_KEY: type(value).__name__, **fields}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_encoded(v) for v in value]
    return value


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_decoded(v) for v in value)
    if isinstance(value, dict):
        cls = _KNOWN[value[_KEY]]
        if issubclass(cls, Enum):
            return cls(value["value"])
        given = {k: _decoded(v) for k, v in value.items() if k != _KEY}
        if cls is Topology and given.get("calibration"):
            given["calibration"] = str(calibration_path(given["calibration"]))
        made = cls(**given)
        return with_measurements(made) if isinstance(made, Topology) else made
    return value
