"""Studies of files: problems with the values of knobs in place of the files', and the study."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from costmodels.stages.models import CostModels
from costmodels.topology import Topology
from costmodels.workload import Pipeline
from planner import io
from planner.errors import refuse
from planner.io.documents import parse_yaml
from planner.options.enumeration import rank_batch
from planner.problem import PlanningProblem
from planner.study import space as design
from planner.study.study import Effort, Study

_PREFIX = "system."


def values_of_text(text: str, where: str) -> tuple[design.Value, ...]:
    """Values with commas between them, each written as in a YAML file.

    Args:
        text: such as ``none,sparse_dist`` or ``{forward: fp16},{forward: bf16}``.
        where: the name of the text in messages.

    Raises:
        InvalidInputError: the text is no such list.
    """
    found, _ = parse_yaml(f"[{text}]", where)
    if not isinstance(found, list) or not found or "" in found or text.strip().endswith(","):
        refuse(f"{where}: {text!r} is no list of values with commas between them")
    return tuple(json.dumps(v) if isinstance(v, list | dict) else v for v in found)


def checked_knobs(
    knobs: Mapping[str, Sequence[design.Value]],
) -> dict[str, tuple[design.Value, ...]]:
    """The knobs, with shares of tables as numbers.

    Raises:
        InvalidInputError: a name is neither a key of a file nor an own knob, or has no values.
    """
    found = {}
    for name, values in knobs.items():
        known = (*design.OWN_KNOBS, design.SYSTEM, design.GPUS, design.GLOBAL_BATCH)
        if name not in known and "." not in name:
            refuse(
                f"--vary {name}: name a key of the workload such as training.pipeline, one of the "
                f"system such as system.links.network.bandwidth, or {', '.join(design.OWN_KNOBS)}"
            )
        found[name] = tuple(_menu(v) for v in values) if name == "cache_sizes" else tuple(values)
    return found


def _menu(value: design.Value) -> design.Value:
    """Cache sizes such as ``["5%", 0.2]`` as a list of ratios in JSON."""
    listed: Any = json.loads(str(value)) if str(value).startswith("[") else value
    shares = listed if isinstance(listed, list) else [listed]
    try:
        ratios = [
            float(s[:-1]) / 100 if isinstance(s, str) and s.endswith("%") else float(s)
            for s in shares
            if value is not None
        ]
    except (TypeError, ValueError):
        ratios = [0.0]
    if not all(0 < r < 1 for r in ratios):
        refuse(f"--vary cache_sizes: {value!r} must be above 0% and below 100%, such as [5%,20%]")
    return json.dumps(ratios) if ratios else None


@dataclass(frozen=True, kw_only=True, eq=False)
class Files:
    """Makes problems from a workload file and system files, each read once for the same changes.

    Args:
        workload: the workload file, or its name.
        gpus_per_host: ranks per host; None for those of each system.
        overrides: changes of the workload file, as pairs of a key and a YAML text.
        prices: US dollars per device and hour by system; an empty name stands for all systems.
        models: chooses the models that price plans on a system; None for those it names.
    """

    workload: str | Path
    gpus_per_host: int | None = None
    overrides: tuple[tuple[str, str], ...] = ()
    prices: Mapping[str, float] = field(default_factory=dict)
    models: Callable[[Topology], CostModels | None] = lambda _: None

    def __call__(self, picks: Mapping[str, design.Value]) -> PlanningProblem:
        """The problem with the values of knobs.

        Raises:
            InvalidInputError: a file or value breaks a rule, or the ranks cannot share a batch.
        """
        apart = (design.SYSTEM, design.GPUS, design.GLOBAL_BATCH)
        keys = {k: v for k, v in picks.items() if k not in apart}
        if keys.get(design.PIPELINE, Pipeline.LOOKAHEAD.value) != Pipeline.LOOKAHEAD.value:
            keys[design.LOOKAHEAD] = None
        own = [(k, v) for k, v in keys.items() if not k.startswith(_PREFIX)]
        theirs = [(k, v) for k, v in keys.items() if k.startswith(_PREFIX)]
        file = self.file(tuple((k, _text(v)) for k, v in own))
        changes = tuple((k.removeprefix(_PREFIX), _text(v)) for k, v in theirs)
        topology, models = self.system(str(picks[design.SYSTEM]), picks.get(design.GPUS), changes)
        workload, whole = file.workload, picks.get(design.GLOBAL_BATCH)
        if isinstance(whole, int):
            batch = rank_batch(whole, workload, topology.world_size)
            workload = replace(workload, batch_size_per_rank=batch)
        return PlanningProblem(
            workload=workload, topology=topology, constraints=file.constraints, models=models
        )

    @lru_cache(maxsize=64)  # noqa: B019 - a study keeps its files anyway
    def file(self, changes: tuple[tuple[str, str], ...]) -> io.WorkloadFile:
        """The workload file with changes of its values."""
        return io.load_workload_file(self.workload, overrides=(*self.overrides, *changes))

    @lru_cache(maxsize=64)  # noqa: B019
    def system(
        self, name: str, gpus: int | None, changes: tuple[tuple[str, str], ...]
    ) -> tuple[Topology, CostModels | None]:
        """A system with changes of its values, and its models; None for those that it names."""
        topology = io.load_system(
            name, gpus=gpus, gpus_per_host=self.gpus_per_host, overrides=changes
        )
        price = self.prices.get(name, self.prices.get(""))
        if price is not None:
            topology = replace(topology, price_per_device_usd_per_hour=price)
        return topology, self.models(topology)


def _text(value: design.Value) -> str:
    """A value as YAML; lists and mappings are kept as JSON already."""
    is_compound = isinstance(value, str) and value[:1] in ("[", "{")
    return str(value) if is_compound else json.dumps(value)


# ------------------------------------------------------------------ the public function


def study(
    workload: str | Path,
    systems: Sequence[str],
    *,
    gpus: Sequence[int] = (),
    vary: Mapping[str, Sequence[design.Value]] | None = None,
    goals: Sequence[str] = (),
    smallest_for: float | None = None,
    journal: Path | None = None,
    **effort: Any,
) -> Study:
    """Choose what surrounds a plan, and find the plan.

    Args:
        workload: path of a workload file, or the name of a shipped one.
        systems: paths or names of systems, the usual one first.
        gpus: numbers of ranks; none for one host of each system.
        vary: the values of further knobs, the usual one first: keys of the workload, keys of the
            system with ``system.`` before them, and those of
            :data:`planner.study.space.OWN_KNOBS`.
        goals: names of :data:`planner.study.GOALS`.
        smallest_for: samples per second that the smallest cluster has to reach; None looks for the
            best setup.
        journal: Optuna's journal, with which a later call goes on.
        **effort: fields of :class:`planner.study.Effort`, such as ``trials=10``.

    Returns:
        The study: ``best()`` has the recommended setup with its plan (times in seconds), and
        ``results`` has every setup that was searched.

    Raises:
        InvalidInputError: a file or value breaks a rule.

    Example:
        >>> found = study("small_demo", ["h100_sxm"], gpus=[2], trials=1, evaluations=20)
        >>> found.best().setup.get("gpus")
        2
    """
    load = Files(workload=workload)
    asked = Effort(**effort)
    knobs: dict[str, Sequence[design.Value]] = {design.SYSTEM: systems, design.GPUS: gpus}
    knobs |= checked_knobs(vary or {})
    space = design.Space(knobs, load, with_usual=not asked.is_grid and smallest_for is None)
    found = Study(space, asked, goals=tuple(goals), smallest_for=smallest_for, journal=journal)
    found.run()
    return found
