"""What ``shardplan validate published`` and ``validate intervals`` report, kind by kind.

Each kind of measurements is one function, which predicts them and returns a :class:`Report`: tables
and lines for the terminal, and the same numbers as data for ``--json``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from planner.cli.console import Settings, say, write_json
from planner.cli.printing.show import print_rows
from planner.validation.cases import AS_SHIPPED, Prediction, grouped, summarize

if TYPE_CHECKING:
    from pandas import DataFrame

    from costmodels.estimates import Estimate
    from costmodels.validation.metrics import ErrorSummary
    from planner.validation.intervals import Coverage

_SHORT: Final = 1024
"""Positions up to which a sequence is listed as short."""
_MEASURES: Final = {
    "MAPE": "mean_error_ratio",
    "GMAE": "geomean_error_ratio",
    "geomean": "geomean_error_ratio",
    "p90": "p90_error_ratio",
    "worst": "worst_error_ratio",
}
_CASE: Final = ("measured ms", "predicted", "90 % interval", "error")
"""Columns of :func:`_case`."""


class PrintedTable(NamedTuple):
    """A table of texts; a title that ends in ``?`` is of a column that a narrow terminal omits."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Tables and lines in the order in which they are printed, and the same as data."""

    parts: Sequence[PrintedTable | str]
    data: dict[str, Any]

    def show(self, settings: Settings) -> None:
        """Print the parts, or the data with ``--json``."""
        if settings.json:
            write_json(self.data)
            return
        for part in self.parts:
            if isinstance(part, PrintedTable):
                print_rows(*part)
            else:
                say(part)


def systems(*, every: bool) -> Report:
    """Each MLPerf system with the errors of both models, and a summary of them."""
    from planner.validation.published import NAIVE, load_cases, predict

    del every
    found = tuple(predict(case) for case in load_cases())
    rows = [
        (
            " ".join(p.case.name.split("-")[1:3]),
            _who(p.case)[1],
            *_case(p.case.measured_s, p.shipped),
            _off(p.predicted[NAIVE].time_s, p.case.measured_s),
        )
        for p in found
    ]
    columns = ("case", "devices", *_CASE, "naive?")
    errors = dict(zip(("shardplan", NAIVE), summarize(found).values(), strict=True))
    lines = _lines(errors, 9, "MAPE", "p90", "geomean", "worst", of="systems")
    cases = [_case_data(p, plan_source=p.case.plan_source) for p in found]
    table = PrintedTable("MLPerf DLRM-DCNv2, iteration time", columns, rows)
    return Report(parts=(table, *lines), data={"cases": cases, **_errors_data(errors)})


def lookups(*, every: bool) -> Report:
    """Errors of FBGEMM's lookups, one table for each way of leaving calls out."""
    from planner.validation.lookups import errors

    del every
    found = errors()
    columns = ("calls", "direction", "n", "MAPE", "worst", "inside 90 %")
    tables = [
        PrintedTable(
            f"FBGEMM's lookups: {way}",
            columns,
            [
                (
                    e.block,
                    e.direction,
                    str(e.num_points),
                    _percent(e.mape_ratio),
                    _percent(e.worst_ratio, 0),
                    _percent(inside, 0),
                )
                for _, e, inside in group
            ],
        )
        for way, group in grouped(found, lambda entry: entry[0]).items()
    ]
    data = [{"way": way, **asdict(e), "coverage_ratio": inside} for way, e, inside in found]
    for entry in data:
        del entry["rms_ratio"]
    return Report(parts=tables, data={"errors": data})


def dense(*, every: bool) -> Report:
    """GPU times of dense parts: errors of each family and group, and the published steps."""
    from planner.validation.dense_kernels import predictions, published_steps

    found, steps = predictions(), published_steps()
    times = found[["measured_s", "shipped_s", "left_out_s"]].map(lambda s: f"{1e6 * s:.1f}")
    cases = list(zip(found.case, *(times[name] for name in times), strict=True))
    named = ("measurement", "measured us", "shipped", "family left out")
    groups = dict(list(found.groupby(found.family.map(_dense_group), sort=False)))
    lines = []
    for name, group in groups.items():
        shipped, left_out = _dense_errors(group)
        lines.append(
            f"{name:24} shipped {shipped}   family left out {left_out}   "
            f"inside {group.is_inside.sum()} of {len(group)}"
        )
    published = [
        (s.name, *_case(s.measured_s, s.predicted, 1), f"{1e3 * s.eager_s:.1f}") for s in steps
    ]
    parts: tuple[PrintedTable | str, ...] = (
        *([PrintedTable("GPU times of dense parts", named, cases)] if every else []),
        _by_family(found),
        *lines,
        PrintedTable(
            "65,536 samples on one A100, nothing fitted",
            ("NVIDIA's DLRM", *_CASE, "if eager"),
            published,
        ),
    )
    data = {
        "cases": found.to_dict("records"),
        "errors": {name: _errors_data(_dense_summaries(group)) for name, group in groups.items()},
        "published": [
            {
                "case": s.name,
                "measured_s": s.measured_s,
                **_times(s.predicted),
                "eager_s": s.eager_s,
            }
            for s in steps
        ],
    }
    return Report(parts=parts, data=data)


