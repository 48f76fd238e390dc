"""Trains small models under plans that take turns, on gloo ranks of this machine; predicts them."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import geometric_mean
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, cast

import numpy as np
import torch
import torch.distributed as dist
import torchrec
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchrec.distributed import batched_embedding_kernel as kernels
from torchrec.distributed import embeddingbag
from torchrec.distributed import fbgemm_qcomm_codec as codec
from torchrec.distributed.embedding import EmbeddingCollectionSharder, ShardedEmbeddingCollection
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ShardingEnv
from torchrec.modules.mlp import MLP
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from costmodels.cpu.exchange import STAGES, predicted_stages
from costmodels.dense.base import dense_names
from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan, ShardingType
from costmodels.system_models import default_models
from costmodels.topology import Topology
from costmodels.training.communication import Communication, Precision
from costmodels.validation import ISSUE, WAIT, Event, Trace, virtual_time
from costmodels.workload import DenseArch, Pooling, Workload
from planner.integrations.dense.trace import trace_dense
from planner.integrations.measure import gloo_ranks
from planner.integrations.measure.microbench_lookup import IndexSampler, bag_lengths
from planner.integrations.measure.pace import Pace
from planner.integrations.torchrec_plan import to_sharding_plan
from planner.io.system.system_file import load_constants
from planner.problem import PlanningProblem
from planner.solving.prepare import objective_value
from planner.validation import tasks

_LEARNING_RATE = 0.01
NUM_BATCHES = 4


Batch = tuple[torch.Tensor, KeyedJaggedTensor, torch.Tensor]
"""One rank's share of a batch: dense features, indices and labels."""


_NO_CLOCK: Final[Any] = SimpleNamespace(mark=lambda _: None, follow=lambda *_: None)


# ------------------ when stages end and collectives are called


_LOGGED: Final = (
    *("all_to_all_single", "reduce_scatter_tensor", "all_gather_into_tensor", "all_to_all"),
    *("_reduce_scatter_base", "_all_gather_base", "reduce_scatter", "all_gather"),
)


_LOOKUPS: Final[tuple[Any, ...]] = (
    *(kernels.BatchedFusedEmbeddingBag, kernels.BatchedDenseEmbeddingBag),
    *(kernels.BatchedFusedEmbedding, kernels.BatchedDenseEmbedding),
)


