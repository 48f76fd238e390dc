"""A planner to use in place of ``EmbeddingShardingPlanner``; one line of a job changes."""

import contextlib
import inspect
import logging
import math
import time
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed.planner import planners
from torchrec.distributed.planner import types as torchrec_types
from torchrec.distributed.planner.perf_models import NoopPerfModel
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import PlannerError, PlannerErrorType, ShardingOption
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ShardingPlan

import planner.errors
from costmodels.errors import CostModelError
from costmodels.memory import dense_bytes
from costmodels.sharding import Plan
from costmodels.topology import Topology
from costmodels.units import format_bytes, format_time
from planner.errors import refuse
from planner.integrations import drop_in as search
from planner.integrations import torchrec_topology as topologies
from planner.integrations import torchrec_workload as workloads
from planner.integrations.torchrec_plan import to_sharding_options
from planner.integrations.translate import constraints as rules
from planner.integrations.translate import pricing, settings
from planner.integrations.translate.settings import Sharders, ShardPlannerError
from planner.options.torchrec_rules import layout_problems
from planner.result import PlanningResult
from planner.settings import SearchSettings
from planner.support.text import significant
from planner.torchrec_terms import TorchrecPricing

logger: Final = logging.getLogger(__name__)


TIME_LIMIT_S: Final = 300.0
"""The time limit of a planning if ``timeout_seconds`` is None. A search ends by a fixed budget of
work, after about 10 s at most; the limit is for machines that are far slower."""

REPLACED_PARTS: Final[dict[str, str]] = settings.WORDS["replaced_parts"]


_OF_SEARCHES: Final = ("enumerator", "strategy", "objective", "seed", "max_evaluations")
"""Arguments that say how to search, which nobody does where there is a saved plan."""