def _by_family(found: DataFrame) -> PrintedTable:
    """The errors of each family, and their root mean square with the family left out."""
    rows = [
        (
            str(family),
            str(len(known)),
            *_dense_errors(known),
            f"{_rms((known.left_out_s / known.measured_s - 1.0).tolist()):.3f}",
        )
        for family, known in found.groupby("family", sort=False)
    ]
    families = ("family", "n", "shipped (bias)", "family left out (bias)", "rms ln")
    return PrintedTable("GPU times on H200 and H100: mean error", families, rows)


def _dense_group(family: str) -> str:
    """How a family of measurements is counted: most are dense steps."""
    from planner.validation.dense_kernels import DLRM, DOTS, GRAPHS

    if family.startswith(DLRM):
        return "DLRM, all kernels"
    return {DOTS: "dot interactions", GRAPHS: "steps as CUDA graphs"}.get(family, "dense steps")


def _dense_summaries(known: DataFrame) -> dict[str, ErrorSummary]:
    """Errors with the shipped constants, and with those fitted without the family."""
    from costmodels.validation.metrics import summarize_errors

    predicted = {"shipped": known.shipped_s, "family left out": known.left_out_s}
    return {
        name: summarize_errors(s.tolist(), known.measured_s.tolist())
        for name, s in predicted.items()
    }


def _dense_errors(known: DataFrame) -> list[str]:
    return [
        f"{_percent(s.mean_error_ratio)} ({100 * s.bias_ratio:+.0f})"
        for s in _dense_summaries(known).values()
    ]


def steps(*, every: bool) -> Report:
    """Steps of one H200: the errors of each group; with ``every``, each step before them."""
    from planner.validation.h200 import HOST_ONLY, host_groups, summarize
    from planner.validation.h200 import steps as measured_steps

    found = measured_steps()
    both = {name: tuple(errors.values()) for name, errors in summarize(found).items()}
    bound = host_groups(found)
    rows = [
        (
            s.case.name,
            s.case.group,
            *_case(s.case.measured_s, s.shipped),
            _off(s.predicted[HOST_ONLY].time_s, s.case.measured_s),
        )
        for s in found
    ]
    lines = [
        f"{name:11} n {whole.count:2}   MAPE {_percent(whole.mean_error_ratio)}"
        f"   bias {100 * whole.bias_ratio:+.1f} %   {_summary(whole, 'worst', 'inside')}"
        f"   with measured kernels: MAPE {_percent(host.mean_error_ratio)}"
        f"   bias {100 * host.bias_ratio:+.1f} %"
        for name, (whole, host) in both.items()
    ]
    told = ", ".join(f"{name} {error:.2f}" for name, error in bound.items())
    table = PrintedTable(
        "Steps on one H200, wall", ("step", "group", *_CASE, "kernels measured"), rows
    )
    data = {
        "steps": [_case_data(s, group=s.case.group) for s in found],
        "groups": {
            name: _errors_data({"shipped": whole, "with measured kernels": host})
            for name, (whole, host) in both.items()
        },
        "host_groups": bound,
    }
    last = f"rms ln(predicted / measured) of host-bound steps with measured kernels: {told}"
    return Report(parts=(*([table] if every else []), *lines, last), data=data)


