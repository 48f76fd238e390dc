"""``shardplan export``: a plan in the formats of other tools."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import click

from costmodels import pipeline as pricing
from costmodels import sharding
from costmodels.shard_work import work
from planner import models
from planner.cli import inputs, spec
from planner.cli.console import settings, tell_written, write_data
from planner.cli.output import files_of, refuse_own_input, write_folder
from planner.io.importers import hugectr as hugectr_plans
from planner.io.plan import plan_file
from planner.support.files import write_text_atomic
from planner.trace import kineto


@click.group(short_help="Write a plan in other tools' formats.")
def command() -> None:
    """Write a plan, or the iteration predicted for it, in the format of another tool.

    Examples:
      shardplan export trace dlrm.yaml run1/plan.json -o trace      open in ui.perfetto.dev
      shardplan export nccl-matrix dlrm.yaml run1/plan.json -o a2a_matrix.txt
      shardplan export torchrec dlrm.yaml run1/plan.json -o torchrec_plan.json
      shardplan export csv dlrm.yaml run1/plan.json -o shards.csv
    """


@spec.command("Kineto traces, one per rank.", command)
def trace(
    workload: Path,
    plan: Path,
    flags: spec.ProblemFlags,
    output: Annotated[Path, spec.FILE, "DIR", "-o --output"],
    iterations: Annotated[int, click.IntRange(1, 1000)] = 1,
    ranks: Annotated[tuple[int, ...], click.IntRange(0), "N", "--rank"] = (),
) -> None:
    """Write the predicted iteration as the PyTorch profiler would have recorded it.

    There is one gzipped JSON file per rank, for Perfetto and HolisticTraceAnalysis. A collective's
    kernel begins when its last rank arrives; its arguments say how long the rank waited.

    Args:
        output: Folder to write.
        iterations: Number of iterations to write.
        ranks: Write only this rank; repeatable.  [default: all]
    """
    pipeline, loaded = _priced(workload, plan, flags, output)
    world = pipeline.topology.world_size
    for rank in ranks:
        spec.refuse(rank >= world, f"--rank {rank} is outside the plan's 0..{world - 1}")
    files = dict(kineto.traces(pipeline, loaded, iterations=iterations, ranks=ranks or None))
    write_folder(output, files)
    tell_written([output], {"written": [str(output / name) for name in files]})


def nccl_matrix(pipeline: pricing.CostPipeline, plan: sharding.Plan) -> tuple[str, str]:
    """Write the bytes that each rank sends to each other rank in the output exchange.

    nccl-tests' alltoallv_perf can replay this matrix, to check the communication model on your
    cluster. The command is printed.
    """
    traffic_bytes = work.output_traffic_bytes(pipeline.plan_work(plan), pipeline.topology)
    text, size = kineto.matrix_text(traffic_bytes)
    return text, f"alltoallv_perf -b {size} -e {size} -a 3"


def torchrec(pipeline: pricing.CostPipeline, plan: sharding.Plan) -> str:
    """Write the plan alone, in the shape of TorchRec's ShardingPlan serialization."""
    values = plan_file.plan_to_json(plan, pipeline.workload, pipeline.topology.local_world_size)
    return json.dumps(values, indent=1) + "\n"


def hugectr(pipeline: pricing.CostPipeline, plan: sharding.Plan) -> str:
    """Write HugeCTR's plan file: the tables on each GPU, numbered as in the workload.

    Such a file can hold whole tables, tables cut by rows, and copies on every GPU. A plan with
    column pieces, host memory or caches is refused.
    """
    return hugectr_plans.hugectr_plan_text(plan, pipeline.workload, pipeline.topology.world_size)


def csv(_: pricing.CostPipeline, plan: sharding.Plan) -> str:
    """Write a row for every shard: table, sharding type, kernel, rank, offsets and sizes.

    Commands that take a plan read such a file back, if its name ends in .csv.
    """
    return plan_file.shards_csv(plan)


def ranks(_: pricing.CostPipeline, plan: sharding.Plan) -> str:
    """Write the columns table and rank, for plans of whole tables and equal column pieces.

    Commands that take a plan read such a file back, if its name ends in .csv: a table on one rank
    is whole, and a table on several ranks is cut into equal column pieces.
    """
    return plan_file.ranks_csv(plan)


_OUTPUT: Final = "\n\n    Args:\n        output: File to write.\n"


def _add(
    short_help: str, text_of: Callable[[pricing.CostPipeline, sharding.Plan], str | tuple[str, str]]
) -> None:
    """Add a subcommand that writes a plan of a workload to one file, as the text of a function.

    A second text is the program of nccl-tests that replays the file.
    """

    def written(
        workload: Path,
        plan: Path,
        flags: spec.ProblemFlags,
        output: Annotated[Path, spec.FILE, "FILE", "-o --output"],
    ) -> None:
        found = text_of(*_priced(workload, plan, flags, output))
        text, *programs = [found] if isinstance(found, str) else found
        write_text_atomic(output, text)
        more = {}
        for program in programs:
            variable = f"NCCL_TESTS_ALLTOALLV_MATRIX_FILE={output}"
            more["command"] = f"{variable} {program}"
            if not settings().json:
                write_data(f"{variable} \\\n  {program}\n")
        tell_written([output], more)

    written.__name__, written.__doc__ = text_of.__name__, f"{text_of.__doc__}{_OUTPUT}"
    spec.command(short_help, command)(written)


_add("All-to-all bytes for nccl-tests.", nccl_matrix)
_add("TorchRec's serialized ShardingPlan.", torchrec)
_add("HugeCTR's plan file of an embedding collection.", hugectr)
_add("One row per shard.", csv)
_add("The columns table and rank.", ranks)


def _priced(
    workload: Path, plan: Path, flags: spec.ProblemFlags, output: Path
) -> tuple[pricing.CostPipeline, sharding.Plan]:
    refuse_own_input([output], [workload, plan, *files_of(flags, workload)])
    read = inputs.load_plans(workload, (plan,), flags)
    return models.pipeline_of(read.problem), read.plans[0]
