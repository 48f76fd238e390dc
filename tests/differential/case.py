"""One question to the planner, whole: everything that ``planner.api.plan`` is asked."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.sharding import ComputeKernel, Shard, ShardingType, TablePlacement
from costmodels.stages.models import CostModels
from costmodels.topology import Topology
from costmodels.workload import Pipeline, Pooling, Table, Workload
from planner.models import chosen_models
from planner.problem import NO_CONSTRAINTS, Constraints, Level, MoveLimit
from planner.scenarios import ScenarioRule

CACHE_LOAD_FACTORS = (0.05, 0.1, 0.2, 0.4)
"""The documented menu of cache load factors where no constraint names others."""

COLUMN_MULTIPLE = 4
"""Fused kernels store rows in units of four columns, so a shard's width is a multiple of it."""

FUSED = (ComputeKernel.FUSED, ComputeKernel.FUSED_UVM, ComputeKernel.FUSED_UVM_CACHING)

ROWS_TYPES = {ShardingType.ROW_WISE, ShardingType.TABLE_ROW_WISE, ShardingType.GRID_SHARD}
SEQUENCE_TYPES = (
    ShardingType.DATA_PARALLEL,
    ShardingType.TABLE_WISE,
    ShardingType.COLUMN_WISE,
    ShardingType.ROW_WISE,
)
"""What an ``EmbeddingCollection``, which does not pool, can be sharded by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A problem, its objective, and why it is of interest. Scenarios stand beside the workload.

    ``collective`` names the model of collectives that prices plans; empty for that of the system.
    """

    name: str
    workload: Workload
    topology: Topology
    constraints: Constraints = NO_CONSTRAINTS
    objective: str = "iteration"
    moves: MoveLimit | None = None
    scenarios: tuple[Workload, ...] = ()
    robust: ScenarioRule = ScenarioRule.WORST
    collective: str = ""

    @property
    def on_torchrecs_terms(self) -> bool:
        """Whether TorchRec's own estimates judge the plans."""
        return self.objective.startswith("torchrec")

    @property
    def limits_moves(self) -> bool:
        """Whether there is a limit on what may move away from the plan in use."""
        moves = self.moves
        return moves is not None and (moves.max_bytes is not None or moves.max_tables is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """What the constraints leave of one table: types, kernels, places, widths, load factors.

    ``pairs`` are the types with kernels that rules on combinations leave.
    """

    types: frozenset[ShardingType]
    kernels: frozenset[ComputeKernel]
    ranks: tuple[int, ...]
    hosts: tuple[int, ...]
    min_width: int
    factors: tuple[float, ...]
    names_factors: bool
    pairs: frozenset[tuple[ShardingType, ComputeKernel]]


def leave_of(case: Case, table: Table) -> Leave:
    """The constraints on one table put together, with what its shape lets TorchRec run.

    A host is left if all of its ranks are. Where a rank is ruled out, nothing may span all ranks.
    """
    topology, rules = case.topology, case.constraints
    own = [c for c in rules.tables if c.matches(table.name)]
    types = set(SEQUENCE_TYPES if table.pooling is Pooling.NONE else ShardingType)
    sums = table.codecs.reduce_scatter
    if table.pooling is not Pooling.NONE and sums is not None:
        words = {sums.forward.precision.value, sums.backward.precision.value}
        if words & {"int8", "fp8", "mx4"}:
            types -= ROWS_TYPES
    types &= set(rules.sharding_types)
    kernels = set(rules.kernels)
    ranks, hosts = set(range(topology.world_size)), set(range(topology.num_hosts))
    factors: set[float] | None = None
    pairs = set(itertools.product(ShardingType, ComputeKernel))
    for c in own:
        pairs &= set(c.pairs or pairs)
        types &= set(c.sharding_types or ShardingType)
        kernels &= set(c.kernels or ComputeKernel)
        ranks &= set(c.ranks or ranks)
        hosts &= set(c.hosts or hosts)
        if c.cache_load_factors:
            named = set(c.cache_load_factors)
            factors = named if factors is None else factors & named
    if factors == set() and ComputeKernel.FUSED_UVM_CACHING in kernels:
        types = set()  # cache sizes that contradict each other are refused by name
    on_cores = topology.calibration or topology.device.name == "cpu"
    if on_cores:  # which have no kernels of host memory
        kernels &= {ComputeKernel.DENSE, ComputeKernel.FUSED}
        if table.pooling is Pooling.NONE:
            types -= {ShardingType.DATA_PARALLEL}
    in_hugectr = case.workload.pipeline is Pipeline.HUGECTR  # whose kernels take any width
    if table.embedding_dim % COLUMN_MULTIPLE and not in_hugectr:
        types &= {ShardingType.DATA_PARALLEL}
    local = topology.local_world_size
    ranks = {r for r in ranks if r // local in hosts}
    if len(ranks) < topology.world_size:
        types -= {ShardingType.DATA_PARALLEL, ShardingType.ROW_WISE}
    whole = {h for h in hosts if set(range(h * local, (h + 1) * local)) <= ranks}
    return Leave(
        types=frozenset(types),
        kernels=frozenset(kernels),
        ranks=tuple(sorted(ranks)),
        hosts=tuple(sorted(whole)),
        min_width=max([COLUMN_MULTIPLE, *(c.min_column_width for c in own)]),
        factors=CACHE_LOAD_FACTORS if factors is None else tuple(sorted(factors)),
        names_factors=factors is not None,
        pairs=frozenset(pairs),
    )


def models_on(case: Case, topology: Topology) -> CostModels:
    """The models that price plans of a case on a system."""
    named = {"collective": case.collective} if case.collective else {}
    return chosen_models(topology, named)


def limited_topology(case: Case) -> Topology:
    """The topology with the memory that the constraints leave of each device and host."""
    device, host = case.topology.hbm_capacities().tolist(), case.topology.ddr_capacities().tolist()
    for rule in case.constraints.memory:
        sizes = device if rule.level is Level.RANK else host
        for place in rule.places or range(len(sizes)):
            sizes[place] = min(sizes[place], rule.most_bytes)
    return replace(
        case.topology,
        hbm_capacity_by_rank_bytes=tuple(device),
        ddr_capacity_by_host_bytes=tuple(host),
    )


def received_bytes(case: Case, placement: TablePlacement) -> float:
    """Bytes that all ranks have to receive, see :func:`received_bytes_by_rank`."""
    return float(received_bytes_by_rank(case, placement).sum())


def received_bytes_by_rank(case: Case, placement: TablePlacement) -> FloatArray:
    """Bytes that ranks ``[W]`` receive to go from the plan in use to this placement of a table.

    Each rank receives the cells that it did not hold: their weights, and their share of the row's
    optimizer state.
    """
    received = np.zeros(case.topology.world_size)
    if case.moves is None:
        return received
    table = case.workload.table(placement.table)
    before = case.moves.start.placement(placement.table).shards
    for new in placement.shards:
        kept = sum(common_cells(old, new) for old in before if old.rank == new.rank)
        received[new.rank] += new.num_rows * new.num_cols - kept
    return received * cell_bytes(case.workload, table)


def cell_bytes(workload: Workload, table: Table) -> float:
    """Bytes of one weight and of its share of the row's optimizer state."""
    state = workload.optimizer_of(table).state_bytes_per_row(table.embedding_dim)
    return table.dtype.num_bytes + state / table.embedding_dim


def common_cells(one: Shard, other: Shard) -> int:
    """Cells of a table that two shards both have."""
    rows = min(one.row_offset + one.num_rows, other.row_offset + other.num_rows) - max(
        one.row_offset, other.row_offset
    )
    cols = min(one.col_offset + one.num_cols, other.col_offset + other.num_cols) - max(
        one.col_offset, other.col_offset
    )
    return max(rows, 0) * max(cols, 0)
