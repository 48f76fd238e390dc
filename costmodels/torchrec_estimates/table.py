"""What TorchRec's estimators read of a table."""

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

    ``num_ids`` indices and ``num_outputs`` vectors enter and leave on each rank per batch. Wire
    bytes are those of one element in the all-to-alls (of outputs, of gradients) and in the
    collectives that sum row blocks; ``output_bytes`` those of one element of the output.
    ``optimizer_ratio`` is the optimizer's bytes per byte of weights. ``num_cache_fetches`` are rows
    fetched per batch, all ranks together, for TorchRec's prefetch time; None without cache
    statistics. Fields may be arrays, one element per table; see :meth:`stacked`.
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

        Elements travel in the types that the table's communication names, as TorchRec counts them
        (``extract_comm_data_type_size``): without the scales of rows. Where
        nothing is said of it they travel in the table's type, or in the outputs' and the gradients'
        if those are narrower.
        """
        batch, element = workload.local_batch_size, table.dtype.num_bytes
        lengths = [f.pooling_factor for f in table.features]
        pooled = table.pooling is not Pooling.NONE
        plain = (float(element), float(element))
        narrow = (
            float(min(element, workload.output_dtype.num_bytes)),
            float(min(element, workload.gradient_dtype.num_bytes)),
        )
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
            optimizer_ratio=_optimizer_ratio(workload.optimizer, table.embedding_dim),
            prefetches=workload.pipeline is Pipeline.PREFETCH_SPARSE_DIST,
        )

    @staticmethod
    def stacked(tables: Sequence[TorchrecTable]) -> TorchrecTable:
        """Many tables of one workload, without cache statistics, as arrays ``[n]``."""
        changed: dict[str, Any] = {
            name: np.array([getattr(t, name) for t in tables], dtype=np.float64) for name in _FLOATS
        }
        changed |= {name: np.array([getattr(t, name) for t in tables]) for name in _FLAGS}
        for name in _PAIRS:
            changed[name] = tuple(np.array([getattr(t, name) for t in tables]).T)
        return replace(tables[0], **changed)

    def take(self, indices: Sequence[int]) -> TorchrecTable:
        """Some of stacked tables, in that order and as often."""
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
    """What TorchRec takes for the inputs of a table on one rank; names as in TorchrecTable.

    Its user may tell it something else than the model does, such as one pooling factor for a table
    of two features, which is then one feature to its planner.
    """

    num_ids: float
    num_outputs: float
    is_weighted: bool
    prefetches: bool

    def read(self, table: TorchrecTable) -> TorchrecTable:
        """The table with these inputs."""
        return replace(
            table,
            num_ids=self.num_ids,
            num_outputs=self.num_outputs,
            is_weighted=self.is_weighted,
            prefetches=self.prefetches,
        )


_FLOATS: Final = (
    *("num_embeddings", "embedding_dim", "element_bytes", "num_ids", "num_outputs"),
    *("output_bytes", "optimizer_ratio"),
)
_FLAGS: Final = ("is_pooled", "is_weighted", "prefetches")
_PAIRS: Final = ("all_to_all_bytes", "row_sum_bytes")


def _sizes(codecs: Codecs | None, plain: tuple[float, float]) -> tuple[float, float]:
    """Bytes per element forward and backward; the table's without a codec."""
    if codecs is None:
        return plain
    return codecs.forward.torchrec_bytes, codecs.backward.torchrec_bytes


def _optimizer_ratio(optimizer: Optimizer, embedding_dim: int) -> float:
    """``_get_optimizer_multipler``: what TorchRec does not know by name counts as one copy."""
    return {
        Optimizer.NONE: 0.0,
        Optimizer.SGD: 0.0,
        Optimizer.ROWWISE_ADAGRAD: 1.0 / embedding_dim,
        Optimizer.ADAM: 2.0,
    }.get(optimizer, 1.0)
