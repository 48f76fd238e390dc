"""Our systems for TorchRec 1.9's orchestrators: a SKU is the name or the file of a system.

``DryRunOrchestrator(DefaultPlannerExecutor(ShardplanProvider()))`` plans a request for every system
in its ``sku_list``, and finds the plans that ``shardplan plan`` finds for the same model.
``ProductionPlannerOrchestrator`` accepts the provider in the same way.
"""

import logging
from dataclasses import fields, replace
from importlib.metadata import version
from typing import Any, Final

from torch import nn
from torchrec.distributed.planner import types

from costmodels.topology import Topology
from costmodels.units import GIB
from costmodels.workload import Pipeline
from planner import io
from planner.errors import InfeasibleError, refuse
from planner.integrations.drop_in import Job, Rival
from planner.integrations.torchrec_planner import ShardPlanner
from planner.integrations.torchrec_topology import topology_to_torchrec
from planner.integrations.translate.pricing import LeftToOurCount
from planner.integrations.translate.settings import NO_HINTS, WORDS, Sharders, WorkloadHints, said
from planner.result import PlanningResult
from planner.space.budget import default_work_s

try:
    from torchrec.distributed.planner.dry_run.types import DryRunRequest, SkuOverride
    from torchrec.distributed.planner.provider import DefaultPlannerProvider
    from torchrec.distributed.planner.types import PlannerSessionContext, ShardingPlanRequest
except ImportError as error:
    message = said("no providers", module=__name__, version=version("torchrec"))
    raise ImportError(message) from error

logger: Final = logging.getLogger(__name__)

USED: Final = tuple(WORDS["planner_config"])

_HEURISTIC_ONLY: Final = ("dense_tensor_estimate", "parameter_multiplier")
_PIPELINES: Final = {name: Pipeline(kind) for name, kind in WORDS["pipelines"].items()}