class StageClock:
    """Divides an iteration into stages, and notes when collectives are called.

    Stages end at marks in the model and around table-batched lookups: the time between two marks
    belongs to the stage that the later mark names. The collectives of ``torch.distributed`` are
    replaced by ones that note when they are called. Ranks wait for each other before each
    collective, which does not count (:func:`planner.integrations.measure.gloo_ranks.rendezvous`).
    """

    def __init__(self) -> None:
        """Install the clock; use :func:`stage_clock` instead, because a process has one clock."""
        self._events: list[Event] = []
        self._is_inside = False
        self.begin()
        for name in _LOGGED:
            setattr(dist, name, self._logged(getattr(dist, name)))
        for kind in _LOOKUPS:
            kind.forward = self._timed(kind.forward)
        for sharded in (embeddingbag.ShardedEmbeddingBagCollection, ShardedEmbeddingCollection):
            sharded.compute_and_output_dist = self._after_indices(sharded.compute_and_output_dist)

    def begin(self) -> None:
        """Forget everything; the iteration starts now."""
        self._events.clear()
        self._count = 0
        self._spent_s, self._moved_s = (dict.fromkeys(STAGES, 0.0) for _ in range(2))
        self._last_s = self._last_moved_s = 0.0
        gloo_ranks.rendezvous()
        self._network_s, self._start_s = gloo_ranks.network_seconds(), gloo_ranks.own_seconds()

    def end(self) -> tuple[Trace, tuple[float, ...], tuple[float, ...]]:
        """The iteration ends now.

        Returns:
            Its collectives; the seconds of each stage, in the order of ``STAGES``, without network
            threads; and the seconds of network threads in each stage.
        """
        network_s = gloo_ranks.network_seconds() - self._network_s
        trace = Trace(events=tuple(self._events), end_s=self._now(), network_s=network_s)
        return trace, tuple(self._spent_s.values()), tuple(self._moved_s.values())

    def _now(self) -> float:
        """Processor seconds since the start, without waits for other ranks and network threads."""
        return gloo_ranks.own_seconds() - self._start_s

    def mark(self, stage: str) -> None:
        """The stage ends now."""
        now, moved = self._now(), gloo_ranks.network_seconds() - self._network_s
        self._spent_s[stage] += now - self._last_s
        self._moved_s[stage] += moved - self._last_moved_s
        self._last_s, self._last_moved_s = now, moved

    def follow(self, tensor: torch.Tensor, stage: str) -> None:
        """The stage ends when the gradient of ``tensor`` has been computed."""
        tensor.register_hook(lambda _: self.mark(stage))

    def follow_gradients(self, model: nn.Module) -> None:
        """Note the all-reduces of a model's gradients too."""
        for module in model.modules():
            if isinstance(module, DistributedDataParallel):
                module.register_comm_hook(self, _mean_over_ranks)

    def note(self, kind: str, number: int) -> None:
        """An event at the present time."""
        self._events.append(Event(kind=kind, number=number, time_s=self._now()))

    def issue(self) -> int:
        """Note the next collective, and wait for the other ranks; returns its number."""
        number = self._count
        self._count += 1
        self.note(ISSUE, number)
        before = gloo_ranks.own_seconds()
        gloo_ranks.rendezvous()
        self._start_s += gloo_ranks.own_seconds() - before
        return number

    def _logged(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **options: Any) -> Any:
            if self._is_inside:
                return function(*arguments, **options)
            number, waits = self.issue(), not options.get("async_op")
            if waits:
                self.note(WAIT, number)
            self._is_inside = True
            try:
                work = function(*arguments, **options)
            finally:
                self._is_inside = False
            return work if waits else _LoggedWork(work, number, self)

        return called

    def _after_indices(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def compute_and_output_dist(*arguments: Any, **options: Any) -> Any:
            self.mark("indices")
            return function(*arguments, **options)

        return compute_and_output_dist

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*arguments: Any, **options: Any) -> Any:
            self.mark("vectors")
            output = function(*arguments, **options)
            self.mark("lookup_forward")
            node = _lookup_node(output.grad_fn)
            if node is not None:
                node.register_prehook(lambda _: self.mark("gradients"))
                node.register_hook(lambda _, __: self.mark("lookup_backward"))
            return output

        return forward


