"""A case, its optimum and the planner's answers as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass

from costmodels.sharding import Plan, TablePlacement
from costmodels.units import format_bytes
from planner.errors import PlannerError
from planner.problem import NO_CONSTRAINTS
from tests.differential.asking import Answer
from tests.differential.case import Case
from tests.differential.check import Verdict


def verdict_text(verdict: Verdict) -> str:
    """Everything about one case."""
    case, optimum = verdict.case, verdict.optimum
    lines = [case.name, *_case_lines(case), ""]
    lines.append(
        f"plans that keep the rules: {optimum.num_allowed}, of them fit: {optimum.num_fitting}"
    )
    lines.append(f"{'optimum' if optimum.is_exact else 'best known'} {optimum.value:.9g}")
    if optimum.plan is not None:
        lines += _plan_lines(optimum.plan)
    for answer in verdict.answers:
        lines += ["", *_answer_lines(answer)]
        lines += [f"  FAULT {f.kind}: {f.text}" for f in verdict.faults if f.run is answer.run]
    if verdict.wide is not None:
        lines += ["", f"wide menu: optimum {verdict.wide.value:.9g}"]
        if verdict.wide.plan is not None and verdict.wide.value < optimum.value:
            lines += _plan_lines(verdict.wide.plan)
        lines += [f"  {fault}" for fault in verdict.wide_faults()]
    return "\n".join(lines)


def _case_lines(case: Case) -> Iterator[str]:
    w, t = case.workload, case.topology
    yield (
        f"{case.objective} on {t.name}, {t.num_hosts} x {t.local_world_size} ranks, pipeline "
        f"{w.pipeline}, batch {w.batch_size_per_rank}, optimizer {w.optimizer}, outputs "
        f"{w.output_dtype}, cuda_graph {w.cuda_graph}, dense {w.dense if w.dense.top_mlp else None}"
    )
    device = ", ".join(map(format_bytes, t.hbm_capacities()))
    host = ", ".join(map(format_bytes, t.ddr_capacities()))
    yield f"devices {device}; hosts {host}; speeds {t.speeds().tolist()}"
    yield (
        f"overlap slow-down {t.device.overlap_slowdown_ratio}, launch {t.host.eager_call_s}, "
        f"reserved {format_bytes(w.reserved_bytes)}, input rate {w.input_samples_per_s}"
    )
    for workload in (w, *case.scenarios):
        if workload is not w:
            yield f"scenario {workload.name} ({case.robust}), batch {workload.batch_size_per_rank}"
        for table in workload.tables:
            poolings = ", ".join(f"{f.pooling_factor:g}" for f in table.features)
            law = table.distribution
            yield (
                f"  {table.name}: {table.num_embeddings} x {table.embedding_dim} {table.dtype}, "
                f"pooling {poolings} ({table.pooling}), weighted {table.is_weighted}, "
                f"{type(law).__name__} {'scattered' if law.scattered else 'in order'}, "
                f"module {table.module}"
            )
    for field in fields(case.constraints):
        value = getattr(case.constraints, field.name)
        if value != getattr(NO_CONSTRAINTS, field.name):
            yield f"constraints, {field.name}: {_plain(value)}"
    if case.moves is not None:
        yield f"at most {case.moves.max_bytes} bytes, {case.moves.max_tables} tables move from"
        yield from _plan_lines(case.moves.start)


def _answer_lines(answer: Answer) -> Iterator[str]:
    yield f"{answer.run} ({answer.seconds:.2f} s, {answer.evaluations} evaluations)"
    if answer.error is not None:
        yield f"  {answer.text}"
        if not isinstance(answer.error, PlannerError):
            yield from answer.trace.splitlines()
        return
    called = ", called optimal" if answer.is_optimal else ""
    yield f"  value {answer.value:.9g}, bound {answer.bound}{called}"
    if answer.plan is not None:
        yield from _plan_lines(answer.plan)


def _plain(value: object) -> str:
    """A value of the constraints, with enums by their values and without defaults."""
    if isinstance(value, tuple):
        return "[" + ", ".join(_plain(v) for v in value) + "]"
    if is_dataclass(value):
        given = {f.name: getattr(value, f.name) for f in fields(value)}
        shown = {f.name: given[f.name] for f in fields(value) if given[f.name] != f.default}
        return "{" + ", ".join(f"{k}: {_plain(v)}" for k, v in shown.items()) + "}"
    return str(value)


def _plan_lines(plan: Plan) -> Iterator[str]:
    for p in plan.placements:
        yield f"    {p.table}: {p.sharding_type} {p.kernel}{_factor(p)} {_shards(p)}"


def _factor(placement: TablePlacement) -> str:
    ratio = placement.cache_load_factor_ratio
    return "" if ratio is None else f" {ratio:g}"


def _shards(placement: TablePlacement) -> str:
    return " ".join(
        f"{s.rank}:{s.row_offset}+{s.num_rows}x{s.col_offset}+{s.num_cols}"
        for s in placement.shards
    )
