"""Groups stages into a few families, each of which has the same colour in every chart."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable

from markupsafe import Markup

from costmodels.estimates import IterationEstimate
from planner.report.html._templates import fill

FAMILIES: dict[str, str] = {
    "input": "input exchange",
    "cache": "cache fetch",
    "lookup": "lookup forward",
    "output": "output exchange",
    "dense": "dense forward",
    "dense-b": "dense backward",
    "gradient": "gradient exchange",
    "lookup-b": "lookup backward",
    "reduce": "all-reduce",
    "other": "host launches and data",
}
"""The style class of each family's colour, and its name for people, in the order of an iteration.
"""

_RULES = (
    ("input", r"^input"),
    ("cache", r"^cache|prefetch"),
    ("reduce", r"all-reduce"),
    ("lookup-b", r"^lookup.*backward"),
    ("lookup", r"^lookup"),
    ("output", r"^output"),
    ("gradient", r"^gradient"),
    ("dense-b", r"(MLP|^dense part).*backward|optimizer"),
    ("dense", r"MLP|^dense part"),
)
_PART = re.compile(r"( \d+/\d+| \d+)$")


def family(stage: str) -> str:
    """The family of a stage by its name."""
    return next((name for name, rule in _RULES if re.search(rule, stage)), "other")


def merged_name(stage: str) -> str:
    """The name of a stage without the number of a gradient bucket."""
    return _PART.sub("", stage)


def merged_durations_s(estimate: IterationEstimate) -> dict[str, tuple[str, list[float]]]:
    """Seconds of each stage on every rank, with buckets added up: name -> (stream, ``[W]``)."""
    found: dict[str, tuple[str, list[float]]] = {}
    for stage in sorted(estimate.stages, key=lambda s: min(s.start_s, default=0.0)):
        if not any(stage.duration_s):
            continue
        name = merged_name(stage.name)
        stream, total = found.setdefault(name, (stage.stream, [0.0] * len(stage.duration_s)))
        found[name] = (stream, [a + b for a, b in zip(total, stage.duration_s, strict=True)])
    return found


def family_durations_s(estimate: IterationEstimate) -> dict[str, list[float]]:
    """Seconds of each family of stages on every rank, in the order of FAMILIES: name -> ``[W]``."""
    found: dict[str, list[float]] = {}
    for stage in estimate.stages:
        total = found.setdefault(family(stage.name), [0.0] * len(stage.duration_s))
        found[family(stage.name)] = [a + b for a, b in zip(total, stage.duration_s, strict=True)]
    return {name: found[name] for name in FAMILIES if any(found.get(name, ()))}


def legend(stages: Iterable[str]) -> Markup:
    """The legend for the families of the stages that a chart shows."""
    return legend_of({family(stage) for stage in stages})


def legend_of(families: Collection[str]) -> Markup:
    """The legend for some families, in the order of FAMILIES."""
    keys = [(f"c-{name}", words) for name, words in FAMILIES.items() if name in families]
    return fill("{{ blocks.legend(keys) }}", keys=keys)


def family_seconds(estimate: IterationEstimate) -> dict[str, float]:
    """Seconds that the critical path spends in each family of stages, in the order of FAMILIES.

    They sum to the iteration time.
    """
    seconds: defaultdict[str, float] = defaultdict(float)
    for step in estimate.critical_path:
        seconds[family(step.stage)] += step.duration_s
    return {name: seconds[name] for name in FAMILIES if name in seconds}
