"""Prints and writes the results of ``shardplan validate torchrec``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from costmodels.calibration.fitting import geomean_error
from costmodels.cpu.exchange import STAGES
from costmodels.validation import Ranking, one_scale, rank_tasks
from planner.cli.console import say
from planner.cli.printing.show import print_items
from planner.cli.printing.validate_published import told_errors
from planner.support.files import csv_text

if TYPE_CHECKING:
    from planner.validation.tasks import Outcome

RUNS_FILE = "validate_torchrec_runs.csv"
MODELS_FILE = "validate_torchrec_models.csv"

_FOREIGN_LIMIT = 0.03


def rankings(outcomes: Sequence[Outcome]) -> dict[str, Ranking]:
    """Scores of our model, and of two simpler ones, each with the one factor that suits it best."""
    tasks, measured = [o.task for o in outcomes], [o.measured_s for o in outcomes]
    judges = {
        "shardplan": [o.predicted_s for o in outcomes],
        "bytes": one_scale([o.bytes_model_bytes for o in outcomes], measured),
        "torchrec": one_scale([o.torchrec_rating_s for o in outcomes], measured),
    }
    return {name: rank_tasks(tasks, predicted, measured) for name, predicted in judges.items()}


def pair_rows(outcomes: Sequence[Outcome]) -> list[tuple[str, float, float]]:
    """(plan, measured ratio, predicted ratio): times of the second half over those of the first."""
    half = len(outcomes) // 2
    pairs = zip(outcomes[:half], outcomes[half:], strict=True)
    return [
        (f"{a.origin} {a.kinds}", b.measured_s / a.measured_s, b.predicted_s / a.predicted_s)
        for a, b in pairs
    ]


def print_scores(found: dict[str, Ranking]) -> None:
    """Print one line for each model."""
    print_items(
        "Predicted against trained",
        found.items(),
        {
            "model": lambda item: item[0],
            "geomean": lambda item: _percent(item[1].errors.geomean_error_ratio),
            "MAPE": lambda item: _percent(item[1].errors.mean_error_ratio),
            "p90": lambda item: _percent(item[1].errors.p90_error_ratio),
            "tau": lambda item: f"{item[1].kendall_tau_ratio:.2f}",
            "top 1": lambda item: _percent(item[1].top_ratio),
            "in 5 %": lambda item: _percent(item[1].within_5_ratio),
            "in 10 %": lambda item: _percent(item[1].within_10_ratio),
            "regret": lambda item: _percent(item[1].mean_regret_ratio),
        },
    )
    say(
        "geomean, MAPE, p90: errors of iteration times (bytes and torchrec: after the one factor "
        "that suits them best)\ntau: Kendall's, mean over tasks. top 1, in 5 %, in 10 %: tasks in "
        "which the plan predicted fastest is"
    )


def print_inside(outcomes: Sequence[Outcome]) -> None:
    """Print how often measured times are inside their intervals."""
    plans = sum(o.low_s <= o.measured_s <= o.high_s for o in outcomes) / len(outcomes)
    iterations = sum(o.iterations_inside_ratio for o in outcomes) / len(outcomes)
    width = sum(o.high_s / o.low_s - 1.0 for o in outcomes) / len(outcomes)
    say(
        f"90 % intervals ({_percent(width)} wide) hold {_percent(plans)} of the plans' times and "
        f"{_percent(iterations)} of all iterations"
    )


def print_pairs(outcomes: Sequence[Outcome], title: str) -> None:
    """Print, for each plan, the ratio of the second half's times to those of the first."""
    pairs = pair_rows(outcomes)
    print_items(
        title,
        pairs,
        {
            "plan": lambda pair: pair[0],
            "measured": lambda pair: f"{pair[1]:.3f}",
            "predicted": lambda pair: f"{pair[2]:.3f}",
            "error": lambda pair: f"{100 * (pair[2] / pair[1] - 1):+.1f} %",
        },
    )
    errors = np.log([predicted / measured for _, measured, predicted in pairs])
    say(f"geometric mean error of the ratio: {_percent(geomean_error(errors))}")


def foreign_note(outcomes: Sequence[Outcome]) -> str | None:
    """A remark when other jobs were running."""
    load = max((o.foreign_ratio for o in outcomes), default=0.0)
    if load <= _FOREIGN_LIMIT:
        return None
    return f"other jobs used up to {load:.1f} cores meanwhile; times are processor times per rank"


def pace_note(outcomes: Sequence[Outcome]) -> str | None:
    """A remark on how fast the machine was, compared with its calibration, and on the errors."""
    paced = [(o, o.pace_ratio) for o in outcomes if o.pace_ratio is not None]
    if not outcomes or len(paced) < len(outcomes):
        return None
    paces = [p for _, p in paced]
    missed = geomean_error(np.log([o.predicted_s * p / o.measured_s for o, p in paced]))
    inside = sum(o.low_s * p <= o.measured_s <= o.high_s * p for o, p in paced)
    return (
        f"for the same fixed work the machine took {min(paces):.2f} to {max(paces):.2f} times as "
        "long as when it was calibrated; times this ratio, predictions miss by "
        f"{_percent(missed)} (geometric mean) and intervals hold {_percent(inside / len(paced))} "
        "of the plans"
    )


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    """Rows of the same columns, numbers with six digits."""
    cells = ([f"{v:.6g}" if isinstance(v, float) else v for v in r.values()] for r in rows)
    return csv_text(list(rows[0]) if rows else [], cells)


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """A row with the seconds of each stage in a column of its own."""
    flat = {}
    for name, value in row.items():
        if isinstance(value, tuple):
            kind = name.removeprefix("stages_")
            flat.update({f"{s}_{kind}": v for s, v in zip(STAGES, value, strict=True)})
        else:
            flat[name] = value
    return flat


def as_row(ranking: Ranking) -> dict[str, float]:
    """Scores by name, without those that were not computed."""
    scores = {k: v for k, v in asdict(ranking).items() if k != "errors"}
    return {**told_errors(ranking.errors), **scores}


def write_files(folder: Path, outcomes: Sequence[Outcome], found: dict[str, Ranking]) -> list[Path]:
    """Write both tables; returns their paths."""
    from planner.support.files import write_text_atomic

    texts = {
        RUNS_FILE: _csv([_flat(asdict(outcome)) for outcome in outcomes]),
        MODELS_FILE: _csv([{"model": name, **as_row(r)} for name, r in found.items()]),
    }
    for name, text in texts.items():
        write_text_atomic(folder / name, text)
    return [folder / name for name in texts]


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.1f} %"