def memory(*, every: bool) -> Report:
    """What steps hold beside the tables, measured and by the ledger, in GB of 10^9 bytes."""
    from planner.validation.h200 import memory_errors, memory_of_steps, with_errors

    del every
    found = memory_of_steps()
    rows = [
        (
            f"{s['group']} {s['name']}",
            f"{s['tables_bytes'] / 1e9:.3f}",
            f"{(s['measured_bytes'] - s['tables_bytes']) / 1e9:.3f}",
            f"{(s['predicted_bytes'] - s['tables_bytes']) / 1e9:.3f}",
            *(f"{100 * s[name]:+.1f} %" for name in ("rest_ratio", "sum_ratio")),
        )
        for s in with_errors(found).to_dict("records")
    ]
    columns = ("step", "tables GB", "beside them: measured", "ledger", "error", "of the sum")
    errors, lines = memory_errors(found), []
    for name, e in errors.items():
        adds = f"   allocator adds {100 * (e['reserved_median_ratio'] - 1.0):.0f} %"
        lines.append(
            f"{name:16}  n {e['num_steps']:2}"
            f"   beside tables: median {_percent(e['rest_median_ratio'])}"
            f"   worst {100 * e['rest_worst_ratio']:+.1f} %"
            f"   sum short by at most {_percent(e['most_short_ratio'])}"
            f"{adds if e['reserved_median_ratio'] else ''}"
        )
    return Report(
        parts=(PrintedTable("Peak of device memory on one H200", columns, rows), *lines),
        data={"steps": found.to_dict("records"), "errors": errors},
    )


def single_gpu(*, every: bool) -> Report:
    """Iterations on one GPU: as shipped with its interval, and with models and GPUs left out."""
    from planner.validation.single_gpu import predictions

    del every
    shown = {"model left out, same GPU": "model out", "GPU left out": "GPU out"}
    found = predictions()
    rows = [
        (
            f"{p.case.model} {p.case.workload.batch_size_per_rank}",
            p.case.topology.name,
            *_case(p.case.measured_s, p.shipped),
            *(_off(p.predicted[name].time_s, p.case.measured_s) for name in shown),
        )
        for p in found
    ]
    columns = ("case", "device", *_CASE, *shown.values())
    errors = summarize(found)
    lines = _lines(errors, 26, "GMAE", "MAPE", "p90", "worst", "inside")
    cases = [_case_data(p) for p in found]
    return Report(
        parts=(PrintedTable("DLRM on one GPU, iteration time", columns, rows), *lines),
        data={"cases": cases, "errors": _errors_data(errors)},
    )


def transformers(*, every: bool) -> Report:
    """Errors of steps by model, device and precision; every case too where asked for."""
    from planner.validation import transformers as measured

    found = measured.predictions(measured.load_cases())
    others = measured.unfitted(measured.UNFITTED)
    frameworks = measured.unfitted(measured.FRAMEWORKS)
    errors = summarize(found)
    shipped = [(*_who(p.case), *_wide(p.case.measured_s, p.shipped)) for p in found]
    each = PrintedTable("Every case, as shipped", ("case", "devices", *_CASE), shipped)
    lines = _lines(errors, 26, "MAPE", "GMAE", "p90", "worst", "inside", of="rows")
    title = "Steps to which nothing is fitted, micro-batch"
    parts = (
        _by(
            "Transformers, micro-batch: mean error (bias)",
            found,
            lambda c: (c.model, c.group),
            ("model", "device"),
            {
                "shipped": AS_SHIPPED,
                **{name.replace(" left", ""): name for name in reversed(measured.LEFT_OUT)},
            },
        ),
        *([each] if every else []),
        *lines,
        *(_unfitted(title, others) if every else []),
        _by(
            title,
            others,
            lambda c: (f"{c.model}, {c.workload.dense.dtype.value}", c.topology.name),
            ("model", "system"),
        ),
        _mean_line(others),
        _by(
            "Steps of BERT in other frameworks, nothing fitted",
            frameworks,
            lambda c: (c.family,),
            ("framework",),
        ),
        _mean_line(frameworks),
    )
    cases = [_case_data(p, family=p.case.family, model=p.case.model) for p in found]
    data = {
        "unfitted": list(map(_case_data, others)),
        "frameworks": list(map(_case_data, frameworks)),
        "cases": cases,
        "errors": _errors_data(errors),
    }
    return Report(parts=parts, data=data)


