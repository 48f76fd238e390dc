"""The setups of a study: knobs and their values, and the problem under each choice of values.

A knob is a key of the workload file (``training.pipeline``), a key of the system file with
``system.`` before it (``system.links.network.bandwidth``), or one of :data:`OWN_KNOBS`:

- ``copies`` of all tables, each on a group of GPUs (2D parallelism); ``all`` for every number
- ``sync_interval``, iterations between two averagings of the copies
- ``column_width``, the least columns of a column piece
- ``cache_sizes``, shares of a table that its cache may hold, as ``[0.05, 0.2]``

A *setup* gives each knob one of its values. The first values are the usual setup.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Final

from costmodels.errors import InvalidValueError
from costmodels.sharding import ComputeKernel
from costmodels.stages.models import CostModels
from costmodels.system_models import sync_time_s
from costmodels.topology import PROPORTIONAL, Topology, batch_ratios, group_topology
from costmodels.workload import Pipeline
from planner import io
from planner.errors import InfeasibleError, InvalidInputError, refuse
from planner.io.documents import parse_yaml
from planner.models import pipeline_of
from planner.options.enumeration import enumerate_options, rank_batch
from planner.options.table_limits import CACHE_LOAD_FACTORS, surely_crowded
from planner.problem import PlanningProblem, TableConstraint
from planner.rules.placement_rules import group_problem

Value = str | int | float | bool | None
Load = Callable[[Mapping[str, Value]], PlanningProblem]
"""Makes the problem of all ranks from the values of all knobs but :data:`OWN_KNOBS`."""

SYSTEM, GPUS, GLOBAL_BATCH = "system", "gpus", "global_batch_size"
BATCH, PIPELINE = "training.batch_size_per_rank", "training.pipeline"
LOOKAHEAD, COMMUNICATION = "training.lookahead", "training.communication"
COPIES, SYNC, WIDTH, CACHE = "copies", "sync_interval", "column_width", "cache_sizes"
OWN_KNOBS: Final = (COPIES, SYNC, WIDTH, CACHE)
"""Knobs that are no key of a file."""
ALL: Final = "all"
_PREFIX: Final = "system."

_SIZES: Final = frozenset({SYSTEM, GPUS, GLOBAL_BATCH, BATCH, COPIES})
"""Knobs some of whose values may be impossible, such as a batch that the ranks do not share."""
_TORCHREC: Final = (Pipeline.SPARSE_DIST, Pipeline.PREFETCH_SPARSE_DIST, Pipeline.NONE)
_CACHE_MENUS: Final = tuple(
    json.dumps([low, round((low * high) ** 0.5, 3), high])
    for low, high in itertools.product((0.01, 0.05, 0.2), (0.2, 0.5, 0.9))
    if low < high
)
"""Sets of cache sizes to choose among where device memory is short, beside the usual one."""
MOST_LISTED: Final = 2_000
"""Design spaces with more setups are not listed; a sampler draws from them."""


@dataclass(frozen=True, slots=True)
class Setup:
    """One value for each knob."""

    picks: tuple[tuple[str, Value], ...]

    def get(self, knob: str, default: Value = None) -> Value:
        """The value of a knob; ``default`` if there is no such knob."""
        return next((value for name, value in self.picks if name == knob), default)

    def having(self, **values: Value) -> Setup:
        """The setup with other values of some knobs."""
        return Setup(tuple((name, values.get(name, value)) for name, value in self.picks))

    @property
    def words(self) -> str:
        """Every value in words, such as ``h100_sxm x 16, pipeline none``."""
        return ", ".join(told(name, value) for name, value in self.picks if name != GPUS) + (
            f" x {self.get(GPUS)}" if self.picks[:1] == ((SYSTEM, self.get(SYSTEM)),) else ""
        )


def told(knob: str, value: Value) -> str:
    """The value of a knob in words."""
    if knob == SYSTEM:
        return str(value).rpartition("/")[2].removesuffix(".yaml")
    shown = f"{value:,}" if isinstance(value, int) and value > 1 else json.dumps(value).strip('"')
    if knob == CACHE and value is None:
        shown = "usual"
    return f"{knob.rpartition('.')[2]} {shown}"


class Space:
    """All setups of some knobs. Knobs that have one value are kept: they say what is asked.

    Args:
        knobs: the values of each knob, the usual one first; knobs without values are left out.
        load: makes the problem of a setup.
        with_usual: whether knobs that nobody named are tried too, see :func:`usual_choices`.

    Raises:
        InvalidInputError: a value of a knob is impossible in every setup, other than a size; or
            every setup is impossible.
    """

    def __init__(
        self, knobs: Mapping[str, Sequence[Value]], load: Load, *, with_usual: bool = False
    ) -> None:
        """Find the possible setups, if they are few enough to list."""
        self._load = load
        self._loaded: dict[tuple[tuple[str, Value], ...], PlanningProblem] = {}
        self._syncs_s: dict[Setup, float] = {}
        named = {name: values for name, values in knobs.items() if values}
        found = usual_choices(named, load) if with_usual else named
        self.knobs = {name: tuple(dict.fromkeys(values)) for name, values in found.items()}
        self._drops_uneven = ALL in self.knobs.get(COPIES, ())
        if self._drops_uneven:
            self.knobs[COPIES] = self._every_copies()
        self._check_dependent()
        self.impossible: dict[Setup, str] = {}
        self.num_setups = math.prod(map(len, self.knobs.values()))
        self.is_listed = self.num_setups <= MOST_LISTED
        self.setups: tuple[Setup, ...] = ()
        if self.is_listed:
            self._list()

    def _check_dependent(self) -> None:
        """Refuse knobs that change nothing without another one."""
        wanted = {LOOKAHEAD: (PIPELINE, Pipeline.LOOKAHEAD.value), SYNC: (COPIES, None)}
        for knob, (other, value) in wanted.items():
            values = self.knobs.get(other, ())
            if knob in self.knobs and not (value in values if value else values):
                wanted_one = f"{other}={value}" if value else other
                refuse(f"--vary {knob} changes nothing without --vary {wanted_one}; add it")

    def _every_copies(self) -> tuple[Value, ...]:
        """Every number of copies that divides the ranks of some cluster, one copy first."""
        usual, found = Setup(tuple((k, v[0]) for k, v in self.knobs.items())), {1}
        axes = [self.knobs.get(name, (None,)) for name in (SYSTEM, GPUS)]
        for system, gpus in itertools.product(*axes):
            with contextlib.suppress(InvalidInputError):
                topology = self.problem(usual.having(system=system, gpus=gpus)).topology
                world = topology.world_size
                divisors = (n for n in range(2, world + 1) if world % n == 0)
                found |= {n for n in divisors if group_topology(topology, world // n)}
        return tuple(sorted(found))

    def _list(self) -> None:
        every = (self.setup_of(values) for values in itertools.product(*self.knobs.values()))
        reasons = {setup: self.reason(setup) for setup in dict.fromkeys(every)}
        self.setups = tuple(setup for setup, why in reasons.items() if why is None)
        self.impossible = {setup: why for setup, why in reasons.items() if why}
        for knob, values in self.knobs.items():
            fine = {setup.get(knob) for setup in self.setups}
            wrong = [v for v in values if v not in fine]
            why = [r for s, r in self.impossible.items() if wrong and s.get(knob) == wrong[0]]
            if (why and knob not in _SIZES) or not self.setups:
                told = why or list(self.impossible.values()) or ["no setup is possible"]
                refuse(list(dict.fromkeys(told)))

    def reason(self, setup: Setup) -> str | None:
        """Why a setup is impossible; empty if it is not even to be told, None if it is possible."""
        try:
            problem = self.restricted(setup)
            batch_ratios(problem.workload, problem.topology)
        except InfeasibleError as error:
            return f"no groups of {self.group_size(setup)} ranks: {error}"
        except InvalidValueError as error:
            return str(error)
        except InvalidInputError as error:
            uneven = self._drops_uneven and setup.get(COPIES, 1) != 1
            return "" if uneven and "copies" in str(error) else str(error)
        return None

    def setup_of(self, values: Sequence[Value]) -> Setup:
        """The setup of one value for each knob, in their order.

        A knob that changes nothing beside the others gets its first value, or None.
        """
        picks = dict(zip(self.knobs, values, strict=True))
        if SYNC in picks and picks.get(COPIES, 1) == 1:
            picks[SYNC] = self.knobs[SYNC][0]
        if LOOKAHEAD in picks and picks.get(PIPELINE) != Pipeline.LOOKAHEAD.value:
            picks[LOOKAHEAD] = None
        return Setup(tuple(picks.items()))

    @cached_property
    def base(self) -> Setup:
        """The usual setup: the first possible one."""
        return self.setups[0] if self.setups else self.setup_of([v[0] for v in self.knobs.values()])

    @property
    def varying(self) -> tuple[str, ...]:
        """The knobs that have several values."""
        return tuple(name for name, values in self.knobs.items() if len(values) > 1)

    def first_problems(self) -> Iterator[PlanningProblem]:
        """The problem of the first setup on each system."""
        firsts = {s.get(SYSTEM): s for s in reversed(self.setups or (self.base,))}
        for system in self.knobs.get(SYSTEM, (None,)):
            if system in firsts:
                yield self.problem(firsts[system])

    # -- problems ---------------------------------------------------------------------------------

    def problem(self, setup: Setup) -> PlanningProblem:
        """The problem of all ranks under a setup.

        Raises:
            InvalidInputError: the values contradict each other or the files.
        """
        picks = tuple((k, v) for k, v in setup.picks if k not in OWN_KNOBS)
        if picks not in self._loaded:
            self._loaded[picks] = self._load(dict(picks))
        return self._loaded[picks]

    def group_size(self, setup: Setup) -> int:
        """Ranks that share one copy of the tables."""
        return self.problem(setup).topology.world_size // whole_number(setup.get(COPIES, 1))

    def restricted(self, setup: Setup) -> PlanningProblem:
        """The problem of one group of ranks under a setup.

        Raises:
            InvalidInputError: the values contradict each other or the files, or groups of ranks.
            InfeasibleError: the constraints leave a table no place in groups of this size.
        """
        problem, copies = self.problem(setup), whole_number(setup.get(COPIES, 1))
        if copies > 1:
            problem = _group(problem, copies)
        factors = setup.get(CACHE)
        rule = TableConstraint(
            pattern="*",
            min_column_width=whole_number(setup.get(WIDTH, 4)),
            cache_load_factors=() if factors is None else tuple(json.loads(str(factors))),
        )
        if rule == TableConstraint(pattern="*"):
            return problem
        rules = problem.constraints
        return replace(problem, constraints=replace(rules, tables=(*rules.tables, rule)))

    def loosest(self, setup: Setup) -> Setup:
        """The setup of the same family that allows the most plans.

        A family are the setups that differ only in least column width, cache sizes and how often
        copies are averaged. They price a plan alike, except for the averaging of copies. The
        loosest setup has the least width and every cache size, so that a bound on its plans holds
        for every setup of the family. A setup that names no cache sizes allows the usual ones and
        those that constraints name.
        """
        values: dict[str, Value] = {
            SYNC: 1,
            WIDTH: min(map(whole_number, self.knobs.get(WIDTH, (4,)))),
        }
        if len(self.knobs.get(CACHE, ())) > 1:
            rules = self.problem(setup).constraints.tables
            unnamed = {*CACHE_LOAD_FACTORS, *(f for r in rules for f in r.cache_load_factors)}
            menus = [unnamed if m is None else json.loads(str(m)) for m in self.knobs[CACHE]]
            values[CACHE] = json.dumps(sorted({float(f) for menu in menus for f in menu}))
        return setup.having(**values)

    def least_sync_s(self, setup: Setup) -> float:
        """Seconds per iteration that averaging the copies of tables takes at least."""
        if setup.get(COPIES, 1) == 1:
            return 0.0
        family = self.loosest(setup)
        if family not in self._syncs_s:
            problem, size = self.problem(setup), self.group_size(setup)
            weights = float(problem.workload.weight_bytes)
            models = problem.models
            self._syncs_s[family] = sync_time_s(problem.topology, size, weights, models=models)
        return self._syncs_s[family] / whole_number(setup.get(SYNC, 1))


def usual_choices(knobs: dict[str, Sequence[Value]], load: Load) -> dict[str, Sequence[Value]]:
    """The knobs, with those that are tried though nobody named them.

    These are TorchRec's pipelines, if the workload has one of them, and cache sizes, if tables may
    be cached, device memory is short and no constraint names sizes.

    Args:
        knobs: the named ones.
        load: makes the problem of a setup.
    """
    problem = load({name: values[0] for name, values in knobs.items() if name not in OWN_KNOBS})
    own, found = problem.workload.pipeline, dict(knobs)
    if PIPELINE not in knobs and own in _TORCHREC and LOOKAHEAD not in knobs:
        found[PIPELINE] = [own.value, *(p.value for p in _TORCHREC if p is not own)]
    if CACHE not in knobs and not any(c.cache_load_factors for c in problem.constraints.tables):
        pipeline = pipeline_of(problem)
        options = [o for t in enumerate_options(problem, pipeline).tables for o in t.options]
        cached = any(o.kernel is ComputeKernel.FUSED_UVM_CACHING for o in options)
        sizes = [t.weight_bytes for t in problem.workload.tables]
        if cached and surely_crowded(sizes, pipeline.device_limits):
            found[CACHE] = [None, *_CACHE_MENUS]
    return found


def whole_number(value: Any) -> int:
    """A value as a whole number from 1.

    Raises:
        InvalidInputError: it is none.
    """
    if type(value) is not int or value < 1:
        refuse(f"{value!r} is not a whole number from 1")
    return value


def _group(problem: PlanningProblem, copies: int) -> PlanningProblem:
    """The problem of one of the groups of ranks that each have a copy of all tables.

    Raises:
        InvalidInputError: ranks differ, or there are no such groups.
        InfeasibleError: the constraints leave a table no place in such a group.
    """
    topology = problem.topology
    if problem.workload.batch_share_ratio not in ((), PROPORTIONAL):
        refuse("copies and batch_shares per rank exclude each other: groups share one plan")
    if topology.hbm_capacity_by_rank_bytes or topology.speed_by_rank_ratio:
        refuse("copies: groups of ranks need ranks that are all alike; leave it out")
    world = topology.world_size
    group = None if world % copies else group_problem(problem, world // copies)
    if group is None:
        refuse(f"{copies} copies cannot share {world} ranks, {topology.local_world_size} on a host")
    return group


# ------------------------------------------------------------------ problems of files


def values_of_text(text: str, where: str) -> tuple[Value, ...]:
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
    knobs: Mapping[str, Sequence[Value]],
) -> dict[str, tuple[Value, ...]]:
    """The knobs, with shares of tables as numbers.

    Raises:
        InvalidInputError: a name is neither a key of a file nor an own knob, or has no values.
    """
    found = {}
    for name, values in knobs.items():
        known = (*OWN_KNOBS, SYSTEM, GPUS, GLOBAL_BATCH)
        if name not in known and "." not in name:
            refuse(
                f"--vary {name}: name a key of the workload such as training.pipeline, one of the "
                f"system such as system.links.network.bandwidth, or {', '.join(OWN_KNOBS)}"
            )
        found[name] = tuple(_menu(v) for v in values) if name == CACHE else tuple(values)
    return found


def _menu(value: Value) -> Value:
    """Cache sizes such as ``["5%", 0.2]`` as a list of ratios in JSON; None for the usual ones."""
    if value is None:
        return None
    listed: Any = json.loads(str(value)) if str(value).startswith("[") else [value]
    try:
        ratios = [
            float(str(s).removesuffix("%")) / (100 if str(s).endswith("%") else 1) for s in listed
        ]
    except ValueError:
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

    def __call__(self, picks: Mapping[str, Value]) -> PlanningProblem:
        """The problem with the values of knobs.

        Raises:
            InvalidInputError: a file or value breaks a rule, or the ranks cannot share a batch.
        """
        apart = (SYSTEM, GPUS, GLOBAL_BATCH)
        keys = {k: v for k, v in picks.items() if k not in apart}
        if keys.get(PIPELINE, Pipeline.LOOKAHEAD.value) != Pipeline.LOOKAHEAD.value:
            keys[LOOKAHEAD] = None
        own = [(k, v) for k, v in keys.items() if not k.startswith(_PREFIX)]
        theirs = [(k, v) for k, v in keys.items() if k.startswith(_PREFIX)]
        file = self.file(tuple((k, _text(v)) for k, v in own))
        changes = tuple((k.removeprefix(_PREFIX), _text(v)) for k, v in theirs)
        topology, models = self.system(str(picks[SYSTEM]), picks.get(GPUS), changes)
        workload, whole = file.workload, picks.get(GLOBAL_BATCH)
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


def _text(value: Value) -> str:
    """A value as YAML; lists and mappings are kept as JSON already."""
    is_compound = isinstance(value, str) and value[:1] in ("[", "{")
    return str(value) if is_compound else json.dumps(value)
