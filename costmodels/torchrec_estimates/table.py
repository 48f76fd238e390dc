"""A table and its inputs as TorchRec's estimators see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np

from costmodels.torchrec_estimates.elementwise import Flags, Values
from costmodels.training.communication import Codecs
from costmodels.workload import Optimizer, Pipeline, Pooling, Table, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchrecTable:
    """A table and its inputs on one rank.

    Fields may be arrays with one element for each table (:meth:`stacked`).

    Attributes:
        num_embeddings: rows of the table.
        embedding_dim: columns of the table.
        element_bytes: bytes of an element of the table.
        num_ids: indices that a rank looks up per batch.
        num_outputs: vectors that a rank gets per batch.
        is_pooled: whether vectors are pooled.
        is_weighted: whether indices have weights.
        all_to_all_bytes: bytes of an element in the all-to-all of outputs, and in that of
            gradients.
        row_sum_bytes: the same in the collectives that add up the outputs of row blocks.
        output_bytes: bytes of an element of the output in memory.
        optimizer_ratio: bytes of the optimizer's state per byte of weights.
        prefetches: whether caches are filled ahead by a prefetching pipeline.
        num_cache_fetches: rows that all ranks together fetch into caches per batch; None without
            cache statistics.
    """

    num_embeddings: Values
    embedding_dim: Values
    element_bytes: Values
    num_ids: Values
    num_outputs: Values
    is_pooled: Flags = True
    is_weighted: Flags = False
    all_to_all_bytes: tuple[Values, Values] = (4.0, 4.0)
    row_sum_bytes: tuple[Values, Values] = (4.0, 4.0)
    output_bytes: Values = 4.0
    optimizer_ratio: Values = 0.0
    prefetches: Flags = False
    num_cache_fetches: Values | None = None

    @staticmethod
    def of(table: Table, workload: Workload) -> TorchrecTable:
        """A table of a workload as its user would describe it to TorchRec.

        Elements travel in the types that ``communication`` of the table names. They are counted as
        TorchRec does (``extract_comm_data_type_size``), without the scales of rows. If it names no
        types, vectors and their gradients travel in the type of the table, or in that of the
        outputs if this is narrower.
        """
        batch, element = workload.local_batch_size, table.dtype.num_bytes
        lengths = [f.pooling_factor for f in table.features]
        pooled = table.pooling is not Pooling.NONE
        plain = (float(element), float(element))
        narrow = (float(min(element, workload.output_dtype.num_bytes)),) * 2
        exchanged, summed = narrow, narrow if pooled else plain
        codecs = table.communication
        if codecs is not None:
            exchanged = _sizes(codecs.all_to_all if pooled else codecs.sequence, plain)
            summed = _sizes(codecs.reduce_scatter if pooled else None, plain)
        return TorchrecTable(
            num_embeddings=table.num_embeddings,
            embedding_dim=table.embedding_dim,
            element_bytes=element,
            num_ids=sum(x * batch for x in lengths),
            num_outputs=sum((min(1.0, x) if pooled else x) * batch for x in lengths),
            is_pooled=pooled,
            is_weighted=table.is_weighted,
            all_to_all_bytes=exchanged,
            row_sum_bytes=summed,
            output_bytes=float(element),
            optimizer_ratio=_optimizer_ratio(workload.optimizer_of(table), table.embedding_dim),
            prefetches=workload.pipeline is Pipeline.PREFETCH_SPARSE_DIST,
        )

    @staticmethod
    def stacked(tables: Sequence[TorchrecTable]) -> TorchrecTable:
        """Many tables of one workload in one object, whose fields are arrays ``[n]``.

        Args:
            tables: the tables, without cache statistics; at least one.
        """
        changed: dict[str, Any] = {
            name: np.array([getattr(t, name) for t in tables], dtype=np.float64) for name in _FLOATS
        }
        changed |= {name: np.array([getattr(t, name) for t in tables]) for name in _FLAGS}
        for name in _PAIRS:
            changed[name] = tuple(np.array([getattr(t, name) for t in tables]).T)
        return replace(tables[0], **changed)

    def take(self, indices: Sequence[int]) -> TorchrecTable:
        """The stacked tables with these indices, in this order; an index may be repeated."""
        where = np.asarray(indices)
        changed = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                changed[field.name] = value[where]
            elif isinstance(value, tuple):
                changed[field.name] = tuple(np.asarray(v)[where] for v in value)
        return replace(self, **changed)


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchrecInputs:
    """The inputs of a table on one rank, if its user tells TorchRec others than the model has.

    For example, the user may give one pooling factor for a table with two features; to TorchRec's
    planner the table then has one feature. Its planner also counts the state of an optimizer that
    it finds on the parameter, by its class. The fields are those of :class:`TorchrecTable`.
    """

    num_ids: float
    num_outputs: float
    is_weighted: bool
    prefetches: bool
    optimizer_ratio: float

    def read(self, table: TorchrecTable) -> TorchrecTable:
        """The table with these inputs."""
        return replace(
            table,
            num_ids=self.num_ids,
            num_outputs=self.num_outputs,
            is_weighted=self.is_weighted,
            prefetches=self.prefetches,
            optimizer_ratio=self.optimizer_ratio,
        )


_FLOATS: Final = (
    *("num_embeddings", "embedding_dim", "element_bytes", "num_ids", "num_outputs"),
    *("output_bytes", "optimizer_ratio"),
)
"""The fields that are stacked as floats."""
_FLAGS: Final = ("is_pooled", "is_weighted", "prefetches")
"""The fields that are stacked as bools."""
_PAIRS: Final = ("all_to_all_bytes", "row_sum_bytes")
"""The fields that are stacked as pairs of floats."""


def _sizes(codecs: Codecs | None, plain: tuple[float, float]) -> tuple[float, float]:
    """Bytes per element forward and backward; ``plain`` without a codec."""
    if codecs is None:
        return plain
    return codecs.forward.torchrec_bytes, codecs.backward.torchrec_bytes


def _optimizer_ratio(optimizer: Optimizer, embedding_dim: int) -> float:
    """Bytes of state per byte of weights (``_get_optimizer_multipler``).

    An optimizer that TorchRec does not know by name has as many bytes of state as of weights.
    """
    return {
        Optimizer.NONE: 0.0,
        Optimizer.SGD: 0.0,
        Optimizer.ROWWISE_ADAGRAD: 1.0 / embedding_dim,
        Optimizer.ADAM: 2.0,
    }.get(optimizer, 1.0)
