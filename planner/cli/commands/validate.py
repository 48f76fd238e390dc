"""``shardplan validate``: predictions against known truth."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import click

from planner import io, models
from planner.cli import inputs, printing, spec
from planner.cli.console import remark, settings, shown_paths, status_line, tell
from planner.cli.interrupt import EXIT_STOPPED
from planner.report.base import Section, by_field
from planner.trace import kineto, reading
from planner.validation import intervals as held
from planner.validation import steps, tasks

KINDS = {
    "systems": "steps.systems",
    "lookups": "kernels.lookups",
    "dense": "kernels.dense",
    "steps": "steps.h200_steps",
    "memory": "",
    "single-gpu": "steps.single_gpu",
    "transformers": "steps.transformers",
    "attention": "kernels.attention",
}
"""The kinds of published measurements, and what of :mod:`planner.validation` predicts them."""


@click.group(short_help="Compare predictions with measured systems.")
def command() -> None:
    """Compare predictions with measurements.

    A model was fitted to none of them, or is also judged with constants fitted without them.

    Examples:
      shardplan validate published
      shardplan validate published --json > errors.json
      shardplan validate published --what lookups
      shardplan validate published --what single-gpu
      shardplan validate published --what steps
      shardplan validate published --what transformers
      shardplan validate published --what attention
      shardplan validate published --what dense
      shardplan validate published --what memory
      shardplan validate torchrec --system my_cpu.yaml --tasks 10 --plans 8 -o results
      shardplan validate torchrec --system my_cpu.yaml --models sequence --plans 4
      shardplan validate torchrec --system my_cpu.yaml --codec fp16 --plans 4
      shardplan validate intervals
      shardplan validate trace dlrm.yaml run1/plan.json rank-0.json.gz rank-1.json.gz
    """


@spec.command("Systems measured and published by others.", command)
def published(what: Annotated[str, click.Choice(tuple(KINDS))] = "systems") -> None:
    """Predict what others measured and print the errors.

    systems: MLPerf's DLRM-DCNv2 under the plans that its logs print, or that the planner of the
    submissions makes where they print none. Nothing is fitted to them. The last column is a naive
    model on the same inputs: all work balanced, at fixed shares of the rates, nothing overlapped.

    lookups: calls of FBGEMM on an H200, in device and in host memory. The constants of the law are
    fitted anew without the points, the widths of rows, or the pooling factors that they predict.

    single-gpu: steps in which the host sets the pace. Two numbers of the host profile were fitted;
    each case is also predicted with those fitted without its model, or without its GPU.

    steps: walls of dense models and of TorchRec's DLRM on one H200. Its host is known by an eager
    call and a tiny pass alone; no wall is fitted to. The second error has the measured kernels in
    the place of what the models say, so that it is that of the host.

    transformers: micro-batches of BERT, MPT, GPT-2 and Llama on V100, A100 and H100. Each is
    also predicted with shares of the device's rates that were fitted without its model, its whole
    family, or its generation of devices. Then steps of other sources, to which nothing is fitted.

    attention: kernels of HSTU on H100 and GB200, each also predicted with constants fitted without
    its width of heads, or its device; and whole layers, to which nothing is fitted.

    dense: GPU times of training steps of ten model families on an H200, of the dense kernels of
    TorchRec's DLRM, and of dot interactions on an H100, each also predicted with constants fitted
    without its family. Then NVIDIA's DLRM on one A100, to which nothing is fitted.

    memory: the peak of device memory of TorchRec's steps and of dense parts on one H200. The ledger
    counts tensors; which ones a DLRM holds was decided with these steps in view.

    The measurements, their sources and the constants fitted without them are in configs/published.
    -v prints every case.

    Args:
        what: Measurements: MLPerf systems; FBGEMM's lookups, GPU times of dense parts, steps and
            their device memory on an H200; three models on one GPU (Lin et al. 2022); steps of
            transformers; or kernels of HSTU's attention.
    """
    if KINDS[what]:
        module, name = KINDS[what].split(".")
        parts = getattr(importlib.import_module(f"planner.validation.{module}"), name)()
        data: dict[str, Any] = {part.name: printing.part_json(part) for part in parts}
        tell(data, printing.kind_sections(parts, everything=settings().verbose))
    else:
        found = steps.memory_of_steps()
        errors = steps.memory_errors(found)
        data = {"steps": found.to_dict("records"), "errors": errors.to_dict("index")}
        tell(data, printing.memory_sections(found, errors))


@spec.command("How often 90 % intervals hold measurements.", command)
def intervals() -> None:
    """Count the held-out measurements that lie inside their 90 % intervals.

    The measurements are published systems, lookups, and points of collective curves; no model was
    fitted to them. Between 80 and 97 % should be inside. A second table has pairs of plans on one
    system: what both predictions have wrong in common cancels in the ratio of their times.
    """
    found, pairs = held.coverages(), held.published_pairs()
    families = [{**asdict(c), "coverage_ok": c.coverage_ok} for c in found]
    told = [{**asdict(p), "error_ratio": p.error_ratio} for p in pairs]
    inside = ("inside=coverage_ratio", "median width=width_ratio", "80 to 97 %=verdict")
    never = by_field("measurements never fitted=family", "rows", *inside)
    sections = (
        Section.of("Coverage of 90 % intervals", found, never),
        Section.of("Two plans on one system", pairs, by_field("first", "second", *printing.RATIOS)),
    )
    tell({"families": families, "pairs": told}, sections)


class RunFlags(spec.Flags):
    """Which models are trained, and what of them is compared.

    Attributes:
        system: A system from 'shardplan calibrate'.  [default: calibrate quickly first]
        tasks: Number of random models.
        plans: Number of plans for each model.
        ranks: Number of gloo ranks.
        seed: Of the random models and plans.
        models: DLRMs; or with transformer blocks between pooled vectors, or along sequences.
        codec: Run each plan with exchanges in fp32, then in this format.
        output: Write every run as CSV.
    """

    system: spec.File = None
    tasks: Annotated[int, click.IntRange(1, 1000)] = 10
    plans: Annotated[int, click.IntRange(2, 64)] = 8
    ranks: Annotated[int, click.IntRange(2, 16)] = 2
    seed: Annotated[int, click.IntRange(min=0)] = 1000
    models: Annotated[str, click.Choice(["dlrm", "transformer", "sequence"])] = "dlrm"
    codec: Annotated[str | None, click.Choice(["fp16", "bf16"])] = None
    output: spec.Folder = None


@spec.command("Train random models here and compare.", command)
def torchrec(flags: RunFlags) -> int:
    """Train random models on this machine's CPU cores, and predict the time of every plan.

    Each model is trained under random plans, baselines and plans of the search, which take turns in
    random blocks. Ranks are gloo processes. Measured times are processor times of each rank, joined
    at every collective, so that other jobs disturb little. Predictions rest on what 'shardplan
    calibrate' measured, stage by stage, and never on a run of one of these plans; --json and -o
    have every plan and every stage. After Ctrl-C or SIGTERM the models that are done are printed
    and written, and the exit code is 4.
    """
    both = "--codec and --models exclude each other; give one"
    spec.refuse(flags.codec and flags.models != "dlrm", both)
    inputs.require_torchrec("validate torchrec")
    with status_line("training") as progress:
        finished: list[tasks.Outcome] = []
        stopped_by = ""
        try:
            _train(flags, progress, finished)
        except KeyboardInterrupt as interrupt:
            if not finished:
                raise
            stopped_by = str(interrupt) or "Ctrl-C"
    kinds = list(dict.fromkeys(o.skew for o in finished))
    outcomes = sorted(finished, key=lambda o: kinds.index(o.skew))
    for note in filter(None, (printing.foreign_note(outcomes), printing.pace_note(outcomes))):
        remark(note)
    found = {} if flags.codec else printing.rankings(outcomes)
    made = printing.scores_section(found, outcomes)
    if flags.codec:
        title = f"Time with {flags.codec} exchanges over time with fp32"
        made = printing.pairs_section(outcomes, title)
    tell({"models": found, "runs": outcomes}, (made,))
    if flags.output is not None:
        for path in printing.write_files(flags.output, outcomes, found):
            remark(f"wrote {shown_paths((path,))}")
    if stopped_by:
        done = outcomes[-1].task + 1
        remark(f"stopped by {stopped_by} after {done} of {flags.tasks} models")
        return EXIT_STOPPED
    return 0


def _train(flags: RunFlags, progress: Callable[[str], None], finished: list[tasks.Outcome]) -> None:
    """Train random models; ``finished`` gets the outcomes of each as soon as it is done."""
    from planner.integrations.measure.calibrate import calibrated_topology
    from planner.integrations.measure.runs import RunSettings, validate_tasks

    with TemporaryDirectory(prefix="shardplan-") as folder:
        if flags.system is None:
            topology = calibrated_topology(Path(folder), flags.ranks, progress)
        else:
            topology = io.load_system(flags.system, gpus=flags.ranks, gpus_per_host=flags.ranks)
        for found in validate_tasks(
            topology,
            num_tasks=flags.tasks,
            num_plans=flags.plans,
            settings=RunSettings(seed=flags.seed),
            what=flags.codec or flags.models,
        ):
            finished.extend(found)
            progress(f"task {found[-1].task + 1} of {flags.tasks} done")


@spec.command("A profiler's trace of your own run.", command)
def trace(workload: Path, plan: Path, flags: spec.ProblemFlags, traces: tuple[Path, ...]) -> None:
    """Compare the prediction for a plan with PyTorch profiler traces of a run.

    Give one file for each rank that you have. Kernels belong to the stage of the host's call that
    launched them, or, where the trace has no host events, to that of their name. Times are medians
    over the steps. A measured collective also contains the time it waits for late ranks, so the
    predicted wait is added before the error is computed; the ratio is measured over predicted.
    """
    read = inputs.load_plans(workload, (plan,), flags)

    pipeline = models.pipeline_of(read.problem)
    measured = [reading.read_trace(path) for path in traces]
    rows = kineto.compare_traces(pipeline, read.plans[0], measured)
    told = read.warnings
    if read.problem.topology.device.name == "cpu":
        told += (
            "CPU ranks: measured times other than those of lookups hold the profiler's own work, "
            "and those of exchanges also the time that a rank waits for others",
        )
    tell(printing.traces_json(measured, rows), printing.trace_sections(measured, rows), told)