def _by(
    title: str,
    found: Sequence[Prediction[Any]],
    key: Callable[[Any], tuple[str, ...]],
    columns: tuple[str, ...],
    names: Mapping[str, str] | None = None,
) -> PrintedTable:
    """Mean errors of groups of cases, and how far predictions are off in the root mean square.

    Args:
        title: of the table.
        found: the predictions.
        key: the group of a case.
        columns: the titles of the parts of a key.
        names: what predicts, by the title of its column; the last one gives the root mean square.
    """
    rows, names = [], names or {"error (bias)": AS_SHIPPED}
    for group, members in grouped(found, lambda p: key(p.case)).items():
        times = [p.case.measured_s * 1e3 for p in members]
        errors = [
            [p.predicted[name].time_s / p.case.measured_s - 1.0 for p in members]
            for name in names.values()
        ]
        spread = f"{min(times):.0f} .. {max(times):.0f}"
        inside = str(sum(p.is_inside for p in members))
        told = (*map(_biased, errors), inside, f"{_rms(errors[-1]):.3f}")
        rows.append((*group, str(len(members)), spread, *told))
    return PrintedTable(title, (*columns, "rows", "measured ms?", *names, "inside", "rms ln"), rows)


def attention(*, every: bool) -> Report:
    """Errors of kernels by device, width of heads, pass and length, and those of whole layers."""
    from costmodels.validation.metrics import summarize_errors
    from planner.validation.attention import layers, load_cases, predictions

    del every
    cases, whole = load_cases(), layers()
    found = predictions(cases)
    passes = ["backward" if c.is_backward else "forward" for c in cases]
    groups = grouped(
        range(len(cases)),
        lambda i: (
            cases[i].device.name,
            str(cases[i].width),
            passes[i],
            f"to {_SHORT}" if cases[i].positions <= _SHORT else f"above {_SHORT}",
        ),
    )
    rows = [
        (
            *key,
            str(len(members)),
            *(
                _biased([times[i] / cases[i].measured_s - 1.0 for i in members])
                for times in found.values()
            ),
        )
        for key, members in sorted(groups.items())
    ]
    columns = ("device", "head", "pass", "positions", "rows", "shipped", "head out", "device out")
    measured = [c.measured_s for c in cases]
    errors = {name: summarize_errors(times, measured) for name, times in found.items()}
    lines = _lines(errors, 26, "MAPE", "p90", "worst", of="rows")
    title = "Layers of HSTU, forward and backward; nothing is fitted to them"
    return Report(
        parts=(
            PrintedTable("Kernels of pointwise attention: mean error (bias)", columns, rows),
            *lines,
            *_unfitted(title, whole),
        ),
        data={
            "cases": [
                {
                    **{k: v for k, v in asdict(c).items() if k != "device"},
                    "device": c.device.name,
                    "predicted_s": {name: float(times[i]) for name, times in found.items()},
                }
                for i, c in enumerate(cases)
            ],
            "layers": list(map(_case_data, whole)),
            "errors": _errors_data(errors),
        },
    )


KINDS: Final[Mapping[str, Callable[..., Report]]] = {
    "systems": systems,
    "lookups": lookups,
    "dense": dense,
    "steps": steps,
    "memory": memory,
    "single-gpu": single_gpu,
    "transformers": transformers,
    "attention": attention,
}
"""The kinds of ``validate published --what``; ``every`` asks for a line of each case."""


def intervals(runs: Path | None) -> Report:
    """How many held-out measurements are inside their intervals, and pairs of plans."""
    from planner.validation.intervals import coverages, published_pairs

    found, pairs = coverages(runs), published_pairs()
    held = [
        (
            c.family,
            str(c.rows),
            _percent(c.coverage_ratio, 0),
            _percent(c.width_ratio, 0),
            _verdict(c),
        )
        for c in found
    ]
    compared = [
        (
            p.first,
            p.second,
            f"{p.measured_ratio:.3f}",
            f"{p.predicted_ratio:.3f}",
            f"{100 * p.error_ratio:+.1f} %",
        )
        for p in pairs
    ]
    columns = ("measurements never fitted", "rows", "inside", "median width", "80 to 97 %")
    of_pairs = ("plan of", "against plan of", "measured ratio", "predicted", "error")
    return Report(
        parts=(
            PrintedTable("Coverage of 90 % intervals", columns, held),
            PrintedTable("Two plans on one system", of_pairs, compared),
        ),
        data={
            "families": [{**asdict(c), "coverage_ok": c.coverage_ok} for c in found],
            "pairs": [{**asdict(p), "error_ratio": p.error_ratio} for p in pairs],
        },
    )