class SystemPlanner(ShardPlanner):
    """The search of ``shardplan plan`` for a TorchRec model, with the same budget and plan.

    :class:`ShardPlanner`, in contrast, ends sooner for small models, compares with TorchRec's own
    planner, and prefers plans that leave memory free.

    Args:
        strict: whether a model that does not fit by our count of memory is an error. Otherwise it
            is planned by TorchRec's count, with a warning, as :class:`ShardPlanner` does.
        arguments: those of :class:`ShardPlanner`; ``system`` and ``storage_reservation`` are
            needed.
    """

    def __init__(self, *, strict: bool, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._strict = strict

    def _searched(self, job: Job, module: nn.Module, sharders: Sharders) -> PlanningResult:
        self._rival = Rival(reason="not asked for: the plan is that of shardplan plan")
        ranks, tables = job.topology.world_size, len(job.ours.workload.tables)
        work_s = default_work_s(tables, ranks, None)  # the time limit is only a safety
        try:
            return job.solved(job.ours, work_s, with_baselines=True)
        except InfeasibleError as error:
            if self._strict:
                raise
            logger.warning("%s; planned with TorchRec's count of memory where that has room", error)
            return super()._searched(job, module, sharders)


class ShardplanProvider(DefaultPlannerProvider):
    """Gives TorchRec's executor what it needs for a SKU: topology, reservation and planner.

    If a request names no storage reservation, no share of the memory is kept free, because our
    count of memory includes inputs, buffers, gradients and the dense part. If it names a
    reservation, a policy or a percentage, that is used. A dry run fails for a system on which the
    model does not fit by our count; a production run is then planned by TorchRec's count, with a
    warning.

    Settings of the request that have no effect give warnings, in the log and in ``ctx.warnings``.

    Args:
        hints: what a model does not say: index distributions, dense part, pipeline.
        objective: ``iteration`` or another objective of our own cost models.
        strategy: name of the search strategy.
        seed: seed of the search.
        max_evaluations: budget of work of the search, in priced plans; if None, that of
            ``shardplan plan``.

    After planning, ``planners[sku]`` is the planner of a system; its ``result`` has the prediction,
    the bound and the memory per rank.
    """

    def __init__(
        self,
        *,
        hints: WorkloadHints = NO_HINTS,
        objective: str = "iteration",
        strategy: str = "auto",
        seed: int = 0,
        max_evaluations: int | None = None,
    ) -> None:
        if objective.startswith("torchrec"):
            refuse(f"objective {objective!r} rates on TorchRec's figures: use ShardPlanner with it")
        self._hints = hints
        self._search: dict[str, Any] = {"objective": objective, "strategy": strategy, "seed": seed}
        self._search["max_evaluations"] = max_evaluations
        self.planners: dict[str, SystemPlanner] = {}

    def build_topology(
        self, sku: str, request: ShardingPlanRequest, ctx: PlannerSessionContext
    ) -> types.Topology:
        """TorchRec's topology of the system at the size of the request.

        Raises:
            InvalidInputError: there is no such system, or it cannot have this number of ranks.
        """
        system, changed = requested_system(sku, request)
        ctx.hw_source[sku] = f"shardplan system {system.name}"
        ctx.hw_overrides_applied[sku] = changed
        device = request.compute_device or "cuda"
        return topology_to_torchrec(system, device, pod_size=request.pod_size)

    def build_storage_reservation(
        self, sku: str, request: ShardingPlanRequest
    ) -> types.StorageReservation:
        """The reservation of the request; one that keeps nothing if the request names none.

        Raises:
            NotImplementedError: TorchRec does not implement the policy.
        """
        config = request.planner_config
        names = ("storage_reservation_percentage", *_HEURISTIC_ONLY)
        given = [request.storage_reservation, *(getattr(config, name) for name in names)]
        unset = config.storage_reservation_policy == types.StorageReservationPolicy.UNSET
        if unset and all(value is None for value in given):
            return LeftToOurCount()
        return super().build_storage_reservation(sku, request)

    def build_planner(
        self,
        sku: str,
        *,
        topology: types.Topology,
        storage_reservation: types.StorageReservation,
        ctx: PlannerSessionContext,
    ) -> SystemPlanner:
        """The planner of a system.

        Raises:
            InvalidInputError: there is no such planner variant or pipeline.
        """
        request, config = ctx.request, ctx.request.planner_config
        for line in _unused(sku, request):
            logger.warning("%s: %s", sku, line)
            if line not in ctx.warnings:
                ctx.warnings.append(line)
        self.planners[sku] = planner = SystemPlanner(
            strict=isinstance(request, DryRunRequest),
            topology=topology,
            batch_size=request.batch_size,
            storage_reservation=storage_reservation,
            stats=ctx.stats,
            constraints=request.constraints,
            debug=config.debug,
            timeout_seconds=config.timeout_seconds,
            system=requested_system(sku, request)[0],
            hints=self._hints_for(config),
            **self._search,
        )
        return planner

    def check(self, sku: str, request: ShardingPlanRequest) -> None:
        """Refuse settings that would fail for a system, before any search begins.

        Raises:
            InvalidInputError: there is no such system, or a setting needs another planner.
            NotImplementedError: TorchRec does not implement the storage reservation.
        """
        requested_system(sku, request)
        self._hints_for(request.planner_config)
        self.build_storage_reservation(sku, request)

    def _hints_for(self, config: types.PlannerConfig) -> WorkloadHints:
        """The hints, with the pipeline of a configuration that is for this planner."""
        if config.planner_variant not in (types.PlannerVariant.UNSET, types.PlannerVariant.OSS):
            refuse(said("another planner", variant=config.planner_variant.value))
        kind = config.pipeline_type
        if kind is not None and kind not in _PIPELINES:
            refuse(f"pipeline_type {kind!r} is not one of {', '.join(_PIPELINES)}")
        return replace(self._hints, pipeline=_PIPELINES.get(kind, self._hints.pipeline))


def requested_system(
    sku: str, request: ShardingPlanRequest
) -> tuple[Topology, types.HardwareConfig]:
    """Our system at the size of a request, and what the request changes in it.

    TorchRec counts memory per rank, and both memory and bandwidths in units of 1024 ** 3 bytes.

    Raises:
        InvalidInputError: there is no such system, or it cannot have this number of ranks.
    """
    own = (getattr(request, "per_sku_overrides", None) or {}).get(sku) or SkuOverride()
    sizes = {"gpus": request.world_size, "gpus_per_host": request.local_world_size}
    overrides, changed = list[tuple[str, str]](), dict[str, Any]()
    for name, (key, unit, field) in _OVERRIDES.items():
        of_all = getattr(request, name, None)  # which has no bandwidths
        value = of_all if getattr(own, name) is None else getattr(own, name)
        if value is not None:
            per_host = request.local_world_size if name == "ddr_gb" else 1
            overrides.append((key, f"{value * per_host} {unit}"))
            changed[field] = int(value * GIB) if unit == "GiB" else value * GIB / 1000
    system = io.load_system(sku, **sizes, overrides=tuple(overrides))
    if "intra_host_bw" in changed:
        rate = system.host_link.bandwidth_bytes_per_s
        domain = replace(system.domain_link, bandwidth_bytes_per_s=rate)
        system = replace(system, domain_link=domain)
    return system, types.HardwareConfig(**changed)


_OVERRIDES: Final = {
    "hbm_gb": ("device.hbm_capacity", "GiB", "hbm_cap_bytes"),
    "ddr_gb": ("host.ddr_capacity", "GiB", "ddr_cap_bytes"),
    "intra_host_bw": ("links.host.bandwidth", "GiB/s", "intra_host_bw"),
    "inter_host_bw": ("links.network.bandwidth", "GiB/s", "inter_host_bw"),
}
"""For each override of a request our key, its unit, and the field of TorchRec's ``HardwareConfig``,
in bytes or in bytes per ms."""


def _unused(sku: str, request: ShardingPlanRequest) -> list[str]:
    """A line for each setting that has no effect, and one if hosts have more ranks than usual."""
    config = request.planner_config
    defaults = {f.name: f.default for f in fields(config)}
    why = "this planner has a search and cost models of its own"
    unread = dict.fromkeys(defaults.keys() - set(USED), why)
    policy = config.storage_reservation_policy
    if policy.name in ("FIXED_PERCENTAGE", "INFERENCE"):
        why = f"storage_reservation_policy {policy.value!r} does not read it"
        unread |= dict.fromkeys(_HEURISTIC_ONLY, why)
    lines = [
        f"planner_config.{name}={getattr(config, name)!r} is not used: {unread[name]}"
        for name, default in defaults.items()
        if name in unread and getattr(config, name) != default
    ]
    cache = getattr(request, "cache_config", None)
    if cache is not None and cache.enabled:
        lines.append("cache_config is not used: TorchRec's orchestrators keep no plans")
    most = io.load_smallest(sku).local_world_size
    if request.local_world_size > most:
        told = {"ranks": request.local_world_size, "most": most, "system": sku}
        lines.append(said("large hosts", **told))
    return lines
