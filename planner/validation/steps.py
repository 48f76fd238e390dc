"""Steps that were measured: MLPerf's, transformers, on one GPU by Lin et al., on an H200.

**Systems** (``validate published``). The cases of mlperf_dcnv2*.csv with the role ``validate``:
nothing is fitted to them. The plan of a case is the one that its log printed, or the one of a run
with the same arguments. Logs of later rounds print no plan: their plan is the one that the
submissions' own planner makes for their arguments.

**Transformers** (``validate published --what transformers``). Each row of
configs/published/transformers.csv is a model, batch, sequence length, precision and system with a
printed throughput. It is rebuilt as a workload without tables; its time is that of one micro-batch,
with its part of the optimizer's step. The rows are:

- BERT on 1 and 8 GPUs; MPT on A100 at 512, 2048, 8192 and 32,768 positions on one host, and at 2048
  on eight; the steps of a lesson on GPT-2. These come from a survey: the rows of quality A and B
  that PyTorch ran (and one of JAX on H100), on shipped systems, with figures exact to 3 %.
- MPT on H100 at the same lengths and numbers of hosts.
- Fine-tuning of BERT in fp16 on single V100, A100 and H100 cards, from Lambda's logs (the median
  over the steps of a run, and over machines of one kind).

Rows that print no gradient accumulation are taken to have one micro-batch, because their times
exceed those of the later release by the optimizer's step. MPT on A100 with 40 GB was measured with
a PyTorch older than 2.1, so that its checkpoints compute whole blocks again. BERT was pre-trained
with compiled blocks from NVIDIA's release 21.11 on, as its README says. All rows of BERT ran the
scripts of NVIDIA/DeepLearningExamples (DLPerf and Lambda run them too), which pad the vocabulary of
30,522 words to 30,528, a multiple of 8 (run_pretraining.py and run_squad.py). MPT trains with the
fused loss that its code takes where the configuration names none, and those of the benchmark name
none (mosaicml/llm-foundry, ``loss_fn``).

Nothing is fitted to the rows of transformers_unfitted.csv, which come from other sources: Llama 3
and 2, GPT-3 5B and Nemotron-15B as NVIDIA prints them for H100, B200, GB200 and GB300
(Megatron-Bridge, NeMo, dgxc-benchmarking) without pipeline and context parallelism; Llama 3.1 8B in
fp8 from logs of MLPerf 5.1; torchtitan on H200; BERT on A100 as NVIDIA prints it; Lambda's other
kinds of cards, and groups of eight cards; MPT on H100 at other lengths and on more hosts.

The shares of a device's rates (:mod:`costmodels.sustained`) are fitted to the rows on one host. How
good predictions are is shown by fits that leave out the model of a row, its whole family, or all
rows of its generation of devices.

**Single GPUs** (``--what single-gpu``). The time is mostly that of the host: it takes longer to
launch kernels than these run, and copies inputs. The host profile ``eager_2021`` takes the relative
cost of its overheads (T1 to T5) from traces. Two further numbers can only be told from whole
iterations: how long a launch takes without the profiler, and the time between steps. In the shipped
profile these two are fitted to all cases, so that its error on the same cases says little. Each
case is therefore also predicted with both numbers fitted to other cases: those of other models on
the same GPU, those of other models on all GPUs, and those on other GPUs.

**One H200** (``--what steps`` and ``--what memory``). Each row of gpu_h200.jsonl has the fields of
the point that was measured; the blocks ``dlrm``, ``pipe`` and ``dense`` are training steps, whose
models are those of gpu_h200_models.json. Tables are whole on the only rank. The host of the machine
is described by two rows of the block ``ceilings``: an eager call and a tiny pass. No wall is fitted
to. What the device computes is priced by the models as they are, and a second time by the kernels
that were measured, so that the error of the host stands alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from costmodels.calibration.device import fit_rates
from costmodels.dense.base import dense_layers, dense_parameters
from costmodels.dense.roofline import DenseRoofline
from costmodels.estimates import Estimate, Source
from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan, ShardingType
from costmodels.sustained import Shares, group_of
from costmodels.system_models import default_models
from costmodels.topology import Topology, with_host_factor
from costmodels.units import GB
from costmodels.workload import DataType, Framework, Workload
from planner import io
from planner.io.documents import configs_folder
from planner.io.importers.base import placed
from planner.validation import cases

if TYPE_CHECKING:
    from pandas import DataFrame

TRANSFORMERS: Final = "transformers.csv"
"""Steps to which shares are fitted."""
UNFITTED: Final = "transformers_unfitted.csv"
"""Steps to which nothing is fitted."""
FRAMEWORKS: Final = "transformers_frameworks.csv"
"""Steps of BERT on V100 and A100 in frameworks other than PyTorch, from the same survey. Their
family is the framework. Cards with 16 GB are priced as those with 32 GB, and the host issues
nothing, as these frameworks run whole graphs."""
NAIVE: Final = "6ND roofline"
"""The name of the predictions of :func:`naive_s`."""


def transformer_cases(name: str = TRANSFORMERS) -> tuple[cases.StepCase, ...]:
    """Every case of a shipped file of models without tables, in file order.

    Raises:
        InvalidInputError: a row cannot be read.
    """
    found = []
    for row in cases.csv_rows(name):
        framework = Framework.OTHER if name == FRAMEWORKS else Framework.MEASURED
        dense = {**json.loads(row["dense"]), "framework": framework.value}
        values = {"name": row["case"], "training": json.loads(row["training"]), "dense": dense}
        workload = cases.workload_of(name, values)
        topology = cases.system(row["system"], int(row["gpus"]), int(row["gpus_per_host"]))
        group, dtype = group_of(topology.device, workload.dense.dtype), workload.dense.dtype.value
        groups = {"model": row["model"], "family": row["family"], "device": group}
        groups["generation"] = group.split()[0]
        if name != TRANSFORMERS:
            groups |= {"model": f"{row['model']}, {dtype}", "device": topology.name}
        groups["framework"] = row["family"]
        found.append(_step(row, workload, topology, groups=groups))
    return tuple(found)


def _step(
    row: dict[str, str], workload: Workload, topology: Topology, **more: Any
) -> cases.StepCase:
    """The case of a row with ``measured_ms`` and ``source``; ``more`` are further fields."""
    return cases.StepCase(
        name=row["case"],
        workload=workload,
        topology=topology,
        measured_s=float(row["measured_ms"]) * 1e-3,
        reference=row["source"],
        **more,
    )


def transformers() -> tuple[cases.Part, ...]:
    """The rows that shares are fitted to, those of other sources, and those of other frameworks."""
    by = ("model", "device")
    fitted = cases.with_left_out("transformers", transformer_cases(), _with_shares)
    for prediction in fitted:
        prediction.predicted[NAIVE] = cases.within(naive_s(prediction.case))
    other = "Steps of BERT in other frameworks, nothing fitted"
    return (
        cases.Part("fitted", "Transformers, micro-batch", fitted, by=by, judged="model left out"),
        cases.Part(
            "unfitted", "Steps to which nothing is fitted, micro-batch", unfitted(UNFITTED), by=by
        ),
        cases.Part("frameworks", other, unfitted(FRAMEWORKS), by=("framework",)),
    )


def unfitted(name: str, shares: Shares | None = None) -> tuple[cases.Prediction, ...]:
    """The cases of a file to which nothing is fitted, with their predictions.

    Args:
        name: name of the file.
        shares: shares of the rates; None for the shipped ones.
    """
    return tuple(
        cases.Prediction(case=case, predicted={cases.UNSEEN: estimate(case, shares)})
        for case in transformer_cases(name)
    )


def estimate(case: cases.StepCase, shares: Shares | None = None) -> Estimate:
    """The estimate of the time of a micro-batch.

    Args:
        case: the case.
        shares: shares of the rates; None for the shipped ones.
    """
    time, count = priced(case, shares).estimate(case.plan).time, case.workload.gradient_accumulation
    return replace(
        time, time_s=time.time_s / count, low_s=time.low_s / count, high_s=time.high_s / count
    )


def _with_shares(case: cases.StepCase, values: dict[str, float] | None) -> Estimate:
    return estimate(case, None if values is None else Shares(**values))


def priced(case: cases.StepCase, shares: Shares | None = None) -> CostPipeline:
    """The pipeline that prices a case; ``shares`` None for the shipped ones."""
    models = default_models(case.topology)
    if shares is not None:
        models = replace(models, dense=DenseRoofline(shares=shares))
    return CostPipeline(case.workload, case.topology, models)


def naive_s(case: cases.StepCase) -> float:
    """Seconds of a naive roofline: six FLOP per parameter and position, at half the peak rate."""
    layers = case.workload.dense.layers
    positions = case.workload.batch_size_per_rank * max(getattr(x, "seq", 1) for x in layers)
    flop = 6.0 * dense_parameters(case.workload) * positions
    return flop / (0.5 * case.topology.device.matrix_rate(case.workload.dense.dtype))


# ------------------------------------------------------------------ one GPU, by Lin et al. 2022


def single_gpu_cases() -> tuple[cases.StepCase, ...]:
    """Every shipped case, in file order; its system is a file of the folder, or a shipped one.

    Raises:
        InvalidInputError: a file cannot be read.
    """
    found = []
    for row in cases.csv_rows("lin22_single_gpu.csv"):
        own = configs_folder() / "published" / "lin22" / f"{row['system']}.yaml"
        workload = cases.published_workload(
            f"lin22/{row['workload']}", training__batch_size_per_rank=row["batch_size"]
        )
        topology = cases.system(str(own if own.is_file() else row["system"]), 1, 1)
        groups, plan = {"model": row["model"], "GPU": row["gpu"]}, cases.whole_tables(workload)
        found.append(_step(row, workload, topology, groups=groups, plan=plan))
    return tuple(found)


def single_gpu() -> tuple[cases.Part, ...]:
    """Every iteration."""
    found = cases.with_left_out("single-gpu", single_gpu_cases(), _with_host)
    title = "DLRM on one GPU, iteration time"
    return (cases.Part("iterations", title, found, by=("model", "GPU"), judged="GPU left out"),)


def _with_host(case: cases.StepCase, pair: tuple[float, float] | None) -> Estimate:
    """The estimate with a factor on the launch latency, and seconds between steps."""
    workload, topology = case.workload, case.topology
    if pair is not None:
        topology = with_host_factor(topology, pair[0])
        workload = replace(workload, between_steps_s=pair[1])
    return CostPipeline(workload, topology).estimate(case.plan).time


# ------------------------------------------------------------------ one H200


Row = Mapping[str, Any]
"""A measured row, as it is written."""
STEPS: Final = "gpu_h200.jsonl"
_EXTRA: Final = "gpu_h200_extra.jsonl"
_SYSTEM: Final = "h200_sxm"
HOST_ONLY: Final = "with measured kernels"
"""The name of predictions with the measured kernels in place of what the models say."""
_HOST_BOUND: Final = 1.15
"""How far a wall must exceed the kernels and copies of a step for the host to decide it."""
_DEVICE_TIMES: Final = (
    *(f"{part}_{way}_s" for part in ("bottom", "top", "lookup") for way in ("forward", "backward")),
    "optimizer_s",
)


def document_of(row: Row) -> dict[str, Any]:
    """The workload of a row of the blocks ``dense``, ``dlrm`` and ``pipe``, as values of a file."""
    tables = [
        {
            "name": f"t{i}",
            "num_embeddings": table["rows"],
            "embedding_dim": row["D"],
            "pooling_factor": table["L"],
            "distribution": {"kind": "zipf", "exponent": table["s"]}
            if table["s"]
            else {"kind": "uniform"},
        }
        for i, table in enumerate(row.get("tables", ()))
    ]
    model = cases.json_file("gpu_h200_models.json")[f"{row['block']} {row['id']}"]
    return {"name": row["id"], **model, **({"tables": tables} if tables else {})}


def is_torchrec(row: Row) -> bool:
    """Whether a step with tables ran under TorchRec, and not under FBGEMM alone."""
    return str(row.get("backend", "")).startswith("torchrec")


def h200_steps() -> tuple[cases.Part, ...]:
    """All steps by group, and the host-bound ones by what decides them.

    Groups are dense, dlrm (TorchRec without a pipeline) and pipe (``TrainPipelineSparseDist``),
    with ``extra`` in front of models that no constant was fitted to. The errors of the host-bound
    steps, with measured kernels, are :data:`costmodels.uncertainty.HOST_GROUPS`; models of
    ``extra`` are not among them.
    """
    topology, found, bound = measured_host(), [], []
    for file, prefix in ((STEPS, ""), (_EXTRA, "extra ")):
        for row in cases.json_rows(file, "dense", "dlrm", "pipe"):
            if "wall_us" not in row or not (row["block"] == "dense" or is_torchrec(row)):
                continue
            found.append(_with_kernels(row, topology, prefix))
            if not prefix and row["wall_us"] > _HOST_BOUND * (row["kernel_us"] + row["h2d_us"]):
                bound.append(found[-1])
    title = "Steps that the host decides"
    return (
        cases.Part("steps", "Steps on one H200, wall", found, by=("group",)),
        cases.Part("host_bound", title, bound, by=("family",), judged=HOST_ONLY),
    )


def measured_host() -> Topology:
    """The system with one device, and the host of the machine that the rows are from."""
    rates, topology = fit_rates({}, cases.json_rows(STEPS, "ceilings")), cases.system(_SYSTEM)
    call_s, pass_s = rates.get("eager_call_s", 0.0), rates.get("eager_pass_s")
    host = replace(topology.host, eager_call_s=call_s, eager_pass_s=pass_s)
    sources = tuple(
        replace(p, source=Source.MEASURED) if p.name == "host.eager_call" else p
        for p in topology.provenance
    )
    return replace(topology, host=host, provenance=sources)


def _with_kernels(row: Row, topology: Topology, prefix: str) -> cases.Prediction:
    """A step, priced by the models, and with as many seconds on the device as were measured.

    The latter are shared out over the stages as predicted.
    """
    workload = cases.workload_of(row["id"], document_of(row))
    plan, pipeline = cases.whole_tables(workload), CostPipeline(workload, topology)
    times = pipeline.stage_times(pipeline.plan_work(plan))
    device_s = sum(float(np.max(getattr(times, name))) for name in _DEVICE_TIMES)
    ratio = 1e-6 * row["kernel_us"] / device_s
    scaled = {name: getattr(times, name) * ratio for name in _DEVICE_TIMES}
    times = replace(times, **scaled, input_copy_s=np.array([1e-6 * row["h2d_us"]]))
    case = cases.StepCase(
        name=str(row["id"]),
        workload=workload,
        plan=plan,
        topology=topology,
        measured_s=float(row["wall_us"]) * 1e-6,
        groups={"group": prefix + row["block"], "family": str(row.get("kind", row["block"]))},
    )
    measured_s = float(pipeline.scheduled(times, (1, 1))[1].iteration_time_s.squeeze())
    predicted = {cases.UNSEEN: pipeline.estimate(plan).time, HOST_ONLY: cases.within(measured_s)}
    return cases.Prediction(case=case, predicted=predicted)


# ------------------------------------------------------------------ device memory
#
# What was measured is the most that PyTorch's allocator had given out, and the most that it had
# reserved. Weights of tables and their optimizer states are known exactly; the errors are those of
# the rest: the dense part, activations, indices, and what lookups need for a moment.


def memory_of_steps() -> DataFrame:
    """The measured steps, each with its ledger on the device.

    Returns:
        A row for each step: its ``name``, the ``group`` that it is counted among, ``tables_bytes``
        (weights and optimizer states of tables), ``measured_bytes`` (the most that was allocated),
        ``reserved_bytes`` (the most that the allocator reserved; 0 if not recorded),
        ``predicted_bytes`` (the ledger, without the memory reserve), ``rest_ratio``, the relative
        error beside the tables, and ``sum_ratio``, that of the whole.
    """
    from pandas import DataFrame

    topology, found = cases.system(_SYSTEM, 1, 1), []
    for row in cases.json_rows(STEPS, "dlrm", "pipe", "dense"):
        workload = cases.workload_of(row["id"], document_of(row))
        (rank,) = CostPipeline(workload, topology).memory(cases.whole_tables(workload)).ranks
        kind = row["kind"] if row["block"] == "dense" else row["backend"].split()[0]
        found.append(
            {
                "name": row["id"],
                "group": f"{row['block']} {kind}",
                "tables_bytes": rank.weights_bytes + rank.optimizer_bytes,
                "measured_bytes": 1e9 * row["mem_gb"],
                "reserved_bytes": 1e9 * row.get("reserved_gb", 0.0),
                "predicted_bytes": rank.used_bytes - rank.reserved_bytes,
            }
        )
    steps = DataFrame(found)
    rest, measured = steps.predicted_bytes - steps.tables_bytes, steps.measured_bytes
    steps["rest_ratio"] = rest / (measured - steps.tables_bytes) - 1.0
    steps["sum_ratio"] = steps.predicted_bytes / measured - 1.0
    return steps


def memory_errors(steps: DataFrame) -> DataFrame:
    """The errors of each group of steps, and of all steps of the block ``dense``, as ratios.

    ``rest_median_ratio`` is the median error of what is beside the tables, without its sign;
    ``rest_worst_ratio`` the largest of these, with its sign; ``most_short_ratio`` how much the
    ledger is short of the whole sum at most, 0 if never; ``reserved_median_ratio`` the median of
    reserved over allocated bytes, 0 if not recorded.
    """
    from pandas import concat

    dense = steps[steps.group.str.startswith("dense ")].assign(group="dense all")
    known = concat([steps, dense])
    known["reserved_ratio"] = known.reserved_bytes / known.measured_bytes
    return known.groupby("group", sort=False).agg(
        num_steps=("name", "size"),
        rest_median_ratio=("rest_ratio", lambda errors: errors.abs().median()),
        rest_worst_ratio=("rest_ratio", lambda errors: max(errors, key=abs)),
        most_short_ratio=("sum_ratio", lambda errors: max(0.0, -errors.min())),
        reserved_median_ratio=("reserved_ratio", "median"),
    )


# ------------------------------------------------------------------ MLPerf's DLRM-DCNv2


_FILES = ("mlperf_dcnv2.csv", "mlperf_dcnv2_later.csv")
SPREADSHEET: Final = "naive"
"""The name of the predictions of :func:`naive_roofline_s`."""


def load_cases() -> tuple[cases.StepCase, ...]:
    """Every shipped case, all of them of one host, in the order of files and rows.

    Raises:
        InvalidInputError: a row cannot be read.
    """
    found = []
    for row in (row for name in _FILES for row in cases.csv_rows(name)):
        gpus = int(row["gpus"])
        topology = cases.system(row["system"], gpus, int(row["gpus_per_host"]))
        workload = io.load_workload(row["workload"])
        workload = replace(workload, batch_size_per_rank=int(row["global_batch"]) // gpus)
        threshold = float(row["replicate_below_gb"] or 0.0)
        plan = plan_from_matrix(json.loads(row["tables_by_rank"]), workload, topology, threshold)
        label = " ".join(row["case"].split("-")[1:3])
        found.append(_step(row, workload, topology, plan=plan, label=label))
    return tuple(found)


def predict(case: cases.StepCase) -> cases.Prediction:
    """Predict a case: price its own plan."""
    naive = cases.within(naive_roofline_s(case.workload, case.topology))
    time = priced(case).estimate(case.plan).time
    return cases.Prediction(case=case, predicted={cases.UNSEEN: time, SPREADSHEET: naive})


def systems() -> tuple[cases.Part, ...]:
    """Every measured system."""
    found = tuple(predict(case) for case in load_cases())
    return (cases.Part("systems", "MLPerf DLRM-DCNv2, iteration time", found),)


def naive_roofline_s(workload: Workload, topology: Topology) -> float:
    """Seconds per iteration as a spreadsheet would estimate them.

    All work is perfectly balanced, and nothing overlaps. It adds up: bytes of looked-up rows at 0.7
    of the memory bandwidth; four times as long for their backward pass; three times the forward
    FLOP of the dense part at half the peak rate; pooled embeddings and dense gradients at the rate
    of the link inside the host; and 0.3 ms for all else.
    """
    device, link = topology.device, topology.host_link
    batch, world = workload.batch_size_per_rank, topology.world_size
    looked_up = batch * sum(t.pooling_factor * t.row_bytes for t in workload.tables)
    pooled = batch * sum(
        t.outputs_per_sample * t.embedding_dim * workload.output_dtype.num_bytes
        for t in workload.tables
    )
    layers, parameters = dense_layers(workload), dense_parameters(workload)
    flops = sum(layer.flops for layer in (*layers.bottom, *layers.top))
    share = (world - 1) / world
    reduced = 2.0 * parameters * workload.gradient_dtype.num_bytes
    return (
        5.0 * looked_up / (0.7 * device.hbm_bandwidth_bytes_per_s)
        + 3.0 * flops / (0.5 * device.matrix_rate(workload.dense.dtype))
        + (2.0 * pooled + reduced) * share / link.bandwidth_bytes_per_s
        + 0.3e-3
    )


def plan_from_matrix(
    tables_by_rank: list[list[int]], workload: Workload, topology: Topology, threshold_gb: float
) -> Plan:
    """The plan that HugeCTR's shard matrix describes for one host.

    The rows of a table on k ranks are split into k parts. A table on all ranks that is smaller than
    the threshold is replicated.

    Args:
        tables_by_rank: for each rank, the indices of the tables on it.
        workload: has the tables.
        topology: has the ranks.
        threshold_gb: GB of weights and optimizer state below which a table is replicated.
    """
    placements = []
    for index, table in enumerate(workload.tables):
        ranks = [rank for rank, tables in enumerate(tables_by_rank) if index in tables]
        dim = table.embedding_dim
        state_bytes = workload.optimizer_of(table).state_bytes_per_row(dim)
        size_gb = table.num_embeddings * (dim * DataType.FP32.num_bytes + state_bytes) / GB
        kind = ShardingType.ROW_WISE if len(ranks) > 1 else ShardingType.TABLE_WISE
        if len(ranks) == topology.world_size and size_gb <= threshold_gb:
            kind = ShardingType.DATA_PARALLEL
        placements.append(placed(table, kind, ranks))
    return Plan(placements=tuple(placements))
