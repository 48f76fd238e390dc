"""What ``shardplan validate published`` and ``validate intervals`` report, kind by kind.

Each kind of measurements is one function, which predicts them and returns a :class:`Report`: tables
and lines for the terminal, and the same numbers as data for ``--json``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import numpy as np

from planner.cli.console import Settings, say, write_json
from planner.cli.printing.show import print_rows
from planner.validation.cases import AS_SHIPPED

if TYPE_CHECKING:
    from costmodels.estimates import Estimate
    from costmodels.validation.metrics import ErrorSummary
    from planner.validation.cases import Prediction
    from planner.validation.dense_kernels import DensePrediction
    from planner.validation.intervals import Coverage

Item = TypeVar("Item")
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


class Table(NamedTuple):
    """A table of texts; a title that ends in ``?`` is of a column that a narrow terminal omits."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def _of(title: str, items: Iterable[Item], cells: Mapping[str, Callable[[Item], str]]) -> Table:
    """A table with a row for each item; under each title stands what makes its cell."""
    return Table(title, tuple(cells), [tuple(f(item) for f in cells.values()) for item in items])


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Tables and lines in the order in which they are printed, and the same as data."""

    parts: Sequence[Table | str]
    data: dict[str, Any]

    def show(self, settings: Settings) -> None:
        """Print the parts, or the data with ``--json``."""
        if settings.json:
            write_json(self.data)
            return
        for part in self.parts:
            if isinstance(part, Table):
                print_rows(*part)
            else:
                say(part)


def systems(*, every: bool) -> Report:
    """Each MLPerf system with the errors of both models, and a summary of them."""
    from planner.validation.cases import summarize
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
    lines = [
        f"{name:9}  {_summary(s, 'MAPE', 'p90', 'geomean', 'worst')}   over {s.count} systems"
        for name, s in errors.items()
    ]
    cases = [_case_data(p, plan_source=p.case.plan_source) for p in found]
    table = Table("MLPerf DLRM-DCNv2, iteration time", columns, rows)
    return Report(parts=(table, *lines), data={"cases": cases, **_errors_data(errors)})


def lookups(*, every: bool) -> Report:
    """Errors of FBGEMM's lookups, one table for each way of leaving calls out."""
    from planner.validation.lookups import errors

    del every
    found = errors()
    tables = [
        _of(
            f"FBGEMM's lookups: {way}",
            group,
            {
                "calls": lambda e: e.block,
                "direction": lambda e: e.direction,
                "n": lambda e: str(e.num_points),
                "MAPE": lambda e: _percent(e.mape_ratio),
                "worst": lambda e: _percent(e.worst_ratio, 0),
                "inside 90 %": lambda e: _percent(e.coverage_ratio, 0),
            },
        )
        for way, group in _grouped(found, lambda e: e.way).items()
    ]
    return Report(parts=tables, data={"errors": [asdict(e) for e in found]})


