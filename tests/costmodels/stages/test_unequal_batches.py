"""Exchanges among ranks with unequal batches, pair by pair of ranks.

The stand-in for collectives has a price for a byte of each direction on each level of links, so
that no two bytes can change places unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
import pytest

from costmodels.collective.base import AbstractCollectiveModel
from costmodels.datatypes import FloatArray
from costmodels.measured.curves import Collective
from costmodels.shard_work.work import EXCHANGING_TYPES, INPUT, NUM_COLUMNS, OUTPUT, call_column
from costmodels.sharding import ComputeKernel, ShardingType
from costmodels.stages.models import CostModels
from costmodels.stages.stage_model import StageModel
from costmodels.topology import Topology
from costmodels.uncertainty import Scale
from tests.costmodels.stages.stand_ins import TWO_STEPS, Given, Weighted, level_of, system
from tests.strategies import make_table, make_workload

SENT = np.array([2.0, 3.0, 5.0]) * 1e-9
RECEIVED = np.array([7.0, 11.0, 13.0]) * 1e-9
"""Seconds of a byte on each level of links."""
INSIDE, EVERYWHERE = 17e-9, 19e-9
"""Seconds of a byte of a reduce-scatter, within a host and over all ranks."""
EMPTY_S = 1.0
"""Seconds of an all-to-all without bytes."""


@final
@dataclass(frozen=True, slots=True)
class Priced(AbstractCollectiveModel):
    """Adds up all bytes, each at its price."""

    def fixed_s(self, topology: Topology, *, ranks: int, across_hosts: bool) -> float:
        """The same for all exchanges."""
        return EMPTY_S

    def buffer_s(
        self, kind: Collective, num_bytes: FloatArray, topology: Topology, *, within_host: bool
    ) -> FloatArray:
        """The growing part alone."""
        times = 2.0 if kind is Collective.ALL_REDUCE else 1.0
        return times * self.reduce_scatter(num_bytes, topology, within_host=within_host)

    def all_to_all(self, send: FloatArray, receive: FloatArray, topology: Topology) -> FloatArray:
        """Both directions add up."""
        return np.asarray(send @ SENT + receive @ RECEIVED)

    def reduce_scatter(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool
    ) -> FloatArray:
        """By the bytes of the whole buffer."""
        return num_bytes * (INSIDE if within_host else EVERYWHERE)


def pair_by_pair_s(
    topology: Topology, sends: Callable[[int, int], float], *, lanes: bool = False
) -> list[float]:
    """Seconds of each rank; in lanes only ranks of the same position in their hosts exchange."""
    local = topology.local_world_size
    found = []
    for one in range(topology.world_size):
        seconds = 0.0
        for other in range(topology.world_size):
            if one == other or (lanes and one % local != other % local):
                continue
            level = level_of(topology, one, other)
            seconds += SENT[level] * sends(one, other) + RECEIVED[level] * sends(other, one)
        found.append(seconds)
    return found


def drawn(shape: tuple[int, int, int], seed: int) -> tuple[StageModel, FloatArray, FloatArray]:
    """A stage model, work of all sharding types on all ranks, and batches over their mean."""
    rng = np.random.default_rng(seed)
    topology = system(shape)
    shares = rng.uniform(0.5, 2.0, topology.world_size)
    workload = make_workload(make_table(), batch_share_ratio=tuple(shares.tolist()))
    models = CostModels(lookup=Weighted(), collective=Priced(), dense=Given())
    work = rng.uniform(1e5, 1e6, (topology.world_size, NUM_COLUMNS))
    work[:, [call_column(kind, ComputeKernel.FUSED) for kind in EXCHANGING_TYPES]] = 1.0
    return StageModel(workload, topology, models), work, shares / shares.mean()


def vectors_by_hand(
    topology: Topology, kind: ShardingType, leaving: FloatArray, ratio: FloatArray
) -> list[list[float]]:
    """Growing seconds of the collectives that carry vectors; a rank gets its batch's part."""
    world = topology.world_size

    def sends(one: int, other: int) -> float:
        return float(leaving[one] * ratio[other])

    if kind is ShardingType.ROW_WISE:
        return [[b * world * EVERYWHERE for b in leaving.tolist()]]
    if kind not in TWO_STEPS:
        return [pair_by_pair_s(topology, sends)]
    inside = [b * world * INSIDE for b in leaving.tolist()]
    return [inside, pair_by_pair_s(topology, sends, lanes=True)]


SHAPES = [(1, 4, 1), (2, 2, 1), (4, 2, 2), (3, 4, 1)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", EXCHANGING_TYPES)
def test_ranks_exchange_in_proportion_to_their_batches(
    shape: tuple[int, int, int], kind: ShardingType
) -> None:
    """Vectors by the batch of the rank that gets them, indices by that of the one that sends."""
    model, work, ratio = drawn(shape, 7)
    topology, family = model.topology, EXCHANGING_TYPES.index(kind)
    arriving, leaving = work[:, INPUT + family], work[:, OUTPUT + family]
    indices = pair_by_pair_s(topology, lambda one, other: float(arriving[other] * ratio[one]))
    expected = vectors_by_hand(topology, kind, leaving, ratio)[: 2 if topology.num_hosts > 1 else 1]
    told = next(f for f in model.times(work, Scale()).families if f.name == kind.value)
    fixed_s = [EMPTY_S if label == "all-to-all" else 0.0 for label, _ in told.outputs_s]
    found = [float(seconds.squeeze()) for _, seconds in told.outputs_s]
    by_hand = [max(each) + fixed for each, fixed in zip(expected, fixed_s, strict=True)]
    assert found == pytest.approx(by_hand, rel=1e-9)
    # an exchange, and one of lengths before it that is taken to be empty
    assert float(told.input_s.squeeze()) == pytest.approx(max(indices) + 2 * EMPTY_S, rel=1e-9)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", EXCHANGING_TYPES)
def test_growing_parts_count_every_rank_with_the_smallest_batch(
    shape: tuple[int, int, int], kind: ShardingType
) -> None:
    model, work, ratio = drawn(shape, 11)
    topology, family = model.topology, EXCHANGING_TYPES.index(kind)
    least = np.ones(topology.world_size)
    arriving, leaving = (ratio.min() * work[:, at + family] for at in (INPUT, OUTPUT))
    first, *more = vectors_by_hand(topology, kind, leaving, least)
    second = more[0] if more and topology.num_hosts > 1 else [0.0] * topology.world_size
    indices = pair_by_pair_s(topology, lambda one, other: float(arriving[other]))
    found = model.exchanges.growth(work, family)
    for seconds, by_hand in zip(found, (first, second, indices), strict=True):
        assert seconds.tolist() == pytest.approx(by_hand, rel=1e-9)
