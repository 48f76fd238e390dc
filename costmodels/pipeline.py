"""Prices plans: from a plan to work, to the times of stages, to the iteration time."""

import math
from dataclasses import replace
from functools import cached_property

import numpy as np

from costmodels import memory, sharding, uncertainty
from costmodels.cpu.exchange import unused_remark
from costmodels.datatypes import FloatArray
from costmodels.dense.base import uneven_remark, unrated_remark
from costmodels.estimates import Estimate, IterationEstimate, MemoryLedger, Source
from costmodels.floors.floor import IterationFloor
from costmodels.floors.phases import PhaseModel
from costmodels.iteration import timing
from costmodels.iteration.base import PIPELINES, Program, StageTimes
from costmodels.shard_work.work import MEMORY, Memory, WorkModel, whole_tables
from costmodels.sharding import ComputeKernel, Plan, ShardingOption, ShardingType, check_plan
from costmodels.stages.models import CostModels, require_shapes
from costmodels.stages.stage_model import StageModel, lookup_times
from costmodels.system_models import default_models
from costmodels.topology import FITTED_KINDS, Topology, shares_remark
from costmodels.uncertainty import UNSCALED, Scale
from costmodels.workload import HostProfile, Pipeline, Pooling, Workload


class CostPipeline(WorkModel):
    """Prices plans of one workload on one topology.

    Work arrays have the shape ``[..., W, num_features]``, one row for each of the W ranks
    (:mod:`costmodels.shard_work.work`). Leading axes are plans that are priced together.

    Attributes:
        phases: what bounds are made of: times of the K phases on each rank, which are convex and
            homogeneous in the work (:class:`costmodels.floors.phases.PhaseModel`).
        floor: the least that plans with given phases take.
    """

    _last_work: tuple[Plan, FloatArray] | None = None

    def __init__(
        self, workload: Workload, topology: Topology, models: CostModels | None = None
    ) -> None:
        """Price what is the same for every plan; ``models`` None means those of the topology."""
        self.models = models or default_models(topology)
        require_shapes(self.models, topology)
        lookup = self.models.lookup
        if workload.tables:
            tables = whole_tables(workload, topology)
            lookup = lookup.for_calls(tables, topology, workload)
        super().__init__(workload, topology, lookup)
        self.num_features = self.num_columns
        self._dense = self.models.dense.beside(self._even_lookup_s)
        stage_models = replace(self.models, lookup=self.lookup, dense=self._dense)
        self._stages = StageModel(workload, topology, stage_models)
        self._pipeline = PIPELINES[workload.pipeline]
        self.phases = PhaseModel(self._stages, self._pipeline)
        self.floor = IterationFloor(self._stages, self._pipeline)

    def _even_lookup_s(self) -> float:
        """Seconds of lookups on a rank if whole tables were spread evenly; no plan changes it."""
        fused, whole = ComputeKernel.FUSED, ShardingType.TABLE_WISE
        options = [
            ShardingOption(
                table=t.name, sharding_type=whole, kernel=fused, column_widths=(t.embedding_dim,)
            )
            for t in self.workload.tables
        ]
        if not options or not self.workload.dense.is_given:
            return 0.0
        work = sum(option.full.sum(axis=0) for option in WorkModel.options_work(self, options))
        mean = work / self.topology.world_size
        seconds = lookup_times(self.lookup, mean, self.topology)
        return float(sum(part.sum() for part in seconds))

    # -- work ---------------------------------------------------------------------------------

    @property
    def alike_types(self) -> tuple[tuple[ShardingType, ...], ...]:
        """Groups of sharding types that cost the same for the same shards.

        The most general type of a group comes first. On a single host, a table cut by rows over the
        host is cut by rows over all ranks, except that unpooled vectors are then ordered by other
        kernels. On hosts of one rank, a table cut by rows over a host is
        whole on a rank, and TorchRec runs no collective among one rank. There are no such groups
        where exchanges are priced with the copies around them: copies differ between the types, and
        two exchanges may cost less than one.
        """
        hosts = sharding.BY_HOSTS[::-1]
        if self.models.exchange is not None:
            return ()
        has_unpooled = any(t.pooling is Pooling.NONE for t in self.workload.tables)
        if self.topology.num_hosts == 1 and not has_unpooled:
            return sharding.ON_RANKS, (ShardingType.ROW_WISE, *hosts)
        if self.topology.local_world_size == 1:
            return (*sharding.ON_RANKS, *hosts), hosts
        return sharding.ON_RANKS, hosts

    # -- memory -------------------------------------------------------------------------------

    def device_bytes(self, work: FloatArray) -> FloatArray:
        """Embedding bytes on each device, ``[..., W]``; linear in work."""
        on_device = [MEMORY + m for m in Memory if m is not Memory.HOST]
        return np.asarray(work[..., on_device].sum(axis=-1))

    def host_bytes(self, work: FloatArray) -> FloatArray:
        """Embedding bytes in each host's memory, ``[..., H]``; linear in work."""
        return memory.by_host(work[..., MEMORY + Memory.HOST], self.topology)

    @cached_property
    def device_limits(self) -> FloatArray:
        """Device bytes left for embeddings, ``[W]``; negative where the rest does not fit."""
        dense = memory.dense_by_rank(self.workload, self.topology)
        return self.topology.hbm_capacities() - self.workload.reserved_bytes - dense

    @cached_property
    def host_limits(self) -> FloatArray:
        """Host bytes left for embeddings, ``[H]``."""
        return self.topology.ddr_capacities()

    def overflow_bytes(self, work: FloatArray, allowed_ratio: float) -> FloatArray:
        """Bytes beyond the limits of memory, added up over all devices and hosts, ``[...]``.

        Args:
            work: of plans, ``[..., W, num_features]``.
            allowed_ratio: share of each limit that may be filled; about 1.
        """
        device = self.device_bytes(work) - self.device_limits * allowed_ratio
        host = self.host_bytes(work) - self.host_limits * allowed_ratio
        over = np.maximum(device, 0.0).sum(axis=-1) + np.maximum(host, 0.0).sum(axis=-1)
        return np.asarray(over)

    def memory(self, plan: Plan) -> MemoryLedger:
        """The memory of a plan on every rank and host."""
        return memory.ledger(self._kept_work(plan), self.workload, self.topology)

    # -- time ---------------------------------------------------------------------------------

    def iteration_times(self, work: FloatArray) -> FloatArray:
        """Seconds per iteration of each plan, ``[...]``, by the closed form.

        Raises:
            InvalidValueError: a cost model has given a step a time that is not finite.
        """
        return timing.finite_times(self._program(work), work.shape[:-1])

    def stage_times(self, work: FloatArray) -> StageTimes:
        """Durations of every stage of one or many plans."""
        return self._stages.times(work, UNSCALED)

    def scheduled(
        self, times: StageTimes, shape: tuple[int, ...]
    ) -> tuple[Program, timing.StepSchedule]:
        """The steps of plans with these stage times, and when each starts and ends."""
        program = self._pipeline.program(times)
        return program, timing.schedule(program, shape)

    def lookup_times(self, work: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Lookup forward and backward of each rank without launches, ``[..., W]`` seconds."""
        forward, backward, fetch = self._stages.lookup_times(work)
        return forward + fetch, backward

    def simulate(self, plan: Plan) -> tuple[Program, timing.Simulation]:
        """Run the steps of one plan, and record what each step waited for."""
        program = self._program(self._kept_work(plan))
        return program, timing.traced(program, self.topology.world_size)

    def estimate(self, plan: Plan) -> IterationEstimate:
        """Everything about one iteration of a plan.

        Raises:
            InvalidValueError: the plan is not one of this workload on this many ranks.
        """
        check_plan(plan, self.workload, self.topology.world_size)
        work = self._kept_work(plan)
        program, simulation = self.simulate(plan)
        time_s = simulation.iteration_time_s
        low, high = self._interval(plan, work)
        ranks = timing.rank_estimates(program, simulation)
        compute = np.array([r.compute_s for r in ranks])
        global_batch = self.workload.samples_per_rank * self.topology.trainers.world_size
        return IterationEstimate(
            time=Estimate(
                time_s=time_s,
                low_s=min(low, time_s),
                high_s=max(high, time_s),
                source=self._source(),
            ),
            samples_per_s=global_batch / time_s if time_s > 0 else math.inf,
            stages=timing.stage_times(program, simulation),
            critical_path=timing.critical_path(program, simulation),
            ranks=ranks,
            slowest_rank=int(compute.argmax()),
            imbalance_ratio=float(compute.max() / compute.mean()) if compute.mean() > 0 else 1.0,
            exposed_communication_s=max(r.exposed_s for r in ranks),
            warnings=self._warnings(plan, work, program, time_s),
        )

    def sampled_times(self, plan: Plan) -> FloatArray:
        """Iteration times ``[samples]`` under the uncertainty of the models' inputs.

        Plans on one system share the errors of its rates and of the models. So the random factors
        are the same for every plan, and the samples of two plans can be compared pairwise.
        """
        return self._sampled_times(self._kept_work(plan))

    @cached_property
    def _sustained_ratio(self) -> float:
        """How far the dense part is from a short burst (0) to one that fills the whole step (1)."""
        return self._dense.sustained_ratio(self.workload, self.topology.trainers)

    def least_certain_kind(self, plan: Plan) -> str:
        """The kind of time (of ``FITTED_KINDS``) whose error alone moves the time most."""
        work = self._kept_work(plan)
        widths = {kind: np.ptp(self._sampled_times(work, only=kind)) for kind in FITTED_KINDS}
        return max(widths, key=widths.__getitem__)

    def _sampled_times(self, work: FloatArray, *, only: str | None = None) -> FloatArray:
        """Iteration times ``[samples]`` from the plan's work.

        ``only`` names the one kind of time that is uncertain; None for all kinds.
        """
        spread = self.models.collective.plan_spread_ratio(self.topology)
        known = self.models.sigmas_ratio or uncertainty.sigmas(
            self.topology,
            collective_spread_ratio=spread,
            sustained_dtype=self.workload.dense.dtype,
            sustained_ratio=self._sustained_ratio,
            is_foreign=self.workload.is_foreign,
        )
        found, missed = dict(known), self.lookup.sigma_ratio(self.topology)
        if missed is not None and not self.models.sigmas_ratio:
            found["lookup"] = math.hypot(missed, uncertainty.rate_sigma(self.topology, "lookup"))
        own = self.models.dense.sigma_ratio(self.workload)
        if own is not None:
            found["dense"] = own
        factors = uncertainty.sampled_factors(tuple(found.items()), self.models.spread_ratio)
        if only is not None:
            factors = {k: f if k == only else np.ones_like(f) for k, f in factors.items()}
        scale = Scale(**{f"{kind}_ratio": factor for kind, factor in factors.items()})
        shape = len(scale.lookup_ratio), self.topology.world_size
        return timing.schedule(self._program(work, scale), shape).iteration_time_s

    def _interval(self, plan: Plan, work: FloatArray) -> tuple[float, float]:
        """90 % interval of a plan's time: the widest over all index laws that the data allow."""
        alternatives = [t.distribution.alternatives() for t in self.workload.tables]
        sampled = [self._sampled_times(work)]
        for number in range(max(map(len, alternatives), default=0)):
            tables = tuple(
                replace(t, distribution=laws[number] if laws else t.distribution)
                for t, laws in zip(self.workload.tables, alternatives, strict=True)
            )
            workload = replace(self.workload, tables=tables)
            other = CostPipeline(workload, self.topology, self.models)
            sampled.append(other.sampled_times(plan))
        ends = np.array([np.quantile(samples, [0.05, 0.95]) for samples in sampled])
        return float(ends[:, 0].min()), float(ends[:, 1].max())

    def confidence_faster(self, plan: Plan, other: Plan) -> float:
        """Probability (0..1) that ``plan`` is faster than ``other``.

        Errors that plans share cancel; each has one of its own besides
        (:func:`costmodels.uncertainty.faster_probability`).
        """
        return uncertainty.faster_probability(self.sampled_times(plan), self.sampled_times(other))

    # -- private --------------------------------------------------------------------------------

    def _kept_work(self, plan: Plan) -> FloatArray:
        """Work of a plan; that of the last plan is kept. Callers must not change it."""
        last = self._last_work
        if last is None or last[0] is not plan:
            last = self._last_work = plan, self.plan_work(plan)
        return last[1]

    def _program(self, work: FloatArray, scale: Scale = UNSCALED) -> Program:
        return self._pipeline.program(self._stages.times(work, scale))

    def _source(self) -> Source:
        """The weakest source among the inputs of a time.

        Models that were calibrated as a whole use no number of the system, except that codecs use
        the rate of its memory.
        """
        if self.models.exchange is None:
            return self.topology.weakest_source()
        entering = [Source.CALIBRATED]
        if self.wire is not None:
            found = self.topology.provenance
            entering += [p.source for p in found if p.name == "device.hbm_bandwidth"]
        return max(entering, key=list(Source).index)

    def _pipeline_remark(self) -> str | None:
        """What a pipeline rests on that no release of TorchRec has; None for the others."""
        waiting = self._stages.exchanges.next_batch_ratio
        remarks = {
            Pipeline.LOOKAHEAD: "is BagPipe's and has no counterpart in TorchRec; hits of its "
            "caches follow from each table's law, as if batches were drawn independently",
            Pipeline.PRIORITIZED: "is TorchRec's TrainPipelinePEC, which is in no release yet and "
            f"was not measured: {waiting:.2g} of the vectors of row-wise tables wait for the batch "
            "before (mean over all tables of next_batch_ratio, or else their laws; pooled ones 1), "
            "the others and their gradients travel beside compute; tables of other types gain "
            "nothing",
        }
        found = remarks.get(self.workload.pipeline)
        return found and f"pipeline {self.workload.pipeline} {found}"

    def _warnings(
        self, plan: Plan, work: FloatArray, program: Program, time_s: float
    ) -> tuple[str, ...]:
        workload, topology = self.workload, self.topology
        is_cpu, is_calibrated = topology.compute_device == "cpu", self.models.exchange is not None
        is_unpooled = any(t.pooling is Pooling.NONE for t in workload.tables)
        host_s = sum(float(np.max(s.host_s)) for s in program.steps)
        is_host_bound, is_eager = host_s >= 0.95 * time_s, workload.issued_by is HostProfile.EAGER
        is_assumed = is_host_bound and is_eager and uncertainty.host_is_assumed(topology)
        told = [
            *self.models.collective.remarks(topology),
            unrated_remark(workload, topology.device, is_calibrated=is_calibrated),
            uneven_remark(workload, topology, self._dense),
            self._pipeline_remark(),
            self.hot_row_remark(plan, work),
            unused_remark(topology) if is_calibrated else None,
            *(layer.remark for layer in workload.dense.layers if not is_cpu),
            shares_remark(workload, topology) if workload.batch_share_ratio else None,
        ]
        remarks = {
            "unpooled tables on CPU cores: FBGEMM's backward pass of them takes many times as "
            "long as that of pooled ones, which only a calibrated system knows; run 'shardplan "
            "calibrate'": is_cpu and not is_calibrated and is_unpooled,
            "between_steps is not counted on CPU cores: steps were calibrated one right after the "
            "other": topology.device.single_stream and workload.between_steps_s,
            "input bound: the data source, not the plan, sets the iteration time": (
                program.floor_s >= time_s > 0
            ),
            "launch bound: the host thread, not the devices, sets the iteration time": (
                is_host_bound
            ),
            f"host.eager_call was not measured: {topology.host.eager_call_s * 1e6:.3g} us an "
            "eager call are assumed, and hosts differ by a factor of seven; 'shardplan calibrate "
            "--host' measures it in seconds": is_assumed,
        }
        return (*filter(None, told), *(text for text, holds in remarks.items() if holds))
