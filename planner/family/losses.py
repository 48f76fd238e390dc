"""What a lost host takes from a plan, and how the plan looks without that host.

When a host is lost, each host that is left gets a *seat*: a host number in the plan for one host
fewer. Seats are chosen so that as many bytes as possible are already where that plan wants them.
Shards that only the lost host had come from the checkpoint; all others come from ranks that have
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.sharding import (
    Plan,
    ShardingOption,
    ShardingType,
    Shards,
    Spread,
    TablePlacement,
    place,
)
from costmodels.topology import Topology
from costmodels.workload import Table, Workload
from planner.options.recognise import option_of
from planner.problem import MoveLimit
from planner.replan import transfer_s
from planner.result import HostLoss
from planner.rules.moved_bytes import cell_bytes, overlaps, received_bytes, rectangles


def host_losses(
    before: Plan, after: Plan, workload: Workload, smaller: Topology, restore_bytes_per_s: float
) -> tuple[HostLoss, ...]:
    """The bytes and seconds that the loss of each host takes.

    Args:
        before: the plan before the loss, on one host more than ``smaller`` has.
        after: the plan after the loss, on ``smaller``.
        workload: tables and optimizer.
        smaller: the system that is left.
        restore_bytes_per_s: rate from the checkpoint to one rank.
    """
    from scipy.optimize import linear_sum_assignment

    local, hosts = smaller.local_world_size, smaller.num_hosts + 1
    both = shared_bytes(before, after, workload, smaller.world_size + local, smaller.world_size)
    stays = np.einsum("alel->ae", both.reshape(hosts, local, hosts - 1, local))
    found = []
    for lost in range(hosts):
        left = np.delete(np.arange(hosts), lost)
        who, seat = linear_sum_assignment(stays[left], maximize=True)
        seats = left[who[np.argsort(seat)]]
        ranks = (seats[:, None] * local + np.arange(local)).ravel()
        restored = both[lost * local : (lost + 1) * local].sum(axis=0)
        flows = both[ranks]
        np.fill_diagonal(flows, 0.0)
        time_s = float(restored.max()) / restore_bytes_per_s + transfer_s(flows, smaller)
        found.append(
            HostLoss(
                lost_host=lost,
                seats=tuple(seats.tolist()),
                restored_bytes=float(restored.sum()),
                moved_bytes=float(flows.sum()),
                time_s=time_s,
            )
        )
    return tuple(found)


def shared_bytes(
    before: Plan, after: Plan, workload: Workload, num_before: int, num_after: int
) -> FloatArray:
    """``[num_before, num_after]`` bytes that a rank of ``before`` shares with one of ``after``.

    Tables that every rank held whole are left out, because no rank has to receive them.
    """
    both = np.zeros((num_before, num_after))
    for table in workload.tables:
        old, new = before.placement(table.name), after.placement(table.name)
        if old.sharding_type is ShardingType.DATA_PARALLEL:
            continue
        cells = overlaps(rectangles(old.shards), rectangles(new.shards))
        where = np.array(old.ranks, dtype=np.int64)[:, None], np.array(new.ranks, dtype=np.int64)
        np.add.at(both, where, cells * cell_bytes(table, workload))
    return both


def after_a_loss(plan: Plan, workload: Workload, smaller: Topology) -> MoveLimit | None:
    """The plan to start from when the host with the fewest bytes is lost.

    The shards of that host are put on the ranks with the fewest bytes; ``max_bytes`` of the result
    is what these ranks receive. None if a table is cut in a way that fewer hosts do not allow.

    Args:
        plan: a plan on one host more than ``smaller`` has.
        workload: tables and optimizer.
        smaller: the system that is left.
    """
    local, world = smaller.local_world_size, smaller.world_size
    shards = {t.name: _shard_bytes(plan.placement(t.name), t, workload) for t in workload.tables}
    bytes_by_rank = np.zeros(world + local)
    for name, sizes in shards.items():
        if plan.placement(name).sharding_type is not ShardingType.DATA_PARALLEL:
            np.add.at(bytes_by_rank, plan.placement(name).cells.rank, sizes)
    lost = int(np.argmin(bytes_by_rank.reshape(-1, local).sum(axis=1)))
    loads = np.delete(bytes_by_rank, np.arange(lost * local, (lost + 1) * local))
    held, start = [], []
    for table in sorted(workload.tables, key=lambda t: -t.weight_bytes):
        before = plan.placement(table.name)
        option = option_of(before, table, world_size=world + local, local_world_size=local)
        if option is None:
            return None
        places = _places(option, before, lost, loads, shards[table.name], local)
        if places is None:
            return None
        held.append(_left_of(before, lost, local))
        start.append(
            place(
                option,
                table.num_embeddings,
                places,
                world_size=world,
                local_world_size=local,
            )
        )
    there, then = Plan(placements=tuple(held)), Plan(placements=tuple(start))
    forced = sum(
        received_bytes(there.placement(t.name), then.placement(t.name), t, workload)
        for t in workload.tables
    )
    return MoveLimit(start=then, held=there, max_bytes=forced)


def _places(
    option: ShardingOption,
    before: TablePlacement,
    lost: int,
    loads: FloatArray,
    bytes_of: FloatArray,
    local: int,
) -> tuple[int, ...] | None:
    """Places of an option's pieces: the old ones, or the emptiest for pieces of the lost host.

    The bytes of the pieces that change places are added to ``loads``, the bytes on each rank. None
    if some piece has no place where TorchRec can run it.
    """
    if option.is_uniform:
        return ()
    step = local if option.spread is Spread.HOSTS else 1
    lost_places = range(lost * local // step, (lost + 1) * local // step)
    old = [rank // step for rank in before.ranks[::step]]
    shift = len(lost_places)
    places = [None if p in lost_places else p - shift * (p >= lost_places.stop) for p in old]
    sizes = loads.reshape(-1, step)  # a view of ``loads``, so that additions below change both
    for piece in [i for i, p in enumerate(places) if p is None]:
        order = np.argsort(sizes.sum(axis=1), kind="stable").tolist()
        fits = (p for p in order if _may_join(option, places, piece, p, local))
        spot = next(fits, None)
        if spot is None:
            return None
        places[piece] = spot
        sizes[spot] += bytes_of[piece * step : (piece + 1) * step].sum() / step
    return tuple(p for p in places if p is not None)


def _may_join(
    option: ShardingOption, places: Sequence[int | None], piece: int, at: int, local: int
) -> bool:
    """Whether TorchRec can run a piece at ``at`` beside the pieces that have their places."""
    widths = option.column_widths
    placed = [(p, w) for p, w in zip(places, widths, strict=True) if p is not None]
    ranks = [*(p for p, _ in placed), at]
    some = replace(option, column_widths=(*(w for _, w in placed), widths[piece]))
    apart = not option.keeps_pieces_apart or all(p != at or w == widths[piece] for p, w in placed)
    return apart and some.may_be_at(ranks, local)


def _left_of(placement: TablePlacement, lost: int, local: int) -> TablePlacement:
    """The shards on the hosts that are left, with their ranks renumbered."""
    cells = placement.cells
    host = cells.rank // local
    left = host != lost
    return replace(
        placement,
        shards=Shards(
            rank=(cells.rank - local * (host > lost))[left],
            row_offset=cells.row_offset[left],
            num_rows=cells.num_rows[left],
            col_offset=cells.col_offset[left],
            num_cols=cells.num_cols[left],
        ),
    )


def _shard_bytes(placement: TablePlacement, table: Table, workload: Workload) -> FloatArray:
    cells = placement.cells
    sizes = cells.num_rows.astype(float) * cells.num_cols
    return np.asarray(sizes * cell_bytes(table, workload))
