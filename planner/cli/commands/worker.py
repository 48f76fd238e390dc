"""``shardplan worker``: help with a study that ``shardplan tune --storage`` began."""

from __future__ import annotations

from pathlib import Path

import click

from planner.cli.console import Settings, write_json
from planner.cli.flags.common import FILE, output_options

EXAMPLES = """\b
Examples:
  shardplan tune dlrm.yaml --system h100_sxm --gpus 64 --trials 200 --storage /shared/s.journal
  shardplan worker /shared/s.journal                  on as many machines as there are
  srun --ntasks 16 shardplan worker /shared/s.journal"""


@click.command(short_help="Join a study that 'shardplan tune --storage' began.", epilog=EXAMPLES)
@click.argument("storage", type=FILE)
@output_options
@click.pass_obj
def command(settings: Settings, *, storage: Path) -> int:
    """Do trials of the study in the journal STORAGE until none is left.

    Workload and system files are read from the paths that 'shardplan tune' was given, so this
    machine must see them at the same paths; files with other contents are refused. A worker may be
    killed at any time: another process repeats its trial, at once after Ctrl-C or SIGTERM (exit
    code 4).
    """
    from planner.cli import tuning
    from planner.cli.flags.tune_inputs import clusters_from, load_space
    from planner.cli.interrupt import StopOnInterrupt
    from planner.tuning import Study
    from planner.tuning.journal import stored

    begun = stored(storage)
    source = Path(begun.source["workload"])
    space, _ = load_space(source, clusters_from(begun.source), begun.menu, is_whole=True)
    study = Study(space, begun.effort, goals=begun.goals, journal=storage)
    with StopOnInterrupt() as stop:
        tuning.run_study(settings, study, stop, storage, patient=False)
    if settings.json:
        progress = study.progress()
        write_json({"done": progress.done, "trials": progress.trials})
    return tuning.stopped(settings, study, stop)
