"""What a study says, as words, tables and a page: how setups compare, what choices are worth."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final

from markupsafe import Markup

from costmodels import units
from planner.report import page
from planner.report.base import Cell, Column, Kind, Section, by_field, by_place
from planner.report.page import Block, ChartDot, block, grid, plain_body
from planner.study import space as design
from planner.study.figures import GOALS
from planner.study.studying import TIE_RATIO, Study
from planner.study.trials import DONE, FAILED, SetupResult
from planner.support.text import significant

_ALLOWED_RATIO: Final = 0.03
"""Losses of more GPUs up to this share are not spoken of: gaps of searches are as wide."""
_GAP: Final = "gap: by what share another plan of the same setup can be faster than the one found"
_LEAST_PERCENT: Final = 0.01
"""The least percentage that is printed for a proof; smaller values are only rounding."""


def described(study: Study, result: SetupResult) -> str:
    """The values of a setup in words: those of the knobs that have several."""
    varying, cluster = set(study.space.varying), {design.SYSTEM, design.GPUS}
    words = [design.told(k, v) for k, v in result.setup.picks if k in varying - cluster]
    if varying & cluster:
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

    def every(r: SetupResult) -> Cell:
        every_s = r.figures and r.figures.checkpoint_interval_s
        return units.format_long_time(every_s) if every_s else None

    cells: dict[Column, Callable[[SetupResult], Cell]] = {
        Column("setup"): named,
        **by_field("iteration=figures.time_s", "samples=figures.samples_per_s"),
        Column("gap", Kind.GAP, optional=True): study.gap_ratio,
        **by_field("free=figures.free_bytes?", "per 1e9 samples=figures.usd_per_billion_samples"),
        Column("checkpoint every"): every,
        Column("against the recommended"): lambda r: (everything and r.reason) or verdict(study, r),
    }
    if everything:
        cells |= {
            **by_field("low=figures.low_s", "high=figures.high_s", "per hour=figures.usd_per_hour"),
            Column("training", Kind.SHARE): lambda r: (
                r.figures.availability_ratio if r.figures and every(r) else None
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


def choices(study: Study) -> Section:
    """What each value of each knob that has several is worth, by the first goal.

    A row has how much worse than the recommended setup the best one is that was found with the
    value, and how much worse every plan with it is at least, as far as bounds prove that.
    """
    goal, results, rows = GOALS[study.goals[0]], study.results, []
    facts = ((s, study.bound(s)) for s in (study.space.setups if study.is_proven else ()))
    bounds = {s: _loss(study, goal.value(f)) for s, f in facts if f is not None}
    for knob in study.space.varying if study.space.setups else ():
        for value in study.space.knobs[knob]:
            own = [r for r in results if r.setup.get(knob) == value]
            losses = [_loss(study, study.value(r)) for r in own if r.figures is not None]
            least = min((b for s, b in bounds.items() if s.get(knob) == value), default=None)
            least = least if least is None else min(least, *losses, math.inf)
            words = design.told(knob, value).removeprefix(f"{knob.rpartition('.')[2]} ")
            rows.append((knob, words, len(own), min(losses, default=None), least))
    told = (
        f"Worse than the recommended setup, by {goal.title}: the best setup found with this value, "
        "and every plan with it at least, as bounds prove. None searched: bounds ruled them out, "
        "nothing fits, or the study ended before."
    )
    titles = (Column("knob"), Column("value"), Column("searched", Kind.COUNT))
    gaps = (Column("worse", Kind.GAP), Column("at least", Kind.GAP))
    notes = (told,) if rows else ("Nothing was free to choose.",)
    return Section.of("What each choice is worth", rows, by_place(*titles, *gaps), notes=notes)


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
                few = study.space.problem(fast.setup).topology.world_size
                gap = study.gap_ratio(line[i])
                most = math.inf if gap is None or gap >= 1 else _speed(line[i]) / (1 - gap)
                speeds = (_speed(line[i]), _speed(fast), most)
                slow, quick, bound = (f"{significant(v / 1e6)} M" for v in speeds)
                yield f"{described(study, line[i])} trains {slow} samples/s, and {few} GPUs " + (
                    f"train {quick}; more --evaluations may find a better plan"
                    if most >= _speed(fast)
                    else f"train {quick}; no plan for it reaches more than {bound}. --vary "
                    "copies=all tries a copy of the tables on each group of GPUs, so that their "
                    "exchanges join fewer ranks"
                )
                break


def _speed(result: SetupResult) -> float:
    """Samples per second while the job trains."""
    figures = result.figures
    return 0.0 if figures is None else figures.samples_per_s / (figures.availability_ratio or 1.0)


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


def study_page(study: Study, name: str) -> str:
    """The page as text; it loads nothing from other places.

    Args:
        study: a study, perhaps one that was stopped.
        name: the name of the workload.
    """
    first = recommendation(study)
    lines = ("; ".join(space_parts(study)), *remarks(study))
    top = block("recommended", first="; ".join(first), lines=lines)
    blocks = [Block(name="summary", title="Summary", body=top)]
    if first:
        systems = [design.told(design.SYSTEM, s) for s in study.space.knobs[design.SYSTEM]]
        chart = block("front", chart=_scatter(study, systems))
        worth = choices(study)
        blocks += [
            Block(name="setups", title="Setups that were searched", body=chart, short="Setups"),
            Block(name="choices", title=worth.title, body=plain_body(worth), short="Choices"),
        ]
    table = setups_table(study, everything=True)
    if table.rows:
        listed = grid(table.columns, table.rows, marked=len(study.front))
        body = block("plain", pairs=(), table=listed, notes=table.notes)
        blocks.append(Block(name="table", title="Every setup", body=body, short="Table"))
    return page.render_page(f"Study: {name}", "Setups of a study, best first", blocks)


def _scatter(study: Study, systems: list[str]) -> Markup:
    """The searched setups by the first two goals, or by the only goal and the cost, or memory."""
    done = [(r, r.figures) for r in study.results if r.figures is not None]
    across = study.goals[0]
    is_priced = all(math.isfinite(GOALS["cost"].figure(figures)) for _, figures in done)
    other = "cost" if is_priced and across != "cost" else "headroom"
    up = study.goals[1] if len(study.goals) > 1 else other
    front = {r.setup for r in study.front}
    (title_x, factor_x), (title_y, factor_y) = _AXES[across], _AXES[up]
    dots = []
    for result, figures in sorted(done, key=lambda pair: pair[0].setup in front):
        x, y = (max(GOALS[goal].figure(figures), 1e-12) for goal in (across, up))
        if math.inf in (x, y):
            continue
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
    if not dots:
        return Markup("<p>No setup trains: failures and restarts take all of its time.</p>")
    line = sorted((d.x, d.y) for d in dots if d.is_best) if len(study.goals) > 1 else ()
    return page.scatter(dots, systems, _AXES[across], _AXES[up], line)
