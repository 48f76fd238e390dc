"""A planner that TorchRec takes in place of ``EmbeddingShardingPlanner``: one line changes."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import torch.distributed as dist
from torch import nn
from torchrec.distributed.planner.planners import (
    EmbeddingPlannerBase,
    extract_plan,
    validate_compute_kernels,
    validate_modules_inclusion_in_sharding_plan,
    validate_rank_assignment,
)
from torchrec.distributed.planner.planners import to_sharding_plan as options_to_sharding_plan
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import (
    Enumerator,
    ParameterConstraints,
    Partitioner,
    PerfModel,
    PlanDebugStats,
    PlanLoader,
    PlannerErrorType,
    Proposer,
    ShardingOption,
    Stats,
    StorageReservation,
)
from torchrec.distributed.planner.types import PlannerError as TorchrecPlannerError
from torchrec.distributed.planner.types import Topology as TorchrecTopology
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ModuleSharder, ShardingPlan

from costmodels.errors import CostModelError
from costmodels.sharding import Plan
from costmodels.topology import Topology
from planner import api
from planner.errors import PlannerError
from planner.integrations.torchrec_constraints import narrowed_to_options
from planner.integrations.torchrec_errors import Failure, ShardPlannerError, as_failure
from planner.integrations.torchrec_options import to_sharding_options
from planner.integrations.torchrec_saved_plan import load_for_model
from planner.integrations.torchrec_system import (
    base_system,
    default_topology,
    pod_size_mismatch,
)
from planner.integrations.torchrec_topology import topology_from_torchrec
from planner.integrations.torchrec_workload import (
    NO_HINTS,
    ModelDescription,
    WorkloadHints,
    describe_model,
)
from planner.problem import Constraints
from planner.result import PlanningResult
from planner.torchrec_rules import layout_problems

logger: Final = logging.getLogger(__name__)

MARGIN_RATIO: Final = 0.15
"""Device memory kept free when no storage reservation is given: TorchRec 1.8's default percentage.
Its other reservations, dense part and inputs, are counted by our own memory ledger."""

Sharders = Sequence[ModuleSharder[nn.Module]]
Callback = Callable[[list[ShardingOption]], list[ShardingOption]]


class ShardPlanner(EmbeddingPlannerBase):
    """Plans a TorchRec model for the shortest training iteration.

    The positional arguments are those of ``EmbeddingShardingPlanner``; a call to that class works
    with this one. ``proposer``, ``partitioner`` and ``performance_model`` are parts of the search
    that this planner replaces: they are accepted and not used, with a warning.

    Args:
        topology: ranks and memories; from the process group and the machine if None.
        batch_size: samples per rank; TorchRec's 512 if None.
        enumerator: if given, only options it enumerates are searched.
        storage_reservation: device memory kept; 15 % if None.
        proposer: not used.
        partitioner: not used.
        performance_model: not used.
        stats: TorchRec's statistics, logged with TorchRec's own estimates of the plan.
        constraints: TorchRec's constraints by table name.
        debug: passed to the statistics.
        callbacks: each maps the chosen options to others before the plan is made.
        timeout_seconds: time limit of the search in seconds.
        plan_loader: a stored TorchRec plan that is used instead of a search if it has one.
        system: a system of ours (or its name) whose rates are used; its memory too if no
            ``topology`` is given.
        hints: what a model does not say: index distributions, dense part, pipeline.
        strategy: name of the search strategy.
        objective: ``iteration`` or another objective of :func:`planner.api.plan`.
        seed: seed of the search.
        plan_file: a saved plan that is used instead of a search; see :meth:`from_plan`.

    After a search ``result`` holds the prediction, the bound and the memory per rank, on the rank
    that searched.
    """

    def __init__(
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
    ) -> None:
        self._rates_from_base = topology is None or system is not None
        chosen = topology or default_topology(system)
        super().__init__(
            topology=chosen,
            batch_size=batch_size,
            enumerator=enumerator,
            storage_reservation=storage_reservation
            or FixedPercentageStorageReservation(percentage=MARGIN_RATIO),
            stats=stats,
            constraints=constraints,
            debug=debug,
            callbacks=callbacks,
            timeout_seconds=timeout_seconds,
        )
        unused = {
            "proposer": proposer,
            "partitioner": partitioner,
            "performance_model": performance_model,
        }
        given = [name for name, value in unused.items() if value is not None]
        if given:
            message = f"ShardPlanner has its own search and does not use {', '.join(given)}"
            warnings.warn(message, UserWarning, stacklevel=2)
        self.plan_loader = plan_loader
        self.result: PlanningResult | None = None
        self._user_enumerator = enumerator
        self._base = base_system(system, chosen.compute_device)
        self._hints = hints
        self._search: dict[str, Any] = {"strategy": strategy, "objective": objective, "seed": seed}
        if timeout_seconds is not None:
            self._search["time_limit_s"] = float(timeout_seconds)
        self._plan_file = None if plan_file is None else Path(plan_file)
        self._num_proposals = 0
        self._num_plans = 0
        self._best_plan: list[ShardingOption] | None = None

    @classmethod
    def from_plan(cls, path: str | Path, **arguments: Any) -> ShardPlanner:
        """A planner that returns a saved plan after checking it against the model.

        Args:
            path: a ``plan.json``, ours or TorchRec's.
            arguments: any argument of the class.
        """
        return cls(plan_file=path, **arguments)

    def plan(self, module: nn.Module, sharders: Sharders | None = None) -> ShardingPlan:
        """Plan a model on this process alone.

        Args:
            module: the model.
            sharders: which modules are sharded; TorchRec's default if None.

        Raises:
            ShardPlannerError: no plan; its ``error_type`` is TorchRec's reason.
        """
        chosen = list(get_default_sharders() if sharders is None else sharders)
        self.result, self._best_plan = None, None
        self._num_proposals = self._num_plans = 0
        try:
            return self._plan(module, chosen)
        except (PlannerError, CostModelError) as error:
            if isinstance(error, TorchrecPlannerError):
                raise
            raise as_failure(error).raised() from error

    def collective_plan(
        self,
        module: nn.Module,
        sharders: Sharders | None = None,
        pg: dist.ProcessGroup | None = None,
    ) -> ShardingPlan:
        """Plan on the first rank of a group and send the plan, or the error, to all others.

        The others wait in a broadcast: keep ``timeout_seconds`` well below the group's timeout.

        Args:
            module: the model.
            sharders: which modules are sharded; TorchRec's default if None.
            pg: the group; all ranks if None.

        Raises:
            ShardPlannerError: planning failed on the first rank; the same error on every rank.
        """
        if pg is None:
            if not dist.is_initialized():
                message = (
                    "collective_plan needs a process group; call init_process_group first, or "
                    "plan() outside of a distributed job"
                )
                raise ShardPlannerError(message)
            pg = dist.GroupMember.WORLD
        outcome: list[ShardingPlan | Failure | None] = [None]
        cause: Exception | None = None
        if dist.get_rank(pg) == 0:
            try:
                outcome = [self.plan(module, sharders)]
            except Exception as error:  # whatever it is, the others must hear
                logger.exception("planning failed")
                cause, outcome = error, [as_failure(error)]
        dist.broadcast_object_list(outcome, src=dist.get_global_rank(pg, 0), group=pg)
        answer = outcome[0]
        if isinstance(answer, Failure):
            raise answer.raised() from cause
        if answer is None:
            message = "the first rank sent no plan"
            raise ShardPlannerError(message)
        return answer

    # -------------------------------------------------------------- steps of one plan

    def _plan(self, module: nn.Module, sharders: list[ModuleSharder[nn.Module]]) -> ShardingPlan:
        start_s = time.perf_counter()
        model = describe_model(
            module,
            sharders,
            batch_size=self._batch_size,
            compute_device=self._topology.compute_device,
            constraints=self._constraints,
            hints=self._hints,
        )
        if model is None:
            return ShardingPlan({})
        topology = self._planning_topology(module, sharders)
        options = self._loaded_options(module, sharders)
        if not options:
            options = to_sharding_options(
                self._placed(model, topology, module, sharders),
                model.tables,
                sharders,
                self._topology,
                batch_size=self._batch_size,
                constraints=self._constraints,
            )
        for callback in self._callbacks:
            options = callback(options)
        self._best_plan = options
        sharding_plan = options_to_sharding_plan(options, self._topology)
        self._log_stats(sharding_plan, options, sharders, time.perf_counter() - start_s)
        validate_modules_inclusion_in_sharding_plan(sharding_plan, module, sharders)
        validate_rank_assignment(sharding_plan, self._topology)
        validate_compute_kernels(options)
        return sharding_plan

    def _planning_topology(
        self, module: nn.Module, sharders: list[ModuleSharder[nn.Module]]
    ) -> Topology:
        mismatch = pod_size_mismatch(self._topology)
        if mismatch:
            logger.warning(mismatch)
        reserved = self._storage_reservation.reserve(
            topology=self._topology,
            batch_size=self._batch_size,
            module=module,
            sharders=sharders,
            constraints=self._constraints,
        )
        return topology_from_torchrec(reserved, self._base, rates_from_base=self._rates_from_base)

    def _placed(
        self,
        model: ModelDescription,
        topology: Topology,
        module: nn.Module,
        sharders: list[ModuleSharder[nn.Module]],
    ) -> Plan:
        """The plan of the file, else the best one found; nothing that TorchRec cannot run."""
        device = self._topology.compute_device
        if self._plan_file is not None:
            return load_for_model(self._plan_file, model, topology, device)
        for warning in model.warnings:
            logger.warning(warning)
        self.result = api.plan(
            model.workload,
            topology,
            constraints=self._limits(model, module, sharders),
            **self._search,
        )
        for warning in self.result.warnings:
            logger.warning(warning)
        self._num_proposals = self._num_plans = self.result.solver.evaluations
        problems = layout_problems(self.result.plan, model.workload, topology, device=device)
        if problems:
            message = "\n".join(["the search returned a plan that TorchRec cannot run:", *problems])
            raise ShardPlannerError(message)
        return self.result.plan

    def _limits(
        self,
        model: ModelDescription,
        module: nn.Module,
        sharders: list[ModuleSharder[nn.Module]],
    ) -> Constraints:
        if self._user_enumerator is None:
            return model.constraints
        options = self._user_enumerator.enumerate(module=module, sharders=sharders)
        return narrowed_to_options(
            model.constraints,
            {t.table.name: (t.path, t.parameter_name) for t in model.tables},
            [(o.path, o.name, o.sharding_type, o.compute_kernel) for o in options],
        )

    def _loaded_options(
        self, module: nn.Module, sharders: list[ModuleSharder[nn.Module]]
    ) -> list[ShardingOption]:
        """The stored plan of the plan loader, if it has one made for the same inputs."""
        if self.plan_loader is None:
            return []
        search_space = self._enumerator.enumerate(module=module, sharders=sharders)
        stored = self.plan_loader.plan_context_hash()
        current = self.hash_planner_context_inputs_str()
        if stored is not None and stored != current:
            message = (
                f"the stored plan was made for other inputs (context hash {stored}, now "
                f"{current}); plan again, or remove plan_loader"
            )
            raise ShardPlannerError(message, PlannerErrorType.PLANNER_INPUT_CONTEXT_MISMATCH)
        loaded = self.plan_loader.load()
        if loaded is None:
            return []
        return extract_plan(search_space=search_space, loaded_sharding_options=loaded)

    def _log_stats(
        self,
        sharding_plan: ShardingPlan,
        options: list[ShardingOption],
        sharders: list[ModuleSharder[nn.Module]],
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
