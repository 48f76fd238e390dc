"""``shardplan size``: the smallest cluster that is fast enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from planner.cli.console import Settings, remark, shown_paths, warn, write_json
from planner.cli.flags.common import FILE, MAX_RANKS, Count, output_options
from planner.cli.flags.sweep_inputs import SweepFlags, size_options
from planner.cli.interrupt import EXIT_STOPPED, StopOnInterrupt
from planner.cli.output import check_output

if TYPE_CHECKING:
    from planner.sweep import PointResult
    from planner.sweep.size import Sizing

EXAMPLES = """\b
Examples:
  shardplan size dlrm.yaml --system h100_sxm,a100_80gb_sxm --target-qps 20e6
  shardplan size dlrm.yaml --system h100_sxm --target-qps 5M --global-batch-size 65536
  shardplan size dlrm.yaml --system h200_sxm --target-qps 5M --mtbf 300h"""


class Rate(click.ParamType[float]):
    """Samples per second: ``20e6``, ``20_000_000`` or ``20M``."""

    name = "rate"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Refuse everything that is not above 0."""
        text = str(value).strip().replace("_", "")
        factor = {"k": 1e3, "M": 1e6, "G": 1e9}.get(text[-1:], 1.0)
        try:
            number = float(text[:-1] if factor > 1 else text) * factor
        except ValueError:
            number = 0.0
        if not 0 < number < 1e15:
            message = (
                f"{value!r} is not a rate above 0 and below 1e15 samples/s, such as 20e6 or 20M"
            )
            self.fail(message, param, ctx)
        return number


@click.command(short_help="Find the smallest cluster that reaches a throughput.", epilog=EXAMPLES)
@click.argument("workload", type=FILE)
@click.option(
    "--target-qps", type=Rate(), required=True, metavar="N", help="Samples per second to reach."
)
@click.option(
    "--max-gpus", type=Count(MAX_RANKS), default="512", show_default=True, metavar="N",
    help="Largest number of ranks to try.",
)  # fmt: skip
@size_options
@click.option(
    "-o", "--output", type=FILE, metavar="FILE", help="Also write what --json prints."
)  # fmt: skip
@output_options
@click.pass_obj
def command(
    settings: Settings,
    *,
    workload: Path,
    target_qps: float,
    max_gpus: int,
    flags: SweepFlags,
    output: Path | None,
) -> int:
    """Find, for each system, the fewest whole hosts whose best plan is fast enough.

    The number of hosts is doubled until one is fast enough; then the range below it is halved again
    and again. More hosts may be slower, so every smaller number that is left is tried too, unless
    it is proven to be too slow. If no number was fast enough, all numbers up to --max-gpus are
    tried in this way.

    A size with a gap above 1 % is searched again from the plan of a size tried before, where that
    plan is better. With --mtbf, throughput counts lost time. With --global-batch-size, only sizes
    are tried whose ranks share it evenly. Exit code 1 says that no plan found reaches the target.
    After Ctrl-C or SIGTERM the sizes that are done are printed and written, and the exit code is 4.
    """
    from planner.cli.flags.sweep_inputs import Questions
    from planner.cli.progress import bar
    from planner.sweep import most_samples_per_s, smallest
    from planner.sweep.runner import solve_beside

    check_output(output, [workload])
    questions = Questions(workload, flags)
    sizes = {system: questions.sizes(system, max_gpus) for system in flags.systems}
    points = {point.system: point for point in questions.grid((1,)).points()}
    sizings = []
    with StopOnInterrupt() as stop, bar(settings, "systems", len(sizes)) as step:
        for system in flags.systems:
            found: list[PointResult] = []

            def best(
                gpus: int, system: str = system, found: list[PointResult] = found
            ) -> PointResult:
                task = questions.task(replace(points[system], gpus=gpus))
                found.append(solve_beside(task, found, should_stop=stop))
                return found[-1]

            def at_most(gpus: int, system: str = system) -> float:
                task = questions.task(replace(points[system], gpus=gpus))
                return most_samples_per_s(task, should_stop=stop)

            tries, target = sizes[system], target_qps
            sizings.append(
                smallest(system, best, at_most=at_most, target_samples_per_s=target, sizes=tries)
            )
            if stop():
                break
            step(system)
    _deliver(settings, target_qps, sizings, output, questions.warnings)
    if stop():
        done = sum(not sizing.is_cut for sizing in sizings)
        remark(settings, f"stopped by {stop.stopped_by} after {done} of {len(sizes)} systems")
        return EXIT_STOPPED
    return 0 if any(s.answer is not None for s in sizings) else 1


def _deliver(
    settings: Settings,
    target_qps: float,
    sizings: Sequence[Sizing],
    output: Path | None,
    warnings: tuple[str, ...],
) -> None:
    """Write the answer and print it, with what is to be known of it."""
    from planner.cli.printing import sweep_show as show

    if output is not None:
        show.write_sizings(output, target_qps, sizings)
    if settings.json:
        write_json(show.sizings_json(target_qps, sizings))
    else:
        show.print_sizings(target_qps, sizings)
    warn(settings, warnings)
    for text in show.remarks([result for sizing in sizings for result in sizing.tried]):
        remark(settings, text)
    if output is not None:
        remark(settings, f"wrote {shown_paths((output,))}")
