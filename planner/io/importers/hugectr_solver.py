"""Reads how a HugeCTR configuration trains: its ``solver``, and the optimizer of all layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from costmodels.workload import DataType
from planner.io.importers.base import Reader
from planner.io.importers.hugectr_optimizer import NO_OPTIMIZER, NamedOptimizer, read_optimizer
from planner.io.yaml_reader import Keys

_MOST_RANKS: Final = 65_536
_SWITCHES: Final = (
    ("cuda_graph", True),
    ("holistic_cuda_graph", False),
    ("enable_overlap", False),
    ("enable_tf32_compute", False),
)
"""Switches of the solver, with HugeCTR's defaults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solver:
    """How the model is trained.

    Attributes:
        num_hosts: number of hosts.
        local_world_size: ranks per host.
        global_batch_size: samples of all ranks.
        precision: type of matrix products.
        index_bytes: bytes of one key.
        has_graph: whether the dense part, or all of a step, is captured as a CUDA graph.
        has_overlap: whether exchanges overlap the dense part.
        optimizer: the optimizer of layers that name none of their own.
    """

    num_hosts: int
    local_world_size: int
    global_batch_size: int
    precision: DataType
    index_bytes: int
    has_graph: bool
    has_overlap: bool
    optimizer: NamedOptimizer

    @property
    def world_size(self) -> int:
        """Ranks of all hosts."""
        return self.num_hosts * self.local_world_size


def read_solver(reader: Reader, config: dict[str, Any], assumed: dict[str, str]) -> Solver:
    """Read the section ``solver``, and the optimizer of all layers.

    Args:
        reader: reads the values of the file.
        config: the content of the file.
        assumed: gets a line for each key that the file leaves open.

    Raises:
        InvalidInputError: names the key path of what is missing or out of range.
    """
    keys: Keys = ("solver",)
    solver = reader.mapping(reader.required(config, "solver", ()), keys)
    gpus = solver.get("gpu")
    if gpus is None:
        assumed["gpus"] = "1; the solver names none"
        gpus = [0]
    listed = reader.sequence(gpus, (*keys, "gpu"))
    hosts = listed if listed and isinstance(listed[0], list) else [listed]
    sizes = {len(reader.sequence(h, (*keys, "gpu", i))) for i, h in enumerate(hosts)}
    if len(sizes) != 1 or not 1 <= max(sizes) * len(hosts) <= _MOST_RANKS:
        raise reader.fail((*keys, "gpu"), gpus, "must name as many GPUs on each host, at least 1")
    batch = reader.required(solver, "batchsize", keys)
    world = max(sizes) * len(hosts)
    batch = reader.whole(batch, (*keys, "batchsize"), high=10**8)
    if batch % world:
        assumed["training.batch_size_per_rank"] = (
            f"{batch} samples are no multiple of {world} ranks: rounded up"
        )
    part, whole, has_overlap, is_tf32 = (
        reader.flag(solver.get(key, default), (*keys, key)) for key, default in _SWITCHES
    )
    if part and not whole:
        assumed["training.cuda_graph"] = (
            "true, as HugeCTR does unless cuda_graph is false; that it issues lookups and "
            "exchanges outside the graph is not counted"
        )
    if not has_overlap:
        assumed["training.pipeline"] = "none, since the solver has no enable_overlap"
    plain = DataType.TF32 if is_tf32 else DataType.FP32
    return Solver(
        num_hosts=len(hosts),
        local_world_size=max(sizes),
        global_batch_size=batch,
        precision=DataType.FP16 if solver.get("mixed_precision") else plain,
        has_graph=part or whole,
        has_overlap=has_overlap,
        index_bytes=8 if solver.get("input_key_type") == "I64" else 4,
        optimizer=read_optimizer(reader, config, (), NO_OPTIMIZER),
    )
