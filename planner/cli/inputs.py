"""Makes problems from files and flags."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

from costmodels.sharding import Plan
from costmodels.stages.models import CostModels
from costmodels.topology import Topology, group_topology
from costmodels.workload import Workload
from planner import errors, io
from planner.cli.spec import ProblemFlags, Share, refuse
from planner.io.constraints import merged
from planner.options.enumeration import rank_batch
from planner.options.table_limits import broken_constraints
from planner.problem import NO_CONSTRAINTS, PlanningProblem
from planner.profiling.readers import AbstractReader
from planner.profiling.stats import load_stats, with_stats
from planner.rules.placement_rules import group_constraints


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The problem that files and flags describe, plans of this problem, and warnings.

    ``made_for`` is the first plan, with everything that its file says, and ``assumed`` what the
    workload file and the flags leave open.
    """

    problem: PlanningProblem
    plans: tuple[Plan, ...] = ()
    made_for: io.SavedPlan | None = None
    warnings: tuple[str, ...] = ()
    assumed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def load_problem(source: Path, flags: ProblemFlags) -> Inputs:
    """Read the workload, for the system that the flags name.

    Raises:
        InvalidInputError: a file or flag breaks a rule, or no system is named.
    """
    file = io.load_workload_file(source, overrides=override_pairs(flags.overrides))
    return _inputs(file, flags)


def _inputs(
    file: io.WorkloadFile, flags: ProblemFlags, made_for: io.SavedPlan | None = None
) -> Inputs:
    """The problem, with what the file leaves open and flags do not give."""
    topology, workload, reserved = _topology(flags, made_for), file.workload, flags.reserve
    samples = flags.batch_size or workload.batch_size_per_rank
    if flags.global_batch_size is not None:
        samples = rank_batch(flags.global_batch_size, workload, topology.world_size)
    if isinstance(reserved, Share):
        reserved = reserved.ratio * topology.device.hbm_capacity_bytes
    reserved = workload.reserved_bytes if reserved is None else reserved
    problem = PlanningProblem(
        workload=replace(workload, batch_size_per_rank=samples, reserved_bytes=reserved),
        topology=topology,
        constraints=group_constraints(file.constraints, topology),
        models=models_named(topology, flags.models),
    )
    batch = flags.batch_size or flags.global_batch_size
    given = {"training.batch_size_per_rank": batch, "memory.reserve": flags.reserve}
    assumed = {key: names for key, names in file.assumed.items() if given.get(key) is None}
    warnings = left_open(file, reserve=flags.reserve is not None)
    return Inputs(problem=problem, made_for=made_for, warnings=warnings, assumed=assumed)


def load_plans(
    source: Path, paths: tuple[Path, ...], flags: ProblemFlags, *, other_data: bool = False
) -> Inputs:
    """Read plans, ours or TorchRec's; the first one names the system if flags do not.

    If no plan is given, the workload must have no tables, and its plan is empty. Warnings say
    where a plan was made for something else than what it is priced for. The workload is not
    compared where ``other_data`` says that the caller brings other data on purpose.

    Raises:
        InvalidInputError: a file or flag breaks a rule, a plan is not one of this workload, or
            none is given and the workload has tables.
    """
    file = io.load_workload_file(source, overrides=override_pairs(flags.overrides))
    if not paths:
        refuse(
            file.workload.tables,
            f"Missing argument 'PLAN': {source} has tables, so name a plan after it; 'shardplan "
            "plan' makes one. Only workloads without tables need none",
        )
        return replace(_inputs(file, flags), plans=(Plan(placements=()),))
    made_for = io.load_plan(paths[0], file.workload)
    is_open = flags.gpus is None and flags.hosts is None and made_for.world_size is None
    refuse(is_open, f"{paths[0]}: does not say for how many ranks it was made; add --gpus")
    read = _inputs(file, flags, made_for)
    problem = read.problem
    saved = tuple(io.load_plan(path, problem.workload, problem.topology) for path in paths)
    warnings = [*read.warnings, *(text for plan in saved for text in plan.warnings)]
    for path, plan in zip(paths, saved, strict=True):
        warnings += _made_otherwise(path, plan, made_for.system, problem, flags)
        if not other_data and not flags.overrides and made_of_others(plan, problem.workload):
            warnings.append(
                f"{path}: was made for other index laws, tables or training than {source} has "
                "now; the file has changed since, or the plan was made with --stats, --set or by "
                "study"
            )
        if broken := broken_constraints(problem, plan.plan):
            told = f"{path}: is priced as it is, but breaks the workload's constraints: "
            warnings.append(told + "; ".join(broken))
    plans = tuple(plan.plan for plan in saved)
    return replace(read, plans=plans, made_for=saved[0], warnings=tuple(warnings))