def _mean_over_ranks(
    clock: StageClock, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """The averaging of gradients that DistributedDataParallel does by default."""
    gradient = bucket.buffer()
    gradient.div_(dist.get_world_size())
    clock.note(WAIT, clock.issue())
    future = dist.all_reduce(gradient, async_op=True).get_future()
    return future.then(lambda done: done.value()[0])


class _LoggedWork(dist.Work):
    """A logged collective; TorchRec checks for its base class before it waits."""

    def __init__(self, work: Any, number: int, clock: StageClock) -> None:
        super().__init__()
        self._work, self._number, self._clock = work, number, clock

    def wait(self, *arguments: Any, **options: Any) -> Any:
        """Wait; clocks are joined at the start of the wait, and work after it counts again."""
        self._clock.note(WAIT, self._number)
        return self._work.wait(*arguments, **options) if self._work is not None else None


@cache
def stage_clock() -> StageClock:
    """The one clock of this process."""
    return StageClock()


def _lookup_node(node: Any) -> Any:
    """The backward node of the lookup below casts and views."""
    for _ in range(8):
        if node is None or "embedding" in node.name().lower() or "lookup" in node.name().lower():
            return node
        following = node.next_functions
        node = following[0][0] if following else None
    return None


# ------------------ models


class Model(nn.Module):
    """Bottom MLP, tables, concatenation, top MLP, logistic loss.

    ``blocks`` are transformer blocks between the tables and the concatenation. They run over the
    pooled vectors of a sample, or over its sequences, which are padded and added up; the mean over
    positions is passed on.
    """

    def __init__(
        self,
        workload: Workload,
        marks: StageClock | None = None,
        blocks: tasks.Blocks | None = None,
    ) -> None:
        """Make dense weights on the CPU, and tables without memory."""
        super().__init__()
        self._clock = marks or _NO_CLOCK
        self._tables, self._width = workload.tables[0].module, workload.tables[0].embedding_dim
        self._positions = blocks.positions if blocks is not None else 0
        self._is_sequence = workload.tables[0].pooling is Pooling.NONE
        setattr(self, self._tables, _tables(workload))
        arch = workload.dense
        self.bottom = MLP(arch.num_dense_features, list(arch.bottom_mlp))
        joined = sum(t.embedding_dim * len(t.features) for t in workload.tables)
        self.blocks: nn.Module | None = None
        if blocks is not None:
            joined, kept = self._width, dict(dropout=0.0, batch_first=True, norm_first=True)
            layer = nn.TransformerEncoderLayer(
                self._width, blocks.heads, blocks.ffn, activation="gelu", **kept
            )
            self.blocks = nn.TransformerEncoder(layer, blocks.layers, enable_nested_tensor=False)
        joined += arch.bottom_mlp[-1] if arch.bottom_mlp else 0
        *hidden, last = arch.top_mlp
        self.top = nn.Sequential(MLP(joined, hidden), nn.Linear([joined, *hidden][-1], last))
        self.loss = nn.BCEWithLogitsLoss()

    def forward(
        self, dense: torch.Tensor, sparse: KeyedJaggedTensor, labels: torch.Tensor
    ) -> torch.Tensor:
        """The loss of a batch."""
        bottom = self.bottom(dense)
        self._clock.mark("dense_forward")
        found = getattr(self, self._tables)(sparse)
        sequences = list(found.values()) if self._is_sequence else []
        vectors = [x.values() for x in sequences] or [found.values()]
        self._clock.mark("vectors")
        for tensor in vectors:
            self._clock.follow(tensor, "dense_backward")
        self._clock.follow(bottom, "gradients")
        met = vectors[0]
        if sequences:
            padded = [x.to_padded_dense(self._positions) for x in sequences]
            met = torch.stack(padded).sum(dim=0) if len(padded) > 1 else padded[0]
        if self.blocks is not None:
            met = self.blocks(met.view(len(bottom), -1, self._width)).mean(dim=1)
        logits = self.top(torch.cat([bottom, met], dim=1))
        loss: torch.Tensor = self.loss(logits.squeeze(-1), labels)
        self._clock.mark("dense_forward")
        return loss


def _tables(workload: Workload) -> nn.Module:
    """One module with all tables: a collection of bags, or of sequences for unpooled tables."""
    bags = workload.tables[0].pooling is not Pooling.NONE
    config: Any = torchrec.EmbeddingBagConfig if bags else torchrec.EmbeddingConfig
    collection: Any = torchrec.EmbeddingBagCollection if bags else torchrec.EmbeddingCollection
    tables = [
        config(
            name=t.name,
            embedding_dim=t.embedding_dim,
            num_embeddings=t.num_embeddings,
            feature_names=[f.name for f in t.features],
        )
        for t in workload.tables
    ]
    return cast("nn.Module", collection(device=torch.device("meta"), tables=tables))


class RunCase(NamedTuple):
    """A model to be trained under a plan; ``blocks`` are transformer blocks above its tables."""

    workload: Workload
    plan: Plan
    blocks: tasks.Blocks | None = None


class Training:
    """One model under one plan, ready to step."""

    def __init__(
        self, case: RunCase, world_size: int, seed: int, marks: StageClock | None = None
    ) -> None:
        """Shard the model under the plan, and initialise it."""
        workload, self._mark = case.workload, (marks or _NO_CLOCK).mark
        torch.manual_seed(seed)
        fused_params = {
            "optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
            "learning_rate": _LEARNING_RATE,
            "eps": 1e-8,
        }
        kinds: Any = (embeddingbag.EmbeddingBagCollectionSharder, EmbeddingCollectionSharder)
        codecs = _codecs(workload)
        self.model = DistributedModelParallel(
            Model(workload, marks, case.blocks),
            env=ShardingEnv.from_process_group(dist.group.WORLD),
            device=torch.device("cpu"),
            plan=to_sharding_plan(
                case.plan, workload, compute_device="cpu", local_world_size=world_size
            ),
            sharders=[k(fused_params=fused_params, qcomm_codecs_registry=codecs) for k in kinds],
        )
        dense = dict(in_backward_optimizer_filter(self.model.named_parameters()))
        optimizer = KeyedOptimizerWrapper(
            dense, lambda parameters: torch.optim.SGD(parameters, lr=_LEARNING_RATE)
        )
        self.optimizer = CombinedOptimizer([self.model.fused_optimizer, optimizer])

    def step(self, batch: Batch) -> None:
        """One iteration."""
        self.optimizer.zero_grad()
        self._mark("update")
        loss = self.model(*batch)
        loss.backward()
        self.optimizer.step()
        self._mark("update")


def _codecs(workload: Workload) -> dict[str, Any] | None:
    """TorchRec's codecs for the exchanges of the first table's vectors; None for fp32."""
    used = workload.tables[0].codecs.all_to_all
    if used is None or not Communication(all_to_all=used).compresses:
        return None
    config = codec.QCommsConfig(
        forward_precision=codec.CommType(used.forward.precision.value),
        backward_precision=codec.CommType(used.backward.precision.value),
    )
    return dict(codec.get_qcomm_codecs_registry(config, device=torch.device("cpu")) or {})


def make_batches(workload: Workload, rank: int, seed: int) -> list[Batch]:
    """Batches of one rank: hot rows are the same on every rank, but draws differ."""
    laws = np.random.default_rng(seed)
    draws = np.random.default_rng([seed, rank + 1])
    size = int(workload.batch_size_per_rank)
    samplers = {t.name: IndexSampler(t.distribution, laws) for t in workload.tables}
    batches, features = [], [(t, f) for t in workload.tables for f in t.features]
    for _ in range(NUM_BATCHES):
        lengths, values = [], []
        for table, feature in features:
            count = bag_lengths(feature.pooling_factor, size, draws)
            lengths.append(count)
            values.append(samplers[table.name].draw(int(count.sum()), draws))
        sparse = KeyedJaggedTensor(
            keys=[feature.name for _, feature in features],
            values=torch.from_numpy(np.concatenate(values)),
            lengths=torch.from_numpy(np.concatenate(lengths).astype(np.int32)),
        )
        dense = draws.standard_normal((size, workload.dense.num_dense_features))
        labels = draws.integers(0, 2, size)
        first, last = (torch.from_numpy(x.astype(np.float32)) for x in (dense, labels))
        batches.append((first, sparse, last))
    return batches


# ------------------------------------------------------------------ plans in turns


class RunSettings(NamedTuple):
    """How often each plan runs: ``num_blocks`` blocks of ``iterations`` in random order.

    The first ``warm_up`` iterations of a block are dropped.
    """

    num_blocks: int = 4
    iterations: int = 11
    warm_up: int = 4
    seed: int = 0


class TimedIteration(NamedTuple):
    """One iteration of one rank, with the seconds of stages, and of network threads in stages."""

    plan: int
    block: int
    wall_s: float
    trace: Trace
    stages_s: tuple[float, ...]
    network_s: tuple[float, ...]


def run_plans(
    cases: Sequence[RunCase], *, world_size: int, settings: RunSettings
) -> list[dict[str, Any]]:
    """Measure every workload under its plan; all are in memory together and take turns.

    Returns:
        For each plan the measured fields of :class:`planner.validation.tasks.Outcome`, medians over
        its iterations; ``virtual_s``, the seconds of each iteration; and ``pace_s``, the seconds of
        fixed work meanwhile (:class:`planner.integrations.measure.pace.Pace`). Seconds of network
        threads are those in quiet moments, and part of every time in ``virtual_s``.
    """
    started = _busy_seconds()
    per_rank = gloo_ranks.run_on_ranks(_measure, world_size, tuple(cases), settings)
    busy, wall = (b - a for a, b in zip(started, _busy_seconds(), strict=True))
    logs, used, paces = zip(*per_rank, strict=True)
    foreign = max(0.0, busy - sum(used)) / wall if wall > 0 else 0.0
    pace_s, found = geometric_mean(paces), []
    for plan in range(len(cases)):
        rows = [group for group in zip(*logs, strict=True) if group[0].plan == plan]
        # Each rank counts by itself, because threads of one rank may spin while others do not.
        moved = np.array([[i.trace.network_s for i in group] for group in rows])
        network_s = float(np.quantile(moved, gloo_ranks.NETWORK_QUANTILE, axis=0).max())
        virtual = network_s + np.array([virtual_time([i.trace for i in group]) for group in rows])
        typical, block = float(np.median(virtual)), np.array([group[0].block for group in rows])
        quiet = np.array([np.median(virtual[block == b]) for b in range(settings.num_blocks)])
        stages = np.array([[i.stages_s for i in group] for group in rows])
        run = {
            "measured_s": typical,
            "spread_ratio": float(np.median(np.abs(quiet - typical)) / typical),
            "wall_s": float(np.median([max(i.wall_s for i in group) for group in rows])),
            "stages_measured_s": tuple(np.median(stages.max(axis=1), axis=0).tolist()),
            "network_measured_s": network_s,
            "virtual_s": virtual.tolist(),
            "foreign_ratio": foreign,
            "pace_s": pace_s,
        }
        found.append(run)
    return found


def _measure(
    rank: int, world_size: int, cases: tuple[RunCase, ...], settings: RunSettings
) -> tuple[list[TimedIteration], float, float]:
    """The iterations of this rank, its total processor seconds, and its pace."""
    pace = Pace()
    log = train_in_turns(cases, rank, world_size, settings, pace)
    return log, time.process_time(), pace.typical_s()


def train_in_turns(
    cases: Sequence[RunCase], rank: int, world_size: int, settings: RunSettings, pace: Pace
) -> list[TimedIteration]:
    """Run all iterations of this rank; returns those after the warm-up of their block.

    All models are in memory together. The pace is read before each block.
    """
    seed, clock = settings.seed, stage_clock()
    workloads = {c.workload.name: c.workload for c in cases}
    batches = {name: make_batches(w, rank, seed) for name, w in workloads.items()}
    models = [Training(case, world_size, seed, clock) for case in cases]
    for training in models:
        clock.follow_gradients(training.model)
    gloo_ranks.calm_network_threads()
    order_rng = np.random.default_rng(seed)
    iterations = []
    for block in range(settings.num_blocks):
        for k in order_rng.permutation(len(cases)).tolist():
            pace.read()
            own = batches[cases[k].workload.name]
            for i in range(settings.iterations):
                started = time.perf_counter()
                clock.begin()
                models[k].step(own[i % NUM_BATCHES])
                measured = clock.end()
                wall_s = time.perf_counter() - started
                if i >= settings.warm_up:
                    iterations.append(TimedIteration(k, block, wall_s, *measured))
    return iterations


def _busy_seconds() -> tuple[float, float]:
    """(processor seconds of all jobs on this machine, time by the clock); zeros if unknown."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0, time.monotonic()
    ticks = [int(field) for field in stat.read_text().splitlines()[0].split()[1:9]]
    return (sum(ticks) - sum(ticks[3:5])) / 100.0, time.monotonic()  # without idle and waiting


# ------------------------------------------------------------------ random models, predicted


def validate_tasks(
    topology: Topology,
    *,
    num_tasks: int,
    num_plans: int,
    settings: RunSettings,
    what: str = "dlrm",
) -> Iterator[list[tasks.Outcome]]:
    """Run random tasks, each with searched, baseline and random plans; the outcomes of each.

    All variants of a task take turns in one launch, so that their ratio is measured well.

    Args:
        topology: the ranks.
        num_tasks: number of random models.
        num_plans: plans of each model.
        settings: how often each plan runs, and the seed of models and plans too.
        what: the variants of a model: ``dlrm`` and the names of
            :data:`planner.validation.tasks.BLOCK_TASKS` have one. A precision has exchanges in
            fp32, and in that precision.
    """
    models = default_models(topology)
    for task in range(num_tasks):
        seed = settings.seed + task
        variants = _variants(what, seed)
        plans = tasks.choose_plans(variants[0][1], topology, num_plans, seed)
        trained = [
            RunCase(workload=workload, plan=plan, blocks=blocks)
            for _, _, workload, blocks in variants
            for plan, _ in plans
        ]
        runs = iter(run_plans(trained, world_size=topology.world_size, settings=settings))
        prices = [(label, CostPipeline(priced, topology, models)) for label, priced, *_ in variants]
        yield [
            _outcome(pipeline, plan, next(runs), task=task, skew=label, origin=origin)
            for label, pipeline in prices
            for plan, origin in plans
        ]


def _variants(what: str, seed: int) -> list[tuple[str, Workload, Workload, tasks.Blocks | None]]:
    """The variants of a random model: label, as priced, as trained, and its transformer blocks."""
    if what in tasks.BLOCK_TASKS:
        workload, blocks = tasks.BLOCK_TASKS[what](seed)
        # The dense part is traced as by ``shardplan import torchrec``.
        model, (batch, *_) = Model(workload, blocks=blocks), make_batches(workload, 0, 0)
        size = int(workload.batch_size_per_rank)
        trace = trace_dense(model, batch, batch_size=size, inputs_need_gradients=False)
        dense = DenseArch(operators=trace.operators)
        return [("random", replace(workload, dense=dense), workload, blocks)]
    workload = tasks.random_workload(seed)
    if what not in tuple(Precision):
        return [("random", workload, workload, None)]
    coded = workload.communicating(Communication.of(Precision(what), Precision(what)))
    coded = replace(coded, name=f"{workload.name}-{what}")
    return [("fp32", workload, workload, None), (what, coded, coded, None)]


def _outcome(
    pipeline: CostPipeline, plan: Plan, run: dict[str, Any], **names: Any
) -> tasks.Outcome:
    workload, topology = pipeline.workload, pipeline.topology
    estimate = pipeline.estimate(plan)
    time, calibration = estimate.time, topology.calibration
    calibrated_s = load_constants(calibration).pace_s if calibration else None
    # TorchRec's kernels on CPUs run at the rate of the host's memory.
    memory = topology.host.ddr_bandwidth_bytes_per_s
    rated = replace(topology, device=replace(topology.device, hbm_bandwidth_bytes_per_s=memory))
    problem = PlanningProblem(workload=workload, topology=rated)
    inside = [time.low_s <= x <= time.high_s for x in run.pop("virtual_s")]
    pace_s = run.pop("pace_s")
    return tasks.Outcome(
        **names,
        num_tables=len(workload.tables),
        batch_size_per_rank=int(workload.batch_size_per_rank),
        # T, R, C, D for table_wise, row_wise, column_wise, data_parallel
        kinds="".join(p.sharding_type.value[0].upper() for p in plan.placements),
        predicted_s=time.time_s,
        low_s=time.low_s,
        high_s=time.high_s,
        stages_predicted_s=predicted_stages(estimate.stages, dense_names(workload)),
        iterations_inside_ratio=sum(inside) / len(inside),
        bytes_model_bytes=busiest_bytes(workload, plan, topology.world_size),
        torchrec_rating_s=objective_value(problem, plan, "torchrec"),
        pace_ratio=pace_s / calibrated_s if calibrated_s else None,
        **run,
    )


def busiest_bytes(workload: Workload, plan: Plan, world_size: int) -> float:
    """Bytes of rows looked up on the busiest rank: a model without skew and exchanges."""
    ranks = np.zeros(world_size)
    for placement in plan.placements:
        table = workload.table(placement.table)
        indices = workload.batch_size_per_rank * table.pooling_factor * world_size
        replicated = placement.sharding_type is ShardingType.DATA_PARALLEL
        copies, cells = world_size if replicated else 1, placement.cells
        share = cells.num_rows / table.num_embeddings / copies
        np.add.at(ranks, cells.rank, indices * share * cells.num_cols * table.dtype.num_bytes)
    return float(ranks.max())
