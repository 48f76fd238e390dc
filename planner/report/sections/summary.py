"""The summary: time, throughput, the bottleneck, and how good the plan is proven to be."""

from __future__ import annotations

from typing import ClassVar, final

from markupsafe import Markup

from costmodels import units
from planner.report import _extras as extras
from planner.report import _figures as figures
from planner.report import _summary as lines
from planner.report.base import (
    Fact,
    Kind,
    Section,
    format_factor,
    format_interval,
    format_share,
)
from planner.report.html import _stages
from planner.report.html._advice import advice
from planner.report.html._evidence import Evidence
from planner.report.html._templates import fill
from planner.report.html.base import Block, Number, mark, written
from planner.report.sections.base import AbstractReportSection
from planner.result import Candidate, PlanningResult
from planner.support.status import STATUS_WORDS
from planner.support.text import counted, format_gap, significant

_OPTIMAL_GAP = 1e-4
_SPAN = ("time_s", "low_s", "high_s")


_BODY = """\
{% if advice %}<p class="verdict"><strong>{{ advice }}</strong></p>{% endif -%}
<p class="verdict">{{ verdict }}</p>
<dl class="cards">
{%- for label, marks, value, note in cards -%}
<div><dt>{{ label }}</dt><dd{{ marks }}>{{ value }}</dd><dd class="note">{{ note }}</dd></div>
{%- endfor -%}
</dl>
{% for note in notes %}<p class="warning">{{ note }}</p>{% endfor -%}
<details><summary>All lines of the summary</summary>{{ blocks.facts(facts) }}</details>"""


@final
class SummarySection(AbstractReportSection):
    """The lines that the plan command prints; the page has a verdict and six figures above them."""

    title: ClassVar[str] = "Summary"
    short: ClassVar[str] = "Summary"
    order: ClassVar[int] = 10

    def build(self, result: PlanningResult) -> Section:
        """Facts only; warnings come as notes."""
        incumbent, others = figures.split_baselines(result)
        facts = [
            lines.headline(result.problem.workload, figures.cluster(result.problem.topology)),
            lines.predicted(
                result.best,
                incumbent,
                keeps_rules=not figures.has_unknown_rules(result),
                worst=figures.worst_scenario(result),
            ),
            lines.baselines(result, others),
            lines.bottleneck(result.best),
            lines.memory(result.best),
            extras.cost(result),
            extras.move(result),
            extras.checkpoints(result),
            extras.scenarios(result),
            lines.solver_line(result.solver, result.best.plan),
            Fact(label="Searched", parts=result.searched),
            lines.kinds(result.best),
            lines.inputs(result.best),
        ]
        return Section(
            title=self.title,
            facts=tuple(fact for fact in facts if fact.parts),
            notes=lines.warnings(result.warnings, result.estimate.warnings),
        )

    def draw(self, evidence: Evidence) -> Block:
        """The verdict, the figures, and the lines."""
        cards, numbers = _cards(evidence)
        summary = self.build(evidence.result)
        body = fill(
            _BODY,
            advice=advice(evidence),
            verdict=verdict(evidence.result),
            cards=cards,
            notes=summary.notes,
            facts=[(fact.label, "; ".join(fact.parts)) for fact in summary.facts[1:]],
        )
        return Block(name="headline", title=self.title, body=body, numbers=numbers)


def verdict(result: PlanningResult) -> str:
    """Sentences that say whether to take the plan, and what to look at."""
    incumbent, others = figures.split_baselines(result)
    worst = figures.worst_scenario(result)
    span = worst or result.estimate.time
    time, _ = format_interval(span.time_s, span.low_s, span.high_s)
    sentence = f"An iteration takes {time}"
    if worst is not None:
        first, _ = format_interval(*(getattr(result.estimate.time, f) for f in _SPAN))
        sentence += f" in the slowest scenario, {worst.name}, and {first} in the first"
    rival = incumbent or min(others, key=lambda b: b.estimate.time.time_s, default=None)
    if rival is not None:
        who = "TorchRec's own plan" if rival is incumbent else f"the plan of {rival.name}"
        sentence += f", {_compared(figures.speedup(result.best, rival))} {who}"
    sentences = [f"{sentence}.", _waits(result.best), _proof(result)]
    if not result.best.memory.fits:
        sentences.append("The plan does not fit in memory.")
    return " ".join(s for s in sentences if s)