def with_constraints(inputs: Inputs, path: Path | None) -> Inputs:
    """Add the constraints of a file to those of the workload.

    A plan that breaks them is priced as it is, with a warning.

    Raises:
        InvalidInputError: the file breaks a rule.
    """
    if path is None:
        return inputs
    problem = inputs.problem
    read = io.load_constraints(path, [t.name for t in problem.workload.tables])
    added = group_constraints(read, problem.topology)
    alone = replace(problem, constraints=added)
    broken = [text for plan in inputs.plans for text in broken_constraints(alone, plan)]
    warnings = inputs.warnings
    if broken:
        warnings += (f"{path}: the plan in use breaks these constraints: {'; '.join(broken)}",)
    constraints = merged(problem.constraints, added)
    return replace(inputs, problem=replace(problem, constraints=constraints), warnings=warnings)


def _topology(flags: ProblemFlags, made_for: io.SavedPlan | None) -> Topology:
    """The system at its size, from the flags or else from what a plan was made for.

    A plan for one group of ranks is priced for a group of the same job, unless flags give a size.
    """
    system, gpus, per_host = flags.system, flags.gpus, flags.gpus_per_host
    if flags.hosts is not None and system is not None:
        gpus = flags.hosts * (per_host or io.load_smallest(Path(system)).local_world_size)
    whole = None
    if made_for is not None:
        if per_host is None and gpus is None:
            whole, per_host = made_for.whole, made_for.local_world_size
        system, gpus = system or made_for.system, gpus or made_for.world_size
    if system is None:
        known = "such as h100_sxm ('shardplan systems' lists them)"
        errors.refuse(f"no system named; add --system, {known}")
    if whole is not None:
        gpus, per_host = whole
    price = flags.price_usd_per_hour
    priced = () if price is None else (("price", f"{price!r} USD/h (user, --price)"),)
    try:
        found = io.load_system(system, gpus=gpus, gpus_per_host=per_host, overrides=priced)
        return found if made_for is None or whole is None else _group(found, made_for)
    except errors.InvalidInputError as error:
        if flags.system is not None:
            raise
        hint = f"the plan was made for system {system!r}; name a file or another with --system"
        raise errors.InvalidInputError([*error.problems, hint]) from error


def _group(whole: Topology, made_for: io.SavedPlan) -> Topology:
    """The group of a job's ranks for which a plan was made, in the layout that has its hosts.

    Raises:
        InvalidInputError: the job has no such groups.
    """
    size, local = made_for.world_size or 0, made_for.local_world_size
    layouts = (False, True) if size and whole.world_size % size == 0 else ()
    found = (group_topology(whole, size, between_hosts=between) for between in layouts)
    own = next((group for group in found if group and group.local_world_size == local), None)
    if own is None:
        errors.refuse(
            f"the plan is for one group of {size} ranks, {local} on a host, of a job with "
            f"{whole.world_size} ranks, {whole.local_world_size} on a host; it has no such groups"
        )
    return own


def plan_names(paths: tuple[Path, ...]) -> tuple[str, ...]:
    """Short, different names of files: that of the file, or of its folder, or the whole path."""
    names = [path.parent.name if path.name == "plan.json" else path.stem for path in paths]
    if len(set(names)) < len(paths) or not all(names):
        names = [str(path) for path in paths]
    return numbered(names)


def numbered(names: Sequence[str], taken: Sequence[str] = ()) -> tuple[str, ...]:
    """The names, with its place behind each that is there more than once, or in ``taken``."""
    every = [*taken, *names]
    return tuple(n if every.count(n) == 1 else f"{n} ({i})" for i, n in enumerate(names, 1))


def models_named(topology: Topology, models: tuple[str, ...]) -> CostModels | None:
    """The models that ``--model`` names; None if it names none."""
    if not models:
        return None
    from planner.models import chosen_models

    named = _pairs(models, "--model", "FAMILY=NAME, such as collective=alpha_beta")
    return chosen_models(topology, dict(named))


def left_open(file: io.WorkloadFile, *, reserve: bool) -> tuple[str, ...]:
    """Warnings on what a file leaves open, without that on the reserve if a flag gives it."""
    return tuple(text for text in file.warnings if not (reserve and "memory.reserve" in text))


def with_notes(warnings: tuple[str, ...], notes: tuple[str, ...]) -> tuple[str, ...]:
    """The workload's warnings with those of statistics; warnings on missing laws are dropped."""
    bare = [text for text in warnings if "no distribution" in text]
    kept = tuple(text for text in warnings if text not in bare)
    if any("no statistics" in text for text in notes):
        kept += tuple(f"{text}, where there are no statistics" for text in bare)
    return kept + notes