class ShardPlanner(planners.EmbeddingShardingPlanner):
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
    that searched, and ``block`` is what the log says of it.
    """

    def __init__(  # noqa: PLR0913 - TorchRec's arguments, and ours
        self,
        topology: torchrec_types.Topology | None = None,
        batch_size: int | None = None,
        enumerator: torchrec_types.Enumerator | None = None,
        storage_reservation: torchrec_types.StorageReservation | None = None,
        proposer: torchrec_types.Proposer | list[torchrec_types.Proposer] | None = None,
        partitioner: torchrec_types.Partitioner | None = None,
        performance_model: torchrec_types.PerfModel | None = None,
        stats: torchrec_types.Stats | list[torchrec_types.Stats] | None = None,
        constraints: dict[str, torchrec_types.ParameterConstraints] | None = None,
        debug: bool = True,  # noqa: FBT001, FBT002 - TorchRec's signature
        callbacks: list[settings.Callback] | None = None,
        timeout_seconds: int | None = None,
        plan_loader: torchrec_types.PlanLoader | None = None,
        *,
        system: Topology | str | None = None,
        hints: workloads.WorkloadHints = workloads.NO_HINTS,
        strategy: str = "auto",
        objective: str = "iteration",
        seed: int = 0,
        plan_file: str | Path | None = None,
        max_evaluations: int | None = None,
        memory_headroom: float = 0.0,
    ) -> None:
        given = dict(locals())
        settings.require_arguments(given)
        self._rates_from_base = topology is None or system is not None
        chosen = topologies.default_topology(system) if topology is None else topology
        given["topology"] = chosen
        given["storage_reservation"] = storage_reservation or pricing.default_reservation()
        theirs = inspect.signature(planners.EmbeddingShardingPlanner).parameters
        super().__init__(**{name: given[name] for name in theirs})
        unused, usual = dict(REPLACED_PARTS), inspect.signature(ShardPlanner).parameters
        if plan_file is not None:
            why = "plan_file gives the plan, so that nothing is searched; remove one of them"
            unused |= dict.fromkeys(_OF_SEARCHES, why)
        for name, why in unused.items():
            if given[name] != usual[name].default:
                warnings.warn(f"ShardPlanner does not use {name}: {why}", UserWarning, stacklevel=2)
        self._forget()
        self._shared: dict[str, Any] = {"topology": chosen, "constraints": constraints}
        self._shared["batch_size"] = self._batch_size
        self._user_enumerator = enumerator
        self._base = topologies.base_system(system, chosen)
        self._hints = hints
        self._search = {name: given[name] for name in _OF_SEARCHES[1:]}
        self._headroom_ratio = memory_headroom
        self._limit_s = TIME_LIMIT_S if timeout_seconds is None else float(timeout_seconds)
        self._planned: tuple[nn.Module, Sharders] | None = None
        self._default_reservation = storage_reservation is None
        self._plan_file = None if plan_file is None else Path(plan_file)

    @classmethod
    def from_plan(cls, path: str | Path, **arguments: Any) -> Self:
        """A planner that returns a saved plan, ours or TorchRec's, after checking it.

        Args:
            path: the path of the ``plan.json``, which has to be a plan for the model.
            arguments: any argument of the class.
        """
        return cls(plan_file=path, **arguments)

    def plan(self, module: nn.Module, sharders: Sharders | None) -> ShardingPlan:
        """Plan a model on this process alone.

        Args:
            module: the model.
            sharders: which modules are sharded; TorchRec's default if None.

        Raises:
            ShardPlannerError: there is no plan; its ``error_type`` is TorchRec's reason.
        """
        return self._plan_within(math.inf, module, sharders)

    def collective_plan(
        self,
        module: nn.Module,
        sharders: Sharders | None = None,
        pg: dist.ProcessGroup | None = None,
    ) -> ShardingPlan:
        """Plan on the first rank of a group, and send the plan (or the error) to all others.

        The others wait in a broadcast, so that the search ends before the group's timeout. If a
        rank dies, the others stop waiting at once (gloo) or at the group's timeout (NCCL).

        Args:
            module: the model.
            sharders: which modules are sharded; TorchRec's default if None.
            pg: the group; all ranks if None.

        Raises:
            ShardPlannerError: planning failed on the first rank, which raises the same error on
                every rank; there is no process group; or a rank was lost.
        """
        if pg is None:
            if not dist.is_initialized():
                raise ShardPlannerError(settings.said("no process group"))
            pg = dist.GroupMember.WORLD
        most_s = _SHARE_OF_TIMEOUT * _timeout_s(pg)
        outcome: list[ShardingPlan | ShardPlannerError | None] = [None]
        cause: Exception | None = None
        if dist.get_rank(pg) == 0:
            try:
                outcome = [self._plan_within(most_s, module, sharders)]
            except Exception as error:  # the other ranks have to get every error
                logger.exception("planning failed")
                cause, outcome = error, [settings.as_planner_error(error)]
        try:
            dist.broadcast_object_list(outcome, src=dist.get_global_rank(pg, 0), group=pg)
        except RuntimeError as error:  # torch has no narrower error for a lost rank
            first = (str(error).splitlines() or [type(error).__name__])[0][:200]
            what = "no plan came" if dist.get_rank(pg) else "plan not sent"
            raise ShardPlannerError(settings.said(what, error=first)) from (cause or error)
        if isinstance(outcome[0], ShardingPlan):
            return outcome[0]
        raise (outcome[0] or ShardPlannerError("the first rank sent no plan")) from cause

    def get_selected_options(self) -> list[ShardingOption]:
        """The options of the last plan, for TorchRec 1.9's executor; empty before the first."""
        return self._best_plan or []

    def get_search_space(self) -> list[ShardingOption] | None:
        """TorchRec's options of the last model; None before the first.

        Our search does not need them, and for hundreds of tables TorchRec's enumerator takes a
        minute: it runs when somebody asks.
        """
        if self._planned is not None and self._user_enumerator is None:
            self._enumerator.enumerate(*self._planned)
        return getattr(self._enumerator, "last_stored_search_space", None)

    def hash_planner_context_inputs(self) -> int:
        """TorchRec's hash of the inputs of the last plan, for which it has to list the options."""
        self.get_search_space()
        return super().hash_planner_context_inputs()

    def hash_planner_context_inputs_str(self) -> str:
        """The same as a text."""
        self.get_search_space()
        return super().hash_planner_context_inputs_str()

    # -------------------------------------------------------------- steps of one plan

    def _forget(self) -> None:
        self.result: PlanningResult | None = None
        self.block, self._rival = "", search.NO_RIVAL
        self._best_plan: list[ShardingOption] | None = None

    def _plan_within(
        self, most_s: float, module: nn.Module, sharders: Sharders | None
    ) -> ShardingPlan:
        self._forget()
        self._started_s = time.perf_counter()
        self._planning_limit_s = min(self._limit_s, most_s)
        if most_s < self._limit_s:
            _warn(settings.said("short timeout", limit_s=self._limit_s, most_s=most_s))
        try:
            chosen = get_default_sharders() if sharders is None else sharders
            return self._plan(module, settings.asked_sharders(module, chosen))
        except (planner.errors.PlannerError, CostModelError) as error:
            if isinstance(error, PlannerError):
                raise
            raise settings.as_planner_error(error) from error

    def _plan(self, module: nn.Module, sharders: Sharders) -> ShardingPlan:
        self._planned = module, sharders
        device = self._topology.compute_device
        model = workloads.describe_model(
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
        job = self._job(model, module, sharders)
        _warn(*topologies.pod_size_mismatch(self._topology))
        options = [] if self.plan_loader is None else self._stored_options(self.plan_loader)
        if not options:
            plan = self._placed(job, module, sharders)
            options = to_sharding_options(plan, model, self._topology)
        self._best_plan = options = settings.called_back(
            options, self._callbacks, self._topology.world_size
        )
        sharding_plan = planners.to_sharding_plan(options, self._topology)
        given = (self._constraints or {}).values()
        if not any(rules.in_other_group(limit, device) for limit in given):
            planners.validate_modules_inclusion_in_sharding_plan(sharding_plan, module, sharders)
        with search.quiet():
            planners.validate_rank_assignment(sharding_plan, self._topology)
        planners.validate_compute_kernels(options)
        seconds = time.perf_counter() - self._started_s
        priced = 0 if self.result is None else self.result.solver.evaluations
        for stats in self._stats:
            stats.log(
                sharding_plan=sharding_plan,
                storage_reservation=self._storage_reservation,
                num_proposals=priced,
                num_plans=priced,
                run_time=seconds,
                best_plan=options,
                enumerator=None,
                sharders=sharders,
                debug=self._debug,
                debug_stats=torchrec_types.PlanDebugStats(
                    planner_type=type(self).__name__, timeout_seconds=self._timeout_seconds
                ),
                **self._shared,
            )
        if self.result is not None:
            self.block = self._told(self.result, options, seconds)
            logger.info("%s", self.block)
        return sharding_plan

    def _stored_options(self, loader: torchrec_types.PlanLoader) -> list[ShardingOption]:
        """The options of the plan in a TorchRec plan loader; empty if it has none.

        They are empty as well, with a warning, if TorchRec 1.9 cannot tell whether the stored plan
        was made for the same inputs; TorchRec's own planner then makes a new plan too.

        Raises:
            ShardPlannerError: the stored plan was made for other inputs.
            PlannerError: TorchRec's error if the stored options are not those of this model.
        """
        try:
            current = self.hash_planner_context_inputs_str()
        except _NO_FINGERPRINT as error:
            _warn(f"the stored plan cannot be checked, so a new one is made: {error}")
            return []
        stored = loader.plan_context_hash()
        if stored is not None and stored != current:
            message = settings.said("other inputs", stored=stored, current=current)
            raise ShardPlannerError(message, PlannerErrorType.PLANNER_INPUT_CONTEXT_MISMATCH)
        loaded = loader.load()
        space = self.get_search_space() or []
        return [] if loaded is None else planners.extract_plan(space, loaded)

    def _left_by(
        self, reservation: torchrec_types.StorageReservation, module: nn.Module, sharders: Sharders
    ) -> Topology:
        reserved = reservation.reserve(module=module, sharders=sharders, **self._shared)
        left = topologies.topology_from_torchrec(
            reserved, self._base, rates_from_base=self._rates_from_base
        )
        return topologies.with_memory(left, ratio=1.0 - self._headroom_ratio)

    def _job(
        self, model: workloads.ModelDescription, module: nn.Module, sharders: Sharders
    ) -> search.Job:
        """The model with the memory for tables by both counts.

        Both obey a reservation that the user chose. TorchRec's planner takes whatever it leaves for
        room for tables, so that the dense part has the room that it keeps, of whatever kind it is,
        and our count has both: what is left for tables, and its own count of the dense part.
        Otherwise our count keeps only its margin free, because it counts the rest itself.

        Raises:
            InfeasibleError: nothing is left.
            PlannerError: TorchRec's error, for the same reason.
        """
        left_by = partial(self._left_by, module=module, sharders=sharders)
        own, counted = self._storage_reservation, model.workload
        tables = replace(counted, reserved_bytes=self._hints.reserved_bytes)
        is_rated = str(self._search["objective"]).startswith("torchrec")
        theirs = None
        try:
            theirs = ledger = left_by(own)
        except (PlannerError, planner.errors.PlannerError) as error:
            if is_rated or not self._default_reservation:
                raise
            logger.debug("TorchRec's reservation leaves nothing: %s", error)
        if self._default_reservation:
            ledger = left_by(FixedPercentageStorageReservation(percentage=pricing.MARGIN_RATIO))
        elif not isinstance(own, pricing.LeftToOurCount):
            whole, kept_ratio = left_by(pricing.LeftToOurCount()), 1.0 - self._headroom_ratio
            kept = float((whole.hbm_capacities() - ledger.hbm_capacities()).min()) / kept_ratio
            dense, unseen = dense_bytes(tables, ledger), counted.reserved_bytes
            if (needed := dense + unseen - tables.reserved_bytes) > kept:
                told = {"kept": format_bytes(kept), "needed": format_bytes(needed)}
                _warn(settings.said("little kept", reservation=pricing.described(own), **told))
            counted, ledger = tables, topologies.with_memory(ledger, more_bytes=dense)
        machine = topologies.torchrec_machine(self._topology, self._base)
        rating = TorchrecPricing(machine=machine, inputs=model.inputs, is_reserved=True)
        by_ours = partial(pricing.KeyValuePipeline, model=model)
        by_theirs = rating if is_rated else partial(by_ours, rating=rating)
        free = f"; memory_headroom={self._headroom_ratio:g} keeps that share of it free: lower it"
        return search.Job(
            model=model,
            limits=model.constraints,
            topology=self._topology,
            ours=search.Count(counted, ledger, by_ours),
            theirs=None if theirs is None else search.Count(tables, theirs, by_theirs),
            left_by=pricing.described(own) + (free if self._headroom_ratio else ""),
            search=SearchSettings(**self._search, with_baselines=False),
            limit_s=self._planning_limit_s,
            ends_s=self._started_s + self._planning_limit_s,
        )

    def _placed(self, job: search.Job, module: nn.Module, sharders: Sharders) -> Plan:
        """The plan of the file, or else the best one found; TorchRec can run either."""
        model = job.model
        if self._plan_file is not None:
            return search.load_for_model(self._plan_file, job)
        said = topologies.topology_warnings(self._topology, rates_from_base=self._rates_from_base)
        _warn(*model.warnings, *said)
        listed = self._user_enumerator
        options = None if listed is None else listed.enumerate(module=module, sharders=sharders)
        limits = rules.search_limits(model, self._topology, options)
        self.result = result = self._searched(replace(job, limits=limits), module, sharders)
        _warn(*result.warnings, *rules.copied_by_another_optimizer(result.plan, model.tables))
        device = rules.OUR_DEVICE[self._topology.compute_device]
        if problems := list(layout_problems(result.plan, *job.ours[:2], device=device)):
            refuse(["the search returned a plan that TorchRec cannot run:", *problems])
        return result.plan

    def _searched(self, job: search.Job, module: nn.Module, sharders: Sharders) -> PlanningResult:
        """The best plan, or TorchRec's own if that is as fast."""
        theirs = planners.EmbeddingShardingPlanner(
            enumerator=search.in_order(self._enumerator),
            storage_reservation=self._storage_reservation,
            stats=[],
            debug=False,
            **self._shared,
        )
        self._rival = search.rival_plan(theirs, job, module, sharders)
        return search.soundest_plan(replace(job, rival=self._rival))

    def _told(self, result: PlanningResult, options: list[ShardingOption], seconds: float) -> str:
        """A block for the log: prediction, proof, comparison with TorchRec's plan, memory, seconds.

        Args:
            result: the result of the search.
            options: the plan as TorchRec's options, with TorchRec's estimates.
            seconds: seconds of the whole planning.
        """
        time, rank, rival = result.estimate.time, result.best.memory.fullest, self._rival
        ours_ms, theirs_ms = float(NoopPerfModel(self._topology).rate(options)), rival.rating_ms
        rated = "not known" if theirs_ms is None else format_time(theirs_ms * 1e-3)
        shown, taken = rival.reason or "cannot be priced", "ours"
        if search.RIVAL in result.unfit_baselines:
            shown = "does not fit by our count of memory"
        for other in (c for c in result.baselines if c.name == search.RIVAL):
            shown = f"predicted {format_time(other.estimate.time.time_s)}"
            if other.plan == result.plan:
                taken = "TorchRec's plan: none was found that is predicted to be faster"
        step = [format_time(s) for s in (time.time_s, time.low_s, time.high_s)]
        sizes = [format_bytes(b) for b in (rank.used_bytes, rank.capacity_bytes)]
        told = {"step": step, "bound": _bound(result), "solver": result.solver, "theirs": shown}
        told |= {"ours": format_time(ours_ms * 1e-3), "rated": rated, "taken": taken}
        return settings.said("block", rank=rank.rank, sizes=sizes, seconds=seconds, **told)


def _warn(*lines: str) -> None:
    for line in lines:
        logger.warning(line)


_NO_FINGERPRINT: Final = getattr(torchrec_types, "PlannerContextFingerprintError", ())
"""TorchRec 1.9's error for inputs with another hash in every process; 1.8 hashes them anyway."""


# ------------------------------------------------------------------ the log


def _bound(result: PlanningResult) -> str:
    solver = result.solver
    if solver.bound is None:
        return "none"
    text = f"{significant(solver.bound, 4)} by objective {solver.objective}"
    if solver.objective in ("iteration", "phases"):  # whose values are seconds
        text = format_time(solver.bound)
        solver = replace(solver, value=result.estimate.time.time_s)
    gap = solver.gap_ratio
    return f"{text}, gap {'unknown' if gap is None else f'{gap:.1%}'}"


# ------------------------------------------------------------------ on several ranks

_SHARE_OF_TIMEOUT: Final = 0.8
"""Share of the group's timeout after which a search ends, so that waiting ranks get its plan."""


def _timeout_s(pg: dist.ProcessGroup) -> float:
    """Timeout of a group's collectives on its device; infinite if the backend does not say."""
    for device in ("cuda", "cpu"):
        with contextlib.suppress(RuntimeError, AttributeError):
            options = pg._get_backend(torch.device(device)).options
            return float(options._timeout.total_seconds())
    return math.inf


# TorchRec checks the types of its planner's signatures, but annotations are only text here.
for _name in ("__init__", "plan", "collective_plan"):
    getattr(ShardPlanner, _name).__annotations__.update(
        getattr(planners.EmbeddingShardingPlanner, _name).__annotations__
    )