def _compared(ratio: float) -> str:
    if abs(ratio - 1.0) < 0.005:
        return "as long as with"
    if ratio <= 0.5:
        return f"{format_factor(1.0 / ratio)} as long as with"
    if ratio < 1.0:
        return f"{format_share(1 / ratio - 1)} longer than with"
    return f"{format_factor(ratio)} as fast as with"


def _waits(best: Candidate) -> str:
    """The families of stages that take most of the critical path, in words."""
    spent = sorted(_stages.family_seconds(best.estimate).items(), key=lambda item: -item[1])[:2]
    total = best.estimate.time.time_s or 1.0
    words = [f"{_stages.FAMILIES[name]} ({format_share(s / total)})" for name, s in spent]
    return f"Its critical path is mostly {' and '.join(words)}." if words else ""


def _proof(result: PlanningResult) -> str:
    """What the gap says about the iteration, or about the objective that was minimised instead."""
    gap, objective = result.gap_ratio, result.solver.objective
    if gap is None:
        return "The search proves no bound, so a better plan may exist."
    of_time = figures.plain_objective(objective) == "iteration"
    if gap < _OPTIMAL_GAP:
        better = "is better" if of_time else f"is better by objective {objective}"
        return f"No plan in the search space {better}, under this model."
    less = "has an iteration" if of_time else f"has a value of objective {objective}"
    return (
        f"It is proven that no plan in the search space {less} more than {format_gap(gap)} "
        f"{'shorter' if of_time else 'smaller'} (same model); whether one is better at all is not "
        "known."
    )


def _cards(
    evidence: Evidence,
) -> tuple[list[tuple[str, Markup, str, str]], tuple[Number, ...]]:
    """(label, marks, value, note) of each figure; and the numbers in them, with the interval."""
    cards, numbers = [], []
    for label, number, kind, note in _figures(evidence):
        numbers.append(number)
        value = "unproven" if number.value is None else written(kind, number.value)
        cards.append((label, mark(number), value, note))
    time, source = evidence.result.estimate.time, evidence.view.source
    for quantity, value_s in (("low_s", time.low_s), ("high_s", time.high_s)):
        numbers.append(
            Number(entity="plan", quantity=quantity, value=value_s, unit="s", source=source)
        )
    return cards, tuple(numbers)


def _cost(result: PlanningResult, number: Number) -> list[tuple[str, Number, Kind, str]]:
    """The figure of what training costs, if the system has a price."""
    price = result.problem.topology.price_per_device_usd_per_hour
    if number.value is None or price is None:
        return []
    note = f"per billion samples, at {significant(price, 6)} USD per device and hour"
    return [("Cost", number, Kind.USD, note)]


def _figures(evidence: Evidence) -> list[tuple[str, Number, Kind, str]]:
    result, source = evidence.result, evidence.view.source
    estimate, solver = result.estimate, result.solver
    time, fullest = estimate.time, result.best.memory.fullest
    kind, unit = figures.objective_kind(solver.objective)
    exposed = estimate.exposed_communication_s / (time.time_s or 1.0)
    _, interval = format_interval(time.time_s, time.low_s, time.high_s)
    ended = f"{STATUS_WORDS[solver.status]} after {solver.seconds:.1f} s"

    def number(quantity: str, value: float | None, unit: str, source: str = source) -> Number:
        return Number(entity="plan", quantity=quantity, value=value, unit=unit, source=source)

    return [
        (
            "Iteration",
            number("iteration_time_s", time.time_s, "s"),
            Kind.TIME,
            f"{interval.strip('[]').replace('..', 'to')} (90 %)",
        ),
        (
            "Throughput",
            number("samples_per_s", estimate.samples_per_s, "1/s"),
            Kind.RATE,
            "samples per second",
        ),
        *_cost(result, number("usd_per_billion_samples", result.usd_per_billion_samples, "USD")),
        ("Proven bound", number("bound", solver.bound, unit, "search"), kind, ended),
        (
            "Gap to the bound",
            number("gap_ratio", solver.gap_ratio, "1", "search"),
            Kind.GAP,
            f"{counted(solver.evaluations, 'plan')} priced",
        ),
        (
            "Exposed communication",
            number("exposed_ratio", exposed, "1"),
            Kind.SHARE,
            f"{units.format_time(estimate.exposed_communication_s)} that no compute hides",
        ),
        (
            "Fullest device",
            number("fullest_used_bytes", fullest.used_bytes, "B"),
            Kind.BYTES,
            f"rank {fullest.rank}, of {units.format_bytes(fullest.capacity_bytes)}",
        ),
    ]
