"""What a study says, as words, tables and a page: how setups compare, what choices are worth."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from costmodels import units
from planner.report.base import Cell, Column, Kind, Section
from planner.report.charts import ChartDot, legend, scatter
from planner.report.page import Block, fill, grid, render_page
from planner.study import space as design
from planner.study.figures import GOALS, Figures
from planner.study.study import TIE_RATIO, Study
from planner.study.trials import DONE, FAILED, SetupResult
from planner.support.text import significant

_ALLOWED_RATIO: Final = 0.03
"""Losses of more GPUs up to this share are not spoken of: gaps of searches are as wide."""
_GAP: Final = "gap: by what share another plan of the same setup can be faster than the one found"
_LEAST_PERCENT: Final = 0.01
"""The least percentage that is printed for a proof; smaller values are only rounding."""


def described(study: Study, result: SetupResult) -> str:
    """The values of a setup in words: those of the knobs that have several."""
    varying = [k for k in study.space.varying if k != design.GPUS]
    words = [design.told(k, v) for k, v in result.setup.picks if k in varying]
    if {design.SYSTEM, design.GPUS} & set(study.space.varying):
        words = [
            w for w in words if w != design.told(design.SYSTEM, result.setup.get(design.SYSTEM))
        ]
        gpus = study.space.problem(result.setup).topology.world_size
        words.insert(0, f"{design.told(design.SYSTEM, result.setup.get(design.SYSTEM))} x {gpus}")
    return ", ".join(words) or "the usual setup"


def setups_table(study: Study, most: int | None = None, *, everything: bool = False) -> Section:
    """The searched setups, those of the front first; without empty columns.

    Args:
        study: the study, perhaps one that was stopped.
        most: how many setups are listed, or the whole front; None for all.
        everything: whether further columns, and setups that are impossible, are listed too.
    """
    front, several = study.front, len(study.goals) > 1
    listed = [*front, *sorted((r for r in study.results if r not in front), key=study.value)]
    listed = listed if most is None else listed[: max(most, len(front))]
    if everything:
        impossible = study.space.impossible.items()
        listed += [SetupResult(setup=s, status=FAILED, reason=why) for s, why in impossible]

    def named(r: SetupResult) -> str:
        words = r.setup.words if r.status == FAILED else described(study, r)
        return f"* {words}" if several and r in front else words

    def of(figure: Callable[[Figures], Cell]) -> Callable[[SetupResult], Cell]:
        return lambda r: None if r.figures is None else figure(r.figures)

    def every(f: Figures) -> Cell:
        every_s = f.checkpoint_interval_s
        return None if every_s is None else units.format_long_time(every_s)

    cells: dict[Column, Callable[[SetupResult], Cell]] = {
        Column("setup"): named,
        Column("iteration", Kind.TIME): of(lambda f: f.time_s),
        Column("samples", Kind.RATE): of(lambda f: f.samples_per_s),
        Column("gap", Kind.GAP, optional=True): study.gap_ratio,
        Column("free", Kind.BYTES, optional=True): of(lambda f: f.free_bytes),
        Column("per 1e9 samples", Kind.USD): of(lambda f: f.usd_per_billion_samples),
        Column("checkpoint every"): of(every),
        Column("against the recommended"): lambda r: (everything and r.reason) or verdict(study, r),
    }
    if everything:
        cells |= {
            Column("low", Kind.TIME): of(lambda f: f.low_s),
            Column("high", Kind.TIME): of(lambda f: f.high_s),
            Column("per hour", Kind.USD): of(lambda f: f.usd_per_hour),
            Column("training", Kind.SHARE): of(
                lambda f: f.availability_ratio if f.checkpoint_interval_s else None
            ),
            Column("waits for most"): lambda r: r.waits_for,
        }
    kept = {c: f for c, f in cells.items() if any(f(r) not in (None, "") for r in listed)}
    title = "Setups" + (" (* no other equals or beats it in all objectives)" if several else "")
    has_gap = any(column.title == "gap" for column in kept)
    return Section.of(title, listed, kept, notes=(f"{_GAP}.",) if has_gap else ())


def verdict(study: Study, result: SetupResult) -> str:
    """How a setup compares with the recommended one by the first goal; its gap weighs in it.

    ``tie``; ``12 % worse``; or ``12 % worse, 3 % at best`` if its bound says that a better plan may
    bring it so near.
    """
    best = study.recommended
    if result.figures is None or best is None:
        return result.status.replace("_", " ")
    share = _loss(study, study.value(result))
    if result.setup == best.setup:
        return "recommended"
    if abs(share) <= TIE_RATIO:
        return "tie"
    text = f"{significant(100 * abs(share), 2)} % {'worse' if share > 0 else 'better'}"
    gap = study.gap_ratio(result)
    if gap is None or study.goals[0] == "headroom" or share < 0:
        return text
    bounded = study.value(result) * (1 - gap if study.value(result) > 0 else 1 / (1 - gap + 1e-12))
    least = _loss(study, bounded)
    if least <= TIE_RATIO:
        return f"{text}; not settled, its gap is {significant(100 * gap, 2)} %"
    return (
        text if share - least < 0.05 * share else f"{text}, {significant(100 * least, 2)} % at best"
    )


def _loss(study: Study, value: float) -> float:
    """By what share a value of the first goal is worse than that of the recommended setup."""
    best = study.recommended
    own = 0.0 if best is None else study.value(best)
    return (value - own) / abs(own) if own and math.isfinite(own) else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """One value of a knob, with the best setup that has it.

    Attributes:
        value: the value in words.
        searched: how many setups with this value were searched.
        loss_ratio: how much worse the best of them is than the recommended setup; None without one.
        bound_ratio: how much worse every setup with this value is at least; None if not proven.
    """

    value: str
    searched: int
    loss_ratio: float | None
    bound_ratio: float | None

    @property
    def text(self) -> str:
        """The loss in words."""
        loss, least = self.loss_ratio, self.bound_ratio
        if loss is None:
            if least:
                return f"ruled out: at least {significant(100 * least, 2)} % worse"
            return "no plan that fits" if self.searched else "not searched"
        if abs(loss) <= TIE_RATIO:
            return "tie with the best" if loss else "none is better"
        text = f"{significant(100 * loss, 2)} % worse"
        if least is not None and loss - least > _ALLOWED_RATIO:
            text += f"; more searches may bring it to {significant(100 * max(least, 0.0), 2)} %"
        return text


def worths(study: Study) -> dict[str, tuple[Worth, ...]]:
    """The values of every knob that has several, by the name of the knob."""
    if not study.space.setups or study.recommended is None:
        return {}
    goal, results = GOALS[study.goals[0]], study.results
    bounds = {}
    if study.is_proven:
        facts = {s: study.bound(s) for s in study.space.setups}
        bounds = {s: _loss(study, goal.value(f)) for s, f in facts.items() if f is not None}
    first = study.recommended.setup
    found: dict[str, tuple[Worth, ...]] = {}
    for knob in study.space.varying:
        rows = []
        for value in study.space.knobs[knob]:
            own = [r for r in results if r.setup.get(knob) == value]
            losses = [_loss(study, study.value(r)) for r in own if r.figures is not None]
            possible = [loss for s, loss in bounds.items() if s.get(knob) == value]
            least = min(possible, default=None)
            loss = min(losses, default=None)
            rows.append(
                Worth(
                    value=_value(knob, value, is_best=first.get(knob) == value),
                    searched=len(own),
                    loss_ratio=loss,
                    bound_ratio=least if loss is None or least is None else min(least, loss),
                )
            )
        found[knob] = tuple(rows)
    return found


def _value(knob: str, value: design.Value, *, is_best: bool) -> str:
    words = design.told(knob, value)
    words = words if knob == design.SYSTEM else words.removeprefix(f"{knob.rpartition('.')[2]} ")
    return f"{words} (recommended)" if is_best else words


def training_changes(study: Study, result: SetupResult) -> tuple[str, ...]:
    """In words, how training under a setup differs in its results from the usual setup."""
    setup, usual = result.setup, study.space.base
    words = [
        design.told(k, setup.get(k))
        for k in (design.BATCH, design.GLOBAL_BATCH, design.COMMUNICATION)
        if setup.get(k) != usual.get(k)
    ]
    if setup.get(design.COPIES, 1) != usual.get(design.COPIES, 1):
        often = setup.get(design.SYNC, 1)
        every = "always" if often == 1 else f"every {often:,} iterations"
        words.append(f"{setup.get(design.COPIES)} copies of the tables, averaged {every}")
    return tuple(words)


def space_parts(study: Study) -> tuple[str, ...]:
    """Words on how much of the design space was searched, and what is proven about the rest."""
    total, results = study.space.num_setups, study.results
    if study.space.is_listed:
        total = len(study.space.setups) + len(study.space.impossible)
    known = {
        "ruled out by their bounds": len(study.ruled_out),
        "impossible": len(study.space.impossible),
        "without a plan that fits": len(study.unfit),
    }
    parts = [f"{total:,} setups", f"{len(results):,} searched"]
    parts += [f"{count:,} {words}" for words, count in known.items() if count]
    fit = len({r.setup for r in results} - set(study.unfit))
    left = total - fit - sum(known.values())
    if left > 0 and not study.smallest_for:
        ended = len(results) >= study.effort.trials
        parts.append(f"{left:,} left{f' after --trials {study.effort.trials:,}' if ended else ''}")
    ratio = study.proof_ratio
    if ratio is None:
        parts.append("nothing is proven about the others" if left > 0 else "all were searched")
    elif ratio < math.inf:
        shown = significant(max(100 * ratio, _LEAST_PERCENT), 2)
        parts.append(f"proven: no setup is more than {shown} % better")
    return tuple(parts)


def recommendation(study: Study) -> tuple[str, ...]:
    """Sentences: which setup, how it compares with the usual one, and which others tie with it."""
    best = study.recommended
    if best is None or best.figures is None:
        return ()
    goal = GOALS[study.goals[0]]
    words = [f"{described(study, best)}: {goal.title} {goal.write(goal.figure(best.figures))}"]
    usual = next((r for r in study.results if r.setup == study.space.base), None)
    if usual is not None and usual.figures is not None and usual.setup != best.setup:
        gain = goal.figure(usual.figures) / goal.figure(best.figures)
        gain = gain**goal.sign
        words.append(f"{gain:.2f}x {goal.better} the usual setup")
    ties = [r for r in study.ties if r.setup != best.setup]
    if ties and not study.answers:
        usual_one = (
            "the usual setup" if best.setup == study.space.base else "the one with fewest changes"
        )
        others = f"{len(ties)} others tie" if len(ties) > 1 else "one other ties"
        words.append(f"{others} with it (within 0.1 %), and {usual_one} is kept")
    changes = training_changes(study, best)
    if changes:
        words.append(f"this setup changes the training itself: {'; '.join(changes)}")
    return tuple(words)


def slowdowns(study: Study) -> Iterator[str]:
    """For setups that differ in the number of ranks alone, where more of them train less.

    Time lost to failures and checkpoints is left out, because it is not the plan's.
    """
    lines: dict[object, list[SetupResult]] = {}
    for r in study.results:
        if r.status == DONE and r.figures is not None and r.figures.availability_ratio > 0:
            lines.setdefault(r.setup.having(gpus=None), []).append(r)
    for line in lines.values():
        line.sort(key=lambda r: study.space.problem(r.setup).topology.world_size)
        for i in reversed(range(1, len(line))):
            fast = max(line[:i], key=_speed)
            if _speed(line[i]) < (1.0 - _ALLOWED_RATIO) * _speed(fast):
                yield _slowdown(study, line[i], fast)
                break


def _slowdown(study: Study, slow: SetupResult, fast: SetupResult) -> str:
    many, few = (study.space.problem(r.setup).topology.world_size for r in (slow, fast))
    text = (
        f"{described(study, slow)} trains {_millions(_speed(slow))} samples/s, and {few} GPUs "
        f"train {_millions(_speed(fast))}"
    )
    gap = study.gap_ratio(slow)
    most = math.inf if gap is None or gap >= 1 else _speed(slow) / (1 - gap)
    if most >= _speed(fast):
        return f"{text}; more --evaluations may find a better plan for {many} GPUs"
    return (
        f"{text}; no plan for {many} GPUs reaches more than {_millions(most)}. --vary copies=all "
        "tries a copy of the tables on each group of GPUs, so that their exchanges join fewer ranks"
    )


def _speed(result: SetupResult) -> float:
    """Samples per second while the job trains."""
    figures = result.figures
    return 0.0 if figures is None else figures.samples_per_s / (figures.availability_ratio or 1.0)


def _millions(samples_per_s: float) -> str:
    return f"{significant(samples_per_s / 1e6)} M"


def remarks(study: Study) -> tuple[str, ...]:
    """Remarks on larger clusters that are slower, and on searches that the clock cut."""
    cut, done = sum(r.is_cut for r in study.results), len(study.results)
    told_cut = f"--time-limit cut {cut} of {done} searches: more time may give them better plans"
    return (*slowdowns(study), *([told_cut] if cut else []))


# ------------------ the page

_AXES: Final[dict[str, tuple[str, float]]] = {
    "iteration": ("Iteration (ms)", 1e3),
    "throughput": ("M samples/s", 1e-6),
    "cost": ("USD per 10⁹ samples", 1.0),
    "headroom": ("Free memory (GiB)", 2.0**-30),
}
"""Title and factor of each figure on the page."""

_FIRST_TEXT: Final = """\
<p class="verdict"><strong>{% if first %}Recommended: {{ first }}.{% else %}Stopped before the \
search of any setup had ended, or nothing fits: there is nothing to compare.{% endif %}</strong></p>
<p>{{ space }}.</p>{% for text in remarks %}<p>{{ text }}.</p>{% endfor %}"""

_CHOICES: Final = """\
<p>How far the best setup with each value is from the recommended one, by {{ goal }}; all bars have
one scale. An empty bar is a bound: no plan with this value comes closer, so that none was searched.
</p>{% for knob, rows in knobs %}<div class="knob"><b>{{ knob }}</b>
{%- for value, css, width, words in rows -%}
<span>{{ value }}</span><span><i class="{{ css }}" style="width:{{ width }}%"></i>
<small>{{ words }}</small></span>
{%- endfor %}</div>{% else %}<p>Nothing was free to choose.</p>{% endfor %}"""


def study_page(study: Study, name: str) -> str:
    """The page as text; it loads nothing from other places.

    Args:
        study: a study, perhaps one that was stopped.
        name: the name of the workload.
    """
    first = recommendation(study)
    space = "; ".join(space_parts(study))
    top = fill(_FIRST_TEXT, first="; ".join(first), space=space, remarks=remarks(study))
    blocks = [Block(name="summary", title="Summary", body=top)]
    if first:
        systems = [design.told(design.SYSTEM, s) for s in study.space.knobs[design.SYSTEM]]
        chart = fill(
            "<p>Filled: setups that no other beats.</p>{{ legend }}{{ chart }}",
            legend=legend(systems),
            chart=_scatter(study, systems),
        )
        goal = GOALS[study.goals[0]].title
        worth = fill(_CHOICES, goal=goal, knobs=_knobs(study))
        blocks += [
            Block(name="setups", title="Setups that were searched", body=chart, short="Setups"),
            Block(name="choices", title="What each choice is worth", body=worth, short="Choices"),
        ]
    table = setups_table(study, everything=True)
    if table.rows:
        listed = grid(table.columns, table.rows, marked=len(study.front))
        body = fill("{{ listed }}<p>{{ notes|join }}</p>", listed=listed, notes=table.notes)
        blocks.append(Block(name="table", title="Every setup", body=body, short="Table"))
    return render_page(f"Study: {name}", "Setups of a study, best first", blocks)


def _scatter(study: Study, systems: list[str]) -> Markup:
    """The searched setups by the first two goals, or by the only goal and the cost, or memory."""
    done = [r for r in study.results if r.figures is not None]
    across = study.goals[0]
    costs = [GOALS["cost"].figure(r.figures) for r in done if r.figures is not None]
    other = "cost" if all(map(math.isfinite, costs)) and across != "cost" else "headroom"
    up = study.goals[1] if len(study.goals) > 1 else other

    def place(figures: Figures | None) -> tuple[float, float]:
        assert figures is not None
        x, y = (GOALS[goal].figure(figures) for goal in (across, up))
        return max(x, 1e-12), max(y, 1e-12)

    front = {r.setup for r in study.front}
    done = [r for r in done if max(place(r.figures)) < math.inf]
    if not done:
        return Markup("<p>No setup trains: failures and restarts take all of its time.</p>")
    (title_x, factor_x), (title_y, factor_y) = _AXES[across], _AXES[up]
    dots = []
    for result in sorted(done, key=lambda r: r.setup in front):
        x, y = place(result.figures)
        words = described(study, result)
        dots.append(
            ChartDot(
                x=x,
                y=y,
                name=design.told(design.SYSTEM, result.setup.get(design.SYSTEM)),
                told=f"{words}: {title_x} {significant(x * factor_x, 4)}, {title_y} "
                f"{significant(y * factor_y, 4)}",
                is_best=result.setup in front,
            )
        )
    line = sorted((d.x, d.y) for d in dots if d.is_best) if len(study.goals) > 1 else ()
    return scatter(dots, systems, _AXES[across], _AXES[up], line)


def _knobs(study: Study) -> list[tuple[str, list[tuple[str, str, str, str]]]]:
    """A group of bars for each knob; the longest bar of all is full, so that all have one scale."""
    found = worths(study)
    longest = max([*(_shown(row) for rows in found.values() for row in rows), 1e-12])
    return [(knob, [_bar(row, longest) for row in rows]) for knob, rows in found.items()]


def _shown(row: Worth) -> float:
    share = row.bound_ratio if row.loss_ratio is None else row.loss_ratio
    return max(0.0, share or 0.0)


def _bar(row: Worth, longest: float) -> tuple[str, str, str, str]:
    css = "out" if row.loss_ratio is None else ""
    return row.value, css, f"{100 * _shown(row) / longest:.1f}", row.text
