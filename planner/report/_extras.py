"""Lines of the summary that only some results have: price, move, scenarios."""

from __future__ import annotations

from costmodels import units
from costmodels.topology import Topology
from planner.report.base import Fact, format_share
from planner.result import PlanningResult
from planner.support.text import counted, printable, significant

_MOST_SCENARIOS = 5


def cost(result: PlanningResult) -> Fact:
    """Dollars per billion samples, and the source of the price."""
    usd, topology = result.usd_per_billion_samples, result.problem.topology
    price = topology.price_per_device_usd_per_hour
    if usd is None or price is None:
        return Fact(label="Cost", parts=())
    origin = next((p for p in topology.provenance if p.name == "price"), None)
    words = [] if origin is None else [origin.source.value, origin.reference]
    source = f" ({', '.join(w for w in words if w)})" if any(words) else ""
    parts = (
        f"{significant(usd)} USD per billion samples",
        printable(f"{_devices(topology)} at {significant(price, 6)} USD/h{source}"),
    )
    return Fact(label="Cost", parts=parts)


def checkpoints(result: PlanningResult) -> Fact:
    """How often to write checkpoints, by Young and Daly, where hosts fail."""
    every_s = result.checkpoint_interval_s
    parts = () if every_s is None else (f"every {units.format_long_time(every_s)}",)
    return Fact(label="Checkpoints", parts=parts)


def _devices(topology: Topology) -> str:
    """How many devices are paid for: ``16 GPUs``, ``1 GPU``, ``4 CPU ranks``."""
    kind = "GPU" if topology.compute_device == "cuda" else "CPU rank"
    return counted(topology.trainers.world_size, kind)


def move(result: PlanningResult) -> Fact:
    """What moves away from the plan in use, how long that takes, and when it pays back."""
    reshard = result.reshard
    if reshard is None:
        return Fact(label="Move", parts=())
    if not reshard.moved_tables and not reshard.recut_tables:
        return Fact(label="Move", parts=("none: stay with the plan in use, no move pays",))
    tables = f"{reshard.moved_tables} of {len(result.problem.workload.tables)} tables"
    recut = (
        [f"{reshard.recut_tables} more change in place: no rank receives any of them"]
        if reshard.recut_tables
        else []
    )
    parts = [
        f"{tables}, {units.format_bytes(reshard.moved_bytes)}, at most "
        f"{units.format_bytes(reshard.most_received_bytes)} to one rank",
        *recut,
        f"{units.format_time(reshard.time_s)} once",
    ]
    if reshard.payback_iterations is None:
        parts.append("not faster than the plan in use")
    else:
        gain = format_share(reshard.saved_s / reshard.before_s) if reshard.before_s > 0 else "-"
        verdict = "it pays" if reshard.pays else "it does not pay"
        parts.append(
            f"saves {gain} of each iteration: {verdict}, paid back after "
            f"{reshard.payback_iterations:,} iterations"
        )
    return Fact(label="Move", parts=tuple(parts))


def scenarios(result: PlanningResult) -> Fact:
    """The iteration time in each scenario, slowest first, and what the other lines refer to."""
    ordered = sorted(result.scenarios, key=lambda s: (-s.time_s, s.name))
    shown = [f"{printable(s.name)} {units.format_time(s.time_s)}" for s in ordered]
    if len(shown) > _MOST_SCENARIOS:
        shown = [*shown[:_MOST_SCENARIOS], f"and {len(shown) - _MOST_SCENARIOS} faster ones"]
    if shown:
        first = printable(result.scenarios[0].name)
        shown.append(f"speed-up, bottleneck and cost are about {first}; memory holds all of them")
    return Fact(label="Scenarios", parts=tuple(shown))
