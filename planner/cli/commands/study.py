"""``shardplan study``: chooses what surrounds a plan - cluster, batch, pipeline, and any key."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Annotated, Any

import click

from costmodels import topology as clusters
from costmodels.dense import base
from planner import io
from planner import result as results
from planner import study as studies
from planner.cli import console, inputs, spec
from planner.cli.interrupt import EXIT_STOPPED, StopOnInterrupt
from planner.cli.output import check_folder, files_of
from planner.errors import refuse
from planner.report.base import Fact, Section, by_field, by_place
from planner.solving import assumed as assuming
from planner.study import compare
from planner.study import space as design
from planner.support import processes
from planner.support.cores import usable_cores
from planner.support.files import PLAN_FILE, behind_links, csv_text, write_texts_atomic, writing
from planner.support.text import significant

JOURNAL_FILE, TABLE_FILE, PAGE_FILE = "study.journal", "setups.csv", "study.html"
_SHOWN = 12
"""At most this many setups are printed, unless all were asked for or are on the front."""


GOALS = ("iteration", "throughput", "cost", "headroom")


class StudyFlags(spec.Flags):
    """The flags on the study: clusters, knobs, objectives and effort.

    Attributes:
        systems: Systems to choose from, by name or file; the usual one first.
        gpus: Numbers of GPUs.  [default: one host; with --budget, 1, 2, 4 ... hosts; with
            --smallest-for, all numbers of hosts]
        hosts: Numbers of full hosts, instead of --gpus.
        gpus_per_host: GPUs per host.  [default: each system's]
        batch_sizes: Samples per GPU; 32k is 32,768.  [default: workload's]
        global_batch_sizes: Samples of all GPUs in one step.
        vary: Values of a key of the workload (training.pipeline), of the system
            (system.links.network.bandwidth), or of copies, sync_interval, column_width or
            cache_sizes; the usual one first.
        overrides: Change one value of the workload file, such as tables.3.embedding_dim=64.
        models: Price with this cost model; FAMILY is lookup, collective or dense.
        budget_usd_per_hour: Leave out clusters that cost more, such as '100 USD/h'.
        prices: Price of one GPU: '4.5 USD/h', or SYSTEM=4.5 for one system.  [default: system's]
        mtbf_s: Mean time between failures, or spot interruptions, of one host.  [default: none]
        restart_s: Time from a failure to the next iteration.  [default: 5min]
        goals: What is best: iteration, throughput, cost, headroom.  [default: iteration; throughput
            where setups have unequal batches]
        is_grid: Search every setup, also those ruled out.
        smallest_for: Find the fewest GPUs that train so many samples per second, such as 20M.
        max_gpus: Largest number of GPUs that --smallest-for tries.
        trials: Most setups to search; fewer if bounds rule out all others.
        evaluations: Budget of each search: N priced plans.  [default: by the size of the problem]
        time_limit_s: For each search, a safety by the clock.  [default: none; the budget of work
            ends a search]
        within_ratio: Leave out setups that are proven to gain at most this over the best so
            far.  [default: 0%]
        sampler: What chooses the next setup: proven bounds, or a sampler of Optuna, whose choices
            are still checked by their bounds.  [default: bounds; tpe for spaces too large to list]
        seed: Random seed.
        workers: Processes to use.  [default: one per usable core]
        dask: Search on a Dask cluster; its workers need this version of shardplan.
        output: Write plan.json, setups.csv, study.html and study.journal, with which the same
            command goes on.
    """

    rules = (
        *("--restart needs --mtbf", "--max-gpus needs --smallest-for"),
        "--grid excludes --smallest-for --sampler --trials --within",
        "--batch-size excludes --global-batch-size --set=training.batch_size_per_rank",
        "--global-batch-size excludes --set=training.batch_size_per_rank",
        *("--hosts excludes --gpus", "--dask excludes --workers"),
    )

    systems: Annotated[tuple[str, ...], spec.Several(spec.SYSTEM), "A,B", "--system"]
    gpus: spec.Numbers = ()
    hosts: spec.Numbers = ()
    gpus_per_host: spec.Number = None
    batch_sizes: Annotated[spec.Batches, "--batch-size"] = ()
    global_batch_sizes: Annotated[spec.Batches, "--global-batch-size"] = ()
    vary: Annotated[spec.Texts, "KEY=V,V"] = ()
    overrides: spec.Overrides = ()
    models: spec.Models = ()
    budget_usd_per_hour: Annotated[spec.Price, "--budget"] = None
    prices: Annotated[
        tuple[tuple[str, float], ...], spec.Parsed("price", spec.system_price), "PRICE", "--price"
    ] = ()
    mtbf_s: Annotated[spec.Duration, "--mtbf"] = None
    restart_s: Annotated[float, spec.quantity("s"), "TIME", "--restart"] = 300.0
    goals: Annotated[
        tuple[str, ...], spec.Several(click.Choice(GOALS)), "NAME,NAME", "--objective"
    ] = ()
    is_grid: Annotated[bool, None, "--grid"] = False
    smallest_for: Annotated[float | None, spec.Parsed("rate", spec.samples_per_s), "RATE"] = None
    max_gpus: Annotated[int, spec.RANKS, "N"] = 512
    trials: Annotated[int, click.IntRange(1, 100_000), "N"] = 24
    evaluations: spec.Evaluations = None
    time_limit_s: spec.TimeLimit = None
    within_ratio: Annotated[spec.Percent, "--within"] = 0.0
    sampler: Annotated[str | None, click.Choice(("bounds", "tpe", "nsga2", "random"))] = None
    seed: spec.Seed = 0
    workers: Annotated[int | None, click.IntRange(1, 1024), "N"] = None
    dask: Annotated[spec.Text, "ADDRESS"] = None
    output: spec.Folder = None

    def effort(self) -> studies.Effort:
        """How much the study shall do."""
        names = (one.name for one in fields(studies.Effort))
        return studies.Effort(**{name: getattr(self, name) for name in names})


@spec.command("Choose cluster, batch, pipeline and more.")
def command(workload: Path, flags: StudyFlags) -> int:
    """Choose what surrounds a plan; each setup that is searched gets a plan of its own.

    'shardplan plan' takes system, GPUs, batch, pipeline and more as given. Here options may list
    several values, and --vary gives values to any key. One combination is a setup; the first values
    are the usual setup, with which others are compared. What is not named keeps the workload's
    value, but for the pipeline and, where device memory is short, cache sizes, which are tried
    unless --grid or --smallest-for is given.

    Bounds prove what any plan of a setup can reach at best. The most promising setups are searched
    until no other can be better; the output says what could still be gained. --grid searches every
    setup. --smallest-for looks for the smallest cluster of each system; exit code 1 says that
    none reaches the rate. After Ctrl-C or SIGTERM what was found is printed and written; exit code
    4.

    Examples:
      shardplan study dlrm.yaml --system h100_sxm --gpus 64
      shardplan study dlrm.yaml --system h100_sxm,a100_80gb_sxm --gpus 8,16,32 --grid -o what-if
      shardplan study dlrm.yaml --system h100_sxm,h200_sxm --smallest-for 20M
      shardplan study dlrm.yaml --system h100_sxm --gpus 64 --vary copies=all --vary sync_interval=9
      shardplan study gpt.yaml --system h100_sxm --gpus 64 --vary training.tensor_parallel=1,2,4,8
      shardplan study dlrm.yaml --system h100_sxm --gpus 8,16 --dask tcp://head:8786 -o study
    """
    output = flags.output
    if output is not None:
        others = sorted(p.name for p in output.iterdir()) if output.is_dir() else []
        if others and JOURNAL_FILE not in others:
            refuse(f"--output {output} holds {', '.join(others[:3])}; name another folder")
        check_folder(output, (workload, *files_of(flags, workload)), force=True)
    load = _files(workload, flags)
    knobs, left_out = _knobs(flags, load)
    with_usual = not flags.is_grid and flags.smallest_for is None
    space = studies.Space(knobs, load, with_usual=with_usual)
    for text in left_out:
        console.remark(text)
    num_processes = min(flags.workers or usable_cores(), max(1, len(space.setups)))
    failures = studies.Operation(mtbf_s=flags.mtbf_s or math.inf, restart_s=flags.restart_s)
    journal = None
    if output is not None:
        journal = output / JOURNAL_FILE
        with writing(output):
            behind_links(output).mkdir(parents=True, exist_ok=True)
    with StopOnInterrupt() as stop:
        with _place(flags.dask, num_processes) as place, writing(journal or Path("the study")):
            found = studies.Study(
                space,
                flags.effort(),
                goals=flags.goals,
                operation=failures,
                smallest_for=flags.smallest_for,
                journal=journal,
                place=place,
            )
            with console.bar("searches", min(flags.trials, len(space.setups))) as step:
                found.run(progress=step, should_stop=stop)
        given = {*space.knobs, "training.batch_size_per_rank" if flags.global_batch_sizes else ""}
        assumed = {k: v for k, v in load.file(()).assumed.items() if k not in given}
        return _deliver(found, stop, output, _warnings(load, flags, space.knobs), assumed)


def _place(dask: str | None, num_processes: int) -> AbstractContextManager[Any]:
    """Where searches run: a Dask cluster, a pool of processes, or this process."""
    if dask is not None:
        return processes.dask_client(dask)
    return processes.WorkerPool(num_processes) if num_processes > 1 else nullcontext()


def _files(workload: Path, flags: StudyFlags) -> design.Files:
    """What makes the problems of setups.

    Raises:
        InvalidInputError: a price names a system that is not used, or a system has two prices.
    """
    counts = Counter(name for name, _ in flags.prices)
    for name, count in counts.items():
        if name and name not in flags.systems:
            refuse(f"--price {name}=...: no such system in --system")
        if count > 1:
            refuse(f"--price: two prices for {name or 'all systems'}; give one")
    return design.Files(
        workload=workload,
        gpus_per_host=flags.gpus_per_host,
        overrides=inputs.override_pairs(flags.overrides),
        prices=dict(flags.prices),
        models=lambda topology: inputs.models_named(topology, flags.models),
    )


def _knobs(
    flags: StudyFlags, load: design.Files
) -> tuple[dict[str, Sequence[Any]], tuple[str, ...]]:
    """The values of each knob, and remarks on clusters that are left out.

    Raises:
        InvalidInputError: a system does not exist, a knob is unknown or has no values, or no size
            is left.
    """
    pairs = inputs.override_pairs((*flags.overrides, *flags.vary))[len(flags.overrides) :]
    varied = {key: design.values_of_text(text, f"--vary {key}") for key, text in pairs}
    load.file(())
    smallest = {s: io.load_smallest(s, gpus_per_host=flags.gpus_per_host) for s in flags.systems}
    on_host = {system: topology.local_world_size for system, topology in smallest.items()}
    if flags.hosts and len(set(on_host.values())) > 1:
        told = ", ".join(f"{count} on {system}" for system, count in on_host.items())
        refuse(f"--hosts: GPUs per host differ ({told}); give --gpus, or --gpus-per-host")
    sizes: set[int] = set()
    left_out: list[str] = []
    for system, topology in smallest.items():
        tried, price = _tried(system, topology, flags, load)
        most = (flags.budget_usd_per_hour or 0.0) / price * (1 + 1e-9) if price else math.inf
        dear = [n for n in (tried if flags.gpus or flags.hosts else tried[:1]) if n > most]
        left_out += [f"{system} x {n} ({significant(n * (price or 0), 4)} USD/h)" for n in dear]
        sizes |= {n for n in tried if n <= most}
    if not sizes:
        budget = significant(flags.budget_usd_per_hour or 0.0, 6)
        refuse(f"--budget {budget} USD/h pays for none of {', '.join(left_out)}")
    knobs = {
        design.SYSTEM: flags.systems,
        design.GPUS: [n for n in flags.gpus if n in sizes] or sorted(sizes),
        design.BATCH: flags.batch_sizes,
        design.GLOBAL_BATCH: flags.global_batch_sizes,
        **design.checked_knobs(varied),
    }
    return knobs, (f"--budget leaves out {', '.join(left_out)}",) if left_out else ()


def _tried(
    system: str, host: clusters.Topology, flags: StudyFlags, load: design.Files
) -> tuple[list[int], float | None]:
    """The numbers of GPUs to try on a system, and the price of one that a budget is about.

    Raises:
        InvalidInputError: there is no such number, or it has no price for the budget.
    """
    least, step = host.world_size, host.local_world_size
    price = None
    if flags.budget_usd_per_hour is not None:
        price = load.system(system, least, ())[0].price_per_device_usd_per_hour
        if price is None:
            refuse(f"--budget: system {system!r} has no price; give --price {system}=4.5")
        if price == 0 and not (flags.gpus or flags.hosts):
            refuse(f"--budget: system {system!r} costs nothing; name its sizes with --gpus")
    if flags.hosts:
        return [step * n for n in flags.hosts], price
    if flags.gpus:
        return list(flags.gpus), price
    if flags.smallest_for is None:
        doubled = [n for k in range(17) if least <= (n := step << k) <= spec.MAX_RANKS]
        return (doubled if price else [least]), price
    tried = list(range(least, flags.max_gpus + 1, step))
    if not tried:
        several = f"the {host.num_hosts} hosts that {system} names"
        hosts = f"one host of {system}" if host.num_hosts == 1 else several
        refuse(f"--max-gpus {flags.max_gpus} is less than {hosts}, with {least} ranks; raise it")
    return tried, price


def _warnings(load: design.Files, flags: StudyFlags, knobs: Mapping[str, Any]) -> tuple[str, ...]:
    """Warnings on values that neither the workload file, nor a flag, nor a system gives."""
    file = load.file(())
    found = inputs.left_open(file, reserve="memory.reserve" in knobs)
    systems = [io.load_smallest(s, gpus_per_host=flags.gpus_per_host) for s in flags.systems]
    told = (
        base.unrated_remark(file.workload, t.device, is_calibrated=bool(t.calibration))
        for t in systems
    )
    return (*found, *filter(None, told))


def _deliver(
    study: studies.Study,
    stop: StopOnInterrupt,
    output: Path | None,
    warnings: tuple[str, ...],
    assumed: Mapping[str, tuple[str, ...]],
) -> int:
    """Print and write what was found; returns the exit code."""
    has_plan = study.recommended is not None or study.unfinished is not None
    if stop() and not has_plan and not study.results:
        message = "no setup had a plan before that, so nothing is written"
        console.complain(f"shardplan: stopped by {stop.stopped_by}; {message}")
        return EXIT_STOPPED
    result = None
    if has_plan or not (study.effort.is_grid or study.smallest_for):
        result = study.best().result
        priced = assuming.priced_assumptions(result.problem, result.plan, assumed)
        result = replace(result, warnings=(*warnings, *result.warnings), assumed=priced)
    written = () if output is None else _write(study, output, result)
    told = io.result_to_json(result) if console.settings().json and result is not None else None
    console.tell(_as_json(study, told), _sections(study, result))
    if result is None or console.settings().json:
        console.warn(warnings)
    for text in (
        *compare.remarks(study),
        *(f"wrote {console.shown_paths((path,))}" for path in written),
    ):
        console.remark(text)
    if stop():
        console.remark(f"stopped by {stop.stopped_by} after {len(study.results)} searches")
        return EXIT_STOPPED
    answered = study.smallest_for is None or any(a.found is not None for a in study.answers)
    return 0 if answered else 1


def _write(
    study: studies.Study, output: Path, result: results.PlanningResult | None
) -> tuple[Path, ...]:
    """Write the plan, the setups and the page; returns their paths."""
    rows = _rows(study)
    names = list(dict.fromkeys(name for row in rows for name in row))
    name = next(study.space.first_problems()).workload.name
    texts = {} if result is None else {output / PLAN_FILE: io.plan_text(result)}
    texts[output / TABLE_FILE] = csv_text(names, ([r.get(n) for n in names] for r in rows))
    texts[output / PAGE_FILE] = compare.study_page(study, name)
    write_texts_atomic(texts)
    return tuple(texts)


def _rows(study: studies.Study) -> list[dict[str, Any]]:
    """Every setup as plain values, in the order of the knobs for a grid."""
    front = {r.setup for r in study.front}
    rows = {r.setup: _row(study, r, is_best=r.setup in front) for r in study.results}
    for setup, why in study.space.impossible.items():
        rows[setup] = {**dict(setup.picks), "status": "failed", "on_front": False, "reason": why}
    if not study.effort.is_grid:
        return list(rows.values())
    order = map(study.space.setup_of, itertools.product(*study.space.knobs.values()))
    return [rows[s] for s in dict.fromkeys(order) if s in rows]


def _row(
    study: studies.Study, result: studies.SetupResult, *, is_best: bool = True
) -> dict[str, Any]:
    figures = {} if result.figures is None else asdict(result.figures)
    return {
        **dict(result.setup.picks),
        "status": result.status,
        "iteration_time_s": figures.pop("time_s", None),
        **figures,
        "bound_s": study.least_s(result),
        "sync_s": result.sync_s,
        "waits_for": result.waits_for,
        "reason": result.reason,
        "on_front": is_best,
    }


def _as_json(study: studies.Study, result: dict[str, Any] | None) -> dict[str, Any]:
    """The study as plain values for JSON."""
    best = study.recommended
    ratio = study.proof_ratio
    return {
        "setup": None if best is None else dict(best.setup.picks),
        "iteration_time_s": None if best is None or not best.figures else best.figures.time_s,
        "sync_s": None if best is None else best.sync_s,
        "objectives": list(study.goals),
        "smallest_for": study.smallest_for,
        "answers": [
            {
                "system": a.system,
                "answer": None if a.found is None else _row(study, a.found),
                "ruled_out_gpus": list(a.ruled_out),
            }
            for a in study.answers
        ],
        "setups": _rows(study),
        "space": {
            "setups": study.space.num_setups,
            "possible": len(study.space.setups),
            "searched": len(study.results),
            "ruled_out": len(study.ruled_out),
            "fit_nowhere": len(study.unfit),
            "possible_gain_ratio": ratio if ratio is not None and ratio < math.inf else None,
        },
        "result": result,
    }


def _sections(study: studies.Study, result: results.PlanningResult | None) -> Iterator[Section]:
    if study.smallest_for is not None:
        yield _answers(study)
    table = compare.setups_table(study, None if study.effort.is_grid else _SHOWN)
    if table.rows:
        yield table
    failed = [(s.words, why) for s, why in study.space.impossible.items()]
    failed += [(r.setup.words, r.reason) for r in study.results if r.status == "failed"]
    if failed:
        yield Section.of("", failed, by_place("failed", "why"))
    if result is not None:
        yield from console.result_sections(result, leave_out=("Next",))
    facts = (
        Fact("Recommended", compare.recommendation(study) or ("nothing was found",)),
        Fact("Objective", (", ".join(study.goals),)),
        Fact("Design space", compare.space_parts(study)),
    )
    yield Section("", facts)


def _answers(study: studies.Study) -> Section:
    """A row per system; where none reaches the rate, the best that was seen."""
    rows = []
    for answer in study.answers:
        own = [r for r in study.results if r.setup.get("system") == answer.system and r.figures]
        found = answer.found or min(own, key=study.value, default=None)
        note = "" if answer.found else "not enough: best tried" if found else "nothing tried fits"
        setup = "" if found is None else compare.described(study, found)
        rows.append({"system": answer.system, "setup": setup, "best": found, " ": note})
    title = f"Fewest hosts for {significant((study.smallest_for or 0.0) / 1e6)} M samples/s"
    figures = ("samples=best.figures.samples_per_s", "per hour=best.figures.usd_per_hour")
    return Section.of(title, rows, by_field("system", "setup", *figures, " "))
