"""A planner to use in place of ``EmbeddingShardingPlanner``; one line of a job changes."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch.distributed as dist
from torch import nn
from torchrec.distributed.planner.constants import BATCH_SIZE
from torchrec.distributed.planner.planners import (
    EmbeddingShardingPlanner,
    validate_compute_kernels,
    validate_modules_inclusion_in_sharding_plan,
    validate_rank_assignment,
)
from torchrec.distributed.planner.planners import to_sharding_plan as options_to_sharding_plan
from torchrec.distributed.planner.types import (
    Enumerator,
    ParameterConstraints,
    Partitioner,
    PerfModel,
    PlanDebugStats,
    PlanLoader,
    PlannerError,
    Proposer,
    ShardingOption,
    Stats,
    StorageReservation,
)
from torchrec.distributed.planner.types import Topology as TorchrecTopology
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ShardingPlan

import planner.errors
from costmodels.errors import CostModelError
from costmodels.sharding import Plan
from costmodels.topology import Topology
from planner.integrations.drop_in.others import (
    LazyEnumerator,
    Rival,
    load_for_model,
    quiet,
    rival_plan,
    stored_options,
)
from planner.integrations.drop_in.remarks import (
    copied_by_another_optimizer,
    narrow_outputs,
    topology_warnings,
)
from planner.integrations.drop_in.search import (
    Memories,
    Question,
    memories_left,
    require_room,
    soundest_plan,
)
from planner.integrations.drop_in.steps import (
    TIME_LIMIT_S,
    limit_within,
    plan_on_first_rank,
    planning_block,
    require_runnable,
    search_left,
    search_limits,
    warn_of_unused,
)
from planner.integrations.torchrec_plan import to_sharding_options
from planner.integrations.torchrec_topology import (
    base_system,
    default_topology,
    pod_size_mismatch,
    torchrec_machine,
)
from planner.integrations.torchrec_workload import (
    NO_HINTS,
    ModelDescription,
    WorkloadHints,
    describe_model,
)
from planner.integrations.translate.constraints import OUR_DEVICE, has_other_groups
from planner.integrations.translate.pricing import default_reservation
from planner.integrations.translate.settings import (
    Callback,
    Request,
    Sharders,
    as_planner_error,
    asked_sharders,
    called_back,
    require_arguments,
)
from planner.result import PlanningResult
from planner.torchrec_terms.pipeline import TorchrecPricing

logger: Final = logging.getLogger(__name__)


class ShardPlanner(EmbeddingShardingPlanner):
    """Plans a TorchRec model for the shortest training iteration.

    The positional arguments are those of ``EmbeddingShardingPlanner``, so that a call to that class
    works with this one. ``proposer``, ``partitioner`` and ``performance_model`` are parts of the
    search that this planner replaces: they are accepted but not used, with a warning that says what
    is used instead. To keep TorchRec's search, see :mod:`planner.integrations.torchrec_parts`.

    Args:
        topology: ranks and memories; if None, from the process group and the machine.
        batch_size: samples per rank; if None, TorchRec's default of 512.
        enumerator: if given, only the options that it lists are searched.
        storage_reservation: device memory to keep free; if None, 15 % and what is counted here.
        proposer: not used.
        partitioner: not used.
        performance_model: not used.
        stats: TorchRec's statistics, logged with TorchRec's own estimates of the plan.
        constraints: TorchRec's constraints by table name.
        debug: passed to the statistics.
        callbacks: each maps the chosen options to others before the plan is made.
        timeout_seconds: time limit of the planning in seconds; 300 if None. It is only a safety:
            the search ends after a fixed amount of work, so that the same job gets the same plan.
        plan_loader: loads a stored TorchRec plan, which is used instead of a search if there is
            one.
        system: one of our systems (or its name), whose rates are used; its memory too if there is
            no ``topology``.
        hints: what a model does not say: index distributions, dense part, pipeline.
        strategy: name of the search strategy.
        objective: ``iteration`` or another objective of :func:`planner.api.plan`.
        seed: seed of the search.
        plan_file: a saved plan that is used instead of a search; see :meth:`from_plan`.
        max_evaluations: budget of work of the search, in priced plans; if None, it follows from
            the size of the model and the number of ranks.
        memory_headroom: share (at least 0, below 1) of the memory left by the storage reservation
            that has to stay free on every rank. Planning fails if no plan leaves it free.

    After a search ``result`` has the prediction, the bound and the memory per rank, on the rank
    that searched.
    """

    def __init__(  # noqa: PLR0913 - TorchRec's arguments, and ours
        self,
        topology: TorchrecTopology | None = None,
        batch_size: int | None = None,
        enumerator: Enumerator | None = None,
        storage_reservation: StorageReservation | None = None,
        proposer: Proposer | list[Proposer] | None = None,
        partitioner: Partitioner | None = None,
        performance_model: PerfModel | None = None,
        stats: Stats | list[Stats] | None = None,
        constraints: dict[str, ParameterConstraints] | None = None,
        debug: bool = True,  # noqa: FBT001, FBT002 - TorchRec's signature
        callbacks: list[Callback] | None = None,
        timeout_seconds: int | None = None,
        plan_loader: PlanLoader | None = None,
        *,
        system: Topology | str | None = None,
        hints: WorkloadHints = NO_HINTS,
        strategy: str = "auto",
        objective: str = "iteration",
        seed: int = 0,
        plan_file: str | Path | None = None,
        max_evaluations: int | None = None,
        memory_headroom: float = 0.0,
    ) -> None:
        require_arguments(locals())
        self._rates_from_base = topology is None or system is not None
        chosen = default_topology(system) if topology is None else topology
        super().__init__(
            topology=chosen,
            batch_size=batch_size,
            enumerator=enumerator
            or LazyEnumerator(chosen, batch_size or BATCH_SIZE, constraints=constraints),
            storage_reservation=storage_reservation or default_reservation(),
            proposer=proposer,
            partitioner=partitioner,
            performance_model=performance_model,
            stats=stats,
            constraints=constraints,
            debug=debug,
            callbacks=callbacks,
            timeout_seconds=timeout_seconds,
            plan_loader=plan_loader,
        )
        warn_of_unused(ShardPlanner, locals())
        self.result: PlanningResult | None = None
        self._user_enumerator = enumerator
        self._base = base_system(system, chosen)
        self._hints = hints
        self._search: dict[str, Any] = {"strategy": strategy, "objective": objective, "seed": seed}
        self._search["max_evaluations"] = max_evaluations
        self._headroom_ratio = memory_headroom
        self._limit_s = None if timeout_seconds is None else float(timeout_seconds)
        self._started_s = self._planning_limit_s = 0.0
        self._rival = Rival()
        self._best_plan: list[ShardingOption] | None = None
        self._default_reservation = storage_reservation is None
        self._plan_file = None if plan_file is None else Path(plan_file)

    @classmethod
    def from_plan(cls, path: str | Path, **arguments: Any) -> ShardPlanner:
        """A planner that returns a saved plan, ours or TorchRec's, after checking it.

        Args:
            path: the path of the ``plan.json``, which has to be a plan for the model.
            arguments: any argument of the class.
        """
        return cls(plan_file=path, **arguments)

    def plan(self, module: nn.Module, sharders: Sharders) -> ShardingPlan:
        """Plan a model on this process alone.

        Args:
            module: the model.
            sharders: which modules are sharded; ``get_default_sharders()`` gives TorchRec's own.

        Raises:
            ShardPlannerError: there is no plan; its ``error_type`` is TorchRec's reason.
        """
        return self._plan_within(self._limit_s, module, sharders)

    def collective_plan(
        self,
        module: nn.Module,
        sharders: Sharders | None = None,
        pg: dist.ProcessGroup | None = None,
    ) -> ShardingPlan:
        """Plan on the first rank of a group, and send the plan (or the error) to all others.

        The others wait in a broadcast, so that the search has to end before the group's timeout.

        Args:
            module: the model.
            sharders: which modules are sharded; TorchRec's default if None.
            pg: the group; all ranks if None.

        Raises:
            ShardPlannerError: planning failed on the first rank, which raises the same error on
                every rank; or a rank was lost.
        """

        def make() -> ShardingPlan:
            return self._plan_within(limit_within(pg, self._limit_s), module, sharders)

        return plan_on_first_rank(make, pg)

    def get_selected_options(self) -> list[ShardingOption]:
        """The options of the last plan, for TorchRec 1.9's executor; empty before the first."""
        return self._best_plan or []

    def get_search_space(self) -> list[ShardingOption] | None:
        """TorchRec's options of the last model, if something has listed them; otherwise None."""
        return getattr(self._enumerator, "last_stored_search_space", None)

    # -------------------------------------------------------------- steps of one plan

    def _plan_within(
        self, limit_s: float | None, module: nn.Module, sharders: Sharders | None
    ) -> ShardingPlan:
        chosen = get_default_sharders() if sharders is None else sharders
        self.result, self._best_plan, self._rival = None, None, Rival()
        self._num_proposals = self._num_plans = 0
        self._started_s = time.perf_counter()
        asked_s = TIME_LIMIT_S if self._limit_s is None else self._limit_s
        self._planning_limit_s = asked_s if limit_s is None else min(asked_s, limit_s)
        try:
            return self._plan(module, asked_sharders(module, chosen))
        except (planner.errors.PlannerError, CostModelError) as error:
            if isinstance(error, PlannerError):
                raise
            raise as_planner_error(error) from error

    def _plan(self, module: nn.Module, sharders: Sharders) -> ShardingPlan:
        if isinstance(self._enumerator, LazyEnumerator):
            self._enumerator.expect(module, sharders)
        device = self._topology.compute_device
        model = describe_model(
            module,
            sharders,
            batch_size=self._batch_size,
            compute_device=device,
            constraints=self._constraints,
            hints=self._hints,
            world_size=self._topology.world_size,
        )
        if model is None:
            return ShardingPlan({})
        require_room(model.table_bytes, self._topology, self._storage_reservation)
        request = Request(
            module=module,
            sharders=sharders,
            topology=self._topology,
            batch_size=self._batch_size,
            constraints=self._constraints,
            reservation=self._storage_reservation,
        )
        memories = memories_left(
            request,
            self._base,
            kept_bytes=self._hints.reserved_bytes,
            by_user=not self._default_reservation,
            headroom_ratio=self._headroom_ratio,
            rates_from_base=self._rates_from_base,
        )
        if mismatch := pod_size_mismatch(self._topology):
            logger.warning(mismatch)
        options = self._loaded_options()
        if not options:
            options = to_sharding_options(
                self._placed(model, memories, request),
                model.tables,
                sharders,
                self._topology,
                batch_size=self._batch_size,
                constraints=self._constraints,
            )
        self._best_plan = options = called_back(options, self._callbacks, self._topology.world_size)
        sharding_plan = options_to_sharding_plan(options, self._topology)
        if not has_other_groups(self._constraints, device):
            validate_modules_inclusion_in_sharding_plan(sharding_plan, module, sharders)
        with quiet():
            validate_rank_assignment(sharding_plan, self._topology)
        validate_compute_kernels(options)
        seconds = time.perf_counter() - self._started_s
        self._log_stats(sharding_plan, options, sharders, seconds)
        if self.result is not None:
            block = planning_block(self.result, self._rival, options, self._topology, seconds)
            logger.info("%s", block)
        return sharding_plan

    def _placed(self, model: ModelDescription, memories: Memories, request: Request) -> Plan:
        """The plan of the file, or else the best one found; TorchRec can run either."""
        workload, memories = memories.for_the_rest(model.workload)
        device, topology = OUR_DEVICE[self._topology.compute_device], memories.ledger
        if self._plan_file is not None:
            counted = replace(model, workload=workload)
            return load_for_model(self._plan_file, counted, topology, device, self._constraints)
        said = topology_warnings(self._topology, rates_from_base=self._rates_from_base)
        for line in (*model.warnings, *said):
            logger.warning(line)
        size = len(workload.tables) * topology.world_size
        question = Question(
            workload=workload,
            memories=memories,
            limits=search_limits(
                model, self._topology, self._user_enumerator, request.module, request.sharders
            ),
            asked=lambda: search_left(self._search, self._planning_limit_s, self._started_s, size),
            outputs=narrow_outputs(model.tables, self._constraints),
            key_values=model.key_values,
            knows_optimizer=model.knows_optimizer,
            rating=TorchrecPricing(machine=torchrec_machine(self._topology), inputs=model.inputs),
        )
        self.result = self._searched(question, request)
        remarks = copied_by_another_optimizer(self.result.plan, model.tables)
        for warning in (*self.result.warnings, *remarks):
            logger.warning(warning)
        self._num_proposals = self._num_plans = self.result.solver.evaluations
        require_runnable(self.result.plan, workload, topology, device)
        return self.result.plan

    def _searched(self, question: Question, request: Request) -> PlanningResult:
        """The best plan, or TorchRec's own if that is as fast."""
        self._rival = rival_plan(
            request,
            question.workload,
            enumerator=self._enumerator,
            ours=question.memories.ledger,
            limits=question.limits,
            limit_s=self._planning_limit_s,
        )
        return soundest_plan(replace(question, rival=self._rival.plan))

    def _loaded_options(self) -> list[ShardingOption]:
        """The stored plan of the plan loader, if it has one that was made for the same inputs."""
        if self.plan_loader is None:
            return []
        space = self.get_search_space() or []
        return stored_options(self.plan_loader, space, self.hash_planner_context_inputs_str)

    def _log_stats(
        self,
        sharding_plan: ShardingPlan,
        options: list[ShardingOption],
        sharders: Sharders,
        run_time_s: float,
    ) -> None:
        for stats in self._stats:
            stats.log(
                sharding_plan=sharding_plan,
                topology=self._topology,
                batch_size=self._batch_size,
                storage_reservation=self._storage_reservation,
                num_proposals=self._num_proposals,
                num_plans=self._num_plans,
                run_time=run_time_s,
                best_plan=options,
                constraints=self._constraints,
                enumerator=None,
                sharders=sharders,
                debug=self._debug,
                debug_stats=PlanDebugStats(
                    planner_type=type(self).__name__, timeout_seconds=self._timeout_seconds
                ),
            )


# TorchRec checks the types of its planner's signatures, but annotations are only text here.
for _name in ("__init__", "plan", "collective_plan"):
    getattr(ShardPlanner, _name).__annotations__.update(
        getattr(EmbeddingShardingPlanner, _name).__annotations__
    )
