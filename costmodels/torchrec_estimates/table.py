"""What TorchRec's estimators read of a table."""

from __future__ import annotations

from dataclasses import dataclass

from costmodels.workload import Optimizer, Pipeline, Pooling, Table, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchrecTable:
    """A table and its inputs on one rank.

    ``num_ids`` indices and ``num_outputs`` vectors enter and leave on each rank per batch. Wire
    bytes are those of one element in the all-to-alls (of outputs, of gradients) and in the
    collectives that sum row blocks; ``output_bytes`` those of one element of the output.
    ``optimizer_ratio`` is the optimizer's bytes per byte of weights. ``num_cache_fetches`` are rows
    fetched per batch, all ranks together, for TorchRec's prefetch time; None without cache
    statistics.
    """

    num_embeddings: int
    embedding_dim: int
    element_bytes: int
    num_ids: float
    num_outputs: float
    is_pooled: bool = True
    is_weighted: bool = False
    all_to_all_bytes: tuple[float, float] = (4.0, 4.0)
    row_sum_bytes: tuple[float, float] = (4.0, 4.0)
    output_bytes: float = 4.0
    optimizer_ratio: float = 0.0
    prefetches: bool = False
    num_cache_fetches: float | None = None

    @staticmethod
    def of(table: Table, workload: Workload) -> TorchrecTable:
        """A table of a workload as its user would describe it to TorchRec.

        Elements travel in the table's type, or in the outputs' and the gradients' where a codec
        makes those narrower.
        """
        batch, element = workload.local_batch_size, table.dtype.num_bytes
        lengths = [f.pooling_factor for f in table.features]
        pooled = table.pooling is not Pooling.NONE
        wire = (
            float(min(element, workload.output_dtype.num_bytes)),
            float(min(element, workload.gradient_dtype.num_bytes)),
        )
        plain = (float(element), float(element))
        return TorchrecTable(
            num_embeddings=table.num_embeddings,
            embedding_dim=table.embedding_dim,
            element_bytes=element,
            num_ids=sum(x * batch for x in lengths),
            num_outputs=sum((min(1.0, x) if pooled else x) * batch for x in lengths),
            is_pooled=pooled,
            is_weighted=table.is_weighted,
            all_to_all_bytes=wire,
            row_sum_bytes=wire if pooled else plain,
            output_bytes=float(element),
            optimizer_ratio=_optimizer_ratio(workload.optimizer, table.embedding_dim),
            prefetches=workload.pipeline is Pipeline.PREFETCH_SPARSE_DIST,
        )


def _optimizer_ratio(optimizer: Optimizer, embedding_dim: int) -> float:
    """``_get_optimizer_multipler``: what TorchRec does not know by name counts as one copy."""
    return {
        Optimizer.NONE: 0.0,
        Optimizer.SGD: 0.0,
        Optimizer.ROWWISE_ADAGRAD: 1.0 / embedding_dim,
        Optimizer.ADAM: 2.0,
    }.get(optimizer, 1.0)