def _verdict(coverage: Coverage) -> str:
    if not coverage.coverage_ok:
        return "no"
    low_or_high = not 0.80 <= coverage.coverage_ratio <= 0.97
    return f"too few to tell (p = {coverage.chance_ratio:.2f})" if low_or_high else "yes"


def _unfitted(title: str, found: Sequence[Prediction[Any]]) -> tuple[PrintedTable, str]:
    """Cases to which nothing is fitted, and the mean of their errors."""
    rows = [(*_who(p.case), *_case(p.case.measured_s, p.shipped)) for p in found]
    return PrintedTable(title, ("case", "devices", *_CASE), rows), _mean_line(found)


def _case_data(p: Prediction[Any], **more: object) -> dict[str, object]:
    """A case with its prediction and, by name, the times by other constants and models."""
    others = {name: e.time_s for name, e in p.predicted.items() if e is not p.shipped}
    return {
        "case": p.case.name,
        "system": p.case.topology.name,
        "world_size": p.case.topology.world_size,
        "measured_s": p.case.measured_s,
        **_times(p.shipped),
        "error_ratio": p.error_ratio,
        **({"others_s": others} if others else {}),
        **more,
        "source": p.case.reference,
    }


def _mean_line(found: Sequence[Prediction[Any]]) -> str:
    mean = float(np.mean([abs(p.error_ratio) for p in found]))
    width = float(np.median([p.shipped.high_s / p.shipped.low_s for p in found]))
    return (
        f"MAPE {_percent(mean)}   inside {sum(p.is_inside for p in found)} of {len(found)}"
        f"   median interval: high = {width:.2f} low"
    )


def _who(case: Any) -> tuple[str, str]:
    return case.name, f"{case.topology.world_size} x {case.topology.name}"


def _case(measured_s: float, found: Estimate, digits: int = 2) -> tuple[str, ...]:
    """Measured and predicted milliseconds, the interval, and the error."""
    low, high = (f"{1e3 * s:.{digits}f}" for s in (found.low_s, found.high_s))
    times = (f"{1e3 * s:.{digits}f}" for s in (measured_s, found.time_s))
    return (*times, f"{low} .. {high}", _off(found.time_s, measured_s))


def _wide(measured_s: float, found: Estimate) -> tuple[str, ...]:
    """The same of times of many milliseconds, whose intervals need no digits."""
    *times, _, error = _case(measured_s, found, 1)
    return (*times, f"{1e3 * found.low_s:.0f} .. {1e3 * found.high_s:.0f}", error)


def _off(predicted_s: float, measured_s: float) -> str:
    return f"{100 * (predicted_s / measured_s - 1):+.1f} %"


def _percent(ratio: float, digits: int = 1) -> str:
    return f"{100 * ratio:.{digits}f} %"


def _biased(errors: Sequence[float]) -> str:
    """Mean error without and, in brackets, with signs."""
    return f"{100 * np.mean(np.abs(errors)):.1f} % ({100 * np.mean(errors):+.0f})"


def _rms(errors: Sequence[float]) -> float:
    """Root mean square of ln(predicted / measured)."""
    return float(np.sqrt(np.mean(np.square(np.log1p(errors)))))


def _summary(s: ErrorSummary, *names: str) -> str:
    """Some of the measures of an error, and the share inside intervals where there are any."""
    told = [f"{name} {_percent(getattr(s, _MEASURES[name]))}" for name in names if name != "inside"]
    if "inside" in names and not math.isnan(s.coverage_ratio):
        told.append(f"inside {_percent(s.coverage_ratio, 0)}")
    return "   ".join(told)


def _lines(
    errors: Mapping[str, ErrorSummary], width: int, *measures: str, of: str = ""
) -> list[str]:
    """A line of measures for each way of predicting, with the number of cases."""
    return [
        f"{name:{width}}  {_summary(s, *measures)}" + (f"   over {s.count} {of}" if of else "")
        for name, s in errors.items()
    ]


def _times(found: Estimate) -> dict[str, float]:
    return {"predicted_s": found.time_s, "low_s": found.low_s, "high_s": found.high_s}


def _plain(errors: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: asdict(s) for name, s in errors.items()}


def _errors_data(errors: Mapping[str, ErrorSummary]) -> dict[str, Any]:
    """Errors as data, without the share inside intervals where there are none."""
    return {name: {k: v for k, v in row.items() if v == v} for name, row in _plain(errors).items()}
