"""``shardplan tune``: pick what surrounds a plan - cluster, batch, pipeline, groups, menus."""

from __future__ import annotations

from pathlib import Path

import click

from planner.cli.console import Settings, complain, remark
from planner.cli.flags.common import FILE, output_options
from planner.cli.flags.tune_inputs import TuneFlags, tune_options
from planner.cli.interrupt import EXIT_STOPPED, StopOnInterrupt

EXAMPLES = """\b
Examples:
  shardplan tune dlrm.yaml --system h100_sxm --gpus 64
  shardplan tune dlrm.yaml --system h100_sxm --gpus 64 --groups --sync-interval 10 -o tuned
  shardplan tune dlrm.yaml --system h100_sxm,a100_80gb_sxm --gpus 8,16 --objective throughput,cost
  shardplan tune dlrm.yaml --system h100_sxm --budget '200 USD/h' --batch-size 2048,4096,8192
  shardplan tune dlrm.yaml --system h100_sxm --gpus 16 --communication workload,fp16/bf16
  shardplan tune dlrm.yaml --system h100_sxm --gpus 64 --storage study.journal"""


@click.command(short_help="Choose cluster, batch, pipeline and more.", epilog=EXAMPLES)
@click.argument("workload", type=FILE)
@tune_options
@click.option(
    "--storage", type=FILE, metavar="FILE",
    help="Keep the study in this journal; a later run goes on with it.",
)  # fmt: skip
@click.option(
    "-o", "--output", type=FILE, metavar="DIR|FILE.json",
    help="Write plan.json, setups.csv and tune.html, which shows what each choice is worth; or "
    "only the best plan, as FILE.json.",
)  # fmt: skip
@output_options
@click.pass_obj
def command(
    settings: Settings,
    *,
    workload: Path,
    flags: TuneFlags,
    storage: Path | None,
    output: Path | None,
) -> int:
    """Choose what surrounds a plan; each setup that is searched gets a plan of its own.

    'shardplan plan' takes system, GPUs, batch, pipeline and more as given. Here every option may
    list several values. One combination is a setup, all of them are the design space; the first
    values are the usual setup, with which others are compared. Options that are not given keep the
    workload's value, but for pipeline, least column width and, where device memory is short, cache
    sizes. Batch, codecs and copies of tables change the training itself: they vary only where their
    option is given, and the output says so.

    Bounds prove what any plan of a setup can reach at best. The most promising setup is searched
    next, until no other can be better; the output says what could still be gained. --sampler lets
    Optuna choose instead. With --storage, the same command goes on where an earlier run ended or
    was killed. After Ctrl-C or SIGTERM the best plan so far is printed and written; exit
    code 4.
    """
    from planner.cli import tuning
    from planner.cli.flags.tune_inputs import (
        clusters_of,
        load_space,
        sharing_batch,
    )
    from planner.cli.output import files_set
    from planner.tuning import Study

    if output is not None:
        read = (workload, *flags.files, *files_set(flags.overrides, workload))
        tuning.check_output(output, read, storage)
    clusters = sharing_batch(workload, clusters_of(flags))
    space, warnings = load_space(workload, clusters.flags, flags.menu())
    searches = Study(
        space,
        flags.effort(),
        goals=flags.goals,
        journal=storage,
    )
    for text in clusters.remarks:
        remark(settings, text)
    with StopOnInterrupt() as stop:
        tuning.run_study(settings, searches, stop, storage)
        if stop() and not searches.has_plan:
            message = "no setup had a plan before that, so nothing is written"
            complain(f"shardplan: stopped by {stop.stopped_by}; {message}")
            return EXIT_STOPPED
        tuning.show(settings, searches, output, warnings=warnings)
    return tuning.stopped(settings, searches, stop)
