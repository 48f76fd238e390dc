"""Plans that are given: TorchRec's own for comparison, and plans saved in files."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from torch import nn
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.planner import types as torchrec_types
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.perf_models import NoopPerfModel
from torchrec.distributed.planner.planners import EmbeddingShardingPlanner, extract_plan
from torchrec.distributed.planner.proposers import (
    GreedyProposer,
    GridSearchProposer,
    UniformProposer,
)
from torchrec.distributed.planner.types import (
    Enumerator,
    PlanLoader,
    PlannerErrorType,
    Proposer,
    ShardingOption,
)
from torchrec.distributed.types import ModuleSharder, ShardingPlan, ShardingType

from costmodels.sharding import ComputeKernel, Plan, row_blocks
from costmodels.topology import Topology
from costmodels.units import format_bytes
from costmodels.workload import Workload
from planner import io
from planner.errors import InvalidInputError
from planner.integrations.torchrec_plan import from_sharding_plan, virtual_blocks
from planner.integrations.torchrec_workload import ModelDescription, ShardableTable
from planner.integrations.translate.constraints import OUR_DEVICE, refused_types
from planner.integrations.translate.pricing import KeyValuePipeline
from planner.integrations.translate.private_names import last_options
from planner.integrations.translate.settings import KEY_VALUE_KERNELS, Request, ShardPlannerError
from planner.io.documents import read_json
from planner.options.contradictions import broken_constraints
from planner.options.runtime_warnings import pooling_problems, width_problems
from planner.options.torchrec_rules import layout_problems
from planner.problem import Constraints, PlanningProblem

logger: Final = logging.getLogger(__name__)


_TYPES: Final = {t.value: i for i, t in enumerate(ShardingType)}
_KERNELS: Final = {k.value: i for i, k in enumerate(EmbeddingComputeKernel)}

MOST_SHARDS: Final = 512
"""TorchRec's planner makes a plan for comparison if tables times ranks are at most this many."""

_MOST_WORK: Final = 60_000
"""TorchRec's planner may try proposals up to this many tables times ranks times proposals, which
takes about 1 s. A limit by the clock would make the result depend on how busy the machine is."""

_WHOLE_LIMIT_S: Final = 5.0
"""TorchRec's planner gets all of this with a time limit of so many seconds; with less, a share."""


@dataclass(frozen=True, kw_only=True)
class Rival:
    """The plan that ``EmbeddingShardingPlanner`` makes with the same arguments.

    ``plan`` is None if there is nothing to compare with; ``reason`` then says why. ``rating_ms`` is
    TorchRec's own rating of its plan: the largest sum of shard costs of a rank.
    """

    plan: Plan | None = None
    rating_ms: float | None = None
    reason: str = ""


class LazyEnumerator(EmbeddingEnumerator):
    """TorchRec's enumerator, which runs only when its list is used.

    Our search does not need the list, but context hashes do. For hundreds of tables it takes a
    minute.
    """

    _pending: tuple[nn.Module, list[ModuleSharder[nn.Module]]] | None = None

    def expect(self, module: nn.Module, sharders: list[ModuleSharder[nn.Module]]) -> None:
        """Set the model whose options are listed; those of another model are forgotten."""
        known, self._pending = self._pending, (module, sharders)
        if known is None or known[0] is not module or known[1] != sharders:
            self._last_stored_search_space: list[ShardingOption] | None = None
            self._last_stored_module: nn.Module | None = None

    @property
    def last_stored_search_space(self) -> list[ShardingOption] | None:
        """The options of the model that was planned last; None before the first."""
        if self._last_stored_search_space is None and self._pending is not None:
            self.enumerate(*self._pending)
        return self._last_stored_search_space


