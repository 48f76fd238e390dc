"""Times TorchRec's exchanges of indices and pooled vectors, with the copies around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from fbgemm_gpu.permute_pooled_embedding_modules_split import PermutePooledEmbeddingsSplit
from torchrec.distributed.embedding_sharding import EmbeddingShardingContext
from torchrec.distributed.sharding.rw_sharding import RwPooledEmbeddingDist, RwSparseFeaturesDist
from torchrec.distributed.sharding.tw_sharding import TwPooledEmbeddingDist, TwSparseFeaturesDist
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from costmodels.calibration.points import ExchangePoint, FamilyPoint
from planner.integrations.microbench_clock import other_work, quiet_seconds
from planner.integrations.synthetic_indices import bag_lengths
from planner.integrations.virtual_clock import CollectiveLog, collective_log

_WARM_UP = 2
_ROWS = 1_000_000


class Family:
    """TorchRec's modules for one sharding type on one rank."""

    def __init__(self, case: FamilyPoint, rank: int, rng: np.random.Generator) -> None:
        """Build them for the features of the case."""
        group, device = dist.group.WORLD, torch.device("cpu")
        columns = [width for widths in case.widths for width in widths]
        self.num_features = len(columns)
        if case.sharding_type == "row_wise":
            self.input: Any = RwSparseFeaturesDist(
                group, len(columns), [_ROWS] * len(columns), device=device
            )
            self.output: Any = RwPooledEmbeddingDist(group, columns)
            self.produced = sum(columns)
            return
        callbacks = None
        if case.sharding_type == "column_wise":
            order = [int(i) for i in rng.permutation(len(columns))]
            callbacks = [PermutePooledEmbeddingsSplit(columns, order)]
        self.input = TwSparseFeaturesDist(group, [len(w) for w in case.widths])
        self.output = TwPooledEmbeddingDist(
            group,
            [sum(w) for w in case.widths],
            [list(w) for w in case.widths],
            device=device,
            callbacks=callbacks,
        )
        self.produced = sum(case.widths[rank])


class Exchange:
    """Index exchange, output exchange and gradient exchange, as a sharded module orders them."""

    def __init__(
        self, case: ExchangePoint, rank: int, rng: np.random.Generator, log: CollectiveLog
    ) -> None:
        """Build every sharding type and two batches."""
        self._log = log
        self._batch = case.local_batch_size
        self._world = dist.get_world_size()
        self._families = [Family(f, rank, rng) for f in case.families]
        self._names = [f"f{i}" for i in range(sum(f.num_features for f in self._families))]
        self._order = [int(i) for i in rng.permutation(len(self._names))]
        self._order_tensor = torch.tensor(self._order, dtype=torch.int32)
        self._batches = [self._indices(case, rng) for _ in range(2)]
        vectors = 4.0 * self._batch * sum(sum(w) for f in case.families for w in f.widths)
        indices = 8.0 * float(self._batches[0][0].numel())
        self._between = other_work(vectors + indices, torch.device("cpu"))

    def _indices(
        self, case: ExchangePoint, rng: np.random.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        lengths = [bag_lengths(case.pooling_factor, self._batch, rng) for _ in self._names]
        count = int(sum(x.sum() for x in lengths))
        values = torch.from_numpy(rng.integers(0, _ROWS, count))
        return values, torch.from_numpy(np.concatenate(lengths).astype(np.int32))

    def run(self, i: int) -> tuple[tuple[float, float], ...]:
        """(Own, network) seconds of index exchange, output exchange and gradient exchange."""
        values, lengths = self._batches[i % 2]
        features = KeyedJaggedTensor(keys=self._names, values=values, lengths=lengths)
        self._between += 1.0
        input_s, _ = self._timed(lambda: self._exchange_indices(features))
        self._between += 1.0
        rows = self._batch * self._world
        produced = [torch.full((rows, f.produced), 0.5, requires_grad=True) for f in self._families]
        output_s, received = self._timed(lambda: self._exchange_vectors(produced))
        self._between += 1.0
        gradient = torch.full(tuple(received.shape), 0.5)
        gradient_s, _ = self._timed(lambda: received.backward(gradient))
        return input_s, output_s, gradient_s

    def _timed(self, action: Callable[[], Any]) -> tuple[tuple[float, float], Any]:
        self._log.begin()
        result = action()
        return (self._log.now(), self._log.network()), result

    def _exchange_indices(self, features: KeyedJaggedTensor) -> list[torch.Tensor]:
        with torch.no_grad():
            ordered = features.permute(self._order, self._order_tensor)
            parts = ordered.split([f.num_features for f in self._families])
            asked = [f.input(part) for f, part in zip(self._families, parts, strict=True)]
            moving = [first.wait() for first in asked]
            return [second.wait().offsets() for second in moving]

    def _exchange_vectors(self, produced: Sequence[torch.Tensor]) -> torch.Tensor:
        moving = []
        for family, vectors in zip(self._families, produced, strict=True):
            context = EmbeddingShardingContext(batch_size_per_rank=[self._batch] * self._world)
            moving.append(family.output(vectors, context))
        arrived = [m.wait() for m in moving]
        return arrived[0] if len(arrived) == 1 else torch.cat(arrived, dim=1)


def measure_exchanges(
    cases: Sequence[ExchangePoint], rank: int, *, repeats: int, seed: int
) -> list[ExchangePoint]:
    """Medians over ``repeats`` rounds in which all cases take turns; this rank's times."""
    rng = np.random.default_rng(seed)
    log = collective_log()
    exchanges = [Exchange(case, rank, rng, log) for case in cases]
    times = np.zeros((len(cases), repeats + _WARM_UP, 3, 2))
    for i in range(repeats + _WARM_UP):
        for k, exchange in enumerate(exchanges):
            times[k, i] = exchange.run(i)
    quiet = quiet_seconds(times[:, _WARM_UP:])
    return [
        replace(case, input_s=float(q[0]), output_s=float(q[1]), gradient_s=float(q[2]))
        for case, q in zip(cases, quiet, strict=True)
    ]
