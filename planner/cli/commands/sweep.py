"""``shardplan sweep``: the best plan on every point of a grid."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from planner.cli.console import Settings, remark, shown_paths, warn, write_json
from planner.cli.flags.common import FILE, MAX_RANKS, Count, output_options
from planner.cli.flags.sweep_inputs import Several, SweepFlags, sweep_options
from planner.cli.interrupt import EXIT_STOPPED, StopOnInterrupt
from planner.support.cores import usable_cores

if TYPE_CHECKING:
    from planner.cli.flags.sweep_inputs import Questions
    from planner.sweep import PointResult

EXAMPLES = """\b
Examples:
  shardplan sweep dlrm.yaml --system h100_sxm,a100_80gb_sxm --gpus 8,16,32 -o what-if
  shardplan sweep dlrm.yaml --system h100_sxm --gpus 8,16 --global-batch-size 65536,131072
  shardplan sweep dlrm.yaml --system h100_sxm --gpus 64 --mtbf 500h --price h100_sxm=2.10
  shardplan sweep dlrm.yaml --system h100_sxm --gpus 8,16,32,64 --dask tcp://head:8786"""


@click.command(short_help="Plan for many systems, sizes, batches and pipelines.", epilog=EXAMPLES)
@click.argument("workload", type=FILE)
@click.option(
    "--gpus", type=Several(Count(MAX_RANKS)), required=True, metavar="N,N", help="Ranks in all."
)
@sweep_options
@click.option(
    "--workers",
    type=click.IntRange(1, 1024),
    default=None,
    metavar="N",
    help="Processes to use.  [default: one per usable core]",
)
@click.option(
    "-o", "--output", type=FILE, metavar="DIR",
    help="Write points.jsonl, sweep.csv and sweep.html; a later run goes on from there.",
)  # fmt: skip
@click.option(
    "--dask",
    metavar="local|ADDRESS",
    help="Search the points on a Dask cluster; its workers need this version of shardplan.",
)
@output_options
@click.pass_obj
def command(
    settings: Settings,
    *,
    workload: Path,
    gpus: tuple[int, ...],
    flags: SweepFlags,
    workers: int | None,
    output: Path | None,
    dask: str | None,
) -> int:
    """Plan for every combination and compare time, cost and free memory.

    Each combination is a point. A star marks the points that no other dominates, which means that
    none has as high a throughput at as low a cost per sample and is better in one of the two. Free
    memory does not count, because every point keeps its reserve. A point that does not fit, fails,
    or is impossible (a batch that its ranks do not share evenly) is listed with the reason and
    stops nothing.

    When all points are done, plans are handed on: a point with a gap above 1 % is searched again
    from the plan of a point that differs in one thing, where that plan is better. No point gets
    worse.

    With -o, every result is kept: a sweep that is started again does only the missing points. After
    Ctrl-C or SIGTERM the points that are done are printed and written, and the exit code is 4.
    """
    from planner.cli.flags.sweep_inputs import Questions
    from planner.cli.printing import sweep_show as show
    from planner.cli.progress import bar

    if dask not in (None, "local") and workers is not None:
        message = "--workers counts processes of this machine, and --dask has its own; drop one"
        raise click.UsageError(message, click.get_current_context())
    questions = Questions(workload, flags)
    from planner.support.dask_cluster import dask_client
    from planner.sweep import run
    from planner.sweep.outcome import in_order

    points = questions.grid(gpus).points()
    tasks, impossible = questions.tasks(points)
    journal = None if output is None else show.open_journal(output)
    processes = min(workers or usable_cores(), len(tasks))
    with StopOnInterrupt() as stop:
        cluster = nullcontext() if dask is None else dask_client(dask, processes)
        with cluster as client, bar(settings, "points", len(tasks)) as step:
            results = run(
                tasks,
                journal=journal,
                workers=processes,
                dask=client,
                progress=lambda result: step(result.point.name),
                should_stop=stop,
            )
        done = len(results)
        _deliver(settings, questions, in_order(points, (*results, *impossible)), output)
    if stop():
        remark(settings, show.stopped(str(stop.stopped_by), done, len(tasks)))
        return EXIT_STOPPED
    return 0


def _deliver(
    settings: Settings,
    questions: Questions,
    results: tuple[PointResult, ...],
    output: Path | None,
) -> None:
    """Write the points, if there are any, and print them with what is to be known of them."""
    from planner.cli.printing import sweep_show as show

    name = questions.file.workload.name
    written = () if output is None or not results else show.write(output, name, results)
    if settings.json:
        write_json(show.as_json(name, results))
    else:
        show.print_points(name, results)
    warn(settings, questions.warnings)
    for text in (*show.remarks(results), *(f"wrote {shown_paths((p,))}" for p in written)):
        remark(settings, text)