class OrderedEnumerator(Enumerator):
    """An enumerator that sorts the options of each table by type and kernel.

    TorchRec's enumerator takes them from sets, whose order differs from one start of a job to the
    next, and its planner keeps the first of several options with the same cost.
    """

    def __init__(self, inner: Enumerator) -> None:
        """Keep the enumerator that lists the options."""
        self._inner = inner

    def enumerate(
        self, module: nn.Module, sharders: list[ModuleSharder[nn.Module]]
    ) -> list[ShardingOption]:
        """The options: tables in the enumerator's order, options of a table in a fixed order."""
        found = self._inner.enumerate(module, sharders)
        tables = {fqn: i for i, fqn in enumerate(dict.fromkeys(o.fqn for o in found))}
        return sorted(
            found,
            key=lambda o: (
                tables[o.fqn],
                _TYPES.get(o.sharding_type, len(_TYPES)),
                _KERNELS.get(o.compute_kernel, len(_KERNELS)),
            ),
        )

    def populate_estimates(self, sharding_options: list[ShardingOption]) -> None:
        """Pass the options on to the enumerator."""
        self._inner.populate_estimates(sharding_options)


def ended(proposer: Proposer, most: int) -> Proposer:
    """The proposer, which from now on ends after ``most`` proposals."""
    propose, left = proposer.propose, iter(range(most))
    proposer.propose = lambda: None if next(left, None) is None else propose()
    return proposer


