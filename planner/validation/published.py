"""Predictions beside published measurements (``shardplan validate published``).

The cases in ``configs/published`` have the role ``validate``: nothing is fitted to them. The plan
of a case is the one that its log printed, or the one of a run with the same arguments. Logs of
later rounds print no plan: their plan is the one that the submissions' own planner makes for their
arguments.
"""

from __future__ import annotations

import json
from dataclasses import replace

from costmodels.collective.hierarchical import Hierarchical
from costmodels.dense.base import dense_parameters
from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan, ShardingType
from costmodels.stages.models import CostModels
from costmodels.system_models import default_models
from costmodels.topology import Topology
from costmodels.units import GB
from costmodels.workload import DataType, Pipeline, Workload
from planner import io
from planner.errors import refuse
from planner.io.importers.base import placed
from planner.validation.cases import UNSEEN, Part, Prediction, StepCase, csv_rows, within

_FILES = ("mlperf_dcnv2.csv", "mlperf_dcnv2_later.csv")
NAIVE = "naive"
"""The name of the predictions of :func:`naive_roofline_s`."""
_REPLICATION_SLACK = 1.02
"""Tables up to this many times the threshold in a log are taken as replicated, because logs round
the threshold."""


def load_cases() -> tuple[StepCase, ...]:
    """Every shipped case, in the order of files and rows.

    Raises:
        InvalidInputError: a row cannot be read.
    """
    rows = (row for name in _FILES for row in csv_rows(name))
    return tuple(_case(row) for row in rows if row["role"] == "validate")


def predict(case: StepCase) -> Prediction:
    """Predict a case: price its own plan."""
    models = models_of_run(case.workload, case.topology)
    estimate = CostPipeline(case.workload, case.topology, models).estimate(case.plan)
    naive_s = naive_roofline_s(case.workload, case.topology)
    return Prediction(case=case, predicted={UNSEEN: estimate.time, NAIVE: within(naive_s)})


def systems() -> tuple[Part, ...]:
    """Every measured system."""
    found = tuple(predict(case) for case in load_cases())
    return (Part("systems", "MLPerf DLRM-DCNv2, iteration time", found),)


def models_of_run(workload: Workload, topology: Topology) -> CostModels:
    """The models of a system, with the all-to-all that the run used.

    HugeCTR's samples choose the hierarchical all-to-all on several hosts
    (``samples/dlrm/train.py``).
    """
    models = default_models(topology)
    if workload.pipeline is not Pipeline.HUGECTR or topology.num_hosts == 1:
        return models
    return replace(models, collective=Hierarchical(models.collective))


def naive_roofline_s(workload: Workload, topology: Topology) -> float:
    """Seconds per iteration as a spreadsheet would estimate them.

    All work is perfectly balanced, and nothing overlaps. It adds up: bytes of looked-up rows at 0.7
    of the memory bandwidth; four times as long for their backward pass; three times the forward
    FLOP of the dense part at half the peak rate; pooled embeddings and dense gradients at the rate
    of the network link, or of the host link on one host; and 0.3 ms for all else.
    """
    device, link = topology.device, topology.host_link
    if topology.num_hosts > 1:
        link = topology.network_link
    batch, world = workload.batch_size_per_rank, topology.world_size
    looked_up = batch * sum(t.pooling_factor * t.row_bytes for t in workload.tables)
    pooled = batch * sum(
        t.outputs_per_sample * t.embedding_dim * workload.output_dtype.num_bytes
        for t in workload.tables
    )
    pipeline = CostPipeline(workload, topology)
    flops, parameters = pipeline.dense_flops, dense_parameters(pipeline.workload)
    share = (world - 1) / world
    reduced = 2.0 * parameters * workload.gradient_dtype.num_bytes
    return (
        5.0 * looked_up / (0.7 * device.hbm_bandwidth_bytes_per_s)
        + 3.0 * flops / (0.5 * device.matrix_rate(workload.dense.dtype))
        + (2.0 * pooled + reduced) * share / link.bandwidth_bytes_per_s
        + 0.3e-3
    )


def _case(row: dict[str, str]) -> StepCase:
    """The case of a row.

    Raises:
        InvalidInputError: the global batch does not divide over the ranks.
    """
    gpus = int(row["gpus"])
    topology = io.load_system(row["system"], gpus=gpus, gpus_per_host=int(row["gpus_per_host"]))
    batch, rest = divmod(int(row["global_batch"]), gpus)
    if rest:
        refuse(f"case {row['case']}: global batch {row['global_batch']} on {gpus} ranks")
    workload = replace(io.load_workload(row["workload"]), batch_size_per_rank=batch)
    threshold = float(row["replicate_below_gb"] or 0.0)
    return StepCase(
        name=row["case"],
        label=" ".join(row["case"].split("-")[1:3]),
        workload=workload,
        topology=topology,
        plan=plan_from_matrix(json.loads(row["tables_by_rank"]), workload, topology, threshold),
        measured_s=float(row["measured_ms"]) * 1e-3,
        reference=row["source"],
    )


def plan_from_matrix(
    tables_by_rank: list[list[int]], workload: Workload, topology: Topology, threshold_gb: float
) -> Plan:
    """The plan that HugeCTR's shard matrix describes.

    The rows of a table on k ranks are split into k parts. A table on all ranks that is smaller than
    the threshold is replicated. If there are several hosts and a table is split over all ranks of
    some hosts, HugeCTR adds its vectors up inside each host before they cross the network (plans of
    ``hier_auto``); such tables are ``table_row_wise`` here.

    Args:
        tables_by_rank: for each rank, the indices of the tables on it.
        workload: has the tables.
        topology: has the ranks.
        threshold_gb: GB of weights and optimizer state below which a table is replicated.
    """
    ranks_of: dict[int, list[int]] = {}
    for rank, tables in enumerate(tables_by_rank):
        for index in tables:
            ranks_of.setdefault(index, []).append(rank)
    placements = []
    for index, table in enumerate(workload.tables):
        ranks, dim = ranks_of[index], table.embedding_dim
        state_bytes = workload.optimizer_of(table).state_bytes_per_row(dim)
        size_gb = table.num_embeddings * (dim * DataType.FP32.num_bytes + state_bytes) / GB
        is_copy = size_gb <= threshold_gb * _REPLICATION_SLACK
        is_copy &= len(ranks) == topology.world_size
        kind = ShardingType.DATA_PARALLEL if is_copy else _row_split(ranks, topology)
        placements.append(placed(table, kind, ranks))
    return Plan(placements=tuple(placements))


def _row_split(ranks: list[int], topology: Topology) -> ShardingType:
    """The sharding type with the exchange that HugeCTR runs for rows split over these ranks."""
    if len(ranks) == 1:
        return ShardingType.TABLE_WISE
    local = topology.local_world_size
    hosts = {topology.host_of(r) for r in ranks}
    if topology.num_hosts > 1 and local > 1 and len(ranks) == len(hosts) * local:
        return ShardingType.TABLE_ROW_WISE
    return ShardingType.ROW_WISE