def dense(*, every: bool) -> Report:
    """GPU times of dense parts: errors of each family and group, and the published steps."""
    from planner.validation.dense_kernels import predictions, published_steps

    found, steps = predictions(), published_steps()
    cases = [
        (p.point.name, *(f"{1e6 * s:.1f}" for s in (p.point.measured_s, p.shipped_s, p.left_out_s)))
        for p in found
    ]
    named = ("measurement", "measured us", "shipped", "family left out")
    groups = _grouped(found, _dense_group)
    lines = []
    for name, group in groups.items():
        shipped, left_out = _dense_errors(group)
        inside = sum(p.is_inside() for p in group)
        lines.append(
            f"{name:24} shipped {shipped}   family left out {left_out}   "
            f"inside {inside} of {len(group)}"
        )
    published = [
        (s.name, *_case(s.measured_s, s.predicted, 1), f"{1e3 * s.eager_s:.1f}") for s in steps
    ]
    parts: tuple[Table | str, ...] = (
        *([Table("GPU times of dense parts", named, cases)] if every else []),
        _by_family(found),
        *lines,
        Table(
            "65,536 samples on one A100, nothing fitted",
            ("NVIDIA's DLRM", *_CASE, "if eager"),
            published,
        ),
    )
    data = {
        "cases": [
            {"case": p.point.name, "is_inside": p.is_inside()}
            | {k: v for k, v in asdict(p.point).items() if k in ("family", "measured_s")}
            | {"shipped_s": p.shipped_s, "left_out_s": p.left_out_s}
            for p in found
        ],
        "errors": {
            name: _errors_data(dict(zip(("shipped", "family left out"), both, strict=True)))
            for name, both in ((n, _dense_summaries(group)) for n, group in groups.items())
        },
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


def _by_family(found: Sequence[DensePrediction]) -> Table:
    """The errors of each family, and their root mean square with the family left out."""
    rows = []
    for family, known in _grouped(found, lambda p: p.point.family).items():
        rms = math.sqrt(
            sum(math.log(p.left_out_s / p.point.measured_s) ** 2 for p in known) / len(known)
        )
        rows.append((family, str(len(known)), *_dense_errors(known), f"{rms:.3f}"))
    families = ("family", "n", "shipped (bias)", "family left out (bias)", "rms ln")
    return Table("GPU times on H200 and H100: mean error", families, rows)


def _dense_group(p: DensePrediction) -> str:
    """How the family of a measurement is counted: most are dense steps."""
    from planner.validation.dense_kernels import DLRM, DOTS, GRAPHS

    if p.point.family.startswith(DLRM):
        return "DLRM, all kernels"
    return {DOTS: "dot interactions", GRAPHS: "steps as CUDA graphs"}.get(
        p.point.family, "dense steps"
    )


def _dense_summaries(known: Sequence[DensePrediction]) -> tuple[ErrorSummary, ErrorSummary]:
    """Errors with the shipped constants, and with those fitted without the family."""
    from costmodels.validation.metrics import summarize_errors

    measured = [p.point.measured_s for p in known]
    return (
        summarize_errors([p.shipped_s for p in known], measured),
        summarize_errors([p.left_out_s for p in known], measured),
    )


def _dense_errors(known: Sequence[DensePrediction]) -> list[str]:
    return [
        f"{_percent(s.mean_error_ratio)} ({100 * s.bias_ratio:+.0f})"
        for s in _dense_summaries(known)
    ]


def steps(*, every: bool) -> Report:
    """Steps of one H200: the errors of each group; with ``every``, each step before them."""
    from planner.validation.gpu_steps import HOST_ONLY, host_groups, summarize
    from planner.validation.gpu_steps import steps as measured_steps

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
    table = Table("Steps on one H200, wall", ("step", "group", *_CASE, "kernels measured"), rows)
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
    from planner.validation.memory import load_steps, summarize

    del every
    found = load_steps()
    table = _of(
        "Peak of device memory on one H200",
        found,
        {
            "step": lambda s: f"{s.group} {s.name}",
            "tables GB": lambda s: f"{s.tables_bytes / 1e9:.3f}",
            "beside them: measured": lambda s: f"{(s.measured_bytes - s.tables_bytes) / 1e9:.3f}",
            "ledger": lambda s: f"{(s.predicted_bytes - s.tables_bytes) / 1e9:.3f}",
            "error": lambda s: f"{100 * s.rest_error_ratio:+.1f} %",
            "of the sum": lambda s: f"{100 * s.error_ratio:+.1f} %",
        },
    )
    errors, lines = summarize(found), []
    for name, e in errors.items():
        adds = f"   allocator adds {100 * (e.reserved_median_ratio - 1.0):.0f} %"
        lines.append(
            f"{name:16}  n {e.num_steps:2}"
            f"   beside tables: median {_percent(e.rest_median_ratio)}"
            f"   worst {100 * e.rest_worst_ratio:+.1f} %"
            f"   sum short by at most {_percent(e.most_short_ratio)}"
            f"{adds if e.reserved_median_ratio else ''}"
        )
    return Report(
        parts=(table, *lines), data={"steps": [asdict(s) for s in found], "errors": _plain(errors)}
    )


def single_gpu(*, every: bool) -> Report:
    """Iterations on one GPU: as shipped with its interval, and with models and GPUs left out."""
    from planner.validation.cases import summarize
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
    lines = [
        f"{name:26}  {_summary(s, 'GMAE', 'MAPE', 'p90', 'worst', 'inside')}"
        for name, s in errors.items()
    ]
    cases = [_case_data(p) for p in found]
    return Report(
        parts=(Table("DLRM on one GPU, iteration time", columns, rows), *lines),
        data={"cases": cases, "errors": _errors_data(errors)},
    )


def transformers(*, every: bool) -> Report:
    """Errors of steps by model, device and precision; every case too where asked for."""
    from planner.validation import transformers as measured
    from planner.validation.cases import summarize

    found = measured.predictions(measured.load_cases())
    others = measured.unfitted(measured.UNFITTED)
    frameworks = measured.unfitted(measured.FRAMEWORKS)
    errors = summarize(found)
    shipped = [(*_who(p.case), *_wide(p.case.measured_s, p.shipped)) for p in found]
    each = Table("Every case, as shipped", ("case", "devices", *_CASE), shipped)
    lines = [
        f"{name:26}  {_summary(s, 'MAPE', 'GMAE', 'p90', 'worst', 'inside')}   over {s.count} rows"
        for name, s in errors.items()
    ]
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
) -> Table:
    """Mean errors of groups of cases, and how far predictions are off in the root mean square.

    Args:
        title: of the table.
        found: the predictions.
        key: the group of a case.
        columns: the titles of the parts of a key.
        names: what predicts, by the title of its column; the last one gives the root mean square.
    """
    rows, names = [], names or {"error (bias)": AS_SHIPPED}
    for group, members in _grouped(found, lambda p: key(p.case)).items():
        times = [p.case.measured_s * 1e3 for p in members]
        errors = [
            [p.predicted[name].time_s / p.case.measured_s - 1.0 for p in members]
            for name in names.values()
        ]
        spread = f"{min(times):.0f} .. {max(times):.0f}"
        inside = str(sum(p.is_inside for p in members))
        told = (*map(_biased, errors), inside, f"{_rms(errors[-1]):.3f}")
        rows.append((*group, str(len(members)), spread, *told))
    return Table(title, (*columns, "rows", "measured ms?", *names, "inside", "rms ln"), rows)


