"""Plans that are given: TorchRec's own for comparison, and plans saved in files."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from torch import nn
from torchrec.distributed.planner import types as torchrec_types
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.perf_models import NoopPerfModel
from torchrec.distributed.planner.planners import EmbeddingShardingPlanner, extract_plan
from torchrec.distributed.planner.types import (
    Enumerator,
    PlanLoader,
    PlannerErrorType,
    Proposer,
    ShardingOption,
)
from torchrec.distributed.types import ModuleSharder, ShardingType

from costmodels.sharding import Plan
from costmodels.topology import Topology
from costmodels.units import format_bytes
from costmodels.workload import Workload
from planner import io
from planner.errors import InvalidInputError
from planner.integrations.torchrec_plan import plan_of
from planner.integrations.torchrec_workload import ModelDescription
from planner.integrations.translate.constraints import OUR_DEVICE
from planner.integrations.translate.pricing import KeyValuePipeline
from planner.integrations.translate.private_names import last_options, proposers_of
from planner.integrations.translate.settings import ShardPlannerError
from planner.options.table_limits import broken_constraints
from planner.options.torchrec_rules import layout_problems, pooling_problems, width_problems
from planner.problem import PlanningProblem

if TYPE_CHECKING:
    from planner.integrations.drop_in.search import Job

logger: Final = logging.getLogger(__name__)


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


NO_RIVAL: Final = Rival()


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
        types = {kind.value: i for i, kind in enumerate(ShardingType)}
        return sorted(
            found,
            key=lambda o: (
                tables[o.fqn],
                types.get(o.sharding_type, len(types)),
                o.compute_kernel,
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


def rival_plan(
    theirs: EmbeddingShardingPlanner,
    job: Job,
    module: nn.Module,
    sharders: list[ModuleSharder[nn.Module]],
) -> Rival:
    """The plan that ``EmbeddingShardingPlanner`` makes with the same arguments.

    There is none for models for which it takes long, if it fails, if we cannot express its plan, or
    if the plan breaks a rule of TorchRec's runtime. With a short time limit it gets less work.

    Args:
        theirs: TorchRec's planner with these arguments; the number of proposals of each of its
            proposers is limited here.
        job: the model, and the limits of the search. If the rule of a table names only one cache
            load factor, TorchRec's runtime uses this one for a plan without any.
        module: the model.
        sharders: its sharders.
    """
    topology, workload, share = job.topology, job.workload, min(job.limit_s / _WHOLE_LIMIT_S, 1.0)
    num_tables, most = len(workload.tables), int(share * MOST_SHARDS)
    if num_tables * topology.world_size > most:
        within = f" within {job.limit_s:g} s" if share < 1.0 else ""
        return Rival(reason=f"not asked for: more than {most} tables times ranks{within}")
    rules = {t.name: rule for t, rule in zip(workload.tables, job.limits.tables, strict=True)}
    factors = {n: r.cache_load_factors for n, r in rules.items()}
    try:
        work = share * _MOST_WORK / (num_tables * topology.world_size)
        for proposer in proposers_of(theirs):
            ended(proposer, max(int(work) // 2, 1))
        with quiet():
            theirs.plan(module, sharders)
        options = last_options(theirs)
        plan = plan_of(options, {n: f[0] for n, f in factors.items() if len(f) == 1})
        rating_ms = float(NoopPerfModel(topology).rate(options))
    except Exception as error:  # an error in this comparison must not stop the job
        logger.debug("TorchRec's planner gives no plan to compare with: %s", error)
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return Rival(reason=f"none: {(lines or [type(error).__name__])[0][:200]}")
    device = topology.compute_device
    wrong = [
        *runtime_problems(plan, workload, job.ledger, device),
        *(
            f"table {placed.table!r} as {placed.sharding_type} on {device}"
            for placed in plan.placements
            if placed.sharding_type not in rules[placed.table].sharding_types
        ),
    ]
    if wrong:
        return Rival(reason=f"cannot run: {wrong[0]}")
    if problems := pooling_problems(plan, workload):
        return Rival(reason=f"changes the model: {problems[0]}")
    return Rival(plan=plan, rating_ms=rating_ms)


def runtime_problems(
    plan: Plan, workload: Workload, topology: Topology, compute_device: str
) -> list[str]:
    """One line for each rule that keeps TorchRec from running a plan on one of its devices."""
    device = OUR_DEVICE.get(compute_device, compute_device)
    layout = layout_problems(plan, workload, topology, device=device)
    return [*layout, *width_problems(plan, workload).values()]


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


def load_for_model(
    path: Path, model: ModelDescription, workload: Workload, topology: Topology, compute_device: str
) -> Plan:
    """Load a plan; it has to be one for exactly this model on this many ranks.

    A plan that breaks constraints, or does not fit in memory, is used with a warning.

    Args:
        path: a ``plan.json``, ours or TorchRec's.
        model: the tables of the model.
        workload: that of the model, with what is not yet taken off the memory.
        topology: the ranks of the job, with the memory that is left for tables.
        compute_device: TorchRec's device.

    Raises:
        ShardPlannerError: the file cannot be read; the plan was made for another number of ranks or
            for other tables (there is a line for each that differs); or TorchRec cannot run it.
    """
    try:
        plan = io.load_plan(path, workload, topology).plan
        problems = runtime_problems(plan, workload, topology, compute_device)
    except InvalidInputError as error:
        plan, problems = Plan(placements=()), list(error.problems)
    if problems:
        message = "\n".join([f"the plan {path} does not fit this job:", *problems])
        raise ShardPlannerError(message, PlannerErrorType.PLAN_LOADING_FAILED)
    problem = PlanningProblem(workload=workload, topology=topology, constraints=model.constraints)
    lines = [f"{line}, against its constraint" for line in broken_constraints(problem, plan)]
    pipeline = KeyValuePipeline(workload, topology, key_values=model.key_values)
    fullest = pipeline.memory(plan).fullest
    if fullest.headroom_bytes < 0:
        lines.append(
            f"rank {fullest.rank} needs {format_bytes(-fullest.headroom_bytes)} more device memory "
            "by our count than the storage reservation and memory_headroom leave"
        )
    for line in lines:
        logger.warning("the plan %s is used, although %s", path, line)
    return plan


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