def counted_proposers(num_tables: int, world_size: int, share: float = 1.0) -> list[Proposer]:
    """TorchRec's default proposers, limited to a number of proposals that follows from the size.

    Proposers with one plan for each sharding type come first, because they make few proposals.

    Args:
        num_tables: number of tables.
        world_size: number of ranks.
        share: of the usual work.
    """
    most = max(int(share * _MOST_WORK) // (num_tables * world_size), 1)
    inner = [
        UniformProposer(),
        GridSearchProposer(),
        GreedyProposer(),
        GreedyProposer(use_depth=False),
    ]
    return [ended(p, max(most // 2, 1)) for p in inner]


def rival_plan(
    request: Request,
    workload: Workload,
    *,
    enumerator: Enumerator,
    ours: Topology,
    limits: Constraints,
    limit_s: float = _WHOLE_LIMIT_S,
) -> Rival:
    """The plan that ``EmbeddingShardingPlanner`` makes with the same arguments.

    There is none for models for which it takes long, if it fails, if we cannot express its plan, or
    if the plan breaks a rule of TorchRec's runtime.

    Args:
        request: what the planner was asked for.
        workload: the same model as a workload.
        enumerator: TorchRec's, or the user's.
        ours: ranks and hosts as the search sees them.
        limits: limits of the search, one rule for each table. If a rule names only one cache load
            factor, TorchRec's runtime uses this one for a plan without any.
        limit_s: time limit of the whole planning; with a short one TorchRec's planner gets less.
    """
    topology, share = request.topology, min(limit_s / _WHOLE_LIMIT_S, 1.0)
    size, most = len(workload.tables) * topology.world_size, int(share * MOST_SHARDS)
    if size > most:
        within = f" within {limit_s:g} s" if share < 1.0 else ""
        return Rival(reason=f"not asked for: more than {most} tables times ranks{within}")
    theirs = EmbeddingShardingPlanner(
        topology=topology,
        batch_size=request.batch_size,
        enumerator=OrderedEnumerator(enumerator),
        storage_reservation=request.reservation,
        proposer=counted_proposers(len(workload.tables), topology.world_size, share),
        stats=[],
        constraints=request.constraints,
        debug=False,
    )
    try:
        with quiet():
            found: ShardingPlan = theirs.plan(request.module, request.sharders)
        plan = from_sharding_plan(found, workload, _load_factors(workload, limits))
        rating_ms = float(NoopPerfModel(topology).rate(last_options(theirs)))
    except Exception as error:  # an error in this comparison must not stop the job
        logger.debug("TorchRec's planner gives no plan to compare with: %s", error)
        return Rival(reason=f"none: {_first_line(error)}")
    device = OUR_DEVICE.get(topology.compute_device, topology.compute_device)
    wrong = [
        *layout_problems(plan, workload, ours, device=device),
        *width_problems(plan, workload).values(),
        *(
            f"table {table!r} as {kind} on {topology.compute_device}"
            for table, kind in refused_types(limits, plan).items()
        ),
    ]
    if wrong:
        return Rival(reason=f"cannot run: {wrong[0]}")
    if problems := pooling_problems(plan, workload):
        return Rival(reason=f"changes the model: {problems[0]}")
    return Rival(plan=plan, rating_ms=rating_ms)


def _load_factors(workload: Workload, limits: Constraints) -> dict[str, float]:
    """The cache load factor of each table for which only one is allowed."""
    return {
        table.name: rule.cache_load_factors[0]
        for table, rule in zip(workload.tables, limits.tables, strict=True)
        if len(rule.cache_load_factors) == 1
    }


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:200]


def _is_news(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("Sharding spec not found for ")


@contextmanager
def quiet() -> Iterator[None]:
    """A context without logs of TorchRec's planner, which writes lines for each proposal.

    To the root logger it writes that each replicated table has no sharding spec, as it should.
    """
    noisy = logging.getLogger("torchrec.distributed.planner")
    before = noisy.level
    noisy.setLevel(logging.CRITICAL + 1)
    logging.root.addFilter(_is_news)
    try:
        yield
    finally:
        logging.root.removeFilter(_is_news)
        noisy.setLevel(before)


_NO_FINGERPRINT: Final = getattr(torchrec_types, "PlannerContextFingerprintError", ())
"""TorchRec 1.9's error for inputs with another hash in every process; 1.8 hashes them anyway."""


def load_for_model(path: Path, model: ModelDescription, topology: Topology, device: str) -> Plan:
    """Load a plan; it has to be one for exactly this model on this many ranks.

    A plan that breaks constraints, or does not fit in memory, is used with a warning.

    Args:
        path: a ``plan.json``, ours or TorchRec's.
        model: the tables of the model.
        topology: the ranks of the job, with the memory that is left for tables.
        device: ``cuda`` or ``cpu``.

    Raises:
        ShardPlannerError: the file cannot be read; the plan was made for another number of ranks or
            for other tables (there is a line for each that differs); or TorchRec cannot run it.
    """
    try:
        if theirs := _load_by_torchrec(path, model, topology):
            return theirs
        plan = io.load_plan(path, model.workload, topology).plan
    except InvalidInputError as error:
        raise _refused(path, error.problems) from error
    problems = [
        *layout_problems(plan, model.workload, topology, device=device),
        *width_problems(plan, model.workload).values(),
    ]
    if problems:
        raise _refused(path, problems)
    problem = PlanningProblem(
        workload=model.workload, topology=topology, constraints=model.constraints
    )
    for line in (
        *(f"{line}, against its constraint" for line in broken_constraints(problem, plan)),
        *_overfull(plan, model, topology),
    ):
        logger.warning("the plan %s is used, although %s", path, line)
    return plan


def _overfull(plan: Plan, model: ModelDescription, topology: Topology) -> list[str]:
    """A line if a rank needs more device memory than is left for tables."""
    pipeline = KeyValuePipeline(model.workload, topology, key_values=model.key_values)
    fullest = pipeline.memory(plan).fullest
    if fullest.headroom_bytes >= 0:
        return []
    return [
        f"rank {fullest.rank} needs {format_bytes(-fullest.headroom_bytes)} more device memory by "
        "our count than the storage reservation and memory_headroom leave"
    ]


def _load_by_torchrec(path: Path, model: ModelDescription, topology: Topology) -> Plan | None:
    """TorchRec's plan with key-value tables, which become the tables that the search sees.

    Returns:
        None if the file names no kernel of key-value tables, as TorchRec's own plans do.

    Raises:
        InvalidInputError: it is not a plan for this model on this many ranks.
    """
    values = read_json(path)
    plan = values.get("plan") if isinstance(values, dict) else None
    problems, is_theirs = [], False
    for table, limit in zip(model.tables, model.constraints.tables, strict=True):
        entries = plan.get(table.path) if isinstance(plan, dict) else None
        entry = entries.get(table.parameter_name) if isinstance(entries, dict) else None
        kept, name = table.key_value, table.table.name
        if kept is None or not isinstance(entry, dict):
            continue
        kernel = entry.get("compute_kernel")
        is_theirs |= kernel in KEY_VALUE_KERNELS
        if kernel != kept.kernel:
            problems.append(f"~ {name}: kernel {kernel} in the plan, {kept.kernel} asked for")
            continue
        entry["compute_kernel"] = str(ComputeKernel.FUSED_UVM_CACHING)
        entry["cache_load_factor"] = limit.cache_load_factors[0]
        if kept.is_virtual:
            problems += _to_stand_in(name, entry, table, topology.world_size)
    if not is_theirs:
        return None
    if problems:
        raise InvalidInputError(problems)
    return io.plan_from_json(values, model.workload, topology, source=str(path))


def _to_stand_in(
    name: str, entry: dict[str, Any], table: ShardableTable, world_size: int
) -> list[str]:
    """Give the entry of a virtual table the rows with which it is priced.

    Returns:
        Lines on what is wrong with the rows that the entry has.
    """
    shards, kind = entry.get("shards"), entry.get("sharding_type")
    listed = [s for s in shards if isinstance(s, dict)] if isinstance(shards, list) else []
    found = [(s.get("shard_sizes"), s.get("shard_offsets")) for s in listed]
    if found != virtual_blocks(table, world_size) or kind != "row_wise":
        return [
            f"~ {name}: {len(found)} {kind} shards in the plan are not the row_wise ones of "
            f"{world_size} ranks; plan again for this job"
        ]
    blocks = row_blocks(table.table.num_embeddings, world_size)
    for shard, (row, rows) in zip(listed, blocks, strict=True):
        shard |= {"shard_offsets": [row, 0], "shard_sizes": [rows, table.table.embedding_dim]}
    return []


def stored_options(
    loader: PlanLoader, search_space: list[ShardingOption], current_hash: Callable[[], str]
) -> list[ShardingOption]:
    """The options of the plan in a TorchRec plan loader; empty if it has none.

    They are empty as well, with a warning, if TorchRec 1.9 cannot tell whether the stored plan was
    made for the same inputs; TorchRec's own planner then makes a new plan too.

    Args:
        loader: any loader with TorchRec's interface.
        search_space: TorchRec's options of the model; stored options are found by storage hash.
        current_hash: returns the context hash of this job.

    Raises:
        ShardPlannerError: the stored plan was made for other inputs.
        PlannerError: TorchRec's error if the stored options are not those of this model.
    """
    try:
        current = current_hash()
    except _NO_FINGERPRINT as error:
        logger.warning("the stored plan cannot be checked, so a new one is made: %s", error)
        return []
    stored = loader.plan_context_hash()
    if stored is not None and stored != current:
        message = (
            f"planner input mismatch: the stored plan was made for other inputs (context hash "
            f"{stored}, now {current}); plan again, or remove plan_loader"
        )
        raise ShardPlannerError(message, PlannerErrorType.PLANNER_INPUT_CONTEXT_MISMATCH)
    loaded = loader.load()
    if loaded is None:
        return []
    return extract_plan(search_space=search_space, loaded_sharding_options=loaded)


def _refused(path: Path, lines: Sequence[str]) -> ShardPlannerError:
    message = "\n".join([f"the plan {path} does not fit this job:", *lines])
    return ShardPlannerError(message, PlannerErrorType.PLAN_LOADING_FAILED)