def attention(*, every: bool) -> Report:
    """Errors of kernels by device, width of heads, pass and length, and those of whole layers."""
    from planner.validation.attention import layers, load_cases, predictions, summarize

    del every
    cases, whole = load_cases(), layers()
    found = predictions(cases)
    passes = ["backward" if c.is_backward else "forward" for c in cases]
    groups = _grouped(
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
    errors = summarize(cases, found)
    lines = [
        f"{name:26}  {_summary(s, 'MAPE', 'p90', 'worst')}   over {s.count} rows"
        for name, s in errors.items()
    ]
    title = "Layers of HSTU, forward and backward; nothing is fitted to them"
    return Report(
        parts=(
            Table("Kernels of pointwise attention: mean error (bias)", columns, rows),
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
    held = _of(
        "Coverage of 90 % intervals",
        found,
        {
            "measurements never fitted": lambda c: c.family,
            "rows": lambda c: str(c.rows),
            "inside": lambda c: _percent(c.coverage_ratio, 0),
            "median width": lambda c: _percent(c.width_ratio, 0),
            "80 to 97 %": _verdict,
        },
    )
    compared = _of(
        "Two plans on one system",
        pairs,
        {
            "plan of": lambda p: p.first,
            "against plan of": lambda p: p.second,
            "measured ratio": lambda p: f"{p.measured_ratio:.3f}",
            "predicted": lambda p: f"{p.predicted_ratio:.3f}",
            "error": lambda p: f"{100 * p.error_ratio:+.1f} %",
        },
    )
    return Report(
        parts=(held, compared),
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


def _unfitted(title: str, found: Sequence[Prediction[Any]]) -> tuple[Table, str]:
    """Cases to which nothing is fitted, and the mean of their errors."""
    rows = [(*_who(p.case), *_case(p.case.measured_s, p.shipped)) for p in found]
    return Table(title, ("case", "devices", *_CASE), rows), _mean_line(found)


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


def _grouped(items: Iterable[Item], key: Callable[[Item], Any]) -> dict[Any, list[Item]]:
    """The items by a key, in the order in which keys are met."""
    groups: dict[Hashable, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


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


def _times(found: Estimate) -> dict[str, float]:
    return {"predicted_s": found.time_s, "low_s": found.low_s, "high_s": found.high_s}


def _plain(errors: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: asdict(s) for name, s in errors.items()}


def _errors_data(errors: Mapping[str, ErrorSummary]) -> dict[str, Any]:
    """Errors as data, without the share inside intervals where there are none."""
    return {name: {k: v for k, v in row.items() if v == v} for name, row in _plain(errors).items()}