def override_pairs(overrides: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """The pairs of ``key=value`` texts."""
    return _pairs(overrides, "--set", "KEY=VALUE, such as training.pipeline=none")


def _pairs(texts: tuple[str, ...], flag: str, form: str) -> tuple[tuple[str, str], ...]:
    wrong = [text for text in texts if text.find("=") < 1]
    errors.refuse_any([f"{flag} {text!r}: write {form}" for text in wrong])
    pairs = tuple((key, value) for key, _, value in (text.partition("=") for text in texts))
    for key, times in Counter(key for key, _ in pairs).items():
        refuse(times > 1, f"{flag} {key}: {times} values are given; give one")
    return pairs


def _made_otherwise(
    path: Path, plan: io.SavedPlan, first: str | None, problem: PlanningProblem, flags: ProblemFlags
) -> list[str]:
    """That a plan was made for another system, batch or pipeline, where no flag asks for one.

    ``first`` is the system of the first plan.
    """
    workload, local = problem.workload, problem.topology.local_world_size
    keys = {text.partition("=")[0] for text in flags.overrides}
    batch = flags.batch_size or flags.global_batch_size or "training.batch_size_per_rank" in keys
    samples, pipeline = workload.batch_size_per_rank, workload.pipeline.value
    is_set = "training.pipeline" in keys
    made = (
        ("system {}", "--system", flags.system, plan.system, first),
        ("{} ranks per host", "--gpus-per-host", flags.gpus_per_host, plan.local_world_size, local),
        ("{} samples per rank", "--batch-size", batch, plan.batch_size_per_rank, samples),
        ("pipeline {}", "--set training.pipeline", is_set, plan.pipeline, pipeline),
    )
    told = [
        f"{path}: was made for {what.format(old)}, and is priced for {now}; {flag} says otherwise"
        for what, flag, is_asked, old, now in made
        if not is_asked and old not in (None, now)
    ]
    is_first = not (flags.system or flags.gpus_per_host) and plan.system in (None, first)
    if is_first and plan.system_hash not in (None, io.system_hash(problem.topology)):
        told.append(
            f"{path}: was made for another {plan.system} than the shipped one, on which it is "
            "priced; name its file with --system"
        )
    return told


def made_of_others(plan: io.SavedPlan, workload: Workload) -> bool:
    """Whether a plan was made for other tables, laws or training.

    Operators that were traced for one batch size go with it, so that nothing is said of them.
    """
    is_other = plan.workload_hash not in (None, io.workload_hash(workload))
    is_same_batch = plan.batch_size_per_rank in (None, workload.batch_size_per_rank)
    return is_other and (workload.dense.operators is None or is_same_batch)


# ------------------------------------------------------------------ scenarios and statistics


def load_scenarios(
    paths: tuple[Path, ...], main: PlanningProblem, flags: ProblemFlags
) -> tuple[tuple[Workload, ...], list[str]]:
    """Variants of a workload with different names, and their warnings.

    Args:
        paths: files of variants, or of statistics.
        main: the workload with the constraints of its file.
        flags: those on workload and system, which hold for variants too.

    Raises:
        InvalidInputError: a file breaks a rule.
    """
    found: list[Workload] = []
    warnings: list[str] = []
    for path in paths:
        if path.suffix == ".json":
            scenario, notes = with_stats(main.workload, load_stats(path), str(path))
            warnings += notes
        else:
            inputs = load_problem(path, flags)
            scenario = inputs.problem.workload
            warnings += [f"{path}: {text}" for text in inputs.warnings]
            if inputs.problem.constraints not in (NO_CONSTRAINTS, main.constraints):
                warnings.append(
                    f"{path}: its constraints are left out: a plan for several scenarios keeps "
                    "those of the workload; put them there, or into --constraints"
                )
        if scenario.name == main.workload.name:
            scenario = replace(scenario, name=path.stem)
        found.append(scenario)
    names = numbered([s.name for s in found], [main.workload.name])
    return tuple(replace(s, name=n) for s, n in zip(found, names, strict=True)), warnings


def all_readers(*, empty_is_zero: bool = True) -> tuple[AbstractReader, ...]:
    """A reader for each format; the one that needs torch imports it only when it meets a file.

    Args:
        empty_is_zero: whether an empty category of Criteo's files is id 0, or is left out.
    """
    from planner.integrations.measure.torch_indices import TorchReader
    from planner.profiling.readers import READERS, CriteoTsvReader

    others = (reader for reader in READERS if not isinstance(reader, CriteoTsvReader))
    return (TorchReader(), CriteoTsvReader(empty_is_zero=empty_is_zero), *others)


# ------------------------------------------------------------------ commands that train here


def require_torchrec(
    command: str, names: tuple[str, ...] = ("torch", "torchrec", "fbgemm_gpu")
) -> None:
    """Refuse to start ranks without torch and torchrec (or ``names``), or under a launcher.

    Raises:
        InvalidInputError: one is missing, and the message says how to install it; or a launcher has
            started this process as one of several.
    """
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        errors.refuse(
            f"'shardplan {command}' needs {', '.join(missing)}: pip install 'shardplan[torchrec]'; "
            "'shardplan check' checks the versions"
        )
    started = os.environ.get("WORLD_SIZE", "") if os.environ.get("RANK") else ""
    if started not in ("", "1"):
        errors.refuse(
            f"'shardplan {command}' starts its own ranks (--ranks), and a launcher has started it "
            f"{started} times: run it by itself, without torchrun"
        )
