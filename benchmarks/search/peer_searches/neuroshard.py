"""NeuroShard's beam and grid search, run from a checkout of its repository, with our prices.

The checkout's ``NeurSharder`` searches; what it is given is

- as model of compute: the seconds of forward and backward lookups of the pieces on one rank;
- as final cost of a sharding: the price of the whole plan, on the full objective;
- as sizes of tables and the limit of a device: our bytes, which also count optimizer and buffers.

Beam width, candidates, depth and grid are the repository's defaults. Where that ends before its
time is up, it begins again with all four twice as large. Pieces of unequal width may share a rank,
which TorchRec cannot run; that is in its favour.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.search.peer_searches.tasks import Best
from costmodels.datatypes import FloatArray
from costmodels.sharding import ComputeKernel, Plan, ShardingOption, ShardingType, place
from planner.objectives import objective_named
from planner.space.evaluation import FITTING, SearchSpace

_GIB: Final = float(2**30)
_MS: Final = 1e3
Piece = tuple[int, int]
"""Table, and width of some of its columns."""


class Pricing:
    """What pieces cost together; work adds up, so each piece is counted once."""

    def __init__(self, space: SearchSpace, best: Best) -> None:
        """Nothing is counted yet."""
        self.space, self.best = space, best
        self._objective = objective_named("iteration", space)
        self._rows: dict[Piece, FloatArray] = {}

    def row(self, piece: Piece) -> FloatArray:
        """``[F]`` work of one piece on its rank."""
        if piece not in self._rows:
            t, width = piece
            table = self.space.problem.workload.tables[t]
            widths = (width, table.embedding_dim - width)[: 1 + (width < table.embedding_dim)]
            option = self._option(t, widths)
            self._rows[piece] = self.space.pipeline.options_work((option,))[0].full[0]
        return self._rows[piece]

    def _option(self, table: int, widths: tuple[int, ...]) -> ShardingOption:
        return ShardingOption(
            table=self.space.problem.workload.tables[table].name,
            sharding_type=ShardingType.COLUMN_WISE,
            kernel=ComputeKernel.FUSED,
            column_widths=widths,
        )

    def lookup_ms(self, pieces: Sequence[Piece]) -> float:
        """Forward and backward lookup of the pieces of one rank."""
        self.best.check()
        work = np.zeros((self.space.world_size, self.space.pipeline.num_features))
        work[0] = np.sum([self.row(p) for p in pieces], axis=0)
        forward, backward = self.space.pipeline.lookup_times(work)
        return float(forward[0] + backward[0]) * _MS

    def device_gib(self, piece: Piece) -> float:
        """Device memory of a piece."""
        return float(self.row(piece) @ self.space.device) / _GIB

    @property
    def limit_gib(self) -> float:
        """What one device has room for."""
        return float(self.space.pipeline.device_limits.min()) / _GIB * FITTING

    def work(self, shards: Sequence[Sequence[Piece]]) -> FloatArray:
        """``[W, F]`` work of the pieces of every rank."""
        total = np.zeros((self.space.world_size, self.space.pipeline.num_features))
        for rank, pieces in enumerate(shards):
            for piece in pieces:
                total[rank] += self.row(piece)
        return total

    def plan_ms(self, shards: Sequence[Sequence[Piece]]) -> float:
        """The whole plan on the full objective, infinite where it does not fit; kept if best."""
        self.best.check()
        work = self.work(shards)
        fits = float(self.space.overflow_ratio(work)) <= 0
        value = float(self._objective.values(work)) if fits else np.inf
        kept = [list(pieces) for pieces in shards]
        self.best.offer(value, lambda: self.plan(kept))
        return value * _MS

    def plan(self, shards: Sequence[Sequence[Piece]]) -> Plan:
        """The plan with these pieces on the ranks."""
        own: dict[int, list[tuple[int, int]]] = {}
        for rank, pieces in enumerate(shards):
            for table, width in pieces:
                own.setdefault(table, []).append((width, rank))
        cut = any(len(pieces) > 1 for pieces in own.values())
        placements = []
        for t, table in enumerate(self.space.problem.workload.tables):
            widths, ranks = zip(*sorted(own[t], reverse=True), strict=True)
            placements.append(
                place(
                    self._option(t, widths) if cut else self._whole(t),
                    table.num_embeddings,
                    ranks,
                    world_size=self.space.world_size,
                    local_world_size=self.space.local_world_size,
                )
            )
        return Plan(placements=tuple(placements))

    def _whole(self, table: int) -> ShardingOption:
        item = self.space.problem.workload.tables[table]
        return ShardingOption(
            table=item.name,
            sharding_type=ShardingType.TABLE_WISE,
            kernel=ComputeKernel.FUSED,
            column_widths=(item.embedding_dim,),
        )


class _ComputeModel:
    """Stands where NeuroShard has its network for compute."""

    def __init__(self, pricing: Pricing) -> None:
        self._pricing = pricing

    def predict(self, shards: Sequence[Sequence[int]], features: Any) -> FloatArray:
        """Milliseconds of each shard; ``features`` has a piece's width and table in a row."""
        return np.array([self._pricing.lookup_ms(self._pieces(s, features)) for s in shards])

    @staticmethod
    def _pieces(shard: Sequence[int], features: Any) -> list[Piece]:
        return [(int(table), int(width)) for width, _, table in features[list(shard)].tolist()]


def sharder_of(checkout: Path) -> type:
    """The class that searches, imported from a checkout.

    Raises:
        ImportError: the folder is no checkout of NeuroShard.
    """
    sys.path.insert(0, str(checkout))
    return importlib.import_module("neuroshard.neurosharder").NeurSharder  # type: ignore[no-any-return]


def neuroshard(base: type, space: SearchSpace, best: Best) -> None:
    """Search until the time is up.

    Raises:
        TimeIsUp: when it is.
    """
    pricing = Pricing(space, best)

    class Sharder(base):  # type: ignore[misc, valid-type]
        """Its search over our prices."""

        def _pieces(self, indices: Sequence[int]) -> list[Piece]:
            configs = self._table_configs
            return [(configs[i]["table"], configs[i]["dim"]) for i in indices]

        def _tables_size(self, indices: Sequence[int]) -> float:
            return sum(pricing.device_gib(piece) for piece in self._pieces(indices))

        def get_final_cost(self, shards: Sequence[Sequence[int]]) -> float:
            return pricing.plan_ms([self._pieces(shard) for shard in shards])

    configs = [
        {"table": t, "dim": table.embedding_dim, "row": table.num_embeddings}
        for t, table in enumerate(space.problem.workload.tables)
    ]
    factor = 1
    while True:
        best.check()
        sharder = Sharder(
            _ComputeModel(pricing), None, None, configs, space.world_size, pricing.limit_gib
        )
        sharder.shard(
            k=3 * factor, n=10 * factor, max_length=10 * factor, search_steps=10 * factor + 1
        )
        factor *= 2
