"""TorchRec's own plan for comparison: our plan is used only if it is better."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from torch import nn
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.perf_models import NoopPerfModel
from torchrec.distributed.planner.planners import EmbeddingShardingPlanner
from torchrec.distributed.planner.proposers import (
    GreedyProposer,
    GridSearchProposer,
    UniformProposer,
)
from torchrec.distributed.planner.types import (
    Enumerator,
    Proposer,
    ShardingOption,
)
from torchrec.distributed.planner.types import Topology as TorchrecTopology
from torchrec.distributed.types import ModuleSharder, ShardingPlan, ShardingType

from costmodels.sharding import Plan
from costmodels.topology import Topology
from costmodels.workload import Workload
from planner.integrations.drop_in.request import Request
from planner.integrations.torchrec_plan import from_sharding_plan
from planner.integrations.translate.constraints import OUR_DEVICE, refused_types
from planner.options.runtime_warnings import pooling_problems, width_problems
from planner.options.torchrec_rules import layout_problems
from planner.problem import Constraints

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


class CountedProposer(Proposer):
    """One of TorchRec's proposers, which ends after a number of proposals."""

    def __init__(self, inner: Proposer, most: int) -> None:
        """Keep the arguments; nothing is proposed yet."""
        self._inner = inner
        self._left = most

    def load(
        self, search_space: list[ShardingOption], enumerator: Enumerator | None = None
    ) -> None:
        """Pass the options on to the inner proposer."""
        self._inner.load(search_space=search_space, enumerator=enumerator)

    def propose(self) -> list[ShardingOption] | None:
        """The next proposal; None after the last one of the inner proposer, or of the number."""
        if self._left <= 0:
            return None
        self._left -= 1
        return self._inner.propose()

    def feedback(
        self,
        partitionable: bool,  # noqa: FBT001 - TorchRec's signature
        plan: list[ShardingOption] | None = None,
        perf_rating: float | None = None,
        storage_constraint: TorchrecTopology | None = None,
    ) -> None:
        """Pass the feedback on to the inner proposer."""
        self._inner.feedback(partitionable, plan, perf_rating, storage_constraint)


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
    return [CountedProposer(p, max(most // 2, 1)) for p in inner]


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
        rating_ms = float(NoopPerfModel(topology).rate(theirs._best_plan or []))
    except Exception as error:  # an error in this comparison must not stop the job
        logger.debug("TorchRec's planner gives no plan to compare with: %s", error)
        return Rival(reason=f"none: {_first_line(error)}")
    device = OUR_DEVICE.get(topology.compute_device, topology.compute_device)
    if problems := layout_problems(plan, workload, ours, device=device):
        return Rival(reason=f"cannot run: {problems[0]}")
    for line in width_problems(plan, workload).values():
        return Rival(reason=f"cannot run: {line}")
    if problems := pooling_problems(plan, workload):
        return Rival(reason=f"changes the model: {problems[0]}")
    if refused := refused_types(limits, plan):
        table, kind = next(iter(refused.items()))
        return Rival(reason=f"cannot run: table {table!r} as {kind} on {topology.compute_device}")
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


_NOISY: Final = "torchrec.distributed.planner"


@contextmanager
def quiet() -> Iterator[None]:
    """A context without logs of TorchRec's planner, which writes lines for each proposal.

    To the root logger it writes that each replicated table has no sharding spec, as it should.
    """
    known = [
        logger
        for name, logger in logging.root.manager.loggerDict.items()
        if isinstance(logger, logging.Logger) and name.startswith(_NOISY)
    ]
    before = [one.disabled for one in known]
    for one in known:
        one.disabled = True
    logging.root.addFilter(_is_news)
    try:
        yield
    finally:
        logging.root.removeFilter(_is_news)
        for one, disabled in zip(known, before, strict=True):
            one.disabled = disabled
